//! Members that live and with whom this node's store exchanges nothing, as a clock is wrong: each
//! side goes on without the other, as when the network between them is cut. Must not decide who is
//! apart, which the store's machine does; it joins that to who lives.

use std::collections::BTreeSet;
use std::time::Duration;

use model::NodeId;
use store::NodeTag;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use super::Peers;

/// Between two looks at what the machine says: little beside what it waits itself.
const LOOK: Duration = Duration::from_secs(1);

/// Keeps up to date with whom this node decides; never ends by itself.
pub async fn follow(peers: &Peers) {
    let mut alive = peers.alive();
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            Ok(()) = alive.changed() => {}
        }
        let said = peers.side.replication().map(|replication| replication.apart());
        let said = said.unwrap_or_default();
        let live = alive.borrow_and_update().clone();
        let (apart, in_touch): (BTreeSet<NodeId>, BTreeSet<NodeId>) =
            live.into_iter().partition(|node| said.contains(&NodeTag::from(node)));
        for node in apart.difference(&peers.apart()) {
            tracing::error!(%node, "peer.apart: its clock or this node's is wrong");
        }
        replace(&peers.apart, apart);
        replace(&peers.in_touch, in_touch);
    }
}

fn replace(nodes: &watch::Sender<BTreeSet<NodeId>>, now: BTreeSet<NodeId>) {
    nodes.send_if_modified(|before| {
        let changes = *before != now;
        *before = now;
        changes
    });
}
