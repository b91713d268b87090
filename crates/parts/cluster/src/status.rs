//! The status of a cluster as people are shown it: every member, and this node's standing.

use model::hex::to_hex;
use model::{NodeId, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use store_core::NodeTag;

use super::net::Net;
use super::roster::Addresses;
use super::store_role::StoreRole;
use store::replication::PeerState;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterStatus {
    pub cluster: String,
    pub node: String,
    pub head: String,
    pub commits: u64,
    /// `member`, `joining`, `catching up`, `removed`, `alone`, or `guest` if no store is kept.
    pub state: String,
    /// The address at which this node listens; `None` while it is alone.
    pub address: Option<String>,
    pub clock_doubt: Option<String>,
    pub alarms: Vec<String>,
    pub peers: Vec<PeerRow>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PeerRow {
    pub node: String,
    pub addresses: Vec<String>,
    pub member: bool,
    pub reachable: bool,
    /// `equal`, `differs` or `unknown`, as of when it was last heard of.
    pub history: String,
    /// The time since the last session in which everything was exchanged.
    pub last_session_ms: Option<u64>,
    /// The time up to which it is known to hold everything.
    pub acknowledged_ms: u64,
    /// The reason why nothing is exchanged with it, or what it was caught at.
    pub note: Option<String>,
}

pub fn read(
    store_role: &StoreRole,
    node: &NodeId,
    net: Option<&std::sync::Arc<Net>>,
    addresses: &Addresses,
) -> ClusterStatus {
    let Some(replication) = store_role.replication() else {
        return without_store(store_role, node, net, addresses);
    };
    let state = replication.state();
    let now = replication.now();
    let alone = !state.peers.iter().any(|peer| peer.member) && !state.joining;
    let standing = match () {
        () if state.evicted => "removed",
        () if state.joining => "joining",
        () if alone => "alone",
        () if state.fresh => "catching up",
        () => "member",
    };
    let peers = state.peers.iter().map(|peer| row(peer, &state.head, now, net, addresses));
    ClusterStatus {
        cluster: to_hex(&state.cluster.0),
        node: state.node.as_str().into(),
        head: state.head.clone(),
        commits: state.commits as u64,
        state: standing.into(),
        address: net.map(|net| net.own_address().to_string()),
        clock_doubt: state.clock_doubt.clone(),
        alarms: state.alarms.iter().map(ToString::to_string).collect(),
        peers: peers.collect(),
    }
}

/// Returns the members and whether this node is linked to them; what they hold of the store is
/// unknown here.
fn without_store(
    store_role: &StoreRole,
    node: &NodeId,
    net: Option<&std::sync::Arc<Net>>,
    addresses: &Addresses,
) -> ClusterStatus {
    let used = store_role.guest().and_then(|guest| guest.in_use());
    let others = addresses.iter().filter(|(other, _)| *other != node);
    let row = |(other, at): (&NodeId, &Vec<String>)| PeerRow {
        node: other.to_string(),
        addresses: at.clone(),
        member: true,
        reachable: net.is_some_and(|net| net.links.is_linked(NodeTag::from(other))),
        history: "unknown".into(),
        last_session_ms: None,
        // The member has what the cluster has, or it could not be on the roster that this node
        // reads.
        acknowledged_ms: 1,
        note: (used.as_ref() == Some(other)).then(|| "its store is used".to_string()),
    };
    ClusterStatus {
        cluster: store_role.guest().map(|guest| to_hex(&guest.cluster.0)).unwrap_or_default(),
        node: node.to_string(),
        head: String::new(),
        commits: 0,
        state: "guest".into(),
        address: net.map(|net| net.own_address().to_string()),
        clock_doubt: None,
        alarms: Vec::new(),
        peers: others.map(row).collect(),
    }
}

fn row(
    peer: &PeerState,
    head: &str,
    now: Timestamp,
    net: Option<&std::sync::Arc<Net>>,
    addresses: &Addresses,
) -> PeerRow {
    let PeerState { node, member, link, acknowledged } = peer;
    let history = match link.head {
        None => "unknown",
        Some(theirs) if theirs.to_string() == head => "equal",
        Some(_) => "differs",
    };
    let paused = link.pause.filter(|(until, _)| *until > now).map(|(_, why)| why.to_string());
    let lie = net.and_then(|net| net.lie_of(*node));
    PeerRow {
        node: node.as_str().into(),
        addresses: addresses_of(*node, addresses),
        member: *member,
        reachable: link.reachable,
        history: history.into(),
        last_session_ms: link.last_session.map(|at| now.since(at).as_millis() as u64),
        acknowledged_ms: acknowledged.time().0,
        note: paused.or(lie),
    }
}

fn addresses_of(node: NodeTag, addresses: &Addresses) -> Vec<String> {
    addresses.get(&node.node()).cloned().unwrap_or_default()
}
