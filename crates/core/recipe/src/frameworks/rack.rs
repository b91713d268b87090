//! Rack applications: Sinatra, Roda, Hanami and everything else with a `config.ru`, and Sinatra
//! programs without one.

use model::Recipe;
use model::release::StaticMount;

use super::gems::{self, GEMFILE, WebServer};
use super::{Framework, RecipeError, shell_word, sqlite, web_only};
use crate::source::SourceTree;

const CONFIG_RU: &str = "config.ru";

pub struct Rack;

impl Framework for Rack {
    fn name(&self) -> &'static str {
        "rack"
    }

    fn looks_for(&self) -> &'static str {
        "config.ru, or a *.rb in the root that requires sinatra"
    }

    fn detect(&self, tree: &SourceTree) -> Option<String> {
        if tree.exists(CONFIG_RU) {
            return Some(format!("{CONFIG_RU} starts a Rack application"));
        }
        sinatra_program(tree).map(|program| format!("{program} requires sinatra"))
    }

    fn recipe(&self, tree: &SourceTree) -> Result<Recipe, RecipeError> {
        let bundled = tree.exists(GEMFILE);
        let server =
            if tree.exists(CONFIG_RU) { rackup(tree, bundled)? } else { program(tree, bundled)? };
        let mut environment = if bundled { gems::environment() } else { Default::default() };
        for name in ["RACK_ENV", "APP_ENV"] {
            environment.insert(name.into(), "production".into());
        }
        let mut build = if bundled { gems::install() } else { Vec::new() };
        build.push(gems::server_files(tree));
        let mut persist = sqlite::named_in_code(tree, "*.rb");
        let mut statics = Vec::new();
        if tree.has_directory("public") {
            persist.push("public/uploads".into());
            let directory = "public".into();
            statics.push(StaticMount { prefix: "/".into(), directory, fallback: None });
        }
        Ok(Recipe {
            build,
            processes: web_only(server.command, server.concurrency),
            environment,
            persist,
            statics,
            notes: server.notes,
            ..Recipe::default()
        })
    }
}

/// Returns the server by rackup. Without a Gemfile the gems of the operating system are used.
fn rackup(tree: &SourceTree, bundled: bool) -> Result<WebServer, RecipeError> {
    let found = if bundled { gems::server(tree, "production")? } else { system_server(tree)? };
    Ok(found.unwrap_or_else(|| {
        let bundle = if bundled { "bundle exec " } else { "" };
        // rackup takes the first of Puma, Falcon and WEBrick that is there: all of them use
        // threads.
        let listen = "-o \"$HOST\" -p \"$PORT\" -E production";
        WebServer {
            command: format!("{bundle}rackup {listen} {CONFIG_RU}"),
            concurrency: None,
            notes: Vec::new(),
        }
    }))
}

/// Returns the server that `cortex.toml` names, of those of the operating system.
fn system_server(tree: &SourceTree) -> Result<Option<WebServer>, RecipeError> {
    Ok(gems::named(tree)?.map(|gem| {
        let command = match gem {
            "neverblock" => gems::neverblock("production"),
            _ => format!("rackup -s {gem} -o \"$HOST\" -p \"$PORT\" -E production {CONFIG_RU}"),
        };
        WebServer { command, concurrency: gems::concurrency(gem), notes: Vec::new() }
    }))
}

fn program(tree: &SourceTree, bundled: bool) -> Result<WebServer, RecipeError> {
    let Some(program) = sinatra_program(tree) else {
        let why = format!("there is no {CONFIG_RU}: add one with the line 'run MyApplication'");
        return Err(RecipeError(why));
    };
    let bundle = if bundled { "bundle exec " } else { "" };
    // Sinatra itself looks for Puma and others, and for neverblock only if it is told.
    let named = match gems::named(tree)? {
        None if bundled && gems::lists(tree, "neverblock") => Some("neverblock"),
        named => named,
    };
    let server = named.map_or_else(String::new, |gem| format!(" -s {gem}"));
    Ok(WebServer {
        command: format!(
            "{bundle}ruby {} -o \"$HOST\" -p \"$PORT\" -e production{server}",
            shell_word(program)
        ),
        concurrency: named.and_then(gems::concurrency),
        notes: Vec::new(),
    })
}

/// Returns the program of a classic Sinatra application, which starts its own server and takes `-o`
/// and `-p`.
fn sinatra_program(tree: &SourceTree) -> Option<&str> {
    let requires = |text: &str| {
        let wanted = ["require 'sinatra'", "require \"sinatra\""];
        text.lines().any(|line| wanted.iter().any(|words| line.trim_start().starts_with(words)))
    };
    let mut programs = tree
        .named("*.rb")
        .filter(|(path, file)| !path.contains('/') && file.text.as_deref().is_some_and(requires));
    programs.next().map(|(path, _)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(files: &[(&str, &str)]) -> String {
        let tree = SourceTree::from_pairs(files.iter().copied());
        assert!(Rack.detect(&tree).is_some(), "{files:?}");
        Rack.recipe(&tree).unwrap().processes.into_values().next().unwrap().command
    }

    #[test]
    fn the_server_is_the_bundles() {
        let puma = command(&[(CONFIG_RU, ""), (GEMFILE, "gem 'puma'\n")]);
        assert!(puma.contains("bundle exec puma -b \"tcp://$HOST:$PORT\""), "{puma}");
        let bare = command(&[(CONFIG_RU, "")]);
        assert!(bare.starts_with("rackup -o"), "{bare}");
        let program = command(&[("hi.rb", "require 'sinatra'\n"), (GEMFILE, "gem 'sinatra'\n")]);
        assert!(program.starts_with("bundle exec ruby hi.rb -o"), "{program}");
    }

    #[test]
    fn neverblock_is_told_to_whatever_starts_the_server() {
        let wanted = ("cortex.toml", "server = 'neverblock'\n");
        let system = command(&[(CONFIG_RU, ""), wanted]);
        assert!(system.starts_with("neverblock -b \"tcp://$HOST:$PORT\""), "{system}");
        let gemfile = (GEMFILE, "gem 'sinatra'\ngem 'neverblock'\n");
        let program = command(&[("hi.rb", "require 'sinatra'\n"), gemfile]);
        assert!(program.ends_with("-e production -s neverblock"), "{program}");
        let program = command(&[("hi.rb", "require 'sinatra'\n"), wanted]);
        assert!(program.starts_with("ruby hi.rb") && program.ends_with(" -s neverblock"));
        let thin = command(&[(CONFIG_RU, ""), ("cortex.toml", "server = 'thin'")]);
        assert!(thin.starts_with("rackup -s thin -o"), "{thin}");
    }

    #[test]
    fn modular_sinatra_without_config_ru_is_not_guessed() {
        let tree =
            SourceTree::from_pairs([("a.rb", "require 'sinatra_thing'\n# require 'sinatra'\n")]);
        assert_eq!(Rack.detect(&tree), None);
        assert!(Rack.recipe(&tree).unwrap_err().0.contains("config.ru"));
    }
}
