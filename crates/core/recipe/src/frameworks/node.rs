//! Node.js: Express and every other project with a package.json that says how it starts.

use std::collections::BTreeMap;

use model::Recipe;
use model::release::{Portable, StaticMount, Step};

use super::front_end::{self, FrontEndRole};
use super::package_json::{PACKAGE_JSON, Package};
use super::packages::{self, Packages};
use super::{Framework, RecipeError, shell_word, site_mount, sqlite, static_site, web_only};
use crate::procfile::{self, PROCFILE};
use crate::source::SourceTree;

/// Programs to start: Node's own default and the names that generators use.
const PROGRAMS: &[&str] =
    &["index.js", "server.js", "app.js", "main.js", "index.mjs", "server.mjs"];
/// The names of files with code of its own.
const SOURCES: &[&str] = &["*.js", "*.mjs", "*.cjs", "*.ts", "*.mts"];
/// Scripts that may need what only development needs: they build, or install what does.
const BUILDING: &[&str] = &[
    "heroku-prebuild",
    "heroku-postbuild",
    "heroku-cleanup",
    "build",
    "preinstall",
    "install",
    "postinstall",
    "prepare",
];

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
        let package = Package::read(tree).unwrap_or_default();
        // A site of files may keep its tools' packages in such a file.
        let pages = tree.exists("index.html") || tree.exists(static_site::STATICFILE);
        let runs = tree.exists(PROCFILE) || front_end::usual_build_script(&package).is_some();
        let site = pages && !runs && start(tree, &package).is_none();
        (!site).then(|| match package.version("express").is_some() {
            true => format!("{PACKAGE_JSON} lists Express"),
            false => format!("{PACKAGE_JSON} is there"),
        })
    }

    fn recipe(&self, tree: &SourceTree) -> Result<Recipe, RecipeError> {
        let package = Package::read(tree).map_err(RecipeError)?;
        let script = front_end::usual_build_script(&package);
        let mut notes = Vec::new();
        let start = start(tree, &package);
        let development = builds(&package) || !runs_plainly(tree, start.as_ref());
        let packages = packages::of(tree, "", &package, development).map_err(RecipeError)?;
        notes.extend(packages.notes.iter().cloned());
        let processes = match start {
            Some(start) => {
                notes.extend(start.note.clone());
                notes.extend(start.file.as_deref().and_then(|file| port_note(tree, file)));
                web_only(start.command(&packages), None)
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
        let mut build = prepare(&package, &packages);
        if let Some(script) = script {
            let name = "Running the build script".into();
            build.push(Step { name, command: packages.run(script) });
        }
        build.extend(clean_up(&package, &packages));
        let mut environment = environment(development);
        environment.extend(packages.environment());
        Ok(Recipe {
            build,
            portable: Some(Portable::default()),
            processes,
            environment,
            path: packages.path(),
            persist: sqlite::named_in_code(tree, "*.js"),
            statics: statics(tree),
            notes,
            ..Recipe::default()
        })
    }
}

fn builds(package: &Package) -> bool {
    BUILDING.iter().any(|name| package.script(name).is_some())
}

/// Returns whether all that runs is Node.js itself with a file: other programs may come out of
/// packages that are listed for development.
fn runs_plainly(tree: &SourceTree, start: Option<&StartScript>) -> bool {
    let lines = tree.text(PROCFILE).map(procfile::parse).and_then(Result::ok).unwrap_or_default();
    let plain = |command: &str| command.split_whitespace().next() == Some("node");
    let lines = lines.processes.values().chain(&lines.release).chain(&lines.preflight);
    let web = lines.clone().count() > 0 || start.is_none_or(|start| plain(&start.text));
    web && lines.into_iter().all(|command| plain(command))
}

/// Returns the steps for the manager, what the project does before, and the packages.
pub fn prepare(package: &Package, packages: &Packages) -> Vec<Step> {
    let mut steps: Vec<Step> = packages.tool().into_iter().collect();
    if package.script("heroku-prebuild").is_some() {
        let name = "Running heroku-prebuild".into();
        steps.push(Step { name, command: packages.run("heroku-prebuild") });
    }
    let listed = ["dependencies", "devDependencies", "optionalDependencies", "workspaces"];
    let installs = ["preinstall", "install", "postinstall", "prepare"];
    let wanted = listed.iter().any(|key| package.has(key))
        || installs.iter().any(|script| package.script(script).is_some())
        || packages.is_plug_and_play();
    steps.extend(wanted.then(|| packages.install()));
    steps
}

pub fn clean_up(package: &Package, packages: &Packages) -> Option<Step> {
    package.script("heroku-cleanup").map(|_| Step {
        name: "Running heroku-cleanup".into(),
        command: packages.run("heroku-cleanup"),
    })
}

/// Returns the variables of builds and processes. What is built may install packages of its own, in
/// directories below.
pub fn environment(development: bool) -> BTreeMap<String, String> {
    let mut variables = vec![
        ("NODE_ENV", "production"),
        // Asking for a newer npm takes minutes where the network is poor.
        ("npm_config_update_notifier", "false"),
    ];
    if development {
        variables.push(("npm_config_include", "dev"));
    }
    variables.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

struct StartScript {
    /// The command as the project writes it, or as it is called.
    text: String,
    kind: StartKind,
    /// The file of the program, if it is known.
    file: Option<String>,
    note: Option<String>,
}

#[derive(PartialEq)]
enum StartKind {
    /// The start script, run by the package manager.
    Script,
    /// A program of Node.js, or of a package.
    Program,
}

impl StartScript {
    fn command(&self, packages: &Packages) -> String {
        match self.kind {
            StartKind::Script => packages.start(),
            StartKind::Program => packages.call(&self.text),
        }
    }

    fn program(text: String, file: Option<String>) -> StartScript {
        StartScript { text, kind: StartKind::Program, file, note: None }
    }
}

fn start(tree: &SourceTree, package: &Package) -> Option<StartScript> {
    let script = package.script("start");
    let script = script.filter(|text| !front_end::is_development_server(package, text));
    if let Some(text) = script {
        let hooks = ["prestart", "poststart"].iter().any(|name| package.script(name).is_some());
        let words: Vec<&str> = text.split_whitespace().collect();
        let plain = words.first() == Some(&"node")
            && text.chars().all(|c| c.is_ascii_alphanumeric() || " ._/-=".contains(c));
        // npm itself would stay beside it with as much memory as a small application.
        return Some(if plain && !hooks {
            let file = words.last().map(|file| file.trim_start_matches("./").to_owned());
            StartScript::program(text.into(), file)
        } else {
            StartScript { text: text.into(), kind: StartKind::Script, file: None, note: None }
        });
    }
    if let Some(FrontEndRole::Server(command)) = front_end::role(tree, package) {
        return Some(StartScript::program(command, None));
    }
    let (file, note) = program(tree, package);
    let file = file.or_else(|| compiled_program(package))?;
    let text = format!("node {}", shell_word(&file));
    Some(StartScript { note, ..StartScript::program(text, Some(file)) })
}

/// Returns the main file, or one with a usual name; and what is odd.
fn program(tree: &SourceTree, package: &Package) -> (Option<String>, Option<String>) {
    let main = package.text(&["main"]).map(|main| main.trim_start_matches("./"));
    let exists = |file: &str| {
        let spellings = [file.to_owned(), format!("{file}.js"), format!("{file}/index.js")];
        spellings.into_iter().find(|path| tree.exists(path))
    };
    let found = main.and_then(exists);
    let compiled = compiled_program(package).is_some();
    let note = main.filter(|_| found.is_none() && !compiled).map(|main| {
        format!("{PACKAGE_JSON}: the main file '{}' is not there", main.escape_debug())
    });
    let usual = || PROGRAMS.iter().find(|program| tree.exists(program)).map(|one| (*one).into());
    (found.or_else(|| if compiled { None } else { usual() }), note)
}

/// Returns what the build script makes of TypeScript and the like, if `main` names it.
fn compiled_program(package: &Package) -> Option<String> {
    let main = package.text(&["main"])?.trim_start_matches("./");
    let script = front_end::usual_build_script(package).and_then(|name| package.script(name))?;
    let built = ["dist/", "build/", "lib/", "out/"].iter().any(|made| main.starts_with(made));
    (built && front_end::only_compiles(script)).then(|| main.to_owned())
}

/// Returns whether a project without a start script has a program that is a server.
pub fn listens(tree: &SourceTree, package: &Package) -> bool {
    if compiled_program(package).is_some() {
        return true;
    }
    let (file, _) = program(tree, package);
    let text = file.and_then(|file| tree.text(&file)).unwrap_or_default();
    [".listen(", "listen(", "createServer(", "serve("].iter().any(|call| text.contains(call))
}

fn port_note(tree: &SourceTree, file: &str) -> Option<String> {
    let text = tree.text(file)?;
    // A program of several files reads its settings in one of the others.
    let reads = || {
        let mut sources = SOURCES.iter().flat_map(|pattern| tree.named(pattern));
        sources.any(|(_, file)| file.text.as_deref().is_some_and(|text| text.contains("PORT")))
    };
    let deaf = text.contains("listen(") && !tree.exists(PROCFILE) && !reads();
    deaf.then(|| {
        format!("{file} never reads process.env.PORT; it must listen on the port that it names")
    })
}

/// Returns directories that Express serves by its own route; only the usual line is taken over, as
/// files under another prefix or behind a login must not be.
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
        site_mount("/", "public", None)
    } else {
        Vec::new()
    }
}

#[cfg(test)]
mod tests;
