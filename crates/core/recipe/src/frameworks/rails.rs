//! Ruby on Rails.

use model::Recipe;
use model::release::{StaticMount, Step};

use super::gems::{self, GEMFILE, WebServer};
use super::packages::{self, Packages};
use super::{Framework, RecipeError, sqlite, web_only, web_stateless};
use crate::source::SourceTree;

const APPLICATION: &str = "config/application.rb";
const DATABASE: &str = "config/database.yml";
const RAKEFILE: &str = "Rakefile";
const PRODUCTION: &str = "config/environments/production.rb";
const RAILS: &str = "bundle exec rails";

pub struct Rails;

impl Framework for Rails {
    fn name(&self) -> &'static str {
        "rails"
    }

    fn looks_for(&self) -> &'static str {
        "a Gemfile and config/application.rb with Rails::Application in it"
    }

    fn detect(&self, tree: &SourceTree) -> Option<String> {
        (tree.exists(GEMFILE) && tree.mentions(APPLICATION, "Rails::Application"))
            .then(|| format!("{APPLICATION} defines a Rails::Application"))
    }

    fn recipe(&self, tree: &SourceTree) -> Result<Recipe, RecipeError> {
        for file in [GEMFILE, APPLICATION, "config.ru"] {
            if !tree.exists(file) {
                return Err(RecipeError(format!("{file} is missing: push the application's root")));
            }
        }
        let server = gems::server(tree, "production")?.unwrap_or_else(|| WebServer {
            command: format!(
                "{RAILS} server -u webrick -b \"$HOST\" -p \"$PORT\" -e production \
                 -P \"tmp/pids/$PORT.pid\""
            ),
            concurrency: None,
            notes: vec![
                "the bundle names no web server, so WEBrick is started: add 'gem \"puma\"'".into(),
            ],
        });
        let mut notes = server.notes;
        if uncommented(tree.text(PRODUCTION).unwrap_or_default(), "config.force_ssl = true") {
            notes.push(format!(
                "{PRODUCTION} sets force_ssl: plain HTTP is answered with a redirect to HTTPS"
            ));
        }
        let mut build = gems::install();
        build.push(gems::server_files(tree));
        let packages = asset_packages(tree).map_err(RecipeError)?;
        build.extend(packages.iter().flat_map(Packages::steps));
        build.extend(tree.exists(RAKEFILE).then(precompile));
        Ok(Recipe {
            build,
            // The pipeline itself calls the package manager.
            path: packages.iter().flat_map(Packages::path).collect(),
            release: release(tree),
            processes: match keeps_nothing(tree) {
                true => web_stateless(server.command, server.concurrency),
                false => web_only(server.command, server.concurrency),
            },
            environment: environment(),
            persist: persist(tree),
            statics: vec![StaticMount {
                prefix: "/".into(),
                directory: "public".into(),
                fallback: None,
            }],
            notes,
            ..Recipe::default()
        })
    }
}

fn asset_packages(tree: &SourceTree) -> Result<Option<Packages>, String> {
    tree.exists("package.json").then(|| packages::for_assets(tree, "")).transpose()
}

fn precompile() -> Step {
    let name = "Precompiling assets".into();
    Step { name, command: where_known("assets:precompile") }
}

/// Returns whether the process keeps nothing. Rails keeps sessions in cookies and data in its
/// database. If that is a server, instances answer alike, unless the project's own files keep
/// something in the process.
fn keeps_nothing(tree: &SourceTree) -> bool {
    let server = ["pg", "mysql2", "trilogy"].iter().any(|gem| gems::lists(tree, gem));
    let file = gems::lists(tree, "sqlite3") || gems::lists(tree, "litestack");
    let text = |path: &str| tree.text(path).unwrap_or_default().to_owned();
    let cable = text("config/cable.yml");
    let cable = cable.split_once("\nproduction:").map_or("", |(_, production)| production);
    let settings = ["config/environments/production.rb", APPLICATION].map(text);
    let in_memory = settings.iter().any(|text| {
        text.lines()
            .any(|line| !line.trim_start().starts_with('#') && line.contains(":memory_store"))
    });
    server && !file && !in_memory && !cable.contains("async")
}

fn release(tree: &SourceTree) -> Vec<Step> {
    if !tree.exists(DATABASE) || !tree.exists(RAKEFILE) {
        return Vec::new();
    }
    let name = "Migrating the database".into();
    vec![Step { name, command: where_known("db:migrate") }]
}

/// Returns the command that runs a task if it is known. Which tasks there are depends on the gems
/// and on the project's own Rakefile: rake is asked. A Rakefile that cannot be loaded fails the
/// step with rake's own words.
fn where_known(task: &str) -> String {
    format!(
        "tasks=$(bundle exec rake -P) && if printf '%s\\n' \"$tasks\" | grep -qx 'rake {task}'; \
         then {RAILS} {task}; else echo 'There is no task {task}, so it is left out.'; fi"
    )
}

fn environment() -> std::collections::BTreeMap<String, String> {
    let mut environment = gems::environment();
    for (name, value) in [
        ("RAILS_ENV", "production"),
        ("RACK_ENV", "production"),
        ("NODE_ENV", "production"),
        ("RAILS_LOG_TO_STDOUT", "1"),
        // Rails serves what the router does not find in public/ when it starts.
        ("RAILS_SERVE_STATIC_FILES", "1"),
    ] {
        environment.insert(name.into(), value.into());
    }
    environment
}

fn persist(tree: &SourceTree) -> Vec<String> {
    let mut paths: Vec<String> = ["log", "public/uploads", "storage"].map(str::to_owned).into();
    for path in production_databases(tree.text(DATABASE).unwrap_or_default()) {
        if !paths.iter().any(|kept| path.starts_with(&format!("{kept}/"))) && !paths.contains(&path)
        {
            paths.push(path);
        }
    }
    paths
}

/// Returns every `database:` under `production:` that is a file. It goes by lines, as the file is a
/// template that only Ruby can evaluate.
fn production_databases(yaml: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in yaml.lines() {
        if !line.starts_with([' ', '\t', '#']) && !line.trim().is_empty() {
            inside = line.trim_end().starts_with("production:");
        }
        let value = line.trim().strip_prefix("database:").filter(|_| inside);
        let value = value.map(|value| value.split(" #").next().unwrap_or(value).trim());
        found
            .extend(value.and_then(|value| sqlite::database_path(value.trim_matches(['"', '\'']))));
    }
    found
}

fn uncommented(text: &str, wanted: &str) -> bool {
    text.lines().any(|line| line.trim_start().starts_with(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(extra: &[(&str, &str)]) -> SourceTree {
        let base = [
            (GEMFILE, "gem 'rails'\ngem 'puma'\ngem 'sprockets'\n"),
            (APPLICATION, "class Application < Rails::Application\n"),
            ("config.ru", "run Rails.application\n"),
            (RAKEFILE, ""),
        ];
        SourceTree::from_pairs(base.iter().chain(extra).copied())
    }

    #[test]
    fn databases_are_read_from_the_production_block() {
        let yaml = "default: &default\n  adapter: sqlite3\n  database: db/x.sqlite3\n\n\
                    development:\n  database: db/development.sqlite3\n\nproduction:\n  primary:\n\
                    \x20   <<: *default\n    database: db/production.sqlite3 # here\n  cache:\n\
                    \x20   database: \"storage/cache.sqlite3\"\n  other:\n\
                    \x20   database: <%= ENV['X'] %>\n";
        let expected = ["db/production.sqlite3", "storage/cache.sqlite3"];
        assert_eq!(production_databases(yaml), expected);
        let persist = persist(&tree(&[(DATABASE, yaml)]));
        assert_eq!(persist, ["log", "public/uploads", "storage", "db/production.sqlite3"]);
    }

    #[test]
    fn migrations_and_assets_depend_on_the_project() {
        let plain = Rails.recipe(&tree(&[])).unwrap();
        assert!(plain.release.is_empty());
        let steps = |recipe: &Recipe| -> Vec<String> {
            recipe.build.iter().map(|step| step.name.clone()).collect()
        };
        assert_eq!(steps(&plain).last().unwrap(), "Precompiling assets");
        let full = tree(&[(DATABASE, "production:\n"), ("package.json", "{}")]);
        let full = Rails.recipe(&full).unwrap();
        assert!(full.release[0].command.contains("then bundle exec rails db:migrate;"));
        assert!(steps(&full).contains(&"Installing Node.js packages".to_owned()));
    }

    #[test]
    fn instances_are_two_where_a_database_server_keeps_the_data() {
        let count = |gems: &str, extra: &[(&str, &str)]| {
            let gemfile = format!("gem 'rails'\ngem 'puma'\n{gems}");
            let mut tree = tree(extra);
            tree.add(GEMFILE, 1, false, Some(gemfile.as_bytes()));
            let recipe = Rails.recipe(&tree).unwrap();
            recipe.processes.into_values().next().unwrap().default_count
        };
        assert_eq!(count("gem 'pg'\n", &[]), 2);
        assert_eq!(count("", &[]), 1);
        assert_eq!(count("gem 'pg'\ngem 'sqlite3'\n", &[]), 1);
        let cache = (PRODUCTION, "  config.cache_store = :memory_store\n");
        assert_eq!(count("gem 'pg'\n", &[cache]), 1);
        let unused = (PRODUCTION, "  # config.cache_store = :memory_store\n");
        assert_eq!(count("gem 'pg'\n", &[unused]), 2);
        let cable = "development:\n  adapter: async\n\nproduction:\n  adapter: ";
        let with = |adapter: &str| format!("{cable}{adapter}\n");
        assert_eq!(count("gem 'pg'\n", &[("config/cable.yml", &with("redis"))]), 2);
        assert_eq!(count("gem 'pg'\n", &[("config/cable.yml", &with("async"))]), 1);
    }

    #[test]
    fn rake_is_asked_which_tasks_there_are() {
        let task = where_known("assets:precompile");
        assert!(task.starts_with("tasks=$(bundle exec rake -P) && "), "{task}");
        assert!(task.contains("grep -qx 'rake assets:precompile'; then bundle exec rails"));
        let mut bare = tree(&[(DATABASE, "production:\n")]);
        bare.files.remove(RAKEFILE);
        let recipe = Rails.recipe(&bare).unwrap();
        assert!(recipe.release.is_empty());
        assert!(recipe.build.iter().all(|step| step.name != "Precompiling assets"));
    }

    #[test]
    fn without_a_server_webrick_is_started_and_said() {
        let pairs = [
            (GEMFILE, "gem 'rails'\n"),
            (APPLICATION, "Rails::Application"),
            ("config.ru", ""),
            (PRODUCTION, "  config.force_ssl = true\n"),
        ];
        let recipe = Rails.recipe(&SourceTree::from_pairs(pairs)).unwrap();
        let web = recipe.processes.values().next().unwrap();
        assert!(web.command.contains("-u webrick") && web.concurrency.is_none());
        assert_eq!(recipe.notes.len(), 2, "{:?}", recipe.notes);
    }
}
