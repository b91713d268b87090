//! Members that are alive but apart: this node's store exchanges nothing with them because a clock
//! is wrong, and each side goes on without the other, as when the network between them is cut. Must
//! not decide who is apart, which the store's machine does; it joins that with who is alive. A node
//! without a store learns it from the one whose store it uses, which has it on its board.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use model::{Key, NodeId};
use store_core::NodeTag;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, sleep, timeout};

use super::peers::Peers;
use runtime::members::Members;

/// The time between two looks at what the machine says: little compared with its own waiting.
const LOOK: Duration = Duration::from_secs(1);

/// The time between two questions of a node without a store: little compared with the 30 s until a
/// member counts as apart.
const ASK: Duration = Duration::from_secs(3);
/// The time limit of an answer; after it the question is asked again.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Returns the key under which a node that keeps the store notes who is apart from it, for the
/// nodes that use its store.
pub fn note() -> Key {
    "local::apart".parse().expect("a key")
}

pub fn of_note(note: &[u8]) -> BTreeSet<NodeId> {
    let words = String::from_utf8_lossy(note);
    words.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// Keeps the members with which this node decides up to date; never ends by itself.
pub async fn follow(peers: &Peers) {
    let (told, heard) = watch::channel(BTreeSet::new());
    tokio::join!(ask(peers, told), join(peers, heard));
}

/// Asks the keeper of the store; the last answer holds until another one comes.
async fn ask(peers: &Peers, told: watch::Sender<BTreeSet<NodeId>>) {
    let Some(guest) = peers.store_role.guest() else { return };
    loop {
        if let Ok(Some(apart)) = timeout(ANSWER_MAX, guest.apart()).await {
            replace(&told, apart);
        }
        sleep(ASK).await;
    }
}

async fn join(peers: &Peers, mut heard: watch::Receiver<BTreeSet<NodeId>>) {
    let mut alive = peers.alive();
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut leapt = false;
    loop {
        let leap = peers.clock.leap();
        if let Some(leap) = leap.filter(|_| !leapt) {
            tracing::error!("clock.leapt: {leap}");
        }
        leapt = leap.is_some();
        tokio::select! {
            _ = looks.tick() => {}
            Ok(()) = alive.changed() => {}
            Ok(()) = heard.changed() => {}
        }
        let heard = heard.borrow_and_update().clone();
        let said = peers.store_role.replication().map(|replication| replication.apart());
        let said = said.unwrap_or_default();
        let live = alive.borrow_and_update().clone();
        let (apart, in_touch): (BTreeSet<NodeId>, BTreeSet<NodeId>) = live
            .into_iter()
            .partition(|node| said.contains(&NodeTag::from(node)) || heard.contains(node));
        let before = peers.apart();
        for node in apart.difference(&before) {
            tracing::error!(%node, "peer.apart: its clock or this node's is wrong");
        }
        replace(&peers.apart, apart.clone());
        replace(&peers.in_touch, in_touch);
        if apart != before && peers.store_role.guest().is_none() {
            take_note(peers, &apart).await;
        }
    }
}

async fn take_note(peers: &Peers, apart: &BTreeSet<NodeId>) {
    let words: Vec<&str> = apart.iter().map(NodeId::as_str).collect();
    let noted = peers.store.set(note(), Bytes::from(words.join(" "))).await;
    if let Err(error) = noted {
        tracing::warn!(%error, "peer.apart_not_noted");
    }
}

fn replace(nodes: &watch::Sender<BTreeSet<NodeId>>, now: BTreeSet<NodeId>) {
    nodes.send_if_modified(|before| {
        let changes = *before != now;
        *before = now;
        changes
    });
}
