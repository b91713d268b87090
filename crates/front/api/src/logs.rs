//! Logs of an application: the last lines of all its instances on all nodes and of the platform,
//! merged by time, and then the lines that follow. If a node cannot be reached, a line says so and
//! the rest goes on.

mod far;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use model::{ApplicationName, NodeId};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::problem::Problem;
use super::progress::ndjson;
use super::records;
use super::{Api, Shared};
use ::logs;
use api_types::LogLine;
use cluster::roster;
use logs::{Item, LINES_MAX, LogSelection};

/// Lines shown by default, as `heroku logs` does.
const LINES_DEFAULT: usize = 100;
/// Lines that wait between the nodes and a slow terminal: it makes the nodes wait, and the files
/// keep the rest.
const LINES_WAITING_MAX: usize = 256;
/// The time for which lines of several nodes are collected to be put in order.
const MERGE_PAUSE: Duration = Duration::from_millis(250);
/// The time between two looks for nodes that have joined.
const LOOK_INTERVAL: Duration = Duration::from_secs(3);
/// The longest silence of a node during the last lines; after it the node is not waited for.
const TAIL_SILENCE_MAX: Duration = Duration::from_secs(6);

#[derive(Debug, Default, Deserialize, JsonSchema)]
pub struct LogQuery {
    #[serde(default)]
    lines: Option<usize>,
    #[serde(default)]
    follow: bool,
    /// The lines wanted: `web`, `web.1` or `cortex`.
    #[serde(default)]
    process: Option<String>,
    /// The time from which lines are wanted, as an earlier answer had it.
    #[serde(default)]
    after: Option<String>,
    /// Whether each line names its node even if there is no other node.
    #[serde(default)]
    nodes: bool,
}

pub async fn lines(
    State(api): State<Shared>,
    Path(name): Path<String>,
    Query(query): Query<LogQuery>,
) -> Result<Response, Problem> {
    let app = records::require(&*api.store, &name).await?;
    let lines = query.lines.unwrap_or(LINES_DEFAULT).min(LINES_MAX);
    let others = others(&api).await?;
    let LogQuery { follow, process, after, .. } = query;
    let wanted = LogSelection { lines, follow, process, after };
    let (sender, receiver) = mpsc::channel(LINES_WAITING_MAX);
    let names_nodes = query.nodes || !others.is_empty();
    let (found, waiting) = mpsc::channel(LINES_WAITING_MAX);
    let mut listing = Listing {
        api,
        application: app.name,
        wanted,
        sources: BTreeSet::new(),
        names_nodes,
        found,
        waiting,
        sender,
    };
    runtime::task::spawn(async move { listing.run(others).await.ok() });
    Ok(ndjson(receiver))
}

/// Returns the nodes of the cluster besides this one.
async fn others(api: &Api) -> Result<Vec<NodeId>, Problem> {
    if api.peers.is_none() {
        return Ok(Vec::new());
    }
    let keys = api.store.keys(&roster::prefix()).await?;
    let nodes = keys.iter().filter_map(roster::node_of);
    Ok(nodes.filter(|node| *node != api.node).collect())
}

/// What a node has sent, with the node.
type FarMessage = (NodeId, LogMessage);

/// A part of a node's answer.
enum LogMessage {
    Item(Item),
    /// A remark for people; it counts as the end of the node's last lines if these were not
    /// complete.
    Remark(String),
}

struct Listing {
    api: Shared,
    application: ApplicationName,
    wanted: LogSelection,
    sources: BTreeSet<NodeId>,
    names_nodes: bool,
    found: mpsc::Sender<FarMessage>,
    waiting: mpsc::Receiver<FarMessage>,
    sender: mpsc::Sender<LogLine>,
}

/// The error that nobody listens any more.
struct Gone;

impl Listing {
    async fn run(&mut self, others: Vec<NodeId>) -> Result<(), Gone> {
        let directory = self.api.layout.logs(&self.application);
        self.add_own(logs::read(directory, self.wanted.clone()));
        let mut pending: BTreeSet<NodeId> = [self.api.node.clone()].into();
        for node in others {
            pending.insert(node.clone());
            self.add_other(node, self.wanted.clone());
        }
        let later = self.last_lines(pending).await?;
        if !self.wanted.follow {
            return Ok(());
        }
        self.pass_on(later).await?;
        let mut look = tokio::time::interval(LOOK_INTERVAL);
        loop {
            tokio::select! {
                found = self.waiting.recv() => {
                    let Some(found) = found else { return Ok(()) };
                    let batch = self.batch(found).await?;
                    self.pass_on(batch).await?;
                }
                _ = look.tick() => self.look_for_others().await,
                () = self.sender.closed() => return Err(Gone),
            }
        }
    }

    fn add_own(&mut self, mut items: mpsc::Receiver<Item>) {
        let (found, node) = (self.found.clone(), self.api.node.clone());
        self.sources.insert(node.clone());
        runtime::task::spawn(async move {
            while let Some(item) = items.recv().await {
                if found.send((node.clone(), LogMessage::Item(item))).await.is_err() {
                    return;
                }
            }
        });
    }

    fn add_other(&mut self, node: NodeId, wanted: LogSelection) {
        let Some(peers) = self.api.peers.clone() else { return };
        if self.sources.insert(node.clone()) {
            let (application, found) = (self.application.clone(), self.found.clone());
            let source = far::FarLogs { peers, node, application, found };
            runtime::task::spawn(Arc::new(source).run(wanted));
        }
    }

    /// Adds the nodes that have joined meanwhile, with their lines from now on.
    async fn look_for_others(&mut self) {
        for node in others(&self.api).await.unwrap_or_default() {
            if !self.sources.contains(&node) {
                self.names_nodes = true;
                self.add_other(node, LogSelection { lines: 0, ..self.wanted.clone() });
            }
        }
    }

    /// Sends the last lines of all nodes together, in order; returns what was printed since.
    async fn last_lines(&mut self, mut pending: BTreeSet<NodeId>) -> Result<Vec<FarMessage>, Gone> {
        let (mut lines, mut later) = (Vec::new(), Vec::new());
        let mut deadline = Instant::now() + TAIL_SILENCE_MAX;
        while !pending.is_empty() {
            let (node, said) = tokio::select! {
                found = tokio::time::timeout_at(deadline, self.waiting.recv()) => match found {
                    Ok(Some(found)) => found,
                    Ok(None) => break,
                    Err(_) => {
                        for node in std::mem::take(&mut pending) {
                            self.remark(format!("node {node} says nothing: its lines are missing"))
                                .await?;
                        }
                        break;
                    }
                },
                () = self.sender.closed() => return Err(Gone),
            };
            if pending.contains(&node) {
                deadline = Instant::now() + TAIL_SILENCE_MAX;
            }
            match said {
                LogMessage::Item(Item::Now) => drop(pending.remove(&node)),
                LogMessage::Item(Item::Line(line)) if pending.contains(&node) => {
                    lines.push(self.named(line, node));
                    // For every line that is dropped here, there are as many newer ones as are
                    // wanted.
                    if lines.len() > 2 * self.wanted.lines {
                        self.keep_last(&mut lines);
                    }
                }
                said @ LogMessage::Item(_) if later.len() < LINES_WAITING_MAX => {
                    later.push((node, said))
                }
                LogMessage::Item(_) => {}
                LogMessage::Remark(text) => {
                    pending.remove(&node);
                    self.remark(text).await?;
                }
            }
        }
        self.keep_last(&mut lines);
        for line in lines {
            self.send(line).await?;
        }
        Ok(later)
    }

    fn keep_last(&self, lines: &mut Vec<LogLine>) {
        logs::sort(lines);
        let excess = lines.len().saturating_sub(self.wanted.lines);
        lines.drain(..excess);
    }

    /// Collects what comes within a moment if several nodes print.
    async fn batch(&mut self, first: FarMessage) -> Result<Vec<FarMessage>, Gone> {
        let mut batch = vec![first];
        if self.sources.len() < 2 {
            return Ok(batch);
        }
        let deadline = Instant::now() + MERGE_PAUSE;
        while batch.len() < LINES_WAITING_MAX {
            match tokio::time::timeout_at(deadline, self.waiting.recv()).await {
                Ok(Some(found)) => batch.push(found),
                Ok(None) => return Err(Gone),
                Err(_) => break,
            }
        }
        Ok(batch)
    }

    async fn pass_on(&mut self, batch: Vec<FarMessage>) -> Result<(), Gone> {
        let mut lines = Vec::new();
        for (node, said) in batch {
            match said {
                LogMessage::Item(Item::Now) => {}
                LogMessage::Item(Item::Line(line)) => lines.push(self.named(line, node)),
                LogMessage::Remark(text) => self.remark(text).await?,
            }
        }
        logs::sort(&mut lines);
        for line in lines {
            self.send(line).await?;
        }
        Ok(())
    }

    fn named(&self, line: LogLine, node: NodeId) -> LogLine {
        LogLine { node: self.names_nodes.then(|| node.to_string()), ..line }
    }

    async fn remark(&self, text: String) -> Result<(), Gone> {
        self.send(LogLine::remark(text)).await
    }

    async fn send(&self, line: LogLine) -> Result<(), Gone> {
        self.sender.send(line).await.map_err(|_| Gone)
    }
}
