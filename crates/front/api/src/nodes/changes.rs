//! What people do to nodes: drain, activate, remove. Each is a few writes to the store; the nodes
//! themselves act on them.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use model::node::Drained;
use model::record::{RECORD_VERSION, Unknown};
use model::{NodeId, TypedKey};
use runtime::members::Members;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::timeout;

use super::super::json_body::OptionalJson;
use super::super::problem::Problem;
use super::super::{Api, Shared, records, secrets};
use super::{ClusterView, prefix, shown};
use api_types::{NodeShown, RemovedNode};

/// The time in which nodes agree that one is gone, with some to spare: a probe without an answer,
/// and a suspicion that nobody contradicts.
const GONE_WITHIN: Duration = Duration::from_secs(5);

/// Drains a node: it takes nothing new from now on and gives away what it runs.
pub async fn drain(
    State(api): State<Shared>,
    Path(who): Path<String>,
) -> Result<Json<NodeShown>, Problem> {
    let _changing = api.changes.lock().await;
    let cluster = ClusterView::read(&api).await?;
    let id = cluster.find(&who)?;
    if !cluster.is_drained(&id) {
        if !cluster.others(&id).any(|other| cluster.takes(other)) {
            return Err(nobody_else(&cluster, &id));
        }
        let drained = Drained { v: RECORD_VERSION, since: api.now(), unknown: Unknown::new() };
        records::write(&*api.store, TypedKey::Drained(id.clone()), &drained).await?;
    }
    after(&api, &id).await
}

fn nobody_else(cluster: &ClusterView, id: &NodeId) -> Problem {
    let called = cluster.called(id);
    if cluster.others(id).next().is_none() {
        return Problem::conflict("last_node", format!("{called} is the only node"))
            .hint("let another one join first (`cortex nodes invite`), or stop it: `cortex down`");
    }
    let what = format!("no other node could take what {called} runs: all are down or drained");
    Problem::conflict("no_node_takes", what)
        .hint("start one, or use one again with `cortex nodes activate NODE`; see `cortex nodes`")
}

/// Undoes a drain.
pub async fn activate(
    State(api): State<Shared>,
    Path(who): Path<String>,
) -> Result<Json<NodeShown>, Problem> {
    let _changing = api.changes.lock().await;
    let cluster = ClusterView::read(&api).await?;
    let id = cluster.find(&who)?;
    if cluster.is_drained(&id) {
        api.store.delete(TypedKey::Drained(id.clone()).key()).await?;
    }
    after(&api, &id).await
}

async fn after(api: &Api, id: &NodeId) -> Result<Json<NodeShown>, Problem> {
    let cluster = ClusterView::read(api).await?;
    Ok(Json(shown(api, &cluster, id).await?))
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
pub struct RemovalAsked {
    #[serde(default)]
    force: bool,
}

pub async fn remove(
    State(api): State<Shared>,
    Path(who): Path<String>,
    OptionalJson(RemovalAsked { force }): OptionalJson<RemovalAsked>,
) -> Result<Json<RemovedNode>, Problem> {
    let cluster = ClusterView::read(&api).await?;
    let id = cluster.find(&who)?;
    if cluster.is_here(&id) {
        return Err(itself(&cluster, &id));
    }
    if let Some(peers) = api.peers.as_ref().filter(|_| !force && !cluster.is_linked(&id)) {
        wait_until_gone(peers.alive(), &id).await;
    }
    let _changing = api.changes.lock().await;
    let cluster = ClusterView::read(&api).await?;
    let id = cluster.find(id.as_str())?;
    if !force {
        check_idle(&cluster, &id)?;
    }
    let knew = secrets::known(&api).await?;
    let said = records::read(&*api.store, TypedKey::NodeSecrets(id.clone())).await?;
    let rotates = secrets::had_key(said);
    // From here on nobody listens to the node, so what it reported of itself means nothing any
    // more.
    api.store.delete(TypedKey::Member(id.clone()).key()).await?;
    api.store.delete(TypedKey::Guest(id.clone()).key()).await?;
    api.store.delete(TypedKey::Drained(id.clone()).key()).await?;
    for word in [format!("node::{id}"), format!("probe::{id}")] {
        for key in api.store.keys(&prefix(&word)?).await? {
            api.store.delete(key).await?;
        }
    }
    for key in api.store.keys(&prefix("instance")?).await? {
        if matches!(TypedKey::parse(&key), Some(TypedKey::Claim(_, node)) if node == id) {
            api.store.delete(key).await?;
        }
    }
    let holds = cluster.held_by(&id).map(ToString::to_string).collect();
    if rotates {
        secrets::order(&api, format!("node {id} was removed")).await?;
    }
    Ok(Json(RemovedNode { id: id.to_string(), holds, knew, rotates }))
}

/// Waits until a node counts as alive no more, as one that was stopped a moment ago, but no longer
/// than that takes.
async fn wait_until_gone(mut alive: watch::Receiver<BTreeSet<NodeId>>, id: &NodeId) {
    let gone = alive.wait_for(|alive| !alive.contains(id));
    timeout(GONE_WITHIN, gone).await.ok();
}

fn itself(cluster: &ClusterView, id: &NodeId) -> Problem {
    let what = format!("{} is this node itself", cluster.called(id));
    let Some(other) = cluster.others(id).find(|other| cluster.is_alive(other) != Some(false))
    else {
        return Problem::conflict("last_node", format!("{what}, and no other one is alive"))
            .hint("`cortex down` stops it");
    };
    let hint = format!(
        "`cortex nodes drain {id}` empties it; then say `cortex nodes remove {id}` on another \
         node, for example {}",
        cluster.called(other)
    );
    Problem::conflict("this_node", what).hint(hint)
}

fn check_idle(cluster: &ClusterView, id: &NodeId) -> Result<(), Problem> {
    let called = cluster.called(id);
    let alive = cluster.is_alive(id) != Some(false);
    let running = cluster.running(id);
    if alive && running > 0 {
        let what = format!("{called} is alive and runs {running} instances");
        return Err(Problem::conflict("node_busy", what).hint(format!(
            "empty it first with `cortex nodes drain {id}`; --force removes it as it is"
        )));
    }
    let holds: Vec<&str> = cluster.held_by(id).map(|name| name.as_str()).collect();
    if !holds.is_empty() {
        let what = format!("{called} holds the only files of {}", holds.join(", "));
        return Err(Problem::conflict("node_holds_data", what).hint(format!(
            "move them first with `cortex pin {} NODE`; --force leaves them behind",
            holds[0]
        )));
    }
    if alive {
        let what = format!("{called} is alive");
        return Err(Problem::conflict("node_alive", what).hint(format!(
            "stop it there with `cortex down` first (if it was lost just now, say this again in {} \
             s), or remove it while it runs: `cortex nodes remove {id} --force`",
            GONE_WITHIN.as_secs()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_node_that_was_just_stopped_is_waited_for_and_no_longer_than_it_may_take() {
        let (n1, n2): (NodeId, NodeId) = ("n1".parse().unwrap(), "n2".parse().unwrap());
        let (say, alive) = watch::channel(BTreeSet::from([n1.clone(), n2.clone()]));
        let started = tokio::time::Instant::now();
        tokio::join!(wait_until_gone(alive.clone(), &n2), async {
            tokio::time::sleep(GONE_WITHIN / 2).await;
            say.send_replace(BTreeSet::from([n1.clone()]));
        });
        assert_eq!(started.elapsed(), GONE_WITHIN / 2);
        wait_until_gone(alive.clone(), &n2).await;
        assert_eq!(started.elapsed(), GONE_WITHIN / 2, "it is gone already");
        wait_until_gone(alive, &n1).await;
        assert_eq!(started.elapsed(), GONE_WITHIN * 3 / 2);
    }
}
