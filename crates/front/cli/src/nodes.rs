//! `cortex nodes`, `nodes invite|drain|activate|remove`: the machines of the cluster.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;

use super::{Json, Session, output};
use api_types::{Invitation, NodeRow, NodeShown, RemovedNode};
use client::encode;
use cluster::status::ClusterStatus;

/// The time between two looks at a node that is being emptied.
const POLL: Duration = Duration::from_millis(250);

#[derive(Debug, Args)]
pub struct Nodes {
    #[command(flatten)]
    json: Json,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List all nodes
    List {
        #[command(flatten)]
        json: Json,
    },
    /// Print the one line that lets another machine join
    Invite {
        /// Where the new node finds this one, if not where this one thinks it is
        #[arg(long, value_name = "HOST:PORT")]
        address: Option<String>,
        /// How long it is valid [default: an hour, which is the longest]
        #[arg(long, value_parser = clap::value_parser!(u64).range(1..=3600))]
        seconds: Option<u64>,
        #[command(flatten)]
        json: Json,
    },
    /// Give away what a node runs, and give it nothing new
    Drain {
        /// Its id, the beginning of it, or its name
        node: String,
        /// Do not wait until it is empty
        #[arg(long)]
        no_wait: bool,
        /// Wait until it is empty, as is usual
        #[arg(long, hide = true, conflicts_with = "no_wait")]
        wait: bool,
    },
    /// Use a drained node again
    #[command(alias = "undrain", alias = "uncordon")]
    Activate {
        /// Its id, the beginning of it, or its name
        node: String,
    },
    /// Take a node off the roster: no other node accepts it any more
    Remove {
        /// Its id, the beginning of it, or its name
        node: String,
        /// Remove it although it is alive, runs instances or holds files
        #[arg(long)]
        force: bool,
    },
}

impl Nodes {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        match self.action {
            None => list(session, self.json).await,
            Some(Action::List { json }) => list(session, json).await,
            Some(Action::Invite { address, seconds, json }) => {
                invite(session, address, seconds, json).await
            }
            Some(Action::Drain { node, no_wait, wait: _ }) => drain(session, &node, !no_wait).await,
            Some(Action::Activate { node }) => activate(session, &node).await,
            Some(Action::Remove { node, force }) => remove(session, &node, force).await,
        }
    }
}

/// Prints what this node's store wants looked into, if it has peers at all.
async fn warn(session: &Session) {
    let status: anyhow::Result<ClusterStatus> = session.client.get("/v1/cluster").await;
    let Ok(status) = status else { return };
    for warning in status.clock_doubt.iter().chain(&status.alarms) {
        output::say(&format!("Look into this: {warning}"));
    }
}

async fn list(session: &Session, json: Json) -> anyhow::Result<()> {
    let mut rows: Vec<NodeRow> = session.client.get("/v1/nodes").await?;
    warn(session).await;
    if json.json {
        return output::json(&rows);
    }
    // People look for the names that they gave.
    rows.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
    let cells: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let head = [
        "ID",
        "NAME",
        "STATE",
        "ADDRESS",
        "ROLES",
        "LOAD",
        "CORES",
        "MEMORY",
        "INSTANCES",
        "WALL",
        "VERSION",
        "LAST SEEN",
    ];
    output::table(&head, &cells)?;
    for row in rows.iter().filter(|row| row.state == "apart") {
        output::complain(&format!(
            "node {} is alive, but its clock and this node's are apart, so their stores exchange \
             nothing and each side runs everything without the other. Set the wrong clock right \
             (NTP) and restart the node on that machine.",
            row.id
        ));
    }
    for row in &rows {
        if let Some(note) = &row.note {
            output::complain(&format!("{}: {note}", row.id));
        }
    }
    if let Some(row) = rows.iter().find(|row| row.here)
        && let Some(other) = &row.store_node
    {
        output::say(&format!("Node {} keeps no store and uses that of node {other}.", row.id));
    }
    match &rows[..] {
        [only] if only.state == "joining" => {
            output::say("It has just joined, and does not know the others yet: look again.");
        }
        [_] => output::say("It is alone; `cortex nodes invite` lets another machine join."),
        _ => {}
    }
    Ok(())
}

fn cells(row: &NodeRow) -> Vec<String> {
    let dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let roles = match row.roles.len() {
        4 => "all".into(),
        _ => row.roles.join(","),
    };
    vec![
        format!("{}{}", row.id, if row.here { "*" } else { "" }),
        dash(row.name.clone()),
        row.state.clone(),
        dash(row.addresses.first().cloned()),
        roles,
        dash(row.load_percent.map(|load| format!("{load} %"))),
        dash(row.cores.map(|cores| cores.to_string())),
        dash(row.memory_bytes.map(output::bytes)),
        row.instances.to_string(),
        // The words are in the order of what they keep out.
        dash(row.walls.last().cloned()),
        dash(row.version.clone()),
        match (row.state.as_str(), &row.last_seen) {
            ("down", Some(seen)) => output::time(seen),
            (_, Some(_)) => "now".into(),
            (_, None) => "never".into(),
        },
    ]
}

async fn invite(
    session: &Session,
    address: Option<String>,
    seconds: Option<u64>,
    json: Json,
) -> anyhow::Result<()> {
    let body = json!({ "address": address, "seconds": seconds });
    let made: Invitation = session.client.post("/v1/cluster/invitations", &body).await?;
    if json.json {
        return output::json(&made);
    }
    output::print(&format!("cortex up --join {}", made.invitation))?;
    output::say(&format!(
        "Paste this line on the new machine. It lets one node in, once, until {}, and only while \
         this node runs.",
        output::time(&made.expires_at)
    ));
    let ip = made.address.parse::<SocketAddr>().map(|address| address.ip());
    if ip.is_ok_and(|ip| IpAddr::is_loopback(&ip)) {
        output::say(&format!(
            "{} can be reached from this machine alone. For another one: `cortex nodes invite \
             --address HOST:PORT`, with this machine's address as others see it.",
            made.address
        ));
    }
    Ok(())
}

fn path(node: &str, action: &str) -> String {
    format!("/v1/nodes/{}{action}", encode(node))
}

async fn drain(session: &Session, node: &str, waits: bool) -> anyhow::Result<()> {
    let mut shown: NodeShown = session.client.post(&path(node, "/drain"), &json!({})).await?;
    let id = shown.row.id.clone();
    output::say(&format!(
        "Node {id} takes no new instances; `cortex nodes activate {id}` undoes it."
    ));
    if !waits {
        return Ok(());
    }
    let mut said = None;
    loop {
        anyhow::ensure!(
            shown.row.drained_since.is_some(),
            "node {id} was activated meanwhile: it is no longer drained"
        );
        let moving = left(&shown);
        if moving.is_empty() {
            break;
        }
        if said.is_none() {
            output::say("Ctrl-C does not stop it.");
        }
        let now = format!("{}: {}", output::count(moving.len() as u64, "instance"), names(&moving));
        if said.as_ref() != Some(&now) {
            output::say(&format!("  waits for {now}"));
            said = Some(now);
        }
        tokio::time::sleep(POLL).await;
        shown = session.client.get(&path(&id, "")).await?;
    }
    let Some(first) = shown.holds.first().filter(|_| !shown.instances.is_empty()) else {
        output::say(&format!("Node {id} runs nothing."));
        return Ok(());
    };
    anyhow::bail!(
        "{} cannot leave node {id}, which holds their files: move each with `cortex pin APP NODE`, \
         for example `cortex pin {first} NODE`",
        shown.holds.join(", ")
    )
}

/// Returns the instances that are to go elsewhere: all but those whose files keep them there.
fn left(shown: &NodeShown) -> Vec<String> {
    let moving = shown.instances.iter().filter(|row| !shown.holds.contains(&row.application));
    moving.map(|row| format!("{}/{}.{}", row.application, row.process, row.slot)).collect()
}

/// Joins the first few names.
fn names(all: &[String]) -> String {
    const SHOWN: usize = 5;
    let more = if all.len() > SHOWN { ", …" } else { "" };
    format!("{}{more}", all[..all.len().min(SHOWN)].join(", "))
}

async fn activate(session: &Session, node: &str) -> anyhow::Result<()> {
    let shown: NodeShown = session.client.post(&path(node, "/activate"), &json!({})).await?;
    output::say(&format!("Node {} takes instances again.", shown.row.id));
    Ok(())
}

async fn remove(session: &Session, node: &str, force: bool) -> anyhow::Result<()> {
    let body = json!({ "force": force });
    let removed: RemovedNode = session.client.post(&path(node, "/remove"), &body).await?;
    output::say(&format!(
        "Node {} is removed: no other node accepts it. It comes back by invitation alone.",
        removed.id
    ));
    for name in removed.holds {
        output::complain(&format!(
            "the files of {name} were on it; with what is left, start it elsewhere: `cortex pin \
             {name} NODE --without-files`"
        ));
    }
    if removed.rotates {
        output::say(
            "It had the key of the secrets, so they get another one; `cortex secrets` shows how \
             far it is.",
        );
    }
    if !removed.knew.is_empty() {
        output::say("It could read these; change them wherever they open something:");
        for known in removed.knew {
            output::say(&format!("  {}", known));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_of_instances_is_cut() {
        let all: Vec<String> = (1..=7).map(|n| format!("a/web.{n}")).collect();
        assert_eq!(names(&all[..2]), "a/web.1, a/web.2");
        assert_eq!(names(&all), "a/web.1, a/web.2, a/web.3, a/web.4, a/web.5, …");
    }
}
