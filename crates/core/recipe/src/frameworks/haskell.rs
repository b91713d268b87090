//! Haskell's web servers: Yesod, Scotty, Servant, Snap, Happstack and anything else that Cabal or
//! Stack builds into one executable.

use std::collections::BTreeMap;

use model::Recipe;
use model::release::Step;

use super::{Framework, RecipeError, port_note, sqlite, web_only};
use crate::source::SourceTree;

/// Packages that make a project a web application; Yesod, Scotty and Servant are built on Warp.
const SERVERS: &[&str] = &["yesod", "scotty", "servant-server", SNAP, "happstack-server", "warp"];
const SNAP: &str = "snap-server";
const PACKAGE_YAML: &str = "package.yaml";
/// The options that tell a program of Snap what it listens on, which it leaves to its own command
/// line.
const SNAP_OPTIONS: &[&str] =
    &["quickHttpServe", "commandLineConfig", "commandLineAppConfig", "serveSnaplet"];
/// The settings file of Yesod's own generator.
const SETTINGS: &str = "config/settings.yml";

/// The command that builds with Cabal. Packages of the operating system need no index and no
/// network; if they do not suffice, the index is fetched. Compiled packages are shared, what this
/// application compiled is kept for it.
const CABAL: &str = "export CABAL_DIR=\"$XDG_CACHE_HOME/cabal\" && mkdir -p \"$CABAL_DIR\" \
    && build() { cabal \"$@\" --builddir=\"$CORTEX_CACHE/dist\" exe:NAME; } \
    && here=--config-file=/dev/null && if build $here v2-build --offline -v1; \
    then cp \"$(build $here list-bin -v0)\" .cortex-app; \
    else echo 'Not all packages are on this machine: fetching them.' && cabal v2-update \
    && build v2-build -v1 && cp \"$(build list-bin -v0)\" .cortex-app; fi";
const STACK: &str = "env STACK_ROOT=\"$XDG_CACHE_HOME/stack\" stack build --work-dir .stack-work \
    --copy-bins --local-bin-path .cortex-bin && mv .cortex-bin/NAME .cortex-app";

pub struct Haskell;

impl Framework for Haskell {
    fn name(&self) -> &'static str {
        "haskell"
    }

    fn looks_for(&self) -> &'static str {
        "a *.cabal or package.yaml with yesod, scotty, servant, snap, happstack or warp in it"
    }

    fn detect(&self, tree: &SourceTree) -> Option<String> {
        let (file, text) = package(tree)?;
        let server = SERVERS.iter().find(|server| depends_on(text, server))?;
        Some(format!("{file} lists {server}"))
    }

    fn recipe(&self, tree: &SourceTree) -> Result<Recipe, RecipeError> {
        let Some((file, text)) = package(tree) else {
            return Err(RecipeError("there is no *.cabal or package.yaml in its root".into()));
        };
        let name = executable(file, text).ok_or_else(|| {
            RecipeError(format!("{file} names no executable: add the section 'executable NAME'"))
        })?;
        let stack = tree.exists("stack.yaml") || file == PACKAGE_YAML;
        let command = if stack { STACK } else { CABAL }.replace("NAME", &name);
        let mut persist = sqlite::named_in_code(tree, "*.hs");
        persist.extend(settings_database(tree.text(SETTINGS).unwrap_or_default()));
        // Programs of Yesod's generator read these; others find the address in HOST and PORT.
        let host = ("YESOD_HOST".to_owned(), "127.0.0.1".to_owned());
        let mut notes = port_note(tree, "*.hs", "System.Environment.getEnv \"PORT\"");
        let snap = depends_on(text, SNAP) && has_snap_options(tree);
        notes.retain(|_| !tree.exists(SETTINGS) && !snap);
        let options = if snap { " --address=\"$HOST\" --port=\"$PORT\"" } else { "" };
        Ok(Recipe {
            build: vec![Step { name: "Building the Haskell program".into(), command }],
            processes: web_only(format!("./.cortex-app{options}"), None),
            environment: BTreeMap::from([host]),
            persist,
            notes,
            ..Recipe::default()
        })
    }
}

fn package(tree: &SourceTree) -> Option<(&str, &str)> {
    let mut root = tree.named("*.cabal").filter(|(path, _)| !path.contains('/'));
    let cabal = root.find_map(|(path, file)| Some((path, file.text.as_deref()?)));
    cabal.or_else(|| Some((PACKAGE_YAML, tree.text(PACKAGE_YAML)?)))
}

fn has_snap_options(tree: &SourceTree) -> bool {
    let mut texts = tree.named("*.hs").filter_map(|(_, file)| file.text.as_deref());
    texts.any(|text| SNAP_OPTIONS.iter().any(|word| text.contains(word)))
}

/// Returns whether the name occurs as a word of its own, or with what is made for it: `yesod-core`.
/// A bound may end it: `scotty^>=0.12`.
fn depends_on(text: &str, package: &str) -> bool {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with(['#', '-']));
    let yaml = text.lines().filter_map(|line| line.trim_start().strip_prefix("- "));
    let mut words =
        lines.chain(yaml).flat_map(|line| line.split([' ', ',', ':', '\t', '>', '<', '=', '^']));
    words.any(|word| {
        word.strip_prefix(package).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    })
}

/// Returns the first executable: of `executable NAME`, or the first key below `executables:`.
fn executable(file: &str, text: &str) -> Option<String> {
    let name = if file == PACKAGE_YAML {
        let mut lines = text.lines().skip_while(|line| !line.starts_with("executables:")).skip(1);
        lines.find(|line| !line.trim().is_empty())?.trim().trim_end_matches(':')
    } else {
        text.lines().find_map(|line| {
            let (key, name) = line.split_once(char::is_whitespace)?;
            key.eq_ignore_ascii_case("executable").then(|| name.trim())
        })?
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_'.".contains(c);
    (!name.is_empty() && !name.starts_with('-') && name.chars().all(plain))
        .then(|| name.replace('\'', ""))
}

/// Returns the file in `database: "_env:YESOD_SQLITE_DATABASE:shop.sqlite3"`.
fn settings_database(yaml: &str) -> Option<String> {
    let value = yaml.lines().find_map(|line| line.trim().strip_prefix("database:"))?;
    let value = value.split('#').next()?.trim().trim_matches(['"', '\'']);
    let value = match value.strip_prefix("_env:") {
        Some(rest) => rest.split_once(':')?.1,
        None => value,
    };
    sqlite::database_path(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CABAL_FILE: &str = "cabal-version: 2.4\nname: shop\nexecutable shop-web\n    \
        build-depends: base, yesod-core >= 1.6,warp\n    main-is: Main.hs\n";

    #[test]
    fn the_package_that_decides_is_named() {
        for (file, text, expected) in [
            ("shop.cabal", CABAL_FILE, Some("shop.cabal lists yesod")),
            ("a.cabal", "executable a\n  build-depends: base, warp\n", Some("a.cabal lists warp")),
            ("package.yaml", "dependencies:\n- scotty\n", Some("package.yaml lists scotty")),
            ("a.cabal", "build-depends:base,scotty==0.12.*\n", Some("a.cabal lists scotty")),
            ("a.cabal", "  , snap-server^>=1.1\n", Some("a.cabal lists snap-server")),
            ("a.cabal", "happstack-server\n", Some("a.cabal lists happstack-server")),
            ("a.cabal", "-- scotty\nexecutable a\n  build-depends: warped\n", None),
            ("lib/a.cabal", CABAL_FILE, None),
        ] {
            let tree = SourceTree::from_pairs([(file, text)]);
            assert_eq!(Haskell.detect(&tree).as_deref(), expected, "{file}");
        }
    }

    #[test]
    fn snaps_own_options_say_where_it_listens() {
        let start = |packages: &str, main: &str| {
            let cabal = format!("executable site\n  build-depends: base, {packages}\n");
            let files = [("site.cabal", cabal.as_str()), ("app/Main.hs", main)];
            let recipe = Haskell.recipe(&SourceTree::from_pairs(files)).unwrap();
            (recipe.processes.into_values().next().unwrap().command, recipe.notes.len())
        };
        let (quick, own) = ("main = quickHttpServe site", "main = getEnv \"PORT\" >>= serve");
        let options = "./.cortex-app --address=\"$HOST\" --port=\"$PORT\"".to_owned();
        assert_eq!(start("snap-server", quick), (options, 0));
        assert_eq!(start("snap-server", own), ("./.cortex-app".into(), 0));
        assert_eq!(start("snap-server", "main = httpServe"), ("./.cortex-app".into(), 1));
        assert_eq!(start("warp", quick), ("./.cortex-app".into(), 1));
    }

    #[test]
    fn the_executable_is_built_and_started() {
        let settings = "port: \"_env:YESOD_PORT:3000\"\nsqlite-settings:\n  \
                        database: \"_env:YESOD_SQLITE_DATABASE:shop.sqlite3\" # here\n";
        let files = [("shop.cabal", CABAL_FILE), (SETTINGS, settings), ("Main.hs", "main = x")];
        let recipe = Haskell.recipe(&SourceTree::from_pairs(files)).unwrap();
        assert!(recipe.build[0].command.contains("exe:shop-web"), "{:?}", recipe.build);
        assert_eq!(recipe.processes.values().next().unwrap().command, "./.cortex-app");
        assert_eq!(recipe.persist, ["shop.sqlite3"]);
        assert!(recipe.notes.is_empty(), "{:?}", recipe.notes);
        let yaml = "name: shop\nexecutables:\n  shop-exe:\n    main: Main.hs\n";
        let recipe = Haskell.recipe(&SourceTree::from_pairs([(PACKAGE_YAML, yaml)])).unwrap();
        assert!(recipe.build[0].command.contains("mv .cortex-bin/shop-exe"), "{:?}", recipe.build);
        for (file, text) in [("a.cabal", "library\n"), ("a.cabal", "executable $(x)\n")] {
            let error = Haskell.recipe(&SourceTree::from_pairs([(file, text)])).unwrap_err();
            assert!(error.0.contains("names no executable"), "{}", error.0);
        }
    }
}
