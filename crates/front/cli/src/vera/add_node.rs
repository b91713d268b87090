//! `vera --add-node HOST:PORT`: lets a brand new node that waits there into this cluster: the user
//! compares fingerprints, and the node gets an invitation.

use std::io::{BufRead, IsTerminal};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::json;
use tokio::time::Instant;

use super::super::{Session, output};
use api_types::{Invitation, NodeRow};
use cluster::adding;
use cluster::adding::WaitingNode;

/// The longest wait for the node to join, which takes a call back and a write of the roster; loaded
/// machines take longer.
const JOIN_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(200);

pub async fn add(session: &Session, address: &str, expected: Option<&str>) -> anyhow::Result<()> {
    let found = adding::call(address).await.with_context(|| {
        format!(
            "no new node could be found at {address}: start it there with `cortex up --listen \
             {address} --await`"
        )
    })?;
    let fingerprint = found.fingerprint();
    output::print(&format!("The node at {address} has the fingerprint {fingerprint}"))?;
    confirm(&fingerprint, expected)?;
    let made: Invitation = session.client.post("/v1/cluster/invitations", &json!({})).await?;
    let node = give(found, &made.invitation).await?;
    output::begin(&format!("Waiting for node {node}"));
    output::finish(await_alive(session, &node).await)?;
    output::say("done");
    output::print(&format!("Node {node} was added and replicates the store"))
}

fn confirm(fingerprint: &str, expected: Option<&str>) -> anyhow::Result<()> {
    if let Some(expected) = expected {
        let plain = |text: &str| text.chars().filter(char::is_ascii_hexdigit).collect::<String>();
        ensure!(
            plain(expected).eq_ignore_ascii_case(&plain(fingerprint)),
            "that is not the fingerprint {expected}: another machine answers there; nothing was \
             done"
        );
        return Ok(());
    }
    ensure!(
        std::io::stdin().is_terminal(),
        "there is no terminal on which to ask whether that is right: compare it with what the new \
         node shows, then give it with --fingerprint"
    );
    output::begin("Is that what the new node shows? [y/N]");
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    if matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    bail!("nothing was done: start the new node again, and find out who answers at that address")
}

async fn give(found: WaitingNode, invitation: &str) -> anyhow::Result<String> {
    let node =
        found.invite(invitation).await.context("the new node did not take the invitation")?;
    Ok(node.to_string())
}

async fn await_alive(session: &Session, node: &str) -> anyhow::Result<()> {
    let deadline = Instant::now() + JOIN_MAX;
    loop {
        let rows: Vec<NodeRow> = session.client.get("/v1/nodes").await?;
        if rows.iter().any(|row| row.id == node && row.state == "alive") {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "node {node} has the invitation and did not come within {} s: it says why itself",
            JOIN_MAX.as_secs()
        );
        tokio::time::sleep(POLL).await;
    }
}
