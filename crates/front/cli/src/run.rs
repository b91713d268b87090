//! `cortex run COMMAND`: runs a command beside the instances, with this terminal or these files as
//! its own.

mod escape;
pub mod flow;
mod input;
mod printer;
pub mod terminal;

use std::ffi::OsString;
use std::io::IsTerminal;

use anyhow::{Context, bail};
use bytes::BytesMut;
use clap::Args;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use self::flow::{Begin, Flow};
use super::{App, Exit, Session, output};
use client::encode;
use session_core::frame::{SessionDecoder, SessionFrame, SessionStart, Terminal};
use session_core::{PROTOCOL, VERSION};

/// The exit code for a missing command, as for arguments that are not understood.
const USAGE: u8 = 2;

#[derive(Debug, Args)]
#[command(after_help = "\
A cut connection, an upgrade of the node and a laptop that sleeps do not end the command: it waits for \
ten minutes, and this command goes on by itself where it was, without losing anything. In a terminal, \
`~.` at the beginning of a line hangs up.")]
pub struct Run {
    #[command(flatten)]
    app: App,
    /// Give it no terminal, although this is one
    #[arg(long)]
    no_tty: bool,
    /// Start it, print its id and leave; `cortex attach ID` shows what it prints
    #[arg(short = 'd', long)]
    detach: bool,
    /// With --detach: give it a terminal, to be typed in by `cortex attach`
    #[arg(long, requires = "detach", conflicts_with = "no_tty")]
    tty: bool,
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
        let has_terminal = match self.detach {
            true => self.tty,
            false => !self.no_tty && is_terminal(),
        };
        let terminal = has_terminal
            .then(|| Terminal { name: self.term.unwrap_or_default(), size: terminal::size() });
        let start = SessionStart { v: VERSION, command, terminal, detached: self.detach };
        if self.detach {
            let id = detached(session, name.as_str(), start).await?;
            output::print(&id)?;
            output::say(&format!("`cortex attach -a {name} {id}` shows what it prints."));
            return Ok(());
        }
        let flow = Flow::new(&session.client, name.as_str(), has_terminal)?;
        exit(flow.run(Begin::Start(start)).await?)
    }
}

/// Whether a person sits at both ends of this process.
pub fn is_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

pub fn exit(code: u8) -> anyhow::Result<()> {
    match code {
        0 => Ok(()),
        code => Err(Exit(code).into()),
    }
}

/// Starts a command and leaves it; returns its id.
async fn detached(session: &Session, name: &str, start: SessionStart) -> anyhow::Result<String> {
    let path = format!("/v1/apps/{}/run", encode(name));
    let mut stream = session.client.upgrade(&path, PROTOCOL).await?;
    let (mut out, mut decoder) = (BytesMut::new(), SessionDecoder::default());
    SessionFrame::Start(start).write(&mut out);
    stream.write_all(&out).await?;
    stream.flush().await?;
    loop {
        while let Some(frame) = decoder.frame()? {
            match frame {
                SessionFrame::Started(id) => return Ok(id),
                SessionFrame::Failed(why) => bail!(why),
                SessionFrame::Note(said) => output::say(&output::plain(&said)),
                _ => {}
            }
        }
        let count = stream.read_buf(decoder.buffer()).await.unwrap_or(0);
        let lost = "the node went away before it said that the command runs; see `cortex ps`";
        (count > 0).then_some(()).context(lost)?;
    }
}

fn words(command: Vec<OsString>) -> anyhow::Result<Vec<String>> {
    let word = |word: OsString| {
        word.into_string()
            .map_err(|word| anyhow::anyhow!("{} is not in UTF-8", word.to_string_lossy()))
    };
    command.into_iter().map(word).collect()
}
