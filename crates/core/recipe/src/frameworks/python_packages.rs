//! The tool that installs a Python project's packages. The files are handed to the tool that they
//! are written for and never translated: a local directory turned into a bare name would fetch
//! whatever carries that name on the registry.

use model::release::Step;

use super::python_tools::{self, Tool};
use super::{RecipeError, shell_word};
use crate::source::SourceTree;

pub const PYPROJECT: &str = "pyproject.toml";
const PIPFILE: &str = "Pipfile";

/// Files in pip's own format, the strongest first.
const REQUIREMENTS: &[&str] = &[
    "requirements.txt",
    "requirements/production.txt",
    "requirements/prod.txt",
    "requirements/base.txt",
    "requirements-prod.txt",
];

/// The command of the pip in the environment inside the release.
pub const PIP_INSTALL: &str =
    ".venv/bin/python -m pip install --disable-pip-version-check --no-input -q";

/// What lists the packages, and so which tool installs them.
#[derive(Clone, Debug, PartialEq)]
pub enum PackageSource {
    Requirements(&'static str),
    /// pyproject.toml or a lock beside it, in the format of this tool.
    Tool(Tool),
    /// A package that pip builds: the file that says so.
    Project(&'static str),
    /// A list without a way to build a package.
    List,
    /// pyproject.toml is no TOML.
    Unreadable(String),
}

impl PackageSource {
    pub fn of(tree: &SourceTree) -> Option<PackageSource> {
        if let Some(file) = REQUIREMENTS.iter().find(|file| tree.exists(file)) {
            return Some(PackageSource::Requirements(file));
        }
        if tree.exists(PYPROJECT) {
            let locked = [Tool::Uv, Tool::Poetry, Tool::Pdm].into_iter();
            if let Some(tool) = locked.into_iter().find(|tool| tree.exists(tool.lock())) {
                return Some(PackageSource::Tool(tool));
            }
        }
        if tree.exists(PIPFILE) {
            return Some(PackageSource::Tool(Tool::Pipenv));
        }
        match pyproject(tree) {
            Err(why) => return Some(PackageSource::Unreadable(why)),
            Ok(Some(table)) => {
                if let Some(source) = of_table(tree, &table) {
                    return Some(source);
                }
            }
            Ok(None) => {}
        }
        // setup.cfg alone is often settings of checkers.
        let packaged = |section: &&str| tree.mentions("setup.cfg", section);
        match ["[metadata]", "[options]"].iter().any(packaged) {
            _ if tree.exists("setup.py") => Some(PackageSource::Project("setup.py")),
            true => Some(PackageSource::Project("setup.cfg")),
            false => None,
        }
    }

    pub fn file(&self) -> &'static str {
        match self {
            PackageSource::Requirements(file) | PackageSource::Project(file) => file,
            PackageSource::Tool(Tool::Pipenv) => PIPFILE,
            PackageSource::Tool(_) | PackageSource::List | PackageSource::Unreadable(_) => {
                PYPROJECT
            }
        }
    }

    /// Returns whether the project itself is installed too, if it is a package.
    pub fn installs_project(&self) -> bool {
        match self {
            PackageSource::Project(_) => true,
            PackageSource::Tool(tool) => *tool != Tool::Pipenv,
            _ => false,
        }
    }

    /// Returns the steps that install into the environment that is there already.
    pub fn steps(&self, tree: &SourceTree) -> Result<Vec<Step>, RecipeError> {
        let command = match self {
            PackageSource::Unreadable(why) => {
                return Err(RecipeError(format!("{PYPROJECT} is not TOML: {why}")));
            }
            PackageSource::Tool(tool) => return python_tools::steps(tree, *tool),
            PackageSource::Requirements(file) => format!("{PIP_INSTALL} -r {file}"),
            PackageSource::List => list(tree)?,
            PackageSource::Project(_) => project(tree)?,
        };
        Ok(vec![Step { name: "Installing Python packages".into(), command }])
    }

    /// Returns notes on other files of the kind, which are not read: a project that keeps two may
    /// mean the other one.
    pub fn notes(&self, tree: &SourceTree) -> Vec<String> {
        let file = self.file();
        let locks = [Tool::Uv, Tool::Poetry, Tool::Pdm].map(|tool| (PYPROJECT, tool.lock()));
        let others = locks.into_iter().chain([(PIPFILE, PIPFILE)]);
        let chosen = match self {
            PackageSource::Tool(tool) => tool.lock(),
            _ => "",
        };
        let ignored: Vec<&str> = others
            .filter(|(_, lock)| tree.exists(lock) && *lock != chosen && *lock != file)
            .map(|(_, lock)| lock)
            .collect();
        let file = if tree.exists(chosen) { chosen } else { file };
        match ignored[..] {
            [] => Vec::new(),
            _ => vec![format!(
                "{} {} ignored: packages are installed from {file}; keep one of them",
                ignored.join(", "),
                if ignored.len() == 1 { "was" } else { "were" }
            )],
        }
    }
}

/// Returns the source that a pyproject.toml is; `None` if it only has settings of checkers and the
/// like.
fn of_table(tree: &SourceTree, table: &toml::Table) -> Option<PackageSource> {
    let tool = |name: &str| table.get("tool").and_then(|tools| tools.get(name));
    // It has indexes, paths and repositories that only this tool reads.
    if tool("uv").is_some() {
        return Some(PackageSource::Tool(Tool::Uv));
    }
    if tool("poetry").is_some() {
        return Some(PackageSource::Tool(Tool::Poetry));
    }
    if tool("pdm").is_some_and(|pdm| pdm.get("source").is_some()) {
        return Some(PackageSource::Tool(Tool::Pdm));
    }
    if table.get("build-system").is_some() {
        return Some(PackageSource::Project(PYPROJECT));
    }
    match table.get("project") {
        // Such a project only runs when it is installed, which setuptools does by default.
        Some(_) if tree.has_directory("src") || tree.exists("setup.py") => {
            Some(PackageSource::Project(PYPROJECT))
        }
        Some(project) if is_dynamic(project) => Some(PackageSource::Project(PYPROJECT)),
        Some(_) => Some(PackageSource::List),
        None => None,
    }
}

pub fn pyproject(tree: &SourceTree) -> Result<Option<toml::Table>, String> {
    let Some(text) = tree.text(PYPROJECT) else {
        return match tree.exists(PYPROJECT) {
            true => Err("it is not UTF-8 text".into()),
            false => Ok(None),
        };
    };
    let text = text.trim_start_matches('\u{feff}');
    text.parse().map(Some).map_err(|error: toml::de::Error| error.message().to_owned())
}

fn is_dynamic(project: &toml::Value) -> bool {
    let dynamic = project.get("dynamic").and_then(|list| list.as_array());
    dynamic.is_some_and(|list| list.iter().any(|key| key.as_str() == Some("dependencies")))
}

/// Returns the entries, which are what pip's own command line takes, word for word.
fn dependencies(tree: &SourceTree) -> Result<Vec<String>, RecipeError> {
    let table = pyproject(tree).ok().flatten().unwrap_or_default();
    let list = table.get("project").and_then(|project| project.get("dependencies"));
    let entries = list.and_then(|list| list.as_array()).into_iter().flatten();
    let word = |entry: &toml::Value| match entry.as_str().map(str::trim) {
        Some(entry) if entry.starts_with(|c: char| c.is_ascii_alphanumeric()) => {
            Ok(shell_word(entry))
        }
        _ => Err(RecipeError(format!(
            "{PYPROJECT}: '{entry}' under dependencies is not a requirement: write NAME, \
             NAME>=VERSION or NAME @ URL"
        ))),
    };
    entries.map(word).collect()
}

fn list(tree: &SourceTree) -> Result<String, RecipeError> {
    let words = dependencies(tree)?;
    Ok(match words.is_empty() {
        true => ":".into(),
        false => format!("{PIP_INSTALL} {}", words.join(" ")),
    })
}

/// Returns the command that installs the project in place, so that data files beside the code are
/// found. An application is often no proper package although it names a build system; if its code
/// is in the root it runs without.
fn project(tree: &SourceTree) -> Result<String, RecipeError> {
    let install = format!("{PIP_INSTALL} -e .");
    let table = pyproject(tree).ok().flatten().unwrap_or_default();
    let listed = table.get("project").is_some_and(|project| !is_dynamic(project));
    if !listed || tree.has_directory("src") {
        return Ok(install);
    }
    let words = dependencies(tree)?;
    let only = match words.is_empty() {
        true => String::new(),
        false => format!("; {PIP_INSTALL} {}", words.join(" ")),
    };
    let word =
        "The project itself cannot be built as a package: only its dependencies are installed.";
    Ok(format!("{install} || {{ echo '{word}'{only}; }}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(files: &[(&str, &str)]) -> Option<PackageSource> {
        PackageSource::of(&SourceTree::from_pairs(files.iter().copied()))
    }

    fn command(files: &[(&str, &str)]) -> String {
        let tree = SourceTree::from_pairs(files.iter().copied());
        let steps = PackageSource::of(&tree).unwrap().steps(&tree).unwrap();
        steps.into_iter().next_back().unwrap().command
    }

    const PROJECT: &str =
        "[project]\nname = \"x\"\ndependencies = [\"flask>=2\", \"a; x == 'y'\"]\n";

    #[test]
    fn each_format_goes_to_its_own_tool() {
        let pyproject = |text| (PYPROJECT, text);
        for (files, expected) in [
            (vec![("requirements.txt", "x"), ("poetry.lock", "")], "requirements.txt"),
            (vec![pyproject(PROJECT), ("uv.lock", "")], "Uv"),
            (vec![pyproject("[tool.uv.sources]\nx = {path = \"x\"}\n[project]\n")], "Uv"),
            (vec![pyproject("[tool.poetry]\n")], "Poetry"),
            (vec![pyproject(PROJECT), ("pdm.lock", "")], "Pdm"),
            (vec![pyproject("[project]\n[[tool.pdm.source]]\nurl = \"x\"\n")], "Pdm"),
            (vec![pyproject("[project]\n[tool.pdm.version]\nsource = \"x\"\n")], "List"),
            (vec![("Pipfile", ""), ("Pipfile.lock", "")], "Pipenv"),
            (vec![pyproject(PROJECT)], "List"),
            (vec![pyproject(PROJECT), ("src/x/a.py", "")], "Project"),
            (vec![pyproject("[build-system]\nrequires = []\n")], "Project"),
            (vec![pyproject("[project]\ndynamic = [\"dependencies\"]\n")], "Project"),
            (vec![pyproject("= 1")], "Unreadable"),
            (vec![("setup.py", "")], "setup.py"),
            (vec![("setup.cfg", "[metadata]\n")], "setup.cfg"),
        ] {
            let found = format!("{:?}", source(&files));
            assert!(found.contains(expected), "{files:?}: {found}");
        }
    }

    #[test]
    fn settings_of_checkers_list_no_packages() {
        for file in [(PYPROJECT, "[tool.black]\nline-length = 9\n"), ("setup.cfg", "[flake8]\n")] {
            assert_eq!(source(&[file]), None, "{file:?}");
        }
        let both = [(PYPROJECT, "[tool.ruff]\n"), ("setup.py", "")];
        assert_eq!(source(&both), Some(PackageSource::Project("setup.py")));
    }

    #[test]
    fn files_are_handed_over_and_not_translated() {
        let requirements = command(&[("requirements.txt", "-e ./local\n")]);
        assert_eq!(requirements, format!("{PIP_INSTALL} -r requirements.txt"));
        let list = command(&[(PYPROJECT, PROJECT)]);
        assert!(list.ends_with(" -q 'flask>=2' 'a; x == '\\''y'\\'''"), "{list}");
        assert!(command(&[("setup.py", "")]).ends_with("-q -e ."));
        assert_eq!(command(&[(PYPROJECT, "[project]\nname = \"x\"\n")]), ":");
        let built = command(&[(PYPROJECT, &format!("{PROJECT}[build-system]\nrequires = []\n"))]);
        assert!(built.contains("-e . || { echo") && built.contains("'flask>=2'"), "{built}");
        let src = command(&[(PYPROJECT, PROJECT), ("src/x/a.py", "")]);
        assert!(src.ends_with("-q -e ."), "{src}");
    }

    #[test]
    fn what_is_no_requirement_is_refused() {
        for entry in ["-r other.txt", "./pkgs/x", ""] {
            let text = format!("[project]\ndependencies = [\"{entry}\"]\n");
            let tree = SourceTree::from_pairs([(PYPROJECT, text)]);
            let error = PackageSource::List.steps(&tree).unwrap_err();
            assert!(error.0.contains("not a requirement"), "{}", error.0);
        }
    }

    #[test]
    fn a_second_list_is_named() {
        let tree = SourceTree::from_pairs([
            ("requirements.txt", ""),
            (PYPROJECT, ""),
            ("uv.lock", ""),
            ("Pipfile", ""),
        ]);
        let notes = PackageSource::of(&tree).unwrap().notes(&tree);
        assert!(notes[0].starts_with("uv.lock, Pipfile were ignored"), "{notes:?}");
        let tree = SourceTree::from_pairs([(PYPROJECT, ""), ("uv.lock", ""), ("poetry.lock", "")]);
        let notes = PackageSource::of(&tree).unwrap().notes(&tree);
        assert!(notes[0].starts_with("poetry.lock was ignored"), "{notes:?}");
        assert!(notes[0].contains("from uv.lock"), "{notes:?}");
        let one = SourceTree::from_pairs([("Pipfile", ""), ("Pipfile.lock", "")]);
        assert!(PackageSource::of(&one).unwrap().notes(&one).is_empty());
    }
}
