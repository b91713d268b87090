//! The environment of steps and processes. Nothing of the node's own is handed on but the search
//! path.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context;
use model::{ApplicationName, Release, TypedKey};

use super::Preparer;
use os::directory::private_directory;
use os::secret_file;

/// The length of the secret in bytes: Rails asks for 128 hex digits, and every framework takes as
/// many.
const SECRET_BYTES: usize = 64;
/// The length of a token for the bus in bytes; it cannot be guessed.
const BUS_TOKEN_BYTES: usize = 32;
/// The place of the package caches that an application shares with no other, within its own cache.
const OWN_PACKAGES: &str = "packages";
/// The search path that finds a shell and an interpreter on every distribution.
const PATH_FALLBACK: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

impl Preparer {
    /// Returns the environment without what differs from process to process. The recipe's variables
    /// give way to the user's; the platform's own cannot be overridden. `chosen` are the
    /// directories of the interpreters that were chosen.
    pub(super) async fn environment(
        &self,
        application: &ApplicationName,
        release: &Release,
        chosen: &[String],
    ) -> anyhow::Result<BTreeMap<String, String>> {
        let directory = self.layout.application(application);
        let home = self.layout.home(application, &release.build_id());
        let temporary = self.layout.temporary(application);
        let cache = self.layout.cache(application);
        // What one application puts into a cache, another would run.
        let shared = match release.recipe.wall() {
            None => self.layout.shared_cache(),
            Some(_) => cache.join(OWN_PACKAGES),
        };
        for path in [&home, &temporary, &shared, &cache, &self.layout.persist(application)] {
            private_directory(path)
                .with_context(|| format!("{} cannot be made", path.display()))?;
        }
        // Sessions and signed cookies outlive releases and restarts. It is a file and not a record,
        // as records are not sealed.
        let secret = secret_file::read_or_make(&directory.join("secret"), SECRET_BYTES)?;
        let text = |path: &Path| path.display().to_string();
        let mut environment: BTreeMap<String, String> = [
            ("PATH", self.search_path(application, release, chosen)),
            ("HOME", text(&home)),
            ("TMPDIR", text(&temporary)),
            ("LANG", "C.UTF-8".into()),
            ("SECRET_KEY_BASE", secret.clone()),
            ("SECRET_KEY", secret),
            ("XDG_CACHE_HOME", text(&shared.join("xdg"))),
            ("PIP_CACHE_DIR", text(&shared.join("pip"))),
            ("npm_config_cache", text(&shared.join("npm"))),
            ("BUNDLE_USER_CACHE", text(&shared.join("bundle"))),
            // pnpm's store and Yarn's archives.
            ("PNPM_HOME", text(&shared.join("pnpm"))),
            ("YARN_GLOBAL_FOLDER", text(&shared.join("yarn"))),
        ]
        .map(|(name, value)| (name.to_string(), value))
        .into();
        environment.extend(release.recipe.environment.clone());
        environment.extend(self.variables(application, release).await?);
        environment.extend(
            [
                ("CORTEX_APPLICATION", application.to_string()),
                ("CORTEX_RELEASE", release.id.short()),
                ("CORTEX_RELEASE_ID", release.id.to_string()),
                ("CORTEX_NODE", self.node.to_string()),
                ("CORTEX_PERSIST", text(&self.layout.persist(application))),
                ("CORTEX_CACHE", text(&cache)),
            ]
            .map(|(name, value)| (name.to_string(), value)),
        );
        if let Some(bus) = self.bus {
            let token =
                secret_file::read_or_make(&self.layout.bus_token(application), BUS_TOKEN_BYTES)?;
            let url = bus_url(bus, application, &token);
            if let Some(variable) = &release.recipe.bus_variable {
                // What the user configured under this name is another server, and wins.
                environment.entry(variable.clone()).or_insert_with(|| url.clone());
            }
            environment.insert("CORTEX_BUS_URL".into(), url);
        }
        Ok(environment)
    }

    /// Returns the search path. The release's own programs come first, those of its virtual
    /// environment and the like; then the interpreters that were chosen for it.
    fn search_path(
        &self,
        application: &ApplicationName,
        release: &Release,
        chosen: &[String],
    ) -> String {
        let directory = self.directory(application, release);
        let own = release.recipe.path.iter().map(|path| directory.join(path).display().to_string());
        let all = own.chain(chosen.iter().cloned()).chain([self.node_path().to_owned()]);
        all.collect::<Vec<_>>().join(":")
    }

    /// Returns the search path in which the node itself finds programs.
    pub(super) fn node_path(&self) -> &str {
        if self.path.is_empty() { PATH_FALLBACK } else { &self.path }
    }

    /// Returns what the user configured, as it was when the release was made.
    async fn variables(
        &self,
        application: &ApplicationName,
        release: &Release,
    ) -> anyhow::Result<BTreeMap<String, String>> {
        let frozen = TypedKey::ConfigAt(application.clone(), release.id.clone()).key();
        let Some(entry) = self.store.lookup(&frozen).await? else { return Ok(BTreeMap::new()) };
        entry.value.record().context("the configuration variables are damaged")
    }
}

/// Sets where a web process listens, under the names that frameworks look for.
pub(super) fn listen_on(environment: &mut BTreeMap<String, String>, port: u16) {
    for name in ["PORT", "SERVER_PORT", "YESOD_PORT", "ROCKET_PORT"] {
        environment.insert(name.into(), port.to_string());
    }
    listen_on_loopback(environment);
}

/// Sets where a process listens for anything but HTTP.
pub(super) fn listen_also_on(
    environment: &mut BTreeMap<String, String>,
    variable: &str,
    port: u16,
) {
    environment.insert(variable.into(), port.to_string());
    listen_on_loopback(environment);
}

fn listen_on_loopback(environment: &mut BTreeMap<String, String>) {
    for name in ["HOST", "BIND_ADDRESS", "SERVER_ADDRESS", "ROCKET_ADDRESS"] {
        environment.insert(name.into(), "127.0.0.1".into());
    }
}

/// Returns the address at which an application's processes find the bus. The password says whose
/// it is, for clients that send nothing else.
fn bus_url(bus: SocketAddr, application: &ApplicationName, token: &str) -> String {
    format!("redis://{application}:{application}.{token}@{bus}/0")
}

/// Words that are built into the shell or begin one of its constructs: no program of these names
/// would do the same, or exists at all.
const SHELL_WORDS: &[&str] = &[
    "!", ".", ":", "[", "[[", "alias", "bg", "break", "builtin", "case", "cd", "command",
    "continue", "declare", "do", "done", "echo", "elif", "else", "esac", "eval", "exec", "exit",
    "export", "false", "fc", "fg", "fi", "for", "function", "getopts", "hash", "if", "jobs",
    "kill", "let", "local", "popd", "printf", "pushd", "pwd", "read", "readonly", "return",
    "select", "set", "shift", "shopt", "source", "test", "then", "time", "times", "trap", "true",
    "type", "typeset", "ulimit", "umask", "unalias", "unset", "until", "wait", "while", "{", "}",
];

/// Pieces of commands that are written for bash, which runs people's Procfiles elsewhere: other
/// shells refuse them or take them for something else.
const BASH_PIECES: &[&str] = &[
    "[[ ",
    "<(",
    ">(",
    "&>",
    "|&",
    "<<<",
    "$'",
    "((",
    "pipefail",
    "PIPESTATUS",
    "BASH_",
    "$RANDOM",
    "${!",
];
const BASH_WORDS: &[&str] = &[
    "source", "shopt", "declare", "pushd", "popd", "function", "let", "time", "typeset", "builtin",
];
const BASH: &str = "/bin/bash";

/// Returns the argv that runs a command. `exec` spares a shell per process and lets signals arrive
/// where they should; a compound command needs its shell.
pub fn shell_command(command: &str) -> Vec<String> {
    let compound = command.contains(['&', '|', ';', '\n', '(', '{', '`', '<', '>'])
        || SHELL_WORDS.contains(&first_word(command))
        || starts_with_assignment(command);
    let script = if compound { command.to_string() } else { format!("exec {command}") };
    let bash = needs_bash(command) && Path::new(BASH).exists();
    let shell = if bash { BASH } else { "/bin/sh" };
    vec![shell.into(), "-c".into(), script]
}

fn first_word(command: &str) -> &str {
    command.split_whitespace().next().unwrap_or_default()
}

fn needs_bash(command: &str) -> bool {
    // This recognises `{1..3}` and `${name/a/b}`, `${name^^}`, `${name[0]}`.
    let expansions = command.split("${").skip(1).any(|rest| {
        let inner = rest.split('}').next().unwrap_or_default();
        let name = inner.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_');
        name.starts_with(['/', '^', ',', '[', '@'])
    });
    let commands = command.split(['&', '|', ';', '\n', '(', '{']);
    BASH_PIECES.iter().any(|piece| command.contains(piece))
        || expansions
        || commands.into_iter().any(|one| BASH_WORDS.contains(&first_word(one)))
}

/// Whether it is of the form `A=b program`: `exec A=b program` would look for a program of that
/// name.
fn starts_with_assignment(command: &str) -> bool {
    first_word(command).split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simple_commands_replace_their_shell() {
        for (command, expected) in [
            ("python3 app.py", "exec python3 app.py"),
            ("bin/run --port $PORT", "exec bin/run --port $PORT"),
            ("cd x && run", "cd x && run"),
            ("A=b run", "A=b run"),
            ("run | tee log", "run | tee log"),
            ("exec run", "exec run"),
            ("cd\tx", "cd\tx"),
            (". ./env", ". ./env"),
            ("ulimit -n 4096", "ulimit -n 4096"),
            ("export A=b", "export A=b"),
            ("command python3 app.py", "command python3 app.py"),
            ("! run", "! run"),
            ("cdx run", "exec cdx run"),
            ("./cd run", "exec ./cd run"),
            ("test -f x", "test -f x"),
            ("  eval \"$RUN\"", "  eval \"$RUN\""),
            ("commander x", "exec commander x"),
        ] {
            assert_eq!(shell_command(command)[1..], ["-c", expected], "{command}");
        }
    }

    #[test]
    fn what_is_written_for_bash_is_run_by_it() {
        for (command, expected) in [
            ("source env.sh && run", true),
            ("cd x && source env.sh; run", true),
            ("[[ -n $A ]] && run", true),
            ("set -o pipefail; run | tee log", true),
            ("run --name ${NAME//a/b}", true),
            ("run --port ${PORT:-5000}", false),
            ("run --name ${NAME#a} ${OTHER%b}", false),
            (". ./env.sh && run", false),
            ("python3 app.py", false),
        ] {
            assert_eq!(needs_bash(command), expected, "{command}");
        }
    }
}
