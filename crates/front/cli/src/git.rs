//! `cortex git remote`: prepares a repository for `git push cortex`, which Git hands to `remote`.

pub mod remote;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};

use self::remote::{HELPER, RemoteUrl};
use super::{App, Session, output};

/// The name of the remote, in place of `origin` or `heroku`.
const REMOTE: &str = "cortex";

#[derive(Debug, Args)]
pub struct Git {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Add the remote `cortex` to the repository of this directory
    Remote {
        #[command(flatten)]
        app: App,
        /// What to call the remote
        #[arg(long, value_name = "REMOTE", default_value = REMOTE)]
        name: String,
    },
}

impl Git {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let Action::Remote { app, name: remote } = self.action;
        ensure!(!remote.starts_with('-'), "'{remote}' is no name of a remote");
        let application = app.name()?;
        let url = RemoteUrl { context: session.context.clone(), application };
        let known = git(&["remote"])?;
        let verb = if known.lines().any(|one| one == remote) { "set-url" } else { "add" };
        git(&["remote", verb, &remote, &url.to_string()])?;
        let helper = install_helper(session)?;
        let application = &url.application;
        output::say(&format!("`git push {remote} main` pushes to {application} from now on."));
        if !is_in_path(&helper) {
            let place = helper.parent().unwrap_or(Path::new("/")).display();
            output::say(&format!(
                "Git looks for {HELPER} in PATH, where {place} is not: add `export \
                 PATH=\"{place}:$PATH\"` to your shell's profile"
            ));
        }
        Ok(())
    }
}

fn git(arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("git").args(arguments).output().context("git cannot be started")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Makes the second name of this binary by which Git calls it: beside the binary, or where that is
/// not allowed, in the home. Returns its path.
fn install_helper(session: &Session) -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("this program's own path")?;
    let beside = program.with_file_name(HELPER);
    if leads_to(&beside, &program) || link(&program, &beside).is_ok() {
        return Ok(beside);
    }
    let home = session.home.as_deref().context("your home directory cannot be found")?;
    let directory = home.join(".local/bin");
    std::fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let at_home = directory.join(HELPER);
    if !leads_to(&at_home, &program) {
        link(&program, &at_home).with_context(|| {
            format!("{} cannot be made: link it to {}", at_home.display(), program.display())
        })?;
    }
    Ok(at_home)
}

fn leads_to(link: &Path, program: &Path) -> bool {
    link.canonicalize().is_ok_and(|there| there == program)
}

fn link(program: &Path, at: &Path) -> std::io::Result<()> {
    // A link of an earlier version leads to where that was.
    if at.symlink_metadata().is_ok_and(|there| there.is_symlink()) {
        std::fs::remove_file(at)?;
    }
    std::os::unix::fs::symlink(program, at)
}

fn is_in_path(helper: &Path) -> bool {
    let Some(path) = std::env::var_os("PATH") else { return false };
    std::env::split_paths(&path).any(|place| place.join(HELPER).exists() && helper.exists())
}
