//! Pyramid, by `pserve`: the .ini file that names the application stays what it is, but for the
//! address to listen on.

use model::Recipe;
use model::release::Step;

use super::python::path;
use super::{Framework, RecipeError, sqlite, venv, web_only};
use crate::source::SourceTree;

/// Settings files, the likeliest first; development settings serve a debugger to everybody.
const LIKELY: &[&str] = &["production.ini", "prod.ini"];
const NEVER: &[&str] = &["development.ini", "testing.ini", "test.ini"];
/// The name of our settings file, beside the original, as `%(here)s` in it means its directory.
const OWN: &str = ".cortex.ini";

/// Threads of a process, as gunicorn's for the other Python frameworks.
const THREADS: u32 = 8;

pub struct Pyramid;

impl Framework for Pyramid {
    fn name(&self) -> &'static str {
        "pyramid"
    }

    fn looks_for(&self) -> &'static str {
        "production.ini with 'use = egg:NAME' under [app:main]"
    }

    fn detect(&self, tree: &SourceTree) -> Option<String> {
        settings(tree).map(|file| format!("{file} names the application by 'use = egg:'"))
    }

    fn recipe(&self, tree: &SourceTree) -> Result<Recipe, RecipeError> {
        let Some(file) = settings(tree) else {
            let why = "no .ini file for production in its root has 'use = egg:NAME': copy \
                       development.ini to production.ini";
            return Err(RecipeError(why.into()));
        };
        let text = tree.text(file).unwrap_or_default();
        let prepared = venv::install(tree, &["waitress"])?;
        let mut build = Vec::new();
        // `egg:NAME` is found only when the project itself is installed.
        let packaged = ["setup.py", "setup.cfg", "pyproject.toml"];
        if !venv::installs_project(tree) && packaged.iter().any(|file| tree.exists(file)) {
            let command =
                format!("{}/python -m pip install --no-input -q --no-deps -e .", venv::BIN);
            build.push(Step { name: "Installing the application".into(), command });
        }
        build.push(Step { name: "Preparing the server".into(), command: own_settings(file) });
        let mut release = Vec::new();
        if text.lines().any(|line| line.trim_end() == "[alembic]") {
            let command = format!("{}/alembic -c {OWN} upgrade head", venv::BIN);
            release.push(Step { name: "Migrating the database".into(), command });
        }
        let pserve = format!("{}/pserve {OWN} \"http_host=$HOST\" \"http_port=$PORT\"", venv::BIN);
        let mut recipe = Recipe {
            build,
            release,
            processes: web_only(pserve, None),
            path: path(true),
            persist: databases(text),
            ..Recipe::default()
        };
        prepared.give(&mut recipe);
        Ok(recipe)
    }
}

fn settings(tree: &SourceTree) -> Option<&str> {
    let names_application = |file: &str| {
        tree.text(file).is_some_and(|text| text.lines().any(|line| is_setting(line, "use", "egg:")))
    };
    let mut root = tree
        .named("*.ini")
        .map(|(path, _)| path)
        .filter(|path| !path.contains('/') && !NEVER.contains(path));
    let likely = LIKELY.iter().copied().find(|file| names_application(file));
    likely.or_else(|| root.find(|file| names_application(file)))
}

fn is_setting(line: &str, key: &str, value: &str) -> bool {
    line.split_once('=')
        .is_some_and(|(name, text)| name.trim() == key && text.trim().starts_with(value))
}

/// Returns the command that copies the settings with the section of the server replaced: every
/// generator writes another one.
fn own_settings(file: &str) -> String {
    let server = [
        "[server:main]",
        "use = egg:waitress#main",
        "host = %(http_host)s",
        "port = %(http_port)s",
        &format!("threads = {THREADS}"),
    ];
    let quoted: Vec<String> = server.iter().map(|line| super::shell_word(line)).collect();
    let file = super::shell_word(file);
    format!(
        "{{ awk '/^\\[/ {{ skip = /^\\[server:main\\]/ }} !skip' {file}; \
         printf '\\n%s' {}; echo; }} > {OWN}",
        quoted.join(" ")
    )
}

/// Returns the files of lines like `sqlalchemy.url = sqlite:///%(here)s/shop.sqlite`.
fn databases(text: &str) -> Vec<String> {
    let values = text.lines().filter(|line| !line.starts_with(['#', ';']));
    let values = values.filter_map(|line| line.split_once('=').map(|(_, value)| value.trim()));
    values.filter_map(|value| sqlite::database_path(&value.replace("%(here)s/", ""))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const INI: &str = "[app:main]\nuse = egg:shop\nsqlalchemy.url = sqlite:///%(here)s/shop.sqlite\n\
                       [alembic]\nscript_location = shop/alembic\n\
                       [server:main]\nuse = egg:waitress#main\nlisten = *:6543\n";

    #[test]
    fn production_settings_are_preferred_to_others() {
        let check = |files: &[&str], expected: Option<&str>| {
            let tree = SourceTree::from_pairs(files.iter().map(|file| (*file, INI)));
            assert_eq!(settings(&tree), expected, "{files:?}");
        };
        check(&["a.ini", "production.ini", "development.ini"], Some("production.ini"));
        check(&["development.ini", "live.ini"], Some("live.ini"));
        check(&["development.ini", "sub/production.ini"], None);
        let other = SourceTree::from_pairs([("production.ini", "[uwsgi]\nmodule = a\n")]);
        assert_eq!(Pyramid.detect(&other), None);
        assert!(Pyramid.recipe(&other).unwrap_err().0.contains("development.ini"));
    }

    #[test]
    fn pserve_is_told_where_to_listen() {
        let files = [("production.ini", INI), ("setup.py", "install_requires=['waitress']")];
        let recipe = Pyramid.recipe(&SourceTree::from_pairs(files)).unwrap();
        let web = recipe.processes.values().next().unwrap();
        let wanted = ".venv/bin/pserve .cortex.ini \"http_host=$HOST\" \"http_port=$PORT\"";
        assert_eq!(web.command, wanted);
        assert_eq!(recipe.persist, ["shop.sqlite"]);
        assert!(recipe.release[0].command.ends_with("upgrade head"));
        assert!(recipe.build[1].command.ends_with("-e ."), "{:?}", recipe.build);
        assert_eq!(recipe.build.len(), 4);
    }

    #[test]
    fn a_project_with_a_list_of_packages_is_installed_itself() {
        let project = "[project]\nname = \"shop\"\ndependencies = [\"pyramid\"]\n";
        let tree = SourceTree::from_pairs([("production.ini", INI), ("pyproject.toml", project)]);
        let build = Pyramid.recipe(&tree).unwrap().build;
        assert!(build[1].command.ends_with("-q pyramid"), "{build:?}");
        assert!(build[2].name.starts_with("Adding waitress"), "{build:?}");
        assert!(build[3].command.ends_with("--no-deps -e ."), "{build:?}");
    }
}
