//! The virtual environment inside a release of a Python project: made, filled by the tool that
//! installs what the project lists, and completed with the server that starts it. Used by the
//! Python frameworks.

use std::collections::BTreeMap;

use model::Recipe;
use model::release::Step;

use super::python_packages::{PIP_INSTALL, PackageSource};
use super::{RecipeError, shell_word};
use crate::source::SourceTree;

/// The directory of its programs, inside the release's.
pub const BIN: &str = ".venv/bin";

/// Threads of gunicorn. One request takes a thread; as many are enough for requests that wait for a
/// database.
const GUNICORN_THREADS: u32 = 8;
const GUNICORN_CONFIG: &str = ".venv/gunicorn_cortex.py";
/// The list of what the project's own files have installed, so that nothing added changes it.
const INSTALLED: &str = ".venv/installed.txt";

/// Makes the environment. One that came with the source has another directory's paths in it. What
/// `python3 -m venv` spends seconds on, unpacking and compiling pip, is kept for each interpreter;
/// without it, or without a place for it, everything is made anew.
const MAKE: &str = r#"rm -rf .venv && kept="$XDG_CACHE_HOME/cortex-venv/$(python3 -c 'import sys
from hashlib import sha256
print(sha256((sys.executable + sys.version).encode()).hexdigest())').tar"
if python3 -m venv --without-pip .venv && tar -C .venv -xf "$kept" 2>/dev/null; then
  printf '#!/bin/sh\nexec "${0%%/*}/python3" -m pip "$@"\n' >.venv/bin/pip
  chmod +x .venv/bin/pip && cp .venv/bin/pip .venv/bin/pip3
else
  python3 -m venv --clear .venv || exit
  { mkdir -p "${kept%/*}" && tar -C .venv -cf "$kept.$$" lib && mv "$kept.$$" "$kept"; } 2>/dev/null ||
    rm -f "$kept.$$"
fi"#;

/// The part of a recipe that comes from its environment.
#[derive(Debug, Default)]
pub struct Prepared {
    pub build: Vec<Step>,
    pub environment: BTreeMap<String, String>,
    pub notes: Vec<String>,
}

impl Prepared {
    /// Puts it before everything that the recipe has of its own.
    pub fn give(self, recipe: &mut Recipe) {
        recipe.build.splice(0..0, self.build);
        recipe.environment.extend(self.environment);
        recipe.notes.extend(self.notes);
    }
}

/// Returns the file that lists the packages, if any does.
pub fn listed_in(tree: &SourceTree) -> Option<&'static str> {
    PackageSource::of(tree).map(|source| source.file())
}

/// Returns whether the project itself is installed with its packages, if it is a package.
pub fn installs_project(tree: &SourceTree) -> bool {
    PackageSource::of(tree).is_some_and(|source| source.installs_project())
}

/// Makes the environment and installs what is listed, and those of `extra` that did not come with
/// it.
pub fn install(tree: &SourceTree, extra: &[&str]) -> Result<Prepared, RecipeError> {
    let source = PackageSource::of(tree);
    let mut build =
        vec![Step { name: "Making a virtual environment".into(), command: MAKE.into() }];
    let mut environment = super::python::environment();
    let mut notes = Vec::new();
    if let Some(source) = &source {
        build.extend(source.steps(tree)?);
        notes = source.notes(tree);
        if let PackageSource::Tool(tool) = source {
            environment.extend(tool.environment());
        }
    }
    if !extra.is_empty() {
        build.push(complete(extra, source.is_some()));
    }
    Ok(Prepared { build, environment, notes })
}

/// Returns the step that adds packages. It is a command of its own: one with hashes in its file
/// takes nothing without. What was installed before is held to its version, or the addition
/// refused.
fn complete(extra: &[&str], listed: bool) -> Step {
    let look = "import sys; from importlib.metadata import version; version(sys.argv[1])";
    let mut command = format!("has() {{ {BIN}/python -c '{look}' \"$1\" 2>/dev/null; }}; ");
    for entry in extra {
        let end = entry.find(|c: char| !c.is_ascii_alphanumeric() && !"._-".contains(c));
        let name = &entry[..end.unwrap_or(entry.len())];
        command.push_str(&format!("has {name} || set -- \"$@\" {}; ", shell_word(entry)));
    }
    let (list, held) = match listed {
        true => (
            format!(
                "{BIN}/python -m pip list --disable-pip-version-check --format=freeze \
                 --exclude-editable > {INSTALLED} && "
            ),
            format!(" -c {INSTALLED}"),
        ),
        false => (String::new(), String::new()),
    };
    command.push_str(&format!("[ $# = 0 ] || {{ {list}{PIP_INSTALL}{held} \"$@\"; }}"));
    Step { name: format!("Adding {} where it is missing", extra.join(", ")), command }
}

/// Returns how gunicorn is called, without what it shall serve. It uses threads rather than
/// workers: one process per instance, so that its memory can be told apart. The application is
/// loaded before the port is bound: a broken one never looks ready.
pub fn gunicorn() -> String {
    format!(
        "{BIN}/gunicorn --preload --config {GUNICORN_CONFIG} --bind \"$HOST:$PORT\" --threads {GUNICORN_THREADS}"
    )
}

/// Does what `install` does, with gunicorn and its configuration. Newer versions open a control
/// socket in the home directory, which the instances of an application share; older ones refuse an
/// option that says no but ignore the same in a file. The project's own configuration stays in
/// force.
pub fn install_with_gunicorn(tree: &SourceTree, extra: &[&str]) -> Result<Prepared, RecipeError> {
    let mut prepared = install(tree, &[extra, &["gunicorn"]].concat())?;
    let lines = [
        "import os",
        "if os.path.exists(\"gunicorn.conf.py\"):",
        "    exec(open(\"gunicorn.conf.py\").read())",
        "control_socket_disable = True",
    ];
    let quoted: Vec<String> = lines.iter().map(|line| shell_word(line)).collect();
    prepared.build.push(Step {
        name: "Configuring gunicorn".into(),
        command: format!("printf '%s\\n' {} > {GUNICORN_CONFIG}", quoted.join(" ")),
    });
    Ok(prepared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cortex_adds_never_shares_a_command_with_the_projects_own() {
        let tree = SourceTree::from_pairs([("requirements.txt", "a==1 --hash=sha256:00\n")]);
        let build = install(&tree, &["Django~=5.2", "gunicorn"]).unwrap().build;
        let [_, own, added] = &build[..] else { panic!("{build:?}") };
        assert!(own.command.ends_with("-r requirements.txt"), "{}", own.command);
        assert!(added.command.contains("has Django || set -- \"$@\" 'Django~=5.2';"));
        assert!(added.command.contains("has gunicorn || set -- \"$@\" gunicorn;"));
        assert!(added.command.ends_with("-q -c .venv/installed.txt \"$@\"; }"));
    }

    #[test]
    fn a_project_without_a_list_gets_what_its_framework_needs() {
        let build = install(&SourceTree::new(), &["flask"]).unwrap().build;
        assert_eq!(build.len(), 2);
        assert!(build[1].command.ends_with("-q \"$@\"; }"), "{}", build[1].command);
        assert_eq!(install(&SourceTree::new(), &[]).unwrap().build.len(), 1);
    }
}
