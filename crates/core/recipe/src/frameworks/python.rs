//! Plain Python: a WSGI callable if there is one, else a script that is its own server. A project
//! without listed packages and with a script needs no virtual environment and starts at once.

use std::collections::BTreeMap;

use model::Recipe;

use super::python_code::{self, Callable};
use super::venv::{self, Prepared};
use super::{Framework, RecipeError, shell_word, web_only};
use crate::procfile::PROCFILE;
use crate::source::SourceTree;

/// Scripts that are started, the likeliest first.
const SCRIPTS: &[&str] =
    &["main.py", "app.py", "start.py", "server.py", "web.py", "bot.py", "hello.py", "run.py"];

pub struct Python;

impl Framework for Python {
    fn name(&self) -> &'static str {
        "python"
    }

    fn looks_for(&self) -> &'static str {
        "main.py, app.py, server.py or the only *.py in the root, or a module with a WSGI function"
    }

    fn detect(&self, tree: &SourceTree) -> Option<String> {
        let packages = venv::listed_in(tree);
        match (starts(tree), packages) {
            (Some(PythonStart::Callable(callable)), _) => {
                Some(format!("{} defines the WSGI function '{}'", callable.file, callable.name))
            }
            (Some(PythonStart::Script(script)), None) => {
                Some(format!("{script} is a Python program"))
            }
            (Some(PythonStart::Script(_)), Some(file)) => {
                Some(format!("{file} lists Python packages"))
            }
            // Another language's project may list tools for its documentation.
            (None, Some(_)) if has_other_start(tree) => None,
            (None, Some(file)) => Some(format!("{file} lists Python packages")),
            (None, None) => None,
        }
    }

    fn recipe(&self, tree: &SourceTree) -> Result<Recipe, RecipeError> {
        let mut notes = Vec::new();
        let mut venv = venv::listed_in(tree).is_some() || calls_python(tree);
        let mut served = false;
        let processes = match starts(tree) {
            Some(PythonStart::Callable(callable)) => {
                (venv, served) = (true, true);
                web_only(gunicorn(&callable), None)
            }
            Some(PythonStart::Script(script)) => {
                let concurrency = python_code::script_concurrency(tree, &script);
                if !tree.mentions(&script, "PORT") && !tree.exists(PROCFILE) {
                    notes.push(format!(
                        "{script} never reads $PORT; it must listen on the port that it names"
                    ));
                }
                let python = if venv { ".venv/bin/python" } else { "python3" };
                let command = format!("{python} {}", shell_word(&script));
                web_only(command, concurrency)
            }
            None if tree.exists(PROCFILE) => BTreeMap::new(),
            None => {
                return Err(RecipeError(format!(
                    "no file in it says how to start it: name the program {}, or add a Procfile \
                     with the line 'web: python3 FILE.py'",
                    SCRIPTS[..4].join(", ")
                )));
            }
        };
        let mut recipe = Recipe { processes, path: path(venv), notes, ..Recipe::default() };
        let prepared = match venv {
            true if served => venv::install_with_gunicorn(tree, &[])?,
            true => venv::install(tree, &[])?,
            false => Prepared { environment: environment(), ..Prepared::default() },
        };
        prepared.give(&mut recipe);
        Ok(recipe)
    }
}

/// Returns whether a Procfile calls `python`, which only a virtual environment is sure to have.
fn calls_python(tree: &SourceTree) -> bool {
    let text = tree.text(PROCFILE).unwrap_or_default();
    text.split_whitespace().any(|word| matches!(word, "python" | "pip"))
}

fn has_other_start(tree: &SourceTree) -> bool {
    ["package.json", "index.html", "Gemfile"].iter().any(|file| tree.exists(file))
}

enum PythonStart {
    Callable(Callable),
    Script(String),
}

/// Returns what starts the project. A script that starts a server itself, on the port it is told,
/// is left to do so.
fn starts(tree: &SourceTree) -> Option<PythonStart> {
    let script = script(tree);
    let serves = |script: &String| {
        let words = ["serve_forever", "__main__"];
        tree.mentions(script, "PORT") && words.iter().any(|word| tree.mentions(script, word))
    };
    if let Some(script) = script.clone().filter(serves) {
        return Some(PythonStart::Script(script));
    }
    match python_code::find_wsgi_function(tree) {
        Some(callable) => Some(PythonStart::Callable(callable)),
        None => script.map(PythonStart::Script),
    }
}

fn script(tree: &SourceTree) -> Option<String> {
    if let Some(likely) = SCRIPTS.iter().find(|script| tree.exists(script)) {
        return Some((*likely).into());
    }
    let mut root = tree
        .named("*.py")
        .map(|(path, _)| path)
        .filter(|path| !path.contains('/') && !matches!(*path, "setup.py" | "conftest.py"));
    let only = root.next()?;
    // One odd script beside a site or another language's project is a tool.
    (root.next().is_none() && !has_other_start(tree)).then(|| only.into())
}

/// Returns the variables for all Python frameworks: output appears as it is written.
pub fn environment() -> BTreeMap<String, String> {
    BTreeMap::from([("PYTHONUNBUFFERED".into(), "1".into())])
}

/// Returns the path for all Python frameworks: the environment's programs are found by their names.
pub fn path(venv: bool) -> Vec<String> {
    if venv { vec![venv::BIN.into()] } else { Vec::new() }
}

pub fn gunicorn(callable: &Callable) -> String {
    let directory = callable.directory.map(|d| format!(" --pythonpath {d}")).unwrap_or_default();
    let call = if callable.factory { "()" } else { "" };
    format!("{}{directory} '{}{call}'", venv::gunicorn(), callable.target())
}
