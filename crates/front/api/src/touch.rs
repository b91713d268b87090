//! How much of the cluster this node hears, for the rule that tokens only read on a node that was
//! cut off (`access_core::Touch`).

use std::collections::BTreeSet;
use std::time::Duration;

use access_core::is_half;
use cluster::peers::Peers;
use model::NodeId;
use runtime::lock::locked;
use runtime::members::Members;

use super::Api;
use super::door::Door;

/// The longest time between two looks; what changes who is alive is seen at once.
const LOOK: Duration = Duration::from_secs(10);

/// Follows who is alive for as long as the API is there.
pub async fn follow(api: &Api, door: &Door) -> anyhow::Result<()> {
    let Some(peers) = &api.peers else { return std::future::pending().await };
    let mut alive = peers.alive();
    loop {
        let heard = alive.borrow_and_update().clone();
        locked(&door.touch).note(hears_half(api, peers, heard), api.now());
        tokio::select! {
            changed = alive.changed() => changed?,
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

fn hears_half(api: &Api, peers: &Peers, mut heard: BTreeSet<NodeId>) -> bool {
    heard.insert(api.node.clone());
    let roster = peers.roster().unwrap_or_default();
    let members: BTreeSet<NodeId> = roster.addresses.into_keys().collect();
    roster.eldest.is_none_or(|eldest| is_half(&members, &heard, &eldest))
}
