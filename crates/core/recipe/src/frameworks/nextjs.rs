//! Next.js: built, then served by its own server, by the standalone one if the project asks for it,
//! or by the router if it exports files.

use std::collections::BTreeMap;

use model::Recipe;
use model::release::{Portable, Step};

use super::front_end::{self, Finding};
use super::node::{self, Node};
use super::package_json::{PACKAGE_JSON, Package};
use super::{Framework, RecipeError, packages, site_mount, web_only};
use crate::source::SourceTree;

/// The command for what `output: 'standalone'` leaves for others to do.
const STANDALONE: &str = "for d in public .next/static; do [ ! -d $d ] || { mkdir -p \
    .next/standalone/$d && cp -r $d/. .next/standalone/$d/; }; done";

pub struct NextJs;

impl Framework for NextJs {
    fn name(&self) -> &'static str {
        "nextjs"
    }

    fn looks_for(&self) -> &'static str {
        "package.json that lists next"
    }

    fn detect(&self, tree: &SourceTree) -> Option<String> {
        lists_next(tree).then(|| format!("{PACKAGE_JSON} lists Next.js"))
    }

    fn recipe(&self, tree: &SourceTree) -> Result<Recipe, RecipeError> {
        if !lists_next(tree) {
            let why = format!("{PACKAGE_JSON} does not list it: run 'npm install next'");
            return Err(RecipeError(why));
        }
        let package = Package::read(tree).map_err(RecipeError)?;
        let start = package.script("start").unwrap_or_default();
        // A server of the project's own is started as Node.js projects are.
        if !start.is_empty()
            && !start.starts_with("next start")
            && !front_end::is_development_server(&package, start)
        {
            let mut recipe = Node.recipe(tree)?;
            recipe.environment.extend(environment());
            return Ok(recipe);
        }
        let packages = packages::of(tree, "", &package, true).map_err(RecipeError)?;
        let script = front_end::usual_build_script(&package);
        let built = script.map_or_else(|| packages.call("next build"), |name| packages.run(name));
        // What the compiler keeps for the next build is the application's, not the release's.
        let cache =
            "mkdir -p \"$CORTEX_CACHE/next\" .next && ln -sfn \"$CORTEX_CACHE/next\" .next/cache";
        let command = format!("{cache} && {built}");
        let mut build = node::prepare(&package, &packages);
        build.push(Step { name: "Building the site".into(), command });
        build.extend(node::clean_up(&package, &packages));
        let mut recipe = Recipe {
            environment: node::environment(true),
            path: packages.path(),
            // The cache is a link to this node's own.
            portable: Some(Portable { without: vec![".next/cache".into()] }),
            notes: packages.notes.clone(),
            ..Recipe::default()
        };
        recipe.environment.extend(environment());
        recipe.environment.extend(packages.environment());
        let exports = script.and_then(|name| package.script(name)).unwrap_or_default();
        match setting(tree, "output").as_deref() {
            _ if exports.contains("next export") => export(tree, &mut build, &mut recipe, "out"),
            Some("export") => {
                let directory = setting(tree, "distDir").unwrap_or_else(|| "out".into());
                export(tree, &mut build, &mut recipe, &directory);
            }
            Some("standalone") => {
                build.push(Step { name: "Copying files".into(), command: STANDALONE.into() });
                let command = "env HOSTNAME=\"$HOST\" node .next/standalone/server.js";
                recipe.processes = web_only(command.into(), None);
            }
            _ => {
                let command = packages.call("next start -H \"$HOST\" -p \"$PORT\"");
                recipe.processes = web_only(command, None);
            }
        }
        Ok(Recipe { build, ..recipe })
    }
}

/// Plans the export of a site: nothing runs, the router serves what was written.
fn export(tree: &SourceTree, build: &mut Vec<Step>, recipe: &mut Recipe, directory: &str) {
    build.push(Finding::new(tree, Some(directory)).step());
    recipe.statics = site_mount("/", directory, None);
}

fn environment() -> BTreeMap<String, String> {
    let variables = [("NODE_ENV", "production"), ("NEXT_TELEMETRY_DISABLED", "1")];
    variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

fn lists_next(tree: &SourceTree) -> bool {
    Package::read(tree).is_ok_and(|package| package.lists("next"))
}

/// Returns the value of `output: 'standalone'` and the like in next.config.js and its kin, by
/// reading.
fn setting(tree: &SourceTree, key: &str) -> Option<String> {
    let (_, file) = tree.named("next.config.*").find(|(path, _)| !path.contains('/'))?;
    let lines = file.text.as_deref()?.lines().map(str::trim);
    let value = lines.filter_map(|line| {
        let value = line.trim_start_matches(['"', '\'']).strip_prefix(key)?;
        value.trim_start_matches(['"', '\'']).trim_start().strip_prefix(':')
    });
    let value = value.map(|value| value.trim().trim_end_matches(',').trim_matches(['"', '\'']));
    value.map(str::to_owned).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GENERATED: &str = r#"{"scripts": {"build": "next build", "start": "next start"},
        "dependencies": {"next": "14.2.0", "react": "^18"}}"#;

    fn recipe(package: &str, config: &str) -> Recipe {
        let files = [(PACKAGE_JSON, package), ("next.config.mjs", config)];
        let tree = SourceTree::from_pairs(files);
        assert_eq!(NextJs.detect(&tree).as_deref(), Some("package.json lists Next.js"));
        NextJs.recipe(&tree).unwrap()
    }

    fn command(recipe: &Recipe) -> Option<&str> {
        recipe.processes.values().next().map(|process| process.command.as_str())
    }

    #[test]
    fn the_output_decides_what_serves() {
        let usual = recipe(GENERATED, "const nextConfig = {};\nexport default nextConfig;\n");
        assert_eq!(command(&usual), Some("next start -H \"$HOST\" -p \"$PORT\""));
        assert!(usual.build[1].command.ends_with("npm run build"), "{:?}", usual.build);
        let alone = recipe(GENERATED, "module.exports = {\n  output: 'standalone',\n}\n");
        assert!(command(&alone).unwrap().ends_with("node .next/standalone/server.js"));
        let files = recipe(GENERATED, "module.exports = {\n  \"output\": \"export\"\n}\n");
        assert_eq!((command(&files), files.statics[0].directory.as_str()), (None, "out"));
    }

    #[test]
    fn a_server_of_ones_own_is_kept() {
        let package = r#"{"scripts": {"start": "node server.js"}, "dependencies": {"next": "14"}}"#;
        let own = recipe(package, "");
        assert_eq!(command(&own), Some("node server.js"));
        assert_eq!(own.environment["NEXT_TELEMETRY_DISABLED"], "1");
        let other = SourceTree::from_pairs([(PACKAGE_JSON, "{\"dependencies\": {}}")]);
        assert_eq!(NextJs.detect(&other), None);
        assert!(NextJs.recipe(&other).is_err());
    }
}
