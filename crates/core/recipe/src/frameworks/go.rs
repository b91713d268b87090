//! Go: the module's main package, built by the toolchain into one executable.

use model::Recipe;
use model::release::{Portable, Step};

use super::{Framework, RecipeError, shell_word, sqlite, web_only};
use crate::procfile::PROCFILE;
use crate::source::{SourceFile, SourceTree};

/// The command that builds. Modules are shared by all applications; the build cache is too, by
/// `XDG_CACHE_HOME`. They are writable, so that the cache can be pruned.
const BUILD: &str = "env GOMODCACHE=\"$XDG_CACHE_HOME/go-mod\" go build -modcacherw";

pub struct Go;

impl Framework for Go {
    fn name(&self) -> &'static str {
        "go"
    }

    fn looks_for(&self) -> &'static str {
        "go.mod and a package main in the root or in cmd/NAME"
    }

    fn detect(&self, tree: &SourceTree) -> Option<String> {
        tree.exists("go.mod").then(|| "go.mod names a Go module".into())
    }

    fn recipe(&self, tree: &SourceTree) -> Result<Recipe, RecipeError> {
        let Some(package) = main_package(tree) else {
            let why = "neither its root nor cmd/NAME has a file with 'package main'";
            return Err(RecipeError(why.into()));
        };
        let command = format!("{BUILD} -o .cortex-app {}", shell_word(&package));
        let mut build = vec![Step { name: "Building the Go program".into(), command }];
        let named = named_in_procfile(tree);
        if !named.is_empty() {
            let packages: Vec<String> = named.iter().map(|package| shell_word(package)).collect();
            let links: String = linked(tree, &named)
                .iter()
                .map(|name| format!(" && {{ test -e {name} || ln -s bin/{name} {name}; }}"))
                .collect();
            let command = format!("mkdir -p bin && {BUILD} -o bin/ {}{links}", packages.join(" "));
            build.push(Step { name: "Building what the Procfile names".into(), command });
        }
        Ok(Recipe {
            path: if named.is_empty() { Vec::new() } else { vec!["bin".into()] },
            build,
            portable: Some(Portable::default()),
            processes: web_only("./.cortex-app".into(), None),
            persist: sqlite::named_in_code(tree, "*.go"),
            notes: super::port_note(tree, "*.go", "os.Getenv(\"PORT\")"),
            ..Recipe::default()
        })
    }
}

/// Returns the programs that the Procfile names. Heroku puts programs into `bin`, which is
/// searched, under the names that Go gives them: people's Procfiles start them so.
fn named_in_procfile(tree: &SourceTree) -> Vec<String> {
    let procfile = tree.text(PROCFILE).unwrap_or_default();
    let names = |name: &str| {
        let mut words = procfile.split(|c: char| c.is_whitespace() || "/;&|\"'".contains(c));
        words.any(|word| word == name)
    };
    let root = module_name(tree.text("go.mod").unwrap_or_default());
    let mut packages = main_packages(tree);
    packages.retain(|package| match package.strip_prefix("cmd/") {
        Some(name) => names(name),
        None => package.is_empty() && root.is_some_and(names),
    });
    packages.into_iter().map(|package| format!("./{package}")).collect()
}

/// Returns the programs that the Procfile starts as `./NAME`, where `go build` puts a program by
/// itself.
fn linked(tree: &SourceTree, packages: &[String]) -> Vec<String> {
    let procfile = tree.text(PROCFILE).unwrap_or_default();
    let asked = |name: &&str| {
        let mut words = procfile.split(|c: char| c.is_whitespace() || ";&|\"'".contains(c));
        words.any(|word| word.strip_prefix("./") == Some(*name))
    };
    let root = module_name(tree.text("go.mod").unwrap_or_default());
    let name = |package: &String| match package.strip_prefix("./cmd/") {
        Some(name) => Some(name.to_owned()),
        None => root.map(str::to_owned),
    };
    let names = packages.iter().filter_map(name);
    names.filter(|name| asked(&name.as_str())).map(|name| shell_word(&name)).collect()
}

/// Returns the last part of the module's path that is no version.
fn module_name(go_mod: &str) -> Option<&str> {
    let mut lines = go_mod.lines().map(str::trim);
    let path = lines.find_map(|line| line.strip_prefix("module "))?.trim().trim_matches('"');
    let is_version = |part: &str| {
        let digits = part.strip_prefix('v').unwrap_or_default();
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    path.rsplit('/').find(|part| !is_version(part))
}

/// Returns the root, or the first of `cmd/`: the usual layout of a module with libraries.
fn main_package(tree: &SourceTree) -> Option<String> {
    let found = main_packages(tree);
    let root = found.iter().find(|directory| directory.is_empty());
    root.or_else(|| found.iter().find(|directory| directory.starts_with("cmd/")))
        .map(|directory| format!("./{directory}"))
}

/// Returns the directories with a main package.
fn main_packages(tree: &SourceTree) -> Vec<String> {
    let is_main = |(path, file): &(&str, &SourceFile)| {
        let text = file.text.as_deref().unwrap_or_default();
        !path.ends_with("_test.go") && text.lines().any(|line| line.trim() == "package main")
    };
    let directory = |path: &str| path.rsplit_once('/').map_or(String::new(), |(d, _)| d.into());
    let mut found: Vec<String> =
        tree.named("*.go").filter(is_main).map(|(path, _)| directory(path)).collect();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)], expected: Option<&str>) {
        let tree = SourceTree::from_pairs(files.iter().copied());
        let recipe = Go.recipe(&tree).ok();
        let built = recipe.as_ref().and_then(|recipe| recipe.build[0].command.rsplit(' ').next());
        assert_eq!(built, expected, "{files:?}");
    }

    #[test]
    fn the_main_package_is_found() {
        check(&[("go.mod", ""), ("web.go", "// x\npackage main\n")], Some("./"));
        let commands = [("cmd/shop/main.go", "package main"), ("a.go", "package shop")];
        check(&commands, Some("./cmd/shop"));
        check(&[("a_test.go", "package main"), ("tools/x.go", "package main")], None);
        check(&[("go.mod", "")], None);
    }

    #[test]
    fn a_procfile_finds_programs_under_the_names_that_go_gives_them() {
        let commands = |procfile: &str| -> Vec<String> {
            let files = [
                ("go.mod", "module github.com/ann/shop/v2\n\ngo 1.22\n"),
                ("main.go", "package main"),
                ("more.go", "package main"),
                ("cmd/worker/main.go", "package main"),
                ("Procfile", procfile),
            ];
            let recipe = Go.recipe(&SourceTree::from_pairs(files)).unwrap();
            assert_eq!(recipe.path.is_empty(), recipe.build.len() == 1);
            recipe.build.into_iter().skip(1).map(|step| step.command).collect()
        };
        let built = |packages: &str| vec![format!("mkdir -p bin && {BUILD} -o bin/ {packages}")];
        assert_eq!(commands("web: shop\n"), built("./"));
        assert_eq!(commands("web: bin/shop -x\nworker: worker"), built("./cmd/worker ./"));
        assert_eq!(commands("web: ./.cortex-app\n"), [""; 0]);
        let linked = "./ && { test -e shop || ln -s bin/shop shop; }";
        assert_eq!(commands("web: ./shop -listen $HOST:$PORT\n"), built(linked));
    }

    #[test]
    fn a_program_without_the_port_is_remarked() {
        let notes = |code: &str| {
            let files = [("main.go", code), ("go.mod", "module x\n")];
            Go.recipe(&SourceTree::from_pairs(files)).unwrap().notes.len()
        };
        assert_eq!(notes("package main\nfunc main() { http.ListenAndServe(\":80\", nil) }"), 1);
        assert_eq!(notes("package main\nvar port = os.Getenv(\"PORT\")"), 0);
    }
}
