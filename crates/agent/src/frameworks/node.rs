//! Node.js: Express and every other project with a package.json that says how it starts.

use std::collections::BTreeMap;

use model::Recipe;
use model::release::{Portable, StaticMount, Step};
use serde_json::Value;

use super::{Framework, RecipeError, packages, shell_word, sqlite, web_only};
use crate::procfile::PROCFILE;
use crate::source::SourceTree;

const PACKAGE_JSON: &str = "package.json";
/// Node's own default and the names that generators use.
const PROGRAMS: &[&str] =
    &["index.js", "server.js", "app.js", "main.js", "index.mjs", "server.mjs"];

pub struct Node;

impl Framework for Node {
    fn name(&self) -> &'static str {
        "node"
    }

    fn looks_for(&self) -> &'static str {
        "package.json with a start script, a main file or an index.js, server.js or app.js"
    }

    fn detect(&self, tree: &SourceTree) -> Option<String> {
        if !tree.exists(PACKAGE_JSON) {
            return None;
        }
        let package = package(tree).unwrap_or_default();
        // A site of files may keep its tools' packages in such a file.
        let site = tree.exists("index.html") && start(tree, &package).is_none();
        (!site).then(|| match uses(&package, "express") {
            true => format!("{PACKAGE_JSON} lists Express"),
            false => format!("{PACKAGE_JSON} is there"),
        })
    }

    fn recipe(&self, tree: &SourceTree) -> Result<Recipe, RecipeError> {
        let package = package(tree).map_err(RecipeError)?;
        let mut notes = Vec::new();
        let processes = match start(tree, &package) {
            Some(Start { command, file, note }) => {
                notes.extend(note);
                if let Some(file) = file.filter(|file| {
                    tree.text(file).is_some_and(|text| {
                        text.contains("listen(") && !text.contains("PORT") && !tree.exists(PROCFILE)
                    })
                }) {
                    notes.push(format!(
                        "{file} never reads process.env.PORT; it must listen on the port that it names"
                    ));
                }
                web_only(command, None)
            }
            None if tree.exists(PROCFILE) => BTreeMap::new(),
            None => {
                return Err(RecipeError(format!(
                    "{PACKAGE_JSON} has no start script and no main file, and there is none of {}: \
                     add \"scripts\": {{ \"start\": \"node FILE.js\" }}",
                    PROGRAMS[..3].join(", ")
                )));
            }
        };
        let builds = script(&package, "build").is_some();
        let mut build = Vec::new();
        let listed = ["dependencies", "devDependencies", "optionalDependencies", "workspaces"];
        if listed.iter().any(|key| package.get(key).is_some()) || builds {
            build.push(packages::install(tree, builds));
        }
        if builds {
            let command = "npm run build".into();
            build.push(Step { name: "Running the build script".into(), command });
        }
        Ok(Recipe {
            build,
            portable: Some(Portable::default()),
            processes,
            environment: BTreeMap::from([("NODE_ENV".into(), "production".into())]),
            path: vec!["node_modules/.bin".into()],
            persist: sqlite::named_in_code(tree, "*.js"),
            statics: statics(tree),
            notes,
            ..Recipe::default()
        })
    }
}

fn package(tree: &SourceTree) -> Result<Value, String> {
    let text = tree.text(PACKAGE_JSON).ok_or(format!("{PACKAGE_JSON} is missing or no text"))?;
    let text = text.trim_start_matches('\u{feff}');
    match serde_json::from_str(text) {
        Ok(package @ Value::Object(_)) => Ok(package),
        Ok(_) => Err(format!("{PACKAGE_JSON} holds no JSON object")),
        Err(error) => Err(format!("{PACKAGE_JSON} is not valid JSON: {error}")),
    }
}

fn uses(package: &Value, dependency: &str) -> bool {
    package.get("dependencies").and_then(|list| list.get(dependency)).is_some()
}

fn script<'a>(package: &'a Value, name: &str) -> Option<&'a str> {
    let text = package.get("scripts")?.get(name)?.as_str()?.trim();
    (!text.is_empty()).then_some(text)
}

struct Start {
    command: String,
    /// The program, where it is known.
    file: Option<String>,
    note: Option<String>,
}

fn start(tree: &SourceTree, package: &Value) -> Option<Start> {
    if let Some(text) = script(package, "start") {
        let hooks = ["prestart", "poststart"].iter().any(|name| script(package, name).is_some());
        let words: Vec<&str> = text.split_whitespace().collect();
        let plain = words.first() == Some(&"node")
            && text.chars().all(|c| c.is_ascii_alphanumeric() || " ._/-=".contains(c));
        // npm itself would stay beside it with as much memory as a small application.
        return Some(if plain && !hooks {
            let file = words.last().map(|file| file.trim_start_matches("./").to_owned());
            Start { command: text.into(), file, note: None }
        } else {
            Start { command: "npm start".into(), file: None, note: None }
        });
    }
    let main =
        package.get("main").and_then(Value::as_str).map(|main| main.trim_start_matches("./"));
    let exists = |file: &str| {
        let spellings = [file.to_owned(), format!("{file}.js"), format!("{file}/index.js")];
        spellings.into_iter().find(|path| tree.exists(path))
    };
    let found = main.and_then(exists);
    let note = match (main, &found) {
        (Some(main), None) => {
            Some(format!("{PACKAGE_JSON}: the main file '{}' is not there", main.escape_debug()))
        }
        _ => None,
    };
    let file = found.or_else(|| {
        PROGRAMS.iter().find(|program| tree.exists(program)).map(|program| (*program).into())
    })?;
    let command = format!("node {}", shell_word(&file));
    Some(Start { command, file: Some(file), note })
}

/// Express serves a directory of the project by its own route; only the usual line is taken over,
/// as files under another prefix or behind a login must not be.
fn statics(tree: &SourceTree) -> Vec<StaticMount> {
    let usual = [
        "express.static('public')",
        "express.static(\"public\")",
        "express.static(path.join(__dirname, 'public'))",
        "express.static(path.join(__dirname, \"public\"))",
    ];
    let texts = || PROGRAMS.iter().filter_map(|program| tree.text(program));
    let uses = |text: &str, call: &str| {
        let first = text
            .lines()
            .map(str::trim)
            .find(|line| line.starts_with("app.use(") || line.starts_with("app.get("));
        first.is_some_and(|line| line.starts_with(&format!("app.use({call})")))
    };
    if tree.has_directory("public") && texts().any(|text| usual.iter().any(|call| uses(text, call)))
    {
        vec![StaticMount { prefix: "/".into(), directory: "public".into(), fallback: None }]
    } else {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)], expected: Result<&str, &str>) {
        let tree = SourceTree::from_pairs(files.iter().copied());
        let recipe = Node.recipe(&tree);
        match (recipe, expected) {
            (Ok(recipe), Ok(command)) => {
                assert_eq!(recipe.processes.values().next().unwrap().command, command, "{files:?}");
            }
            (Err(error), Err(words)) => assert!(error.0.contains(words), "{files:?}: {}", error.0),
            (found, _) => panic!("{files:?}: {found:?}"),
        }
    }

    #[test]
    fn the_start_is_found() {
        let start = r#"{"scripts": {"start": "node bin/www"}}"#;
        check(&[(PACKAGE_JSON, start)], Ok("node bin/www"));
        let hooked = r#"{"scripts": {"start": "node a.js", "prestart": "x"}}"#;
        check(&[(PACKAGE_JSON, hooked)], Ok("npm start"));
        check(&[(PACKAGE_JSON, r#"{"scripts": {"start": "A=1 node a.js"}}"#)], Ok("npm start"));
        check(
            &[(PACKAGE_JSON, r#"{"main": "./lib"}"#), ("lib/index.js", "")],
            Ok("node lib/index.js"),
        );
        check(&[(PACKAGE_JSON, r#"{"main": "x.js"}"#), ("server.js", "")], Ok("node server.js"));
        check(&[(PACKAGE_JSON, "{}")], Err("no start script"));
        check(&[(PACKAGE_JSON, "{")], Err("not valid JSON"));
        check(&[(PACKAGE_JSON, "[]")], Err("no JSON object"));
        check(&[("index.js", "")], Err("package.json is missing"));
    }

    #[test]
    fn packages_are_installed_by_their_manager() {
        let install = |files: &[(&str, &str)]| {
            packages::install(&SourceTree::from_pairs(files.iter().copied()), false).command
        };
        assert!(install(&[("package-lock.json", "")]).starts_with("npm ci --omit=dev"));
        assert!(install(&[]).starts_with("npm install --omit=dev"));
        assert!(install(&[("yarn.lock", "")]).contains("yarn install"));
        let chosen = [(PACKAGE_JSON, r#"{"packageManager": "pnpm@9.1"}"#), ("yarn.lock", "")];
        assert!(install(&chosen).contains("pnpm install"));
    }

    #[test]
    fn a_build_script_is_run_with_development_packages() {
        let files = [(PACKAGE_JSON, r#"{"scripts": {"build": "tsc"}}"#), ("index.js", "")];
        let recipe = Node.recipe(&SourceTree::from_pairs(files)).unwrap();
        assert!(recipe.build[0].command.contains("--include=dev"));
        assert_eq!(recipe.build[1].command, "npm run build");
    }

    #[test]
    fn public_files_are_taken_over_only_when_they_come_first() {
        let mounts = |code: &str| {
            let files = [(PACKAGE_JSON, "{}"), ("index.js", code), ("public/a.css", "")];
            statics(&SourceTree::from_pairs(files)).len()
        };
        assert_eq!(mounts("app.use(express.static('public'));\n"), 1);
        assert_eq!(mounts("app.use(login);\napp.use(express.static('public'));\n"), 0);
        assert_eq!(mounts("app.use('/files', express.static('public'));\n"), 0);
    }
}
