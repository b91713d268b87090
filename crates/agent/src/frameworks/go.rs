//! Go: the module's main package, built by the toolchain into one executable.

use model::Recipe;
use model::release::{Portable, Step};

use super::{Framework, RecipeError, shell_word, sqlite, web_only};
use crate::source::{SourceFile, SourceTree};

/// Modules are shared by all applications; the build cache is too, by `XDG_CACHE_HOME`. Writable,
/// so that the cache can be pruned.
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
        Ok(Recipe {
            build: vec![Step { name: "Building the Go program".into(), command }],
            portable: Some(Portable::default()),
            processes: web_only("./.cortex-app".into(), None),
            persist: sqlite::named_in_code(tree, "*.go"),
            notes: super::port_note(tree, "*.go", "os.Getenv(\"PORT\")"),
            ..Recipe::default()
        })
    }
}

/// The root, or the first of `cmd/`: the usual layout of a module with libraries.
fn main_package(tree: &SourceTree) -> Option<String> {
    let is_main = |(path, file): &(&str, &SourceFile)| {
        let text = file.text.as_deref().unwrap_or_default();
        !path.ends_with("_test.go") && text.lines().any(|line| line.trim() == "package main")
    };
    let directory = |path: &str| path.rsplit_once('/').map_or(String::new(), |(d, _)| d.into());
    let found: Vec<String> =
        tree.named("*.go").filter(is_main).map(|(path, _)| directory(path)).collect();
    let root = found.iter().find(|directory| directory.is_empty());
    root.or_else(|| found.iter().find(|directory| directory.starts_with("cmd/")))
        .map(|directory| format!("./{directory}"))
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
    fn a_program_without_the_port_is_remarked() {
        let notes = |code: &str| {
            let files = [("main.go", code), ("go.mod", "module x\n")];
            Go.recipe(&SourceTree::from_pairs(files)).unwrap().notes.len()
        };
        assert_eq!(notes("package main\nfunc main() { http.ListenAndServe(\":80\", nil) }"), 1);
        assert_eq!(notes("package main\nvar port = os.Getenv(\"PORT\")"), 0);
    }
}
