//! uv, Poetry, Pipenv and PDM: how each installs what its own files say into the environment inside
//! the release. One that is not on the machine comes from the registry, into an environment of its
//! own, so that it never has a say in what the application gets.

use std::collections::BTreeMap;

use model::release::Step;

use super::python_packages::{PIP_INSTALL, pyproject};
use super::{RecipeError, shell_word};
use crate::source::SourceTree;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    Uv,
    Poetry,
    Pdm,
    Pipenv,
}

impl Tool {
    /// Returns its name on the registry and as a command.
    pub fn name(self) -> &'static str {
        match self {
            Tool::Uv => "uv",
            Tool::Poetry => "poetry",
            Tool::Pdm => "pdm",
            Tool::Pipenv => "pipenv",
        }
    }

    pub fn lock(self) -> &'static str {
        match self {
            Tool::Uv => "uv.lock",
            Tool::Poetry => "poetry.lock",
            Tool::Pdm => "pdm.lock",
            Tool::Pipenv => "Pipfile.lock",
        }
    }

    /// Returns variables for what calls the tool later, as a Procfile may: it finds the
    /// environment, and leaves it as it was built.
    pub fn environment(self) -> BTreeMap<String, String> {
        let variables: &[(&str, &str)] = match self {
            Tool::Uv => &[("UV_NO_SYNC", "1"), ("UV_PYTHON_DOWNLOADS", "never")],
            Tool::Poetry => &[("POETRY_VIRTUALENVS_IN_PROJECT", "true")],
            Tool::Pdm => &[("PDM_CHECK_UPDATE", "false")],
            Tool::Pipenv => &[("PIPENV_VENV_IN_PROJECT", "1"), ("PIPENV_DONT_LOAD_ENV", "1")],
        };
        variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }
}

/// The list of packages in pip's format, as Poetry writes it.
const LIST: &str = ".venv/poetry.txt";

/// The program that prints Poetry's own reading of its dependencies, local ones and repositories
/// too.
const POETRY_LIST: &str = "from pathlib import Path\nfrom poetry.core.factory import Factory\n\
    for d in Factory().create_poetry(Path('.')).package.requires:\n\
    \x20   if not d.is_optional() and 'main' in d.groups: print(d.to_pep_508())";

/// The shell functions that make environments of tools, by name and version, in the application's
/// home. A version that does not run (another interpreter was installed) is made anew; `flock` is
/// there as two builds may want it at once.
const OWN: &str = "own() { t=\"$HOME/.cortex-tools/DIRECTORY\"; \
    if ! runs \"$t/bin/NAME\"; then echo \"Installing NAMEWHY\"; mkdir -p \"${t%/*}\"; \
    ( flock 9; runs \"$t/bin/NAME\" || { python3 -m venv --clear \"$t\" \
    && \"$t/bin/python\" -m pip install --disable-pip-version-check --no-input -q PACKAGE; } ) \
    9>\"$t.lock\" || return 1; fi; ln -sf \"$t/bin/NAME\" .venv/bin/NAME; }; \
    runs() { \"$1\" --version >/dev/null 2>&1; }; ";

pub fn steps(tree: &SourceTree, tool: Tool) -> Result<Vec<Step>, RecipeError> {
    let mut command = "export VIRTUAL_ENV=\"$PWD/.venv\"; ".to_owned();
    command.push_str(&match tool {
        Tool::Uv => uv(tree),
        Tool::Poetry => poetry(tree),
        Tool::Pdm => pdm(tree),
        Tool::Pipenv => pipenv(tree)?,
    });
    let name = tool.name();
    Ok(vec![
        Step { name: format!("Looking for {name}"), command: find(tree, tool) },
        Step { name: format!("Installing Python packages with {name}"), command },
    ])
}

/// Returns the command that leaves the tool in `PATH`: the machine's, or the one that the project's
/// files ask for.
fn find(tree: &SourceTree, tool: Tool) -> String {
    let name = tool.name();
    let choice = match asked_version(tree, tool) {
        None => format!("runs {name} || own"),
        // Another version is better than none where no registry can be reached.
        Some(_) => format!(
            "own || {{ runs {name} && echo 'It cannot be fetched: {name} of this machine is used.'; }}"
        ),
    };
    format!("{}{choice}", own(tree, tool))
}

/// Defines the shell's function `own`, which installs the tool unless that was done.
fn own(tree: &SourceTree, tool: Tool) -> String {
    let name = tool.name();
    let (package, why) = match asked_version(tree, tool) {
        Some((version, file)) => {
            (format!("{name}{version}"), format!(" {version}, as {file} asks"))
        }
        None => (name.to_owned(), String::new()),
    };
    let plain = |c: char| if c.is_ascii_alphanumeric() || ".-".contains(c) { c } else { '_' };
    let directory: String = package.chars().map(plain).collect();
    let mut packages = shell_word(&package);
    if tool == Tool::Poetry {
        packages.push_str(" poetry-plugin-export");
    }
    OWN.replace("DIRECTORY", &directory)
        .replace("PACKAGE", &packages)
        .replace("NAME", name)
        .replace("WHY", &why)
}

/// Returns a version that the project's own files name, as pip spells it, and the file.
fn asked_version(tree: &SourceTree, tool: Tool) -> Option<(String, &'static str)> {
    const SPECIFIERS: &[char] = &['=', '<', '>', '~', '!'];
    let plain = |text: &str| {
        text.chars().all(|c| c.is_ascii_alphanumeric() || ".,=<>~!* +-".contains(c))
            && text.len() < 100
    };
    match tool {
        Tool::Uv => {
            let table = pyproject(tree).ok()??;
            let wanted = table.get("tool")?.get("uv")?.get("required-version")?.as_str()?.trim();
            let exact = if wanted.starts_with(SPECIFIERS) { "" } else { "==" };
            plain(wanted).then(|| (format!("{exact}{wanted}"), super::python_packages::PYPROJECT))
        }
        // "# This file is automatically @generated by Poetry 1.8.3 and should not be …"
        Tool::Poetry => {
            let first = tree.text(tool.lock())?.lines().next()?;
            let version = first.split_once("by Poetry ")?.1.split_whitespace().next()?;
            let digits = version.starts_with(|c: char| c.is_ascii_digit()) && plain(version);
            digits.then(|| (format!("=={version}"), tool.lock()))
        }
        Tool::Pdm | Tool::Pipenv => None,
    }
}

/// Returns the command of uv. `--inexact` keeps pip, which adds the server.
fn uv(tree: &SourceTree) -> String {
    let locked = if tree.exists(Tool::Uv.lock()) { " --locked" } else { "" };
    let table = pyproject(tree).ok().flatten().unwrap_or_default();
    // The root of such a workspace has no packages of its own.
    let all = if table.get("project").is_none() { " --all-packages" } else { "" };
    let options = "--no-dev --inexact --no-progress --python .venv/bin/python";
    format!("uv sync{locked}{all} {options}")
}

/// Returns the command of Poetry. It asks PyPI by a way of its own, which not every mirror has: pip
/// then installs what Poetry itself says of its files. A lock that does not fit is refused by both.
/// If the project names registries, nothing but Poetry knows which package comes from which.
fn poetry(tree: &SourceTree) -> String {
    let package = is_package(tree);
    let root = if package { "" } else { " --no-root" };
    let install = format!("poetry install --only main{root} --no-interaction --no-ansi");
    if names_registries(tree) {
        return install;
    }
    let list = match tree.exists(Tool::Poetry.lock()) {
        true => format!("\"$t/bin/poetry\" export --only main --no-interaction -o {LIST}"),
        false => format!("\"$t/bin/python\" -c {} > {LIST}", shell_word(POETRY_LIST)),
    };
    let package = if package { format!(" && {PIP_INSTALL} --no-deps -e .") } else { String::new() };
    format!(
        "{}{install} || {{ own && {list} && echo 'Trying once more: pip installs what poetry lists.' \
         && {PIP_INSTALL} -r {LIST}{package}; }}",
        own(tree, Tool::Poetry)
    )
}

fn names_registries(tree: &SourceTree) -> bool {
    let table = pyproject(tree).ok().flatten().unwrap_or_default();
    let tools = table.get("tool");
    tools.and_then(|tools| tools.get("poetry")?.get("source")).is_some()
}

/// Returns whether the project is a package. Poetry refuses one whose package it does not find,
/// unless it says `package-mode = false`; many applications are no packages and do not say so.
fn is_package(tree: &SourceTree) -> bool {
    let table = pyproject(tree).ok().flatten().unwrap_or_default();
    let poetry = table.get("tool").and_then(|tools| tools.get("poetry"));
    let of = |key: &str| poetry.and_then(|poetry| poetry.get(key));
    if of("package-mode").and_then(|mode| mode.as_bool()) == Some(false) {
        return false;
    }
    if of("packages").is_some() {
        return true;
    }
    let project = table.get("project").and_then(|project| project.get("name"));
    let Some(name) = project.or_else(|| of("name")).and_then(|name| name.as_str()) else {
        return false;
    };
    let name = name.replace(['-', '.'], "_");
    let spellings = [name.to_lowercase(), name];
    spellings.iter().any(|name| {
        ["", "src/"].iter().any(|directory| {
            tree.exists(&format!("{directory}{name}.py"))
                || tree.has_directory(&format!("{directory}{name}"))
        })
    })
}

fn pdm(tree: &SourceTree) -> String {
    let locked = if tree.exists(Tool::Pdm.lock()) { " --check" } else { "" };
    format!("pdm install --prod{locked}")
}

/// Returns the command of Pipenv. `--deploy` refuses a lock that is older than the Pipfile.
fn pipenv(tree: &SourceTree) -> Result<String, RecipeError> {
    let text = tree.text("Pipfile").unwrap_or_default().trim_start_matches('\u{feff}');
    if let Err(error) = text.parse::<toml::Table>() {
        return Err(RecipeError(format!("Pipfile is not TOML: {}", error.message())));
    }
    let locked = if tree.exists(Tool::Pipenv.lock()) { " --deploy" } else { "" };
    Ok(format!("PIPENV_NOSPIN=1 PIPENV_YES=1 PIPENV_VERBOSITY=-1 pipenv install{locked}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PYPROJECT: &str = super::super::python_packages::PYPROJECT;

    fn check(tool: Tool, files: &[(&str, &str)], expected: &str) {
        let tree = SourceTree::from_pairs(files.iter().copied());
        let steps = steps(&tree, tool).unwrap();
        assert!(steps[1].command.ends_with(expected), "{files:?}: {}", steps[1].command);
        assert!(steps[1].command.contains("VIRTUAL_ENV=\"$PWD/.venv\""));
    }

    #[test]
    fn a_lock_is_kept_to() {
        let project = (PYPROJECT, "[project]\nname = \"x\"\n");
        check(
            Tool::Uv,
            &[project],
            "uv sync --no-dev --inexact --no-progress --python .venv/bin/python",
        );
        check(Tool::Pdm, &[project], "pdm install --prod");
        check(Tool::Pdm, &[project, ("pdm.lock", "")], "pdm install --prod --check");
        check(Tool::Pipenv, &[("Pipfile", "")], "pipenv install");
        check(Tool::Pipenv, &[("Pipfile", ""), ("Pipfile.lock", "{}")], "pipenv install --deploy");
        let workspace = (PYPROJECT, "[tool.uv.workspace]\nmembers = [\"a\"]\n");
        let tree = SourceTree::from_pairs([workspace, ("uv.lock", "")]);
        assert!(uv(&tree).starts_with("uv sync --locked --all-packages "));
        assert!(pipenv(&SourceTree::from_pairs([("Pipfile", "= 1")])).is_err());
    }

    #[test]
    fn poetry_installs_the_project_where_it_is_a_package() {
        let named = "[tool.poetry]\nname = \"my-shop\"\n";
        let check = |tool, files: &[(&str, &str)], (install, then): (&str, &str)| {
            let tree = SourceTree::from_pairs(files.iter().copied());
            let command = steps(&tree, tool).unwrap().pop().unwrap().command;
            assert!(command.contains(install) && command.ends_with(then), "{command}");
        };
        let none = ("main --no-root --no-interaction", "-r .venv/poetry.txt; }");
        let with = (
            "main --no-interaction",
            "&& .venv/bin/python -m pip install \
                     --disable-pip-version-check --no-input -q --no-deps -e .; }",
        );
        check(Tool::Poetry, &[(PYPROJECT, named)], none);
        check(Tool::Poetry, &[(PYPROJECT, named), ("src/my_shop/a.py", "")], with);
        check(Tool::Poetry, &[(PYPROJECT, named), ("my_shop.py", "")], with);
        let off = format!("{named}package-mode = false\n");
        check(Tool::Poetry, &[(PYPROJECT, &off), ("my_shop.py", "")], none);
        let listed = format!("{named}packages = [{{include = \"x\"}}]\n");
        check(Tool::Poetry, &[(PYPROJECT, &listed)], with);
        check(Tool::Poetry, &[(PYPROJECT, "[project]\nname = \"a\"\n"), ("a/b.py", "")], with);
    }

    #[test]
    fn only_poetry_knows_the_registries_of_its_files() {
        let file = "[tool.poetry]\n[[tool.poetry.source]]\nname = \"a\"\n";
        check(Tool::Poetry, &[(PYPROJECT, file)], "--no-interaction --no-ansi");
        let locked = [(PYPROJECT, "[tool.poetry]\n"), ("poetry.lock", "")];
        let command = poetry(&SourceTree::from_pairs(locked));
        assert!(command.contains("bin/poetry\" export --only main"), "{command}");
    }

    #[test]
    fn the_tools_version_is_what_the_files_ask() {
        let of =
            |tool, file, text: &str| asked_version(&SourceTree::from_pairs([(file, text)]), tool);
        let header = "# This file is automatically @generated by Poetry 1.8.3 and should not be\n";
        let poetry = of(Tool::Poetry, "poetry.lock", header);
        assert_eq!(poetry, Some(("==1.8.3".into(), "poetry.lock")));
        assert_eq!(of(Tool::Poetry, "poetry.lock", "# @generated by Poetry $(rm) x"), None);
        for (wanted, expected) in
            [(">=0.5,<1", Some(">=0.5,<1")), ("0.5.1", Some("==0.5.1")), ("a;b", None)]
        {
            let text = format!("[tool.uv]\nrequired-version = \"{wanted}\"\n");
            let found = of(Tool::Uv, PYPROJECT, &text).map(|(version, _)| version);
            assert_eq!(found.as_deref(), expected, "{wanted}");
        }
        let tree = SourceTree::from_pairs([("poetry.lock", header)]);
        let command = find(&tree, Tool::Poetry);
        assert!(command.contains(".cortex-tools/poetry__1.8.3\""), "{command}");
        assert!(command.contains("-q 'poetry==1.8.3' poetry-plugin-export;"), "{command}");
        assert!(find(&SourceTree::new(), Tool::Uv).ends_with("runs uv || own"));
    }
}
