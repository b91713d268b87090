//! Upgrades of all nodes to another binary: takes it in, checks it, asks for it, shows how far the
//! nodes are, and calls it off. The nodes themselves act on the record.

use agent_core::upgrade::trial::{LIMIT_MAX_MS, LIMIT_MIN_MS, LIMIT_MS};
use agent_core::upgrade::{Picture, RollStanding, order};
use axum::Json;
use axum::body::Body;
use axum::extract::{Query, State};
use model::record::{RECORD_VERSION, Unknown};
use model::upgrade::{Roll, TrialPhase};
use model::value::ContentHash;
use model::{NodeId, Prefix, TypedKey};
use schemars::JsonSchema;
use serde::Deserialize;

use super::nodes::ClusterView;
use super::problem::Problem;
use super::sources::Assembly;
use super::upload::{blocking, receive};
use super::{Api, Shared, records};
use api_types::PortRow;
use api_types::upgrade::{NodeVitals, UpgradeRow, UpgradeShown};
use os::binaries::{self, BinaryRole};
use store::{INLINE_VALUE_MAX, ValueWriter};
use upgrade::{Upgrading, candidate, rolling};

/// The largest binary; with debugging symbols and all, Cortex is a quarter of that.
const BINARY_BYTES_MAX: u64 = 1 << 30;

#[derive(Debug, Default, Deserialize, JsonSchema)]
pub struct UpgradeQuery {
    /// The only node to upgrade, by its id, the beginning of its id, or its name.
    #[serde(default)]
    node: Option<String>,
    /// Seconds that a node may take until it is healthy.
    #[serde(default)]
    within_seconds: Option<u64>,
}

fn upgrading(api: &Api) -> Result<&Upgrading, Problem> {
    api.upgrading.as_deref().ok_or_else(|| {
        let what = "this process runs nothing but a store and cannot be upgraded while it runs";
        Problem::conflict("store_alone", what).hint("stop it, and start it with the new binary")
    })
}

pub async fn vitals(State(api): State<Shared>) -> Result<Json<NodeVitals>, Problem> {
    let vitals = upgrading(&api)?.vitals(open_ports(&api.control.ports())).await;
    Ok(Json(vitals.map_err(|error| Problem::internal(format!("{error:#}")))?.into()))
}

pub async fn show(State(api): State<Shared>) -> Result<Json<UpgradeShown>, Problem> {
    Ok(Json(shown(&api).await?))
}

pub async fn start(
    State(api): State<Shared>,
    Query(query): Query<UpgradeQuery>,
    body: Body,
) -> Result<Json<UpgradeShown>, Problem> {
    upgrading(&api)?;
    // The body is read first of all: a client that still sends would not see an answer.
    let upload = receive(Assembly::new(api.store.writer().await?, None), body).await?;
    let limit_ms = query.within_seconds.map_or(LIMIT_MS, |seconds| seconds.saturating_mul(1000));
    if !(LIMIT_MIN_MS..=LIMIT_MAX_MS).contains(&limit_ms) {
        let (least, most) = (LIMIT_MIN_MS / 1000, LIMIT_MAX_MS / 1000);
        let what = format!("a node becomes healthy within {least} to {most} s");
        return Err(Problem::invalid("invalid_limit", what).hint("leave --within out for 120 s"));
    }
    let directory = api.layout.bin();
    let (file, version) = blocking(move || {
        let version = examine(&upload, &directory)?;
        Ok((upload.finish()?, version))
    })
    .await?;
    let _changing = api.changes.lock().await;
    let nodes = nodes(&api, query.node.as_deref()).await?;
    check_free(&api, file.hash).await?;
    let binary = file.hash;
    api.store.set_file(TypedKey::Binary(binary).key(), file).await?;
    forget_others(&api, binary).await?;
    let now = api.now();
    let roll = Roll {
        v: RECORD_VERSION,
        id: format!("{}-{}", now.0, api.node),
        binary,
        version,
        nodes,
        limit_ms,
        asked_at: now,
        unknown: Unknown::new(),
    };
    records::write(&*api.store, TypedKey::Roll, &roll).await?;
    Ok(Json(shown(&api).await?))
}

/// Checks and installs the binary, and returns the version that it reports itself.
fn examine(upload: &ValueWriter, directory: &std::path::Path) -> Result<String, Problem> {
    let refused = |why: String| {
        Problem::invalid("no_binary", format!("the file is refused: {why}"))
            .hint("give the `cortex` executable of this machine's kind; nothing was changed")
    };
    if upload.size <= INLINE_VALUE_MAX as u64 {
        let wrapper = "it is too small to be a program";
        return Err(refused(wrapper.into()));
    }
    if upload.size > BINARY_BYTES_MAX {
        return Err(refused("it is larger than 1 GiB".into()));
    }
    let failed = |error: anyhow::Error| Problem::internal(format!("{error:#}"));
    let hash = binaries::hash(&upload.path).map_err(|error| failed(error.into()))?;
    let was_there = binaries::has(directory, &hash);
    let copy = binaries::install(&upload.path, directory).map_err(failed)?.path;
    let checked = candidate::check(&copy).map_err(refused);
    if checked.is_err() && !was_there {
        std::fs::remove_file(&copy).ok();
    }
    let version = checked?.version;
    // The name keeps the copy until its turn comes.
    binaries::name(directory, BinaryRole::Candidate, &copy).map_err(failed)?;
    Ok(version)
}

async fn nodes(api: &Api, only: Option<&str>) -> Result<Vec<NodeId>, Problem> {
    let cluster = ClusterView::read(api).await?;
    if let Some(who) = only {
        return Ok(vec![cluster.find(who)?]);
    }
    let mut all = order(cluster.all().cloned(), &api.node);
    // Nodes that are down come last, so that they hold up no other node.
    all.sort_by_key(|node| cluster.is_alive(node) == Some(false));
    Ok(all)
}

async fn picture(api: &Api) -> Result<Picture, Problem> {
    let picture = rolling::picture(upgrading(api)?).await;
    picture.map_err(|error| Problem::internal(format!("{error:#}")))
}

async fn check_free(api: &Api, binary: ContentHash) -> Result<(), Problem> {
    let picture = picture(api).await?;
    let other = picture.roll.as_ref().is_some_and(|roll| roll.binary != binary);
    let trying = match picture.standing(api.now()) {
        RollStanding::Trying(node) => Some(node),
        RollStanding::Turn(_) | RollStanding::Settling { .. } | RollStanding::Down(_) if other => {
            None
        }
        _ => return Ok(()),
    };
    let what = match trying {
        Some(node) => format!("node {node} is trying a binary"),
        None => "another binary is on its way to the nodes".into(),
    };
    Err(Problem::conflict("upgrade_under_way", what)
        .hint("see `cortex upgrade`; `cortex upgrade --cancel` keeps further nodes from it"))
}

/// Deletes other binaries from the store, where one is enough: each node has copies of what it ran.
async fn forget_others(api: &Api, binary: ContentHash) -> Result<(), Problem> {
    let prefix: Prefix = "cluster::binary"
        .parse()
        .map_err(|error| Problem::internal(format!("the prefix of binaries: {error}")))?;
    for key in api.store.keys(&prefix).await? {
        if key != TypedKey::Binary(binary).key() {
            api.store.delete(key).await?;
        }
    }
    Ok(())
}

pub async fn cancel(State(api): State<Shared>) -> Result<Json<UpgradeShown>, Problem> {
    upgrading(&api)?;
    let _changing = api.changes.lock().await;
    api.store.delete(TypedKey::Roll.key()).await?;
    Ok(Json(shown(&api).await?))
}

async fn shown(api: &Api) -> Result<UpgradeShown, Problem> {
    let picture = picture(api).await?;
    let cluster = ClusterView::read(api).await?;
    let called = |node: &NodeId| cluster.called(node);
    let standing = picture.standing(api.now());
    let (state, says) = match &standing {
        RollStanding::None => ("none", "no other binary was asked for".into()),
        RollStanding::Finished => ("finished", "all nodes run it".into()),
        RollStanding::Trying(node) => ("rolling", format!("{} is trying it", called(node))),
        RollStanding::Turn(node) => ("rolling", format!("it is the turn of {}", called(node))),
        RollStanding::Settling { .. } => ("rolling", "the last one is being watched".into()),
        RollStanding::Down(node) => {
            ("waiting", format!("{} is down: start it, or cancel", called(node)))
        }
        RollStanding::Stopped(node) => {
            ("stopped", format!("it failed on {}: no other node tries it", called(node)))
        }
    };
    let roll = picture.roll.as_ref();
    let listed: Vec<&NodeId> = match roll {
        Some(roll) => roll.nodes.iter().collect(),
        None => cluster.all().collect(),
    };
    let row = |node: &NodeId| {
        let record = picture.nodes.get(node);
        let trial = match roll {
            Some(roll) => picture.trial(roll, node),
            None => None,
        };
        let phase = roll.and_then(|roll| picture.phase(roll, node));
        UpgradeRow {
            node: node.to_string(),
            binary: record.map(|record| record.binary.to_string()),
            alive: picture.alive.contains(node),
            state: match phase {
                _ if roll.is_none() => "running",
                None => "pending",
                Some(TrialPhase::Trying) => "trying",
                Some(TrialPhase::Done) => "done",
                Some(TrialPhase::Returned) => "returned",
                Some(TrialPhase::Refused) => "refused",
            }
            .into(),
            why: trial.and_then(|trial| trial.why.clone()),
            since: trial.map(|trial| records::rfc3339(trial.since)),
        }
    };
    Ok(UpgradeShown {
        state: state.into(),
        says,
        binary: roll.map(|roll| roll.binary.to_string()),
        version: roll.map(|roll| roll.version.clone()),
        nodes: listed.into_iter().map(row).collect(),
    })
}

/// Returns the addresses of ports that are open without an error.
pub fn open_ports(all: &[PortRow]) -> Vec<String> {
    let open = all.iter().filter(|port| port.error.is_none());
    open.map(|port| port.address.clone()).collect()
}
