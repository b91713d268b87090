//! `cortex run COMMAND`: runs a command beside the instances, with this terminal or these files as
//! its own.

mod flow;
mod terminal;

use std::ffi::OsString;
use std::io::IsTerminal;

use anyhow::Context;
use clap::Args;

use self::terminal::Raw;
use super::{App, Exit, Session, output};
use api_types::session::{PROTOCOL, SessionStart, Terminal, VERSION};
use client::encode;

/// The exit code for a missing command, as for arguments that are not understood.
const USAGE: u8 = 2;

#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    app: App,
    /// Give it no terminal, although this is one
    #[arg(long)]
    no_tty: bool,
    #[arg(long, env = "TERM", hide = true)]
    term: Option<String>,
    /// What to run: a program and its arguments, or one quoted line for the shell
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Run {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        if self.command.is_empty() {
            output::say("Error: say what to run, for example:");
            output::say("  cortex run -a NAME -- python manage.py migrate");
            output::say("  cortex run -a NAME bash");
            return Err(Exit(USAGE).into());
        }
        let name = self.app.name()?;
        let command = words(self.command)?;
        let stdout = std::io::stdout();
        let is_terminal = !self.no_tty && std::io::stdin().is_terminal() && stdout.is_terminal();
        let terminal = is_terminal
            .then(|| Terminal { name: self.term.unwrap_or_default(), size: terminal::size() });
        let path = format!("/v1/apps/{}/run", encode(name.as_str()));
        let stream = session.client.upgrade(&path, PROTOCOL).await?;
        let raw = is_terminal.then(Raw::enter).transpose().context("this terminal")?;
        let start = SessionStart { v: VERSION, command, terminal };
        let ended = flow::run(stream, start).await;
        drop(raw);
        match ended? {
            0 => Ok(()),
            code => Err(Exit(code).into()),
        }
    }
}

fn words(command: Vec<OsString>) -> anyhow::Result<Vec<String>> {
    let word = |word: OsString| {
        word.into_string()
            .map_err(|word| anyhow::anyhow!("{} is not in UTF-8", word.to_string_lossy()))
    };
    command.into_iter().map(word).collect()
}
