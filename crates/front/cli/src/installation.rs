//! Ways in which a machine starts its node by itself: a unit of the user's own systemd, or a line
//! of the user's crontab. Owns both texts and where they go; knows nothing of a running node.
//! `cortex install` drives it.

pub mod crontab;
pub mod unit;

use std::io::{ErrorKind, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use os::layout::DataDirectory;

/// The command that is to be started, all of it spelled out: `PATH`, program, arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct StartCommand {
    pub search_path: String,
    pub program: String,
    pub arguments: Vec<String>,
    /// A mark made from the data directory's path, which tells the nodes of one user apart.
    pub mark: String,
    pub data: String,
}

/// Returns a mark that is stable, short, and depends on the data directory alone.
pub fn mark(layout: &DataDirectory) -> String {
    blake3::hash(layout.root().as_os_str().as_encoded_bytes()).to_hex()[..12].to_owned()
}

/// Runs a tool of the system and returns what it did; `None` if there is no such tool.
fn tool(
    program: &str,
    arguments: &[&str],
    input: Option<&str>,
) -> anyhow::Result<Option<CommandOutput>> {
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("{program} cannot be run")),
    };
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
        // A tool that does not read its input says why on stderr.
        stdin.write_all(input.as_bytes()).ok();
    }
    let output = child.wait_with_output().with_context(|| format!("{program} cannot be run"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Some(CommandOutput {
        shown: format!("{program} {}", arguments.join(" ")),
        success: output.status.success(),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr).trim().to_owned(),
    }))
}

/// How a program that was run here ended, and what it printed.
struct CommandOutput {
    shown: String,
    success: bool,
    stdout: String,
    stderr: String,
}

impl CommandOutput {
    fn succeeded(self) -> anyhow::Result<CommandOutput> {
        if !self.success {
            bail!("`{}` failed: {}", self.shown, self.stderr);
        }
        Ok(self)
    }
}

/// Returns whether a line of a unit or a crontab can hold the text: control characters are refused.
fn is_plain(text: &str) -> bool {
    !text.chars().any(char::is_control)
}
