//! `cortex down`: stops the node with everything it started, or what a node that died left behind.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use rustix::fs::FlockOperation;
use tokio::time::{Instant, timeout};

use super::{Session, output};
use api_types::{ApplicationRow, InstanceRow};
use client::ClientError;

/// The longest wait for the node to end: the grace of 30 s between SIGTERM and SIGKILL, the
/// draining before it, and the store's end.
const STOP_WAIT_MAX: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(100);
/// The longest wait for an answer; a node on a loaded machine answers in much less that it has
/// begun.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// The grace for processes that no node watches any more.
const LEFTOVER_GRACE: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub struct Down {}

impl Down {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let asking = session.client.post::<_, Vec<ApplicationRow>>("/v1/shutdown", &());
        let Ok(asked) = timeout(ANSWER_MAX, asking).await else { return Err(silent(session)) };
        match asked {
            Ok(applications) => wait(session, &applications).await,
            Err(error) if matches!(error.downcast_ref(), Some(ClientError::NoNode(_))) => {
                leftovers(session).await
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns the error for a node that does not answer: its process is there, and the kernel accepts
/// connections for it.
fn silent(session: &Session) -> anyhow::Error {
    let (root, seconds) = (session.layout.root().display(), ANSWER_MAX.as_secs());
    let pid = std::fs::read_to_string(session.layout.lock()).unwrap_or_default();
    let Ok(pid) = pid.trim().parse::<u32>() else {
        return anyhow!("the node on {root} does not answer within {seconds} s: try again");
    };
    let why = match is_stopped(pid) {
        true => format!("it is stopped: `kill -CONT {pid}` lets it go on"),
        false => "see its log".into(),
    };
    anyhow!(
        "the node on {root} (pid {pid}) does not answer within {seconds} s; {why}, and `kill -9 \
         {pid}` ends it; then `cortex down` stops what is left"
    )
}

fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name before it may contain anything.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

async fn wait(session: &Session, applications: &[ApplicationRow]) -> anyhow::Result<()> {
    let names: Vec<&str> = applications.iter().map(|app| app.name.as_str()).collect();
    if !names.is_empty() {
        output::say(&format!("Stopping {}", names.join(", ")));
    }
    // Only this node's instances are counted, since other nodes of the cluster go on.
    let own = std::fs::read_to_string(session.layout.node_id()).unwrap_or_default();
    let deadline = Instant::now() + STOP_WAIT_MAX;
    let mut shown = None;
    while !has_ended(&session.layout.lock())? {
        if Instant::now() >= deadline {
            bail!(
                "the node is still stopping after {} s: see `cortex ps --all`, or run `cortex \
                 down` again",
                STOP_WAIT_MAX.as_secs()
            );
        }
        let listing = session.client.get::<Vec<InstanceRow>>("/v1/ps");
        if let Ok(Ok(rows)) = timeout(ANSWER_MAX, listing).await {
            let left = rows.iter().filter(|row| row.node == own.trim() && !is_ended(&row.state));
            let alive = left.count() as u64;
            if alive > 0 && shown != Some(alive) {
                output::say(&format!("{} left", output::count(alive, "instance")));
                shown = Some(alive);
            }
        }
        tokio::time::sleep(POLL).await;
    }
    output::say("The node is stopped.");
    Ok(())
}

fn is_ended(state: &str) -> bool {
    matches!(state, "stopped" | "crashed" | "lost")
}

/// Returns whether the node has ended. The kernel releases a node's lock when its process ends,
/// however that happens.
fn has_ended(lock: &Path) -> anyhow::Result<bool> {
    match File::open(lock) {
        Ok(file) => Ok(rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_ok()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error).with_context(|| format!("{} cannot be read", lock.display())),
    }
}

async fn leftovers(session: &Session) -> anyhow::Result<()> {
    let root = session.layout.root().display();
    if !has_ended(&session.layout.lock())? {
        bail!("a node runs on {root} and does not answer: wait a moment and try again");
    }
    let stopped = match session.layout.run().is_dir() {
        true => agent::plain::stop_all(session.layout.clone(), LEFTOVER_GRACE).await?,
        false => 0,
    };
    match stopped as u64 {
        0 => output::say(&format!("No node is running on {root}.")),
        count => output::say(&format!(
            "No node is running on {root}; stopped {} that one had left.",
            output::count(count, "instance")
        )),
    }
    Ok(())
}
