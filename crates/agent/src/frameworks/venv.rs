//! How a Python project's packages are installed: into a virtual environment inside the release,
//! from whichever file lists them. Used by the Python frameworks.

use model::release::Step;

use super::shell_word;
use crate::source::SourceTree;

/// Inside the release's directory.
pub const BIN: &str = ".venv/bin";

/// One request takes a thread; enough for requests that wait for a database.
const GUNICORN_THREADS: u32 = 8;
const GUNICORN_CONFIG: &str = ".venv/gunicorn_cortex.py";

/// Requirements files that include each other; real projects have three or four.
const INCLUDES_MAX: usize = 20;

/// Files that list packages, the strongest first.
const REQUIREMENTS: &[&str] = &[
    "requirements.txt",
    "requirements/production.txt",
    "requirements/prod.txt",
    "requirements/base.txt",
    "requirements-prod.txt",
];

/// Which file lists the packages, if any does.
pub fn listed_in(tree: &SourceTree) -> Option<&'static str> {
    let others = ["pyproject.toml", "Pipfile", "setup.py", "setup.cfg"];
    REQUIREMENTS.iter().copied().chain(others).find(|file| tree.exists(file))
}

/// Whether a package is listed, by its own name in any spelling that pip accepts.
pub fn lists(tree: &SourceTree, package: &str) -> bool {
    packages(tree).iter().any(|entry| entry == package)
}

/// Makes the environment and installs what is listed, and those of `extra` that are not.
pub fn install(tree: &SourceTree, extra: &[&str]) -> Vec<Step> {
    let mut arguments = Vec::new();
    match listed_in(tree) {
        Some("pyproject.toml") => match pyproject_packages(tree) {
            // A layout with src/ only runs when it is installed.
            Some(packages) if !tree.has_directory("src") => {
                arguments.extend(packages.iter().map(|package| shell_word(package)));
            }
            _ => arguments.push(".".into()),
        },
        Some("Pipfile") => {
            arguments.extend(pipfile_packages(tree).iter().map(|package| shell_word(package)));
        }
        Some("setup.py" | "setup.cfg") => arguments.push("-e .".into()),
        Some(requirements) => arguments.push(format!("-r {requirements}")),
        None => {}
    }
    let missing = |entry: &&&str| package_name(entry).is_none_or(|name| !lists(tree, &name));
    arguments.extend(extra.iter().filter(missing).map(|entry| shell_word(entry)));
    let mut steps = vec![Step {
        name: "Making a virtual environment".into(),
        // Cleared, as one that came with the source has another directory's paths in it.
        command: "/usr/bin/python3 -m venv --clear .venv".into(),
    }];
    if !arguments.is_empty() {
        let pip = format!("{BIN}/python -m pip install --disable-pip-version-check --no-input -q");
        steps.push(Step {
            name: "Installing Python packages".into(),
            command: format!("{pip} {}", arguments.join(" ")),
        });
    }
    steps
}

/// How gunicorn is called, without what it shall serve. Threads rather than workers: one process
/// per instance, so that its memory is told apart. The application is loaded before the port is
/// bound: a broken one never looks ready.
pub fn gunicorn() -> String {
    format!(
        "{BIN}/gunicorn --preload --config {GUNICORN_CONFIG} --bind \"$HOST:$PORT\" --threads {GUNICORN_THREADS}"
    )
}

/// As `install`, with gunicorn and its configuration. Newer versions open a control socket in the
/// home directory, which the instances of an application share; older ones refuse an option that
/// says no but ignore the same in a file. The project's own configuration stays in force.
pub fn install_with_gunicorn(tree: &SourceTree, extra: &[&str]) -> Vec<Step> {
    let mut steps = install(tree, &[extra, &["gunicorn"]].concat());
    let lines = [
        "import os",
        "if os.path.exists(\"gunicorn.conf.py\"):",
        "    exec(open(\"gunicorn.conf.py\").read())",
        "control_socket_disable = True",
    ];
    let quoted: Vec<String> = lines.iter().map(|line| shell_word(line)).collect();
    steps.push(Step {
        name: "Configuring gunicorn".into(),
        command: format!("printf '%s\\n' {} > {GUNICORN_CONFIG}", quoted.join(" ")),
    });
    steps
}

/// Names of all listed packages, as PEP 503 spells them.
fn packages(tree: &SourceTree) -> Vec<String> {
    let entries: Vec<String> = match listed_in(tree) {
        Some("pyproject.toml") => pyproject_packages(tree).unwrap_or_default(),
        Some("Pipfile") => pipfile_packages(tree),
        Some(file @ ("setup.py" | "setup.cfg")) => {
            let quotes = |c: char| "\"'\n".contains(c);
            tree.text(file).unwrap_or_default().split(quotes).map(str::to_owned).collect()
        }
        Some(file) => required(tree, file),
        None => Vec::new(),
    };
    entries.iter().filter_map(|entry| package_name(entry)).collect()
}

/// Lines of a requirements file and of those that it includes.
fn required(tree: &SourceTree, file: &str) -> Vec<String> {
    let mut files = vec![file.to_owned()];
    let mut lines = Vec::new();
    let mut at = 0;
    while let Some(file) = files.get(at).cloned() {
        at += 1;
        let directory = file.rsplit_once('/').map_or("", |(directory, _)| directory);
        for line in tree.text(&file).unwrap_or_default().lines().map(str::trim) {
            let include = line.strip_prefix("-r").or_else(|| line.strip_prefix("--requirement"));
            let Some(include) = include else {
                lines.push(line.to_owned());
                continue;
            };
            let included = format!("{directory}/{}", include.trim_start_matches(['=', ' ']).trim());
            let included = included.trim_start_matches(['.', '/']).to_owned();
            if files.len() < INCLUDES_MAX && !files.contains(&included) {
                files.push(included);
            }
        }
    }
    lines
}

/// `Flask[async]>=2 ; …` is `flask`.
fn package_name(entry: &str) -> Option<String> {
    let entry = entry.trim();
    let end = entry
        .find(|c: char| !c.is_ascii_alphanumeric() && !"._-".contains(c))
        .unwrap_or(entry.len());
    let name = entry[..end].to_ascii_lowercase().replace(['_', '.'], "-");
    (!name.is_empty() && !name.starts_with('-')).then_some(name)
}

/// None where the file builds a package by other means than a list.
fn pyproject_packages(tree: &SourceTree) -> Option<Vec<String>> {
    let file: toml::Table = tree.text("pyproject.toml")?.parse().ok()?;
    let list = file.get("project")?.get("dependencies")?.as_array()?;
    Some(list.iter().filter_map(|entry| entry.as_str()).map(str::to_owned).collect())
}

fn pipfile_packages(tree: &SourceTree) -> Vec<String> {
    let file: Option<toml::Table> = tree.text("Pipfile").and_then(|text| text.parse().ok());
    let table = file.as_ref().and_then(|file| file.get("packages")).and_then(|p| p.as_table());
    let one = |(name, version): (&String, &toml::Value)| match version.as_str() {
        Some(version) if version.starts_with(['=', '<', '>', '~', '!']) => {
            format!("{name}{version}")
        }
        _ => name.clone(),
    };
    table.map(|packages| packages.iter().map(one).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(file: &str, text: &str, expected: &str) {
        let tree = SourceTree::from_pairs([(file, text)]);
        let steps = install(&tree, &["gunicorn"]);
        let pip = &steps[1].command;
        assert!(pip.ends_with(&format!(" -q {expected}")), "{file}: {pip}");
    }

    #[test]
    fn packages_come_from_the_file_that_lists_them() {
        check("requirements.txt", "Flask\n", "-r requirements.txt gunicorn");
        check("requirements.txt", "flask\nGunicorn[gevent]==20\n", "-r requirements.txt");
        check("requirements.txt", "# gunicorn-like\ngunicorn-x\n", "-r requirements.txt gunicorn");
        let project = "[project]\nname = \"x\"\ndependencies = [\"flask>=2\", \"a; x == 'y'\"]\n";
        check("pyproject.toml", project, "'flask>=2' 'a; x == '\\''y'\\''' gunicorn");
        check("pyproject.toml", "[tool.poetry.dependencies]\nflask = \"^2\"\n", ". gunicorn");
        check("Pipfile", "[packages]\nflask = \"*\"\nb = \"==2\"\n", "'b==2' flask gunicorn");
        check("setup.py", "setup(install_requires=['gunicorn'])", "-e .");
    }

    #[test]
    fn included_files_are_read() {
        let tree = SourceTree::from_pairs([
            ("requirements/production.txt", "-r base.txt\n--requirement=production.txt\n"),
            ("requirements/base.txt", "gunicorn\n"),
            ("requirements/prod.txt", "flask\n"),
        ]);
        assert!(lists(&tree, "gunicorn") && !lists(&tree, "flask"));
    }

    #[test]
    fn names_are_compared_as_pip_does() {
        let tree = SourceTree::from_pairs([("requirements.txt", "Typing_Extensions >= 4\n-e .\n")]);
        assert!(lists(&tree, "typing-extensions") && !lists(&tree, "typing"));
    }
}
