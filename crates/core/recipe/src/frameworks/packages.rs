//! The package manager that a Node.js project asks for, in which version, and how its packages are
//! installed and its scripts run by it. Used by Node.js applications and sites, and by others whose
//! assets need packages.

mod manager;

use model::release::Step;

use super::package_json::{Package, within};
use super::shell_word;
use crate::source::SourceTree;
use manager::{ManagerChoice, ManagerKind};

/// The directory of a manager in the project's own version, relative to that of package.json.
const TOOLS: &str = ".cortex-tools";
const TOOLS_BIN: &str = ".cortex-tools/node_modules/.bin";
const BIN: &str = "node_modules/.bin";

/// The way to install packages and run scripts.
#[derive(Clone, Debug)]
pub struct Packages {
    chosen: ManagerChoice,
    directory: String,
    install: String,
    /// What was ignored, and why.
    pub notes: Vec<String>,
}

/// Returns the packages of the project in `directory`; the empty path means the root. `development`
/// packages are wanted if something is built with them.
pub fn of(
    tree: &SourceTree,
    directory: &str,
    package: &Package,
    development: bool,
) -> Result<Packages, String> {
    let mut notes = Vec::new();
    let chosen = manager::choose(tree, directory, package, &mut notes)?;
    let locked = |names: &[&str]| names.iter().any(|name| tree.exists(&within(directory, name)));
    let install = match chosen.kind {
        ManagerKind::Npm => npm_install(locked(manager::NPM_LOCKS), development),
        ManagerKind::Pnpm => {
            let frozen = if locked(&["pnpm-lock.yaml"]) { "" } else { "no-" };
            let which = if development { "--prod=false" } else { "--prod" };
            format!("pnpm install --{frozen}frozen-lockfile {which}")
        }
        ManagerKind::YarnClassic => {
            let frozen = if locked(&["yarn.lock"]) { " --frozen-lockfile" } else { "" };
            format!("yarn install --non-interactive --production={}{frozen}", !development)
        }
        ManagerKind::YarnBerry => berry_install(locked(&["yarn.lock"]), chosen.plug_and_play),
        ManagerKind::Bun => {
            let frozen = if locked(&["bun.lock", "bun.lockb"]) { " --frozen-lockfile" } else { "" };
            let which = if development { "" } else { " --production" };
            format!("bun install{frozen}{which}")
        }
    };
    Ok(Packages { chosen, directory: directory.to_owned(), install, notes })
}

/// Returns the command that installs as the lock says, or not at all: what was tested is what runs.
fn npm_install(locked: bool, development: bool) -> String {
    let which = if development { "--include=dev" } else { "--omit=dev" };
    let command = if locked { "ci" } else { "install" };
    format!("npm {command} {which} --no-audit --no-fund --loglevel=error")
}

/// Returns the command of newer Yarns. Plug'n'Play loads packages out of its cache, which therefore
/// has to be the release's own.
fn berry_install(locked: bool, plug_and_play: bool) -> String {
    let cache = if plug_and_play { "YARN_ENABLE_GLOBAL_CACHE=false " } else { "" };
    let path = "YARN_ENABLE_TELEMETRY=0 YARN_ENABLE_PROGRESS_BARS=false";
    // Without a lock of its own a directory would be taken for a part of one above it.
    let (prepare, frozen) = if locked { ("", " --immutable") } else { (": >> yarn.lock && ", "") };
    format!("{prepare}env {path} {cache}yarn install{frozen}")
}

impl Packages {
    /// Returns the steps for the manager itself, if it is not the machine's, and then the packages.
    pub fn steps(&self) -> Vec<Step> {
        self.tool().into_iter().chain([self.install()]).collect()
    }

    pub fn install(&self) -> Step {
        let name = "Installing Node.js packages".into();
        Step { name, command: self.within(self.install.clone()) }
    }

    /// Returns the step for the manager alone, for callers that run scripts before packages are
    /// there.
    pub fn tool(&self) -> Option<Step> {
        if let Some(file) = &self.chosen.program {
            // Whatever path it is called by, it finds the file beside itself.
            let script = format!("#!/bin/sh\nexec node \"${{0%/*}}/../../../{file}\" \"$@\"\n");
            let command = format!(
                "mkdir -p {TOOLS_BIN} && printf %s {} > {TOOLS_BIN}/yarn && chmod +x {TOOLS_BIN}/yarn",
                shell_word(&script)
            );
            return Some(Step { name: format!("Preparing {file}"), command: self.within(command) });
        }
        let version = self.chosen.version.as_deref()?;
        let package = format!("{}@{version}", self.chosen.kind.package());
        // `--prefix` would move the place where npm looks for the machine's settings, and without a
        // package.json npm looks for one above. The project's settings may name a registry.
        let command = format!(
            "mkdir -p {TOOLS} && echo '{{}}' > {TOOLS}/package.json && \
             {{ ! test -f .npmrc || cp .npmrc {TOOLS}/; }} && cd {TOOLS} && \
             npm install --no-save --no-audit --no-fund --loglevel=error {}",
            shell_word(&package)
        );
        let name = format!("Installing {} {version}", self.chosen.kind.program());
        Some(Step { name, command: self.within(command) })
    }

    fn within(&self, command: String) -> String {
        match self.directory.as_str() {
            "" => command,
            directory => format!("cd {} && {{ {command}; }}", shell_word(directory)),
        }
    }

    pub fn is_plug_and_play(&self) -> bool {
        self.chosen.plug_and_play
    }

    /// Returns the directories that come first in `PATH`, so that scripts call the same manager.
    pub fn path(&self) -> Vec<String> {
        let own = self.chosen.program.is_some() || self.chosen.version.is_some();
        let tools = own.then(|| within(&self.directory, TOOLS_BIN));
        tools.into_iter().chain([within(&self.directory, BIN)]).collect()
    }

    pub fn environment(&self) -> Option<(String, String)> {
        // The file that it names is not in the repository.
        let ignore = self.chosen.program.is_none() && self.chosen.names_program;
        ignore.then(|| ("YARN_IGNORE_PATH".into(), "1".into()))
    }

    /// Returns the command that runs a script of package.json.
    pub fn run(&self, script: &str) -> String {
        format!("{} run {}", self.chosen.kind.program(), shell_word(script))
    }

    pub fn start(&self) -> String {
        match self.chosen.kind {
            ManagerKind::Npm => "npm start".into(),
            kind => format!("{} run start", kind.program()),
        }
    }

    /// Returns the command for a program of Node.js itself or of a package, where packages are
    /// found.
    pub fn call(&self, command: &str) -> String {
        if self.chosen.plug_and_play { format!("yarn {command}") } else { command.to_owned() }
    }
}

/// Returns the packages for projects that need only those of their assets.
pub fn for_assets(tree: &SourceTree, directory: &str) -> Result<Packages, String> {
    of(tree, directory, &Package::at(tree, directory)?, true)
}
