//! `cortex attach ID`: goes on with a command that runs already.

use clap::Args;

use super::run::flow::{Begin, Flow};
use super::run::{exit, is_terminal};
use super::{App, Session, output};
use client::encode;

#[derive(Debug, Args)]
#[command(after_help = "\
Whoever is attached already is told so and leaves: one person at a time sees and types. Without a \
terminal the output goes on where they stopped. In a terminal, `~.` at the beginning of a line leaves: \
a command that was started with --detach goes on, any other one is hung up on.")]
pub struct Attach {
    #[command(flatten)]
    app: App,
    /// End the command instead: SIGTERM, and SIGKILL five seconds later
    #[arg(long)]
    stop: bool,
    /// The command's id, as `cortex ps` shows it
    id: String,
}

impl Attach {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let name = self.app.name()?;
        if self.stop {
            let path = format!("/v1/apps/{}/sessions/{}", encode(name.as_str()), encode(&self.id));
            let () = session.client.delete(&path).await?;
            output::say(&format!("{} is being stopped.", self.id));
            return Ok(());
        }
        let flow = Flow::new(&session.client, name.as_str(), is_terminal())?;
        exit(flow.run(Begin::Attach(self.id)).await?)
    }
}
