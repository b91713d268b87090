//! The gems of a Ruby project: how they are installed and which web server they bring. Used by
//! Rails and Rack.

use std::collections::BTreeMap;

use model::release::Step;

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
        command: "bundle install --local --quiet || { echo 'Not all gems are on this \
                  machine: fetching them.'; bundle config set --local path vendor/bundle && \
                  bundle install --quiet --retry 2; }"
            .into(),
    }]
}

pub fn environment() -> BTreeMap<String, String> {
    let variables = [
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

/// Returns the web server that the bundle names, told to listen where it shall, whatever its own
/// configuration says; `None` if it names no known one.
pub fn server(tree: &SourceTree, environment: &str) -> Option<WebServer> {
    let mut notes = Vec::new();
    let (command, concurrency) = if lists(tree, "puma") {
        // Instances share a directory, so each needs a pid file of its own.
        let pid = "PIDFILE=\"tmp/pids/$PORT.pid\"";
        let puma = "bundle exec puma -b \"tcp://$HOST:$PORT\"";
        (format!("env {pid} {puma} -e {environment}"), None)
    } else if lists(tree, "falcon") {
        let falcon = "bundle exec falcon serve --count 1";
        (format!("env RACK_ENV={environment} {falcon} --bind \"http://$HOST:$PORT\""), None)
    } else if lists(tree, "unicorn") {
        if tree.exists("config/unicorn.rb") {
            notes.push("config/unicorn.rb was ignored: instances are counted by scaling".into());
        }
        let unicorn = "bundle exec unicorn -l \"$HOST:$PORT\"";
        (format!("{unicorn} -c {UNICORN_CONFIG} -E {environment}"), Some(1))
    } else if lists(tree, "thin") {
        // Its event loop waits for the application, so one request is served at a time.
        let thin = "bundle exec thin start -R config.ru -a \"$HOST\" -p \"$PORT\"";
        (format!("{thin} -e {environment}"), Some(1))
    } else {
        return None;
    };
    Some(WebServer { command, concurrency, notes })
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

    #[test]
    fn servers_say_how_many_requests_they_take() {
        for (gem, expected) in
            [("puma", Some(None)), ("unicorn", Some(Some(1))), ("thin", Some(Some(1))), ("x", None)]
        {
            let tree = SourceTree::from_pairs([(GEMFILE, format!("gem '{gem}'\n"))]);
            let server = server(&tree, "production");
            assert_eq!(server.map(|server| server.concurrency), expected, "{gem}");
        }
    }
}
