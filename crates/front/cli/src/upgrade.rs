//! `cortex upgrade`: brings another binary to all nodes, one after the other.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use clap::Args;
use hyper::Method;
use tokio::time::Instant;

use super::{Exit, Json, Session, output};
use api_types::upgrade::{UpgradeRow, UpgradeShown};
use client::{ClientError, encode};

const POLL: Duration = Duration::from_millis(250);
/// The longest silence of this node, which hands over, too, and opens its store anew meanwhile.
const SILENCE_MAX: Duration = Duration::from_secs(180);
const CHUNK_BYTES: usize = 256 << 10;

#[derive(Debug, Args)]
pub struct Upgrade {
    /// The new `cortex` executable [default: show what the nodes run]
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Only this node: its id, the beginning of it, or its name
    #[arg(long, value_name = "NODE", requires = "binary")]
    node: Option<String>,
    /// How long a node may take until it is healthy; then it returns to what it ran [default: 120]
    #[arg(long, value_name = "SECONDS", requires = "binary")]
    within: Option<u64>,
    /// Do not wait until all nodes run it
    #[arg(long, requires = "binary")]
    no_wait: bool,
    /// Keep it from nodes that have not begun
    #[arg(long, conflicts_with = "binary")]
    cancel: bool,
    #[command(flatten)]
    json: Json,
}

impl Upgrade {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        if self.cancel {
            let shown: UpgradeShown = session.client.delete("/v1/upgrade").await?;
            if !self.json.json {
                output::say("Nodes that have not begun keep what they run.");
            }
            return self.print(&shown);
        }
        let Some(binary) = &self.binary else {
            return self.print(&session.client.get("/v1/upgrade").await?);
        };
        let shown = self.send(session, binary).await?;
        if self.no_wait {
            return self.print(&shown);
        }
        let shown = follow(session, shown).await?;
        if self.json.json {
            output::json(&shown)?;
        }
        match shown.state.as_str() {
            "finished" => {
                let version = shown.version.as_deref().unwrap_or_default();
                let nodes = output::count(shown.nodes.len() as u64, "node");
                output::say(&format!("Cortex {version} runs on {nodes}."));
                Ok(())
            }
            _ => {
                output::complain(&format!("{}; everything serves on as before", shown.says));
                Err(Exit(1).into())
            }
        }
    }

    async fn send(&self, session: &Session, binary: &Path) -> anyhow::Result<UpgradeShown> {
        let opened = runtime::task::spawn_blocking({
            let binary = binary.to_path_buf();
            move || File::open(binary)
        });
        let cannot = || format!("{} cannot be read", binary.display());
        let file = opened.await?.with_context(cannot)?;
        if !file.metadata().with_context(cannot)?.is_file() {
            bail!("{} is not a file: give the `cortex` executable", binary.display());
        }
        // A node that cannot take the binary says so before anything is sent.
        let _: UpgradeShown = session.client.get("/v1/upgrade").await?;
        let mut query = Vec::new();
        query.extend(self.node.as_ref().map(|node| format!("node={}", encode(node))));
        query.extend(self.within.map(|seconds| format!("within_seconds={seconds}")));
        output::begin("Checking it and handing it to the node");
        let path = format!("/v1/upgrade?{}", query.join("&"));
        let chunks = futures_util::stream::try_unfold(file, chunk);
        let shown = session.client.upload::<UpgradeShown>(Method::POST, &path, chunks).await;
        // A node that is gone breaks the pipe, which is not a quiet end here.
        let shown = shown.map_err(|error| match error.downcast_ref::<ClientError>() {
            Some(_) => error,
            None => anyhow!("the binary could not be handed over: {error:#}"),
        });
        let shown = output::finish(shown)?;
        output::say("done");
        Ok(shown)
    }

    fn print(&self, shown: &UpgradeShown) -> anyhow::Result<()> {
        if self.json.json {
            return output::json(shown);
        }
        let short = |hash: &Option<String>| match hash {
            Some(hash) => hash.chars().take(12).collect(),
            None => "-".to_owned(),
        };
        let cells = |row: &UpgradeRow| {
            let state = if row.alive { row.state.clone() } else { format!("{} (down)", row.state) };
            vec![row.node.clone(), state, short(&row.binary), row.why.clone().unwrap_or_default()]
        };
        let rows: Vec<Vec<String>> = shown.nodes.iter().map(cells).collect();
        output::table(&["NODE", "STATE", "BINARY", "NOTE"], &rows)?;
        if let (Some(version), binary @ Some(_)) = (&shown.version, &shown.binary) {
            output::say(&format!("Cortex {version} ({}): {}", short(binary), shown.says));
        }
        Ok(())
    }
}

/// Returns the next piece of the file, and the file.
async fn chunk(mut file: File) -> std::io::Result<Option<(Bytes, File)>> {
    let read = runtime::task::spawn_blocking(move || {
        let mut piece = vec![0; CHUNK_BYTES];
        let size = file.read(&mut piece)?;
        piece.truncate(size);
        Ok((size > 0).then(|| (Bytes::from(piece), file)))
    });
    read.await.unwrap_or_else(|error| Err(std::io::Error::other(error)))
}

/// Shows the upgrade until all nodes have it, or none goes on.
async fn follow(session: &Session, mut shown: UpgradeShown) -> anyhow::Result<UpgradeShown> {
    let mut told = BTreeMap::new();
    let mut waiting = None;
    let mut heard = Instant::now();
    loop {
        tell(&shown, &mut told);
        match shown.state.as_str() {
            "finished" | "stopped" => return Ok(shown),
            "none" => bail!("it was cancelled: see `cortex upgrade`"),
            "waiting" if waiting.as_ref() != Some(&shown.says) => {
                output::remark(&format!("{}; Ctrl-C does not stop it", shown.says));
                waiting = Some(shown.says.clone());
            }
            _ => {}
        }
        loop {
            tokio::time::sleep(POLL).await;
            match session.client.get("/v1/upgrade").await {
                Ok(next) => {
                    shown = next;
                    heard = Instant::now();
                    break;
                }
                Err(error) if heard.elapsed() > SILENCE_MAX || is_refusal(&error) => {
                    return Err(error.context("this node does not say how far it is"));
                }
                // This node is handing over itself.
                Err(_) => {}
            }
        }
    }
}

fn is_refusal(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(ClientError::Problem(problem)) if problem.status < 500)
}

fn tell(shown: &UpgradeShown, told: &mut BTreeMap<String, String>) {
    for row in &shown.nodes {
        let before = told.insert(row.node.clone(), row.state.clone());
        if before.as_ref() == Some(&row.state) || row.state == "pending" {
            continue;
        }
        let why = row.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        let says = match row.state.as_str() {
            "trying" => "tries it",
            "done" => "runs it",
            "returned" => "has returned to what it ran",
            "refused" => "has refused it",
            other => other,
        };
        output::say(&format!("-----> {} {says}{why}", row.node));
    }
}
