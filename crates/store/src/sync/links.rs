//! Whom to talk to next: who can be reached, who is left alone for a while and why, and whose
//! history was the same when last heard of.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::{Timestamp, hash};

use crate::clock::Stamp;
use crate::commit::NodeTag;
use crate::sum::Fingerprint;
use crate::sync::message::Refusal;

/// What somebody has to look into does not mend itself at once.
const QUARANTINE: Duration = Duration::from_secs(10);
/// What ends by itself.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Clone, Debug, Default)]
pub struct Link {
    pub reachable: bool,
    /// Not before.
    pub pause: Option<(Timestamp, Refusal)>,
    /// The head of the peer's history when it was last heard of.
    pub head: Option<Fingerprint>,
    /// What this node promised when the peer last took everything from it.
    pub has: Stamp,
    pub last_session: Option<Timestamp>,
}

pub struct Links {
    links: BTreeMap<NodeTag, Link>,
    /// State of splitmix64: peers are chosen by chance, the same chance in every replay.
    chance: u64,
}

impl Links {
    /// Nodes that start at one instant must not all choose the same peer.
    pub fn new(node: NodeTag, incarnation: u64) -> Links {
        let seed = node.as_str().bytes().fold(incarnation, |seed, byte| {
            (seed ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Links { links: BTreeMap::new(), chance: seed }
    }

    pub fn of(&mut self, peer: NodeTag) -> &mut Link {
        self.links.entry(peer).or_default()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&NodeTag, &Link)> {
        self.links.iter()
    }

    pub fn reachable(&self) -> BTreeSet<NodeTag> {
        self.links.iter().filter(|(_, link)| link.reachable).map(|(peer, _)| *peer).collect()
    }

    /// Forgets whoever is neither reachable nor to be remembered.
    pub fn set_reachable(&mut self, reachable: &BTreeSet<NodeTag>, keep: &BTreeSet<NodeTag>) {
        for peer in reachable {
            self.of(*peer);
        }
        for (peer, link) in &mut self.links {
            link.reachable = reachable.contains(peer);
        }
        self.links.retain(|peer, link| link.reachable || keep.contains(peer));
    }

    pub fn pause(&mut self, now: Timestamp, peer: NodeTag, reason: Refusal) {
        let long = if reason.alarms() { QUARANTINE } else { PAUSE };
        self.of(peer).pause = Some((now.after(long), reason));
    }

    pub fn is_paused(&self, now: Timestamp, peer: NodeTag) -> bool {
        let link = self.links.get(&peer);
        link.and_then(|link| link.pause).is_some_and(|(until, _)| now < until)
    }

    /// One of those that can be talked to and that `wanted` accepts.
    pub fn choose(
        &mut self,
        now: Timestamp,
        wanted: impl Fn(&NodeTag, &Link) -> bool,
    ) -> Option<NodeTag> {
        let possible: Vec<NodeTag> = self
            .links
            .iter()
            .filter(|(peer, link)| link.reachable && wanted(peer, link))
            .filter(|(peer, _)| !self.is_paused(now, **peer))
            .map(|(peer, _)| *peer)
            .collect();
        if possible.is_empty() {
            return None;
        }
        possible.get((self.draw() % possible.len() as u64) as usize).copied()
    }

    fn draw(&mut self) -> u64 {
        hash::draw(&mut self.chance)
    }
}
