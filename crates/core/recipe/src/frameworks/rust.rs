//! Rust: Cargo builds the package's executable. Compiled dependencies stay in the application's
//! cache; the executable is copied into the release.

use model::Recipe;
use model::release::{Portable, Step};

use super::{Framework, RecipeError, port_note, shell_word, sqlite, web_only};
use crate::procfile::PROCFILE;
use crate::source::SourceTree;

const MANIFEST: &str = "Cargo.toml";
/// The directory into which Cargo itself puts executables, so that a Procfile may name them.
const RELEASE: &str = "target/release";

/// The command that builds. rustup finds its toolchains in the home directory of the user, not in
/// the application's.
const BUILD: &str = "export RUSTUP_HOME=\"${RUSTUP_HOME:-$(getent passwd \"$(id -u)\" \
    | cut -d: -f6)/.rustup}\" CARGO_HOME=\"$XDG_CACHE_HOME/cargo\" \
    && cargo build --release --quiet --target-dir \"$CORTEX_CACHE/target\"";

pub struct Rust;

impl Framework for Rust {
    fn name(&self) -> &'static str {
        "rust"
    }

    fn looks_for(&self) -> &'static str {
        "Cargo.toml of a package with an executable"
    }

    fn detect(&self, tree: &SourceTree) -> Option<String> {
        tree.exists(MANIFEST).then(|| format!("{MANIFEST} names a Rust package"))
    }

    fn recipe(&self, tree: &SourceTree) -> Result<Recipe, RecipeError> {
        let executable = executable(tree).map_err(RecipeError)?;
        let (arguments, files, processes) = match &executable {
            Some((package, name)) => {
                let (package, name) = (shell_word(package), shell_word(name));
                let process = web_only(format!("./{RELEASE}/{name}"), None);
                (format!(" -p {package} --bin {name}"), name, process)
            }
            None => (" --workspace --bins".into(), "*".into(), Default::default()),
        };
        let copy = format!(
            "mkdir -p {RELEASE} && find \"$CORTEX_CACHE/{RELEASE}\" -maxdepth 1 -type f -perm -u+x \
             -name '{files}' -exec cp {{}} {RELEASE}/ \\;"
        );
        let command = format!("{BUILD}{arguments} && {copy}");
        Ok(Recipe {
            build: vec![Step { name: "Building the Rust program".into(), command }],
            portable: Some(Portable::default()),
            processes,
            persist: sqlite::named_in_code(tree, "*.rs"),
            notes: port_note(tree, "*.rs", "std::env::var(\"PORT\")"),
            ..Recipe::default()
        })
    }
}

/// Returns the package and the name of the executable that is started; `None` if a Procfile says
/// what runs.
fn executable(tree: &SourceTree) -> Result<Option<(String, String)>, String> {
    let mut found = Vec::new();
    for (path, file) in tree.named(MANIFEST) {
        let text = file.text.as_deref().unwrap_or_default();
        let manifest: toml::Table = text
            .parse()
            .map_err(|error: toml::de::Error| format!("{path} is not TOML: {}", error.message()))?;
        let directory = path.strip_suffix(MANIFEST).unwrap_or_default();
        found.extend(executables(tree, directory, &manifest));
    }
    let default = found.iter().position(|(_, _, is_default)| *is_default);
    match (default, found.len()) {
        _ if tree.exists(PROCFILE) => Ok(None),
        (None, 0) => Err(format!("no {MANIFEST} has an executable: add src/main.rs")),
        (None, 2..) => Err(format!(
            "there are several executables, {}: name one by default-run in {MANIFEST}, or start \
             it by a Procfile with the line 'web: ./{RELEASE}/NAME'",
            found.iter().map(|(_, name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
        )),
        (at, _) => {
            let (package, name, _) = found.swap_remove(at.unwrap_or(0));
            Ok(Some((package, name)))
        }
    }
}

/// Returns the executables of one package: its name, the executable's, and whether `cargo run`
/// would start it.
fn executables(
    tree: &SourceTree,
    directory: &str,
    manifest: &toml::Table,
) -> Vec<(String, String, bool)> {
    let text = |value: Option<&toml::Value>| value.and_then(|v| v.as_str()).map(str::to_owned);
    let Some(package) = manifest.get("package") else { return Vec::new() };
    let Some(name) = text(package.get("name")) else { return Vec::new() };
    let default = text(package.get("default-run"));
    let mut names: Vec<String> = Vec::new();
    if tree.exists(&format!("{directory}src/main.rs")) {
        names.push(name.clone());
    }
    let listed = manifest.get("bin").and_then(|bins| bins.as_array());
    for bin in listed.into_iter().flatten() {
        if text(bin.get("path")).is_some_and(|path| path.trim_start_matches("./") == "src/main.rs")
        {
            names.retain(|known| *known != name);
        }
        names.extend(text(bin.get("name")));
    }
    let own = format!("{directory}src/bin");
    for (path, _) in tree.under(&own) {
        let path = &path[own.len() + 1..];
        let name = path.strip_suffix("/main.rs").or_else(|| path.strip_suffix(".rs"));
        names.extend(name.filter(|name| !name.contains('/')).map(str::to_owned));
    }
    names.sort();
    names.dedup();
    names.into_iter().map(|bin| (name.clone(), bin.clone(), default == Some(bin))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)], expected: Result<Option<(&str, &str)>, &str>) {
        let found = executable(&SourceTree::from_pairs(files.iter().copied()));
        match (found, expected) {
            (Ok(found), Ok(expected)) => {
                let found = found.as_ref().map(|(p, n)| (p.as_str(), n.as_str()));
                assert_eq!(found, expected, "{files:?}");
            }
            (Err(error), Err(words)) => assert!(error.contains(words), "{error}"),
            (found, _) => panic!("{files:?}: {found:?}"),
        }
    }

    const SHOP: (&str, &str) = (MANIFEST, "[package]\nname = \"shop\"\n");

    #[test]
    fn the_executable_is_found() {
        check(&[SHOP, ("src/main.rs", "")], Ok(Some(("shop", "shop"))));
        check(&[SHOP, ("src/bin/web.rs", ""), ("src/lib.rs", "")], Ok(Some(("shop", "web"))));
        check(&[SHOP, ("src/bin/web/main.rs", "")], Ok(Some(("shop", "web"))));
        let two = [SHOP, ("src/main.rs", ""), ("src/bin/tool.rs", "")];
        check(&two, Err("several executables, shop, tool"));
        let named = "[package]\nname = \"shop\"\ndefault-run = \"tool\"\n";
        check(&[(MANIFEST, named), two[1], two[2]], Ok(Some(("shop", "tool"))));
        check(&[SHOP, two[1], two[2], (PROCFILE, "web: x")], Ok(None));
        check(&[SHOP, ("src/lib.rs", "")], Err("add src/main.rs"));
        check(&[(MANIFEST, "= 1")], Err("not TOML"));
        let renamed = "[package]\nname = \"a\"\n[[bin]]\nname = \"b\"\npath = \"src/main.rs\"\n";
        check(&[(MANIFEST, renamed), ("src/main.rs", "")], Ok(Some(("a", "b"))));
    }

    #[test]
    fn a_workspace_is_searched() {
        let files = [
            (MANIFEST, "[workspace]\nmembers = [\"crates/*\"]\n"),
            ("crates/core/Cargo.toml", "[package]\nname = \"core\"\n"),
            ("crates/core/src/lib.rs", ""),
            ("crates/web/Cargo.toml", "[package]\nname = \"web\"\n"),
            ("crates/web/src/main.rs", "fn main() {}"),
        ];
        check(&files, Ok(Some(("web", "web"))));
        let recipe = Rust.recipe(&SourceTree::from_pairs(files)).unwrap();
        assert!(recipe.build[0].command.contains("-p web --bin web"), "{:?}", recipe.build);
        assert_eq!(recipe.processes.values().next().unwrap().command, "./target/release/web");
    }
}
