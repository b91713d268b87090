//! The lines of another node: they are asked for once, or again and again while somebody follows
//! them, and no line comes twice if the node was lost and came back.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use model::{ApplicationName, NodeId};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{FarMessage, LogMessage};
use crate::calls;
use crate::calls::CallKind;
use api_types::position::LogPosition;
use cluster::peers::Peers;
use logs::{Item, LogSelection};
use runtime::members::Members;

/// The time limit of a call: to a node that is alive a stream is open long before, and nobody has
/// to wait longer than this to see the other nodes' lines.
const CALL_TIME_MAX: Duration = Duration::from_secs(4);
/// The pause between two calls of a node that was lost.
const PAUSE: Duration = Duration::from_secs(1);
/// Lines asked of a node that is back, for what it printed while it could not be reached.
const LINES_AGAIN_MAX: usize = 10_000;

pub struct FarLogs {
    pub peers: Arc<Peers>,
    pub node: NodeId,
    pub application: ApplicationName,
    pub found: mpsc::Sender<FarMessage>,
}

impl FarLogs {
    pub async fn run(self: Arc<Self>, first: LogSelection) {
        let (mut seen, mut lost) = (LogPosition::default(), false);
        let mut wanted = first.clone();
        loop {
            let ended = tokio::select! {
                ended = self.follow(&wanted, &mut seen, &mut lost) => ended,
                () = self.found.closed() => return,
            };
            if !lost && let Err(error) = ended {
                lost = true;
                let node = &self.node;
                let said = format!("node {node} is not reached: {error:#}; its lines are missing");
                self.say(LogMessage::Remark(said)).await.ok();
            }
            if !first.follow {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                () = self.found.closed() => return,
            }
            if let Some(time) = seen.time() {
                wanted.after = Some(time.clone());
                wanted.lines = LINES_AGAIN_MAX;
            }
        }
    }

    /// Passes lines on until the stream ends; returns without an error once all that is wanted has
    /// come.
    async fn follow(
        &self,
        wanted: &LogSelection,
        seen: &mut LogPosition,
        lost: &mut bool,
    ) -> anyhow::Result<()> {
        let mut alive = self.peers.alive();
        anyhow::ensure!(alive.borrow().contains(&self.node), "it is down");
        let follow = wanted.follow;
        let mut before = seen.resume();
        let ask = CallKind::Logs { application: self.application.clone(), wanted: wanted.clone() };
        let calling = timeout(CALL_TIME_MAX, calls::call(&*self.peers, &self.node, ask));
        let mut stream = calling.await.context("no answer")??;
        let was_lost = std::mem::take(lost);
        if was_lost {
            self.say(LogMessage::Remark(format!("node {} is back", self.node))).await?;
        }
        loop {
            let item = tokio::select! {
                item = calls::receive::<Item>(&mut stream) => item?,
                gone = alive.wait_for(|alive| !alive.contains(&self.node)) => {
                    drop(gone);
                    bail!("it is down")
                }
            };
            match item {
                None if follow => bail!("the connection broke"),
                None => return Ok(()),
                Some(Item::Line(line)) if before.was_there(&line.time) => {}
                Some(Item::Line(line)) => {
                    seen.note(&line.time);
                    self.say(LogMessage::Item(Item::Line(line))).await?;
                }
                Some(Item::Now) => self.say(LogMessage::Item(Item::Now)).await?,
            }
        }
    }

    async fn say(&self, said: LogMessage) -> anyhow::Result<()> {
        let sent = self.found.send((self.node.clone(), said)).await;
        sent.map_err(|_| anyhow::anyhow!("nobody listens"))
    }
}
