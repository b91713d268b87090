//! Elixir: Phoenix and other projects of Mix.

use std::collections::BTreeMap;

use model::Recipe;
use model::release::Step;

use super::{Framework, RecipeError, packages, sqlite, web_only};
use crate::source::SourceTree;

const MIX: &str = "mix.exs";

/// The command that fetches packages; the project's own `deps` need neither Hex nor the network.
const DEPENDENCIES: &str = "export HEX_HOME=\"$XDG_CACHE_HOME/hex\"; mix deps.loadpaths --no-compile \
    >/dev/null 2>&1 || { mix local.hex --force --if-missing && mix local.rebar --force --if-missing \
    && mix deps.get --only prod; } && mix deps.compile";

/// The command that starts it. Generated settings let every network in; a project that has an
/// `http` listens on loopback instead.
const START: &str = "exec mix run --no-compile --no-start --no-halt -e '
app = Mix.Project.config()[:app]
{:ok, host} = System.fetch_env!(\"HOST\") |> to_charlist() |> :inet.parse_address()
port = String.to_integer(System.fetch_env!(\"PORT\"))
for {key, options} <- Application.get_all_env(app),
    Keyword.keyword?(options), is_list(options[:http]) do
  http = Keyword.merge(options[:http], ip: host, port: port)
  Application.put_env(app, key, Keyword.merge(options, http: http, server: true))
end
{:ok, _} = Application.ensure_all_started(app)'";

pub struct Phoenix;

impl Framework for Phoenix {
    fn name(&self) -> &'static str {
        "phoenix"
    }

    fn looks_for(&self) -> &'static str {
        "mix.exs, of Phoenix or any other project of Mix"
    }

    fn detect(&self, tree: &SourceTree) -> Option<String> {
        let text = tree.text(MIX)?;
        Some(match text.contains("{:phoenix,") {
            true => format!("{MIX} lists Phoenix"),
            false => format!("{MIX} names an Elixir project"),
        })
    }

    fn recipe(&self, tree: &SourceTree) -> Result<Recipe, RecipeError> {
        let text = tree.text(MIX).ok_or(RecipeError(format!("{MIX} is missing or no text")))?;
        let step = |name: &str, command: &str| Step { name: name.into(), command: command.into() };
        let mut build = vec![step("Installing Elixir packages", DEPENDENCIES)];
        build.push(step("Compiling", "mix compile"));
        let mut path = Vec::new();
        if has_alias(text, "assets.deploy") {
            if tree.exists("assets/package.json") {
                let packages = packages::for_assets(tree, "assets").map_err(RecipeError)?;
                build.extend(packages.steps());
                path = packages.path();
            }
            build.push(step("Building assets", "mix assets.deploy"));
        }
        let mut release = Vec::new();
        if text.contains("{:ecto_sql,") && tree.has_directory("priv/repo/migrations") {
            release.push(step("Migrating the database", "mix ecto.migrate"));
        }
        let variables = [("MIX_ENV", "prod"), ("PHX_SERVER", "true"), ("MIX_QUIET", "1")];
        let environment: BTreeMap<String, String> =
            variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        Ok(Recipe {
            build,
            release,
            processes: web_only(START.into(), None),
            environment,
            path,
            persist: sqlite::named_in_code(tree, "runtime.exs"),
            ..Recipe::default()
        })
    }
}

/// Returns whether `"assets.deploy": […]` is there under `aliases`, and not in a comment.
fn has_alias(mix: &str, name: &str) -> bool {
    let code = mix.lines().map(|line| line.split('#').next().unwrap_or_default().trim_start());
    let key = format!("\"{name}\"");
    code.into_iter().any(|line| {
        line.split(&key).skip(1).any(|rest| {
            let rest = rest.trim_start();
            rest.starts_with(':') || rest.starts_with("=>")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_project_is_prepared_and_started() {
        let mix = "defp deps do [{:phoenix, \"~> 1.7\"}, {:ecto_sql, \"~> 3\"}] end\n\
                   \"assets.deploy\": [\"esbuild\"]";
        let files = [(MIX, mix), ("priv/repo/migrations/1_a.exs", "")];
        let tree = SourceTree::from_pairs(files);
        assert_eq!(Phoenix.detect(&tree).as_deref(), Some("mix.exs lists Phoenix"));
        let recipe = Phoenix.recipe(&tree).unwrap();
        let names: Vec<&str> = recipe.build.iter().map(|step| step.name.as_str()).collect();
        assert_eq!(names, ["Installing Elixir packages", "Compiling", "Building assets"]);
        assert_eq!(recipe.release[0].command, "mix ecto.migrate");
        assert_eq!(recipe.environment["MIX_ENV"], "prod");
        let web = recipe.processes.values().next().unwrap();
        assert!(web.command.starts_with("exec mix run ") && web.concurrency.is_none());
    }

    #[test]
    fn only_an_alias_of_the_project_is_run() {
        for (mix, expected) in [
            ("aliases: [\"assets.deploy\": [\"esbuild\"]]", true),
            ("  # \"assets.deploy\": [\"esbuild\"]", false),
            ("release: [\"assets.deploy\", \"release\"]", false),
        ] {
            assert_eq!(has_alias(mix, "assets.deploy"), expected, "{mix}");
        }
    }

    #[test]
    fn a_plain_project_of_mix_is_neither_migrated_nor_has_assets() {
        let tree = SourceTree::from_pairs([(MIX, "{:plug_cowboy, \"~> 2.0\"}")]);
        assert_eq!(Phoenix.detect(&tree).as_deref(), Some("mix.exs names an Elixir project"));
        let recipe = Phoenix.recipe(&tree).unwrap();
        assert_eq!((recipe.build.len(), recipe.release.len()), (2, 0));
        assert!(Phoenix.recipe(&SourceTree::new()).is_err());
    }
}
