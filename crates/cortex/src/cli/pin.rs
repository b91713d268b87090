//! `cortex pin APP NODE`: moves an application that keeps files to another node, with its files.

use std::time::Duration;

use anyhow::bail;
use clap::Args;
use serde_json::json;
use tokio::time::Instant;

use super::{Json, Session, output};
use crate::api::wire::{ApplicationShown, PinShown};
use crate::client::encode;

const POLL: Duration = Duration::from_millis(250);
/// From the handover until it is ready; a build of a large application takes that long.
const START_WAIT_MAX: Duration = Duration::from_secs(600);

#[derive(Debug, Args)]
pub struct Pin {
    /// The application
    app: String,
    /// The node that is to have its files: its id, the beginning of it, or its name [default: say
    /// which one has them]
    node: Option<String>,
    /// Begin with no files, where the node that holds them is gone for good
    #[arg(long, requires = "node")]
    without_files: bool,
    /// Do not wait until it runs there
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    json: Json,
}

impl Pin {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let path = format!("/v1/apps/{}/pin", encode(&self.app));
        let Some(node) = &self.node else {
            let shown: PinShown = session.client.get(&path).await?;
            return if self.json.json { output::json(&shown) } else { show(&shown) };
        };
        let body = json!({ "node": node, "without_files": self.without_files });
        let mut shown: PinShown = session.client.post(&path, &body).await?;
        if !self.no_wait {
            shown = self.wait(session, &path, shown).await?;
        }
        if self.json.json { output::json(&shown) } else { Ok(()) }
    }

    async fn wait(
        &self,
        session: &Session,
        path: &str,
        mut shown: PinShown,
    ) -> anyhow::Result<PinShown> {
        let mut said = String::new();
        let before = shown.holder.clone();
        while let Some(moving) = &shown.moving {
            let line = match moving.phase.as_str() {
                "asked" => {
                    format!("Moving its files to node {}; Ctrl-C leaves it going", moving.to)
                }
                "copying" => format!("Copying its files to node {} while it runs", moving.to),
                "stopped" => "Stopped; copying what changed meanwhile".into(),
                _ if shown.holder != before => break,
                _ => bail!(
                    "its files could not be moved, and it runs where it was: {}",
                    moving.message.as_deref().unwrap_or("no reason was given")
                ),
            };
            if line != said {
                output::say(&line);
                said = line;
            }
            tokio::time::sleep(POLL).await;
            shown = session.client.get(path).await?;
        }
        let holder = shown.holder.clone().unwrap_or_default();
        output::say(&format!("Its files are on node {holder}; it starts there"));
        let deadline = Instant::now() + START_WAIT_MAX;
        loop {
            let path = format!("/v1/apps/{}", encode(&self.app));
            let app: ApplicationShown = session.client.get(&path).await?;
            let elsewhere = app.processes.iter().flat_map(|process| process.nodes.keys());
            let moved = elsewhere.into_iter().all(|node| *node == holder);
            if moved && app.row.ready >= app.row.wanted {
                output::say(&format!("{} is {} there", self.app, app.row.state));
                return Ok(shown);
            }
            if Instant::now() >= deadline {
                bail!("it does not become ready there: see `cortex logs -a {}`", self.app);
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

fn show(shown: &PinShown) -> anyhow::Result<()> {
    let name = &shown.application;
    match &shown.holder {
        Some(holder) => output::print(holder)?,
        None => output::say(&format!("{name} keeps no files on one node.")),
    }
    if let Some(moving) = &shown.moving {
        let why = moving.message.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
        output::say(&format!("Its move to node {}: {}{why}", moving.to, moving.phase));
    }
    Ok(())
}
