//! The gems of a Ruby project: how they are installed and which web server they bring. Used by
//! Rails and Rack.

use std::collections::BTreeMap;

use model::release::Step;

use super::RecipeError;
use crate::manifest;
use crate::source::SourceTree;

pub const GEMFILE: &str = "Gemfile";
pub const GEMFILE_LOCK: &str = "Gemfile.lock";

/// Returns whether a gem is in the bundle: in `Gemfile.lock`, or in a `Gemfile` that has no lock
/// yet.
pub fn lists(tree: &SourceTree, gem: &str) -> bool {
    if let Some(lock) = tree.text(GEMFILE_LOCK) {
        let is_it = |line: &str| line.trim_start().split([' ', '!']).next() == Some(gem);
        return lock.lines().any(is_it);
    }
    let quoted = [format!("'{gem}'"), format!("\"{gem}\"")];
    let is_it = |line: &str| {
        let line = line.trim_start();
        line.starts_with("gem") && quoted.iter().any(|name| line.contains(name))
    };
    tree.text(GEMFILE).is_some_and(|text| text.lines().any(is_it))
}

/// A file for what the servers' own settings leave no other way to say.
const UNICORN_CONFIG: &str = "tmp/unicorn_cortex.rb";

/// Returns the step that makes directories and files that the server needs, as empty directories
/// are in no repository.
pub fn server_files(tree: &SourceTree) -> Step {
    let mut command = "mkdir -p tmp/pids".to_owned();
    if lists(tree, "unicorn") {
        // The application is loaded before the port is bound: a broken one never looks ready.
        let line = "preload_app true";
        command.push_str(&format!(" && echo '{line}' > {UNICORN_CONFIG}"));
    }
    Step { name: "Preparing the server's files".into(), command }
}

/// Returns the steps that install gems. Those of the operating system are taken if they fit, which
/// needs no network; otherwise all of them are installed into the release.
pub fn install() -> Vec<Step> {
    vec![Step {
        name: "Installing gems".into(),
        command: format!(
            "mkdir -p {NEW_GEMS} && bundle install --local --quiet || {{ echo 'Not all gems are \
             on this machine: fetching them.'; bundle config set --local path vendor/bundle && \
             bundle install --quiet --retry 2; }}"
        ),
    }]
}

/// The place inside the release where new gems go, and the start scripts that Bundler writes for
/// gems that are named by their paths. The one of the operating system is root's.
const NEW_GEMS: &str = "vendor/gems";

pub fn environment() -> BTreeMap<String, String> {
    let variables = [
        // Gems of the operating system are found besides. Steps and processes start in the
        // release's directory, and Bundler hands on the whole path.
        ("GEM_HOME", NEW_GEMS),
        ("BUNDLE_PREFER_LOCAL", "true"),
        ("BUNDLE_WITHOUT", "development:test"),
        // Archives and compiled extensions serve the next build too, below BUNDLE_USER_CACHE.
        ("BUNDLE_GLOBAL_GEM_CACHE", "true"),
    ];
    variables.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// A start command and the number of requests that it takes at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebServer {
    pub command: String,
    pub concurrency: Option<u32>,
    pub notes: Vec<String>,
}

/// The web servers that are known, the one that is preferred first. A server stands before those
/// that it brings with it.
const SERVERS: &[&str] = &["neverblock", "puma", "falcon", "unicorn", "thin"];

/// The requests that neverblock takes at a time: the default of the gem, `FIBERS_MAX`.
pub const NEVERBLOCK_FIBERS: u32 = 1024;

/// Returns the web server that `cortex.toml` or else the bundle names, told to listen where it
/// shall, whatever its own configuration says; `None` if they name no known one.
pub fn server(tree: &SourceTree, environment: &str) -> Result<Option<WebServer>, RecipeError> {
    let gem = match named(tree)? {
        Some(gem) if !lists(tree, gem) => {
            return Err(RecipeError(format!(
                "cortex.toml: server = '{gem}', which the bundle does not have: add 'gem \"{gem}\"' \
                 to the {GEMFILE}"
            )));
        }
        Some(gem) => Some(gem),
        None => SERVERS.iter().copied().find(|gem| lists(tree, gem)),
    };
    Ok(gem.map(|gem| start(tree, gem, environment)))
}

/// Returns the server that `cortex.toml` names.
pub fn named(tree: &SourceTree) -> Result<Option<&'static str>, RecipeError> {
    // A manifest that cannot be read was refused before.
    let Some(wanted) = manifest::read(tree).ok().and_then(|manifest| manifest.server) else {
        return Ok(None);
    };
    let known = SERVERS.iter().copied().find(|gem| *gem == wanted);
    known.map(Some).ok_or_else(|| {
        let (shown, known) = (wanted.escape_debug(), SERVERS.join(", "));
        RecipeError(format!("cortex.toml: server = '{shown}' is not known: use one of {known}"))
    })
}

/// Returns the requests that a server of this name takes at a time; `None` for no limit.
pub fn concurrency(gem: &str) -> Option<u32> {
    match gem {
        "neverblock" => Some(NEVERBLOCK_FIBERS),
        // The event loop of Thin waits for the application.
        "unicorn" | "thin" => Some(1),
        _ => None,
    }
}

fn start(tree: &SourceTree, gem: &str, environment: &str) -> WebServer {
    let mut notes = Vec::new();
    let command = match gem {
        "neverblock" => {
            format!("bundle exec {}", neverblock(environment))
        }
        "puma" => {
            // Instances share a directory, so each needs a pid file of its own.
            let pid = "PIDFILE=\"tmp/pids/$PORT.pid\"";
            let puma = "bundle exec puma -b \"tcp://$HOST:$PORT\"";
            format!("env {pid} {puma} -e {environment}")
        }
        "falcon" => {
            let falcon = "bundle exec falcon serve --count 1";
            format!("env RACK_ENV={environment} {falcon} --bind \"http://$HOST:$PORT\"")
        }
        "unicorn" => {
            if tree.exists("config/unicorn.rb") {
                notes
                    .push("config/unicorn.rb was ignored: instances are counted by scaling".into());
            }
            let unicorn = "bundle exec unicorn -l \"$HOST:$PORT\"";
            format!("{unicorn} -c {UNICORN_CONFIG} -E {environment}")
        }
        _ => {
            let thin = "bundle exec thin start -R config.ru -a \"$HOST\" -p \"$PORT\"";
            format!("{thin} -e {environment}")
        }
    };
    WebServer { command, concurrency: concurrency(gem), notes }
}

/// Returns the command of neverblock; instances are counted by scaling, so each is one process.
pub fn neverblock(environment: &str) -> String {
    let fibers = NEVERBLOCK_FIBERS;
    format!("neverblock -b \"tcp://$HOST:$PORT\" -w 1 --fibers {fibers} -e {environment}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gems_are_read_from_the_lock_first() {
        let lock =
            "GEM\n  specs:\n    puma (5.6.5)\n      nio4r (~> 2.0)\n\nDEPENDENCIES\n  thin!\n";
        let tree = SourceTree::from_pairs([(GEMFILE_LOCK, lock), (GEMFILE, "gem 'unicorn'\n")]);
        assert!(lists(&tree, "puma") && lists(&tree, "thin"));
        assert!(!lists(&tree, "unicorn") && !lists(&tree, "pum"));
        let tree = SourceTree::from_pairs([(GEMFILE, "# gem 'thin'\n  gem \"unicorn\", '~> 6'\n")]);
        assert!(lists(&tree, "unicorn") && !lists(&tree, "thin"));
    }

    fn started(files: &[(&str, &str)]) -> Result<Option<WebServer>, RecipeError> {
        server(&SourceTree::from_pairs(files.iter().copied()), "production")
    }

    #[test]
    fn servers_say_how_many_requests_they_take() {
        for (gem, expected) in [
            ("puma", Some(None)),
            ("unicorn", Some(Some(1))),
            ("thin", Some(Some(1))),
            ("neverblock", Some(Some(NEVERBLOCK_FIBERS))),
            ("x", None),
        ] {
            let server = started(&[(GEMFILE, &format!("gem '{gem}'\n"))]).unwrap();
            assert_eq!(server.map(|server| server.concurrency), expected, "{gem}");
        }
    }

    #[test]
    fn neverblock_is_started_where_the_bundle_has_it_though_it_brings_puma() {
        let lock = "PATH\n  remote: vendor\n  specs:\n    neverblock (0.1.0)\n      nio4r (~> 2.5)\n      \
                    puma (>= 5.6.5)\n\nGEM\n  specs:\n    puma (5.6.5)\n";
        let gemfile = "gem \"neverblock\", path: \"vendor\"\n";
        for files in [&[(GEMFILE_LOCK, lock), (GEMFILE, gemfile)][..], &[(GEMFILE, gemfile)]] {
            let server = started(files).unwrap().unwrap();
            let fibers = format!("--fibers {NEVERBLOCK_FIBERS}");
            assert!(server.command.starts_with("bundle exec neverblock -b \"tcp://$HOST:$PORT\""));
            assert!(server.command.contains(&fibers), "{}", server.command);
        }
    }

    #[test]
    fn start_scripts_of_gems_by_path_are_written_into_the_release() {
        assert_eq!(environment()["GEM_HOME"], NEW_GEMS);
        assert!(std::path::Path::new(NEW_GEMS).is_relative());
        // Ruby takes the directory for what it is only if it is there.
        let command = install().remove(0).command;
        assert!(command.starts_with("mkdir -p vendor/gems && bundle install --local"), "{command}");
        assert!(command.contains("path vendor/bundle"), "fetched ones go elsewhere: {command}");
    }

    #[test]
    fn the_manifest_chooses_among_the_servers_of_the_bundle() {
        let both = (GEMFILE, "gem 'neverblock'\ngem 'puma'\n");
        let with = |text| started(&[both, ("cortex.toml", text)]);
        assert!(with("server = 'puma'").unwrap().unwrap().command.contains("exec puma"));
        assert!(
            with("server = 'neverblock'").unwrap().unwrap().command.contains("exec neverblock")
        );
        let missing = with("server = 'thin'").unwrap_err().0;
        assert!(missing.contains("add 'gem \"thin\"' to the Gemfile"), "{missing}");
        let unknown = with("server = 'apache'").unwrap_err().0;
        assert!(unknown.contains("use one of neverblock, puma"), "{unknown}");
    }

    #[test]
    fn the_limit_of_neverblock_is_the_gems() {
        let limits = include_str!("../../../../../runtimes/ruby/lib/neverblock/limits.rb");
        assert!(limits.contains(&format!("FIBERS_MAX = {NEVERBLOCK_FIBERS}\n")));
    }
}
