//! `cortex store invite|peers|sync|clock|squash`: the members of the cluster and what a person
//! decides about them.

use std::net::SocketAddr;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::super::{Json, Session, address, output};
use api_types::SingleValue;
use cluster::invitation::Token;
use cluster::options::PeerOptions;
use cluster::status::{ClusterStatus, PeerRow};

const HOUR_MS: u64 = 3_600_000;

/// Options of every command that starts a node.
#[derive(Clone, Debug, Args)]
pub struct PeerArgs {
    /// Where other nodes reach this one [default: 0.0.0.0:8205 once it has company]
    #[arg(long, value_name = "HOST:PORT", value_parser = address::public)]
    listen: Option<SocketAddr>,
    /// Where other nodes find this one, if not where it listens: behind a forwarded port
    #[arg(
        long,
        value_name = "HOST:PORT",
        requires = "listen",
        value_parser = address::reachable
    )]
    advertise: Option<SocketAddr>,
    /// Join a cluster: what `cortex nodes invite` printed on one of its members
    #[arg(long, value_name = "INVITATION")]
    join: Option<Token>,
    /// Wait until somebody adds this brand new node from a member: vera --add-node HOST:PORT
    #[arg(long = "await", conflicts_with = "join")]
    awaits: bool,
}

impl PeerArgs {
    pub fn options(&self) -> PeerOptions {
        let Self { listen, advertise, join, awaits } = self.clone();
        PeerOptions { listen, advertise, join, awaits, ..PeerOptions::default() }
    }

    /// Returns the same options for another process that runs the same node, without the
    /// invitation.
    pub fn arguments(&self) -> Vec<String> {
        let listen = self.listen.map(|listen| format!("--listen={listen}"));
        let advertise = self.advertise.map(|at| format!("--advertise={at}"));
        listen.into_iter().chain(advertise).collect()
    }

    /// Returns the option for the one process that redeems the invitation, or waits for it.
    pub fn invitation(&self) -> Option<String> {
        let awaits = self.awaits.then(|| "--await".to_string());
        self.join.as_ref().map(|join| format!("--join={join}")).or(awaits)
    }
}

#[derive(Debug, Subcommand)]
pub enum Clock {
    /// Say that this machine's clock is right, after it differed from what the store knows
    Trust,
}

pub async fn invite(session: &Session, address: Option<String>) -> anyhow::Result<()> {
    let body = json!({ "address": address });
    let answer: SingleValue = session.client.post("/v1/cluster/invitations", &body).await?;
    let token = answer.get("invitation").and_then(Value::as_str).unwrap_or_default();
    output::print(token)?;
    output::say("One node can join with it within the hour, while this node runs:");
    output::say("  cortex up --join INVITATION");
    Ok(())
}

pub async fn peers(session: &Session, json: Json) -> anyhow::Result<()> {
    let status: ClusterStatus = session.client.get("/v1/cluster").await?;
    if json.json {
        return output::json(&status);
    }
    let listens = status.address.as_deref().map(|at| format!(" at {at}")).unwrap_or_default();
    output::say(&format!("This is node {}{listens}: {}", status.node, status.state));
    for warning in status.clock_doubt.iter().chain(&status.alarms) {
        output::say(&format!("Look into this: {warning}"));
    }
    if status.clock_doubt.is_some() {
        output::say("  if the clock is right, say so with `cortex store clock trust`");
    }
    if status.peers.is_empty() {
        output::say("It is alone; `cortex nodes invite` lets another node join.");
        return Ok(());
    }
    let rows: Vec<Vec<String>> = status.peers.iter().map(row).collect();
    output::table(&["NODE", "ADDRESS", "REACHABLE", "HISTORY", "LAST SESSION", "NOTE"], &rows)
}

fn row(peer: &PeerRow) -> Vec<String> {
    let session = peer.last_session_ms.map(|ms| format!("{} s ago", ms / 1000));
    let note = match (peer.member, &peer.note) {
        (_, Some(note)) => note.clone(),
        (false, None) => "not on the roster".into(),
        (true, None) => String::new(),
    };
    vec![
        peer.node.clone(),
        peer.addresses.join(" "),
        if peer.reachable { "yes".into() } else { "no".into() },
        peer.history.clone(),
        session.unwrap_or_else(|| "never".into()),
        note,
    ]
}

pub async fn sync(session: &Session) -> anyhow::Result<()> {
    let _: SingleValue = session.client.post("/v1/cluster/sync", &json!({})).await?;
    Ok(())
}

pub async fn clock(session: &Session, Clock::Trust: Clock) -> anyhow::Result<()> {
    let _: SingleValue = session.client.post("/v1/cluster/clock/trust", &json!({})).await?;
    Ok(())
}

pub async fn squash(session: &Session, keep_hours: u64) -> anyhow::Result<()> {
    let now = runtime::driver::Clock::start().now().0;
    let before = now.saturating_sub(keep_hours.saturating_mul(HOUR_MS));
    let body = json!({ "before_ms": before });
    let _: SingleValue = session.client.post("/v1/store/squash", &body).await?;
    Ok(())
}
