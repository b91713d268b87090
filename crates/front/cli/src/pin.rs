//! `cortex pin APP NODE`: moves an application that keeps files to another node, with its files.

use std::time::Duration;

use anyhow::bail;
use clap::Args;
use serde_json::json;
use tokio::time::Instant;

use super::{Json, Session, output};
use api_types::{ApplicationShown, PinShown};
use client::encode;

const POLL: Duration = Duration::from_millis(250);
/// The longest wait from the handover until it is ready; a build of a large application takes that
/// long.
const START_WAIT_MAX: Duration = Duration::from_secs(600);

#[derive(Debug, Args)]
pub struct Pin {
    /// The application
    app: String,
    /// The node that is to have its files: its id, the beginning of it, or its name [default: say
    /// which one has them]
    node: Option<String>,
    /// Begin with no files, if the node that holds them is gone for good
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
        let from = shown.moving.is_some().then(|| shown.holder.clone());
        let mut said = String::new();
        let holder = loop {
            match stage(from.as_ref(), &shown) {
                MoveStage::Over(holder) => break holder,
                MoveStage::Failed(why) => {
                    bail!("its files could not be moved, and it runs where it was: {why}")
                }
                MoveStage::Moving(line) if line != said => {
                    output::say(&line);
                    said = line;
                }
                MoveStage::Moving(_) => {}
            }
            tokio::time::sleep(POLL).await;
            shown = session.client.get(path).await?;
        };
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

/// The stage of a move, as far as the node that was asked knows it.
#[derive(Debug, PartialEq)]
enum MoveStage {
    /// It is under way; the line tells the user how far it is.
    Moving(String),
    Failed(String),
    /// It is over; the node that has the files.
    Over(String),
}

/// Returns the stage of a move. `from` is the node that had the files when the move began, and
/// `None` if they were where they are wanted. Two nodes write that the move is over and where the
/// files are now, and the two may be heard of in either order.
fn stage(from: Option<&Option<String>>, shown: &PinShown) -> MoveStage {
    let over = || MoveStage::Over(shown.holder.clone().unwrap_or_default());
    let arrived = from.is_none_or(|from| shown.holder != *from);
    match &shown.moving {
        None if arrived => over(),
        None => MoveStage::Moving("Waiting to hear that they are there".into()),
        Some(moving) => match moving.phase.as_str() {
            "asked" => MoveStage::Moving(format!(
                "Moving its files to node {}; Ctrl-C does not stop it",
                moving.to
            )),
            "copying" => {
                MoveStage::Moving(format!("Copying its files to node {} while it runs", moving.to))
            }
            "stopped" => MoveStage::Moving("Stopped; copying what changed meanwhile".into()),
            _ if arrived => over(),
            _ => MoveStage::Failed(moving.message.clone().unwrap_or("no reason was given".into())),
        },
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

#[cfg(test)]
mod tests {
    use super::*;
    use api_types::MoveShown;

    fn shown(holder: &str, phase: Option<&str>) -> PinShown {
        let moving = phase.map(|phase| MoveShown {
            to: "there".into(),
            phase: phase.into(),
            message: (phase == "failed").then(|| "a reason".into()),
        });
        PinShown { application: "notes".into(), holder: Some(holder.into()), moving }
    }

    #[test]
    fn a_move_is_over_once_both_nodes_have_been_heard() {
        let from = Some("here".to_owned());
        let at = |holder, phase| stage(Some(&from), &shown(holder, phase));
        for phase in ["asked", "copying", "stopped"] {
            assert!(matches!(at("here", Some(phase)), MoveStage::Moving(_)), "{phase}");
        }
        assert!(matches!(at("there", Some("stopped")), MoveStage::Moving(_)));
        assert!(matches!(at("here", None), MoveStage::Moving(_)));
        assert_eq!(at("there", None), MoveStage::Over("there".into()));
        assert_eq!(at("here", Some("failed")), MoveStage::Failed("a reason".into()));
        assert_eq!(at("there", Some("failed")), MoveStage::Over("there".into()));
    }

    #[test]
    fn what_is_where_it_is_wanted_needs_no_move() {
        assert_eq!(stage(None, &shown("there", None)), MoveStage::Over("there".into()));
    }
}
