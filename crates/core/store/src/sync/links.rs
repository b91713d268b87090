//! The choice of the peer to talk to next: who can be reached, who is left alone for a while and
//! why, and whose history was the same when last heard of.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::{Timestamp, hash};

use crate::clock::Stamp;
use crate::commit::NodeTag;
use crate::sum::Fingerprint;
use crate::sync::message::SessionRefusal;

/// The pause after a refusal that somebody has to look into, which does not mend itself at once.
const QUARANTINE: Duration = Duration::from_secs(10);
/// The pause after a refusal that ends by itself.
const PAUSE: Duration = Duration::from_millis(200);
/// The difference of clocks, in milliseconds, up to which nodes between them may bridge it, each
/// within half a second of the next; a message may have been under way as long, too.
const BRIDGED_MAX_MS: u64 = 5000;
/// The time that a node which is told of a wrong clock has to set it right until the others go on
/// without it: as long as a node that is gone may stay away before its shims stop what they hold.
pub const APART_AFTER: Duration = Duration::from_secs(30);
/// The time after which a stranger counts as one: an entry on the roster is everywhere within
/// seconds, if anybody is left who passes it on.
pub const STRANGE_AFTER: Duration = Duration::from_secs(15);

#[derive(Clone, Debug, Default)]
pub struct SyncPeer {
    pub reachable: bool,
    /// The time before which not to talk to the peer, and the reason; `None` if there is no such
    /// time.
    pub pause: Option<(Timestamp, SessionRefusal)>,
    /// The head of the peer's history when it was last heard of.
    pub head: Option<Fingerprint>,
    /// What this node had promised when the peer last took everything from it.
    pub has: Stamp,
    pub last_session: Option<Timestamp>,
    /// The first and the latest time at which one refused the other for its clock, with no session
    /// between.
    clocks_apart: Option<(Timestamp, Timestamp)>,
    /// The same for refusals because one of the two does not have the other on its roster.
    strange: Option<(Timestamp, Timestamp)>,
}

impl SyncPeer {
    /// Returns whether what one of the two writes does not reach the other, and will not by itself.
    pub fn is_apart(&self) -> bool {
        self.clocks_apart.is_some_and(|(first, latest)| latest.since(first) >= APART_AFTER)
    }

    /// Returns whether one of the two takes the other for a member, and the other does not come to
    /// know it.
    fn stays_strange(&self) -> bool {
        self.strange.is_some_and(|(first, latest)| latest.since(first) >= STRANGE_AFTER)
    }

    fn went_well(&mut self, now: Timestamp) {
        self.pause = None;
        self.clocks_apart = None;
        self.strange = None;
        self.last_session = Some(now);
    }
}

pub struct SyncPeers {
    links: BTreeMap<NodeTag, SyncPeer>,
    /// The state of splitmix64: peers are chosen by chance, the same chance in every replay.
    chance: u64,
}

impl SyncPeers {
    /// Nodes that start at one instant must not all choose the same peer, so the chance depends on
    /// the node.
    pub fn new(node: NodeTag, incarnation: u64) -> SyncPeers {
        let seed = node.as_str().bytes().fold(incarnation, |seed, byte| {
            (seed ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        SyncPeers { links: BTreeMap::new(), chance: seed }
    }

    fn of(&mut self, peer: NodeTag) -> &mut SyncPeer {
        self.links.entry(peer).or_default()
    }

    /// Notes the head of a peer's history.
    pub(crate) fn heard(&mut self, peer: NodeTag, head: Fingerprint) {
        self.of(peer).head = Some(head);
    }

    /// Notes the head of a peer's history after a session, and what was promised to the peer if it
    /// took everything.
    pub(crate) fn gave(&mut self, peer: NodeTag, head: Fingerprint, has: Option<Stamp>) {
        let link = self.of(peer);
        link.head = Some(head);
        link.has = link.has.max(has.unwrap_or_default());
    }

    /// Notes that a session with a peer went well: nothing is held against it any more.
    pub(crate) fn went_well(&mut self, now: Timestamp, peer: NodeTag) {
        self.of(peer).went_well(now);
    }

    /// Returns whether one of the two takes the other for a member, and the other does not come to
    /// know it.
    pub(crate) fn stays_strange(&self, peer: NodeTag) -> bool {
        self.links.get(&peer).is_some_and(SyncPeer::stays_strange)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&NodeTag, &SyncPeer)> {
        self.links.iter()
    }

    pub fn is_reachable(&self, peer: NodeTag) -> bool {
        self.links.get(&peer).is_some_and(|link| link.reachable)
    }

    pub fn is_any_reachable(&self) -> bool {
        self.links.values().any(|link| link.reachable)
    }

    pub fn reachable(&self) -> BTreeSet<NodeTag> {
        self.links.iter().filter(|(_, link)| link.reachable).map(|(peer, _)| *peer).collect()
    }

    /// Notes who is reachable and forgets those that are neither reachable nor to be remembered.
    pub fn set_reachable(&mut self, reachable: &BTreeSet<NodeTag>, keep: &BTreeSet<NodeTag>) {
        for peer in reachable {
            self.of(*peer);
        }
        for (peer, link) in &mut self.links {
            link.reachable = reachable.contains(peer);
        }
        self.links.retain(|peer, link| link.reachable || keep.contains(peer));
    }

    pub fn pause(&mut self, now: Timestamp, peer: NodeTag, reason: SessionRefusal) {
        let long = if reason.alarms() { QUARANTINE } else { PAUSE };
        let link = self.of(peer);
        link.pause = Some((now.after(long), reason));
        let span = match reason {
            SessionRefusal::ClocksApart(by_ms) if by_ms > BRIDGED_MAX_MS => &mut link.clocks_apart,
            SessionRefusal::Unknown => &mut link.strange,
            _ => return,
        };
        *span = Some((span.map_or(now, |(first, _)| first), now));
    }

    pub fn is_paused(&self, now: Timestamp, peer: NodeTag) -> bool {
        let link = self.links.get(&peer);
        link.and_then(|link| link.pause).is_some_and(|(until, _)| now < until)
    }

    /// Returns one of those that can be talked to and that `wanted` accepts.
    pub fn choose(
        &mut self,
        now: Timestamp,
        wanted: impl Fn(&NodeTag, &SyncPeer) -> bool,
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

#[cfg(test)]
mod tests {
    use super::*;

    const HOURS_MS: u64 = 5 * 3_600_000;

    #[test]
    fn who_is_refused_for_its_clock_for_long_is_apart_until_a_session_goes_well() {
        let peer = NodeTag::from(&"n2".parse().unwrap());
        let start = Timestamp(1_000_000);
        let mut links = SyncPeers::new(peer, 1);
        let refuse = |links: &mut SyncPeers, after: Duration, reason| {
            links.pause(start.after(after), peer, reason);
            links.of(peer).is_apart()
        };
        let apart = SessionRefusal::ClocksApart(HOURS_MS);
        assert!(!refuse(&mut links, Duration::ZERO, apart));
        assert!(!refuse(&mut links, APART_AFTER / 2, apart));
        // The connection was lost meanwhile: nothing was exchanged all the same.
        assert!(!refuse(&mut links, APART_AFTER, SessionRefusal::Stalled));
        assert!(refuse(&mut links, APART_AFTER, apart));
        assert!(refuse(&mut links, 2 * APART_AFTER, SessionRefusal::Stalled));
        links.of(peer).went_well(start.after(2 * APART_AFTER));
        assert!(!links.of(peer).is_apart());
        assert!(!refuse(&mut links, 3 * APART_AFTER, apart), "it begins anew");
    }

    #[test]
    fn who_stays_unknown_is_strange_until_a_session_goes_well() {
        let peer = NodeTag::from(&"n2".parse().unwrap());
        let start = Timestamp(1_000_000);
        let mut links = SyncPeers::new(peer, 1);
        let refuse = |links: &mut SyncPeers, after: Duration, reason| {
            links.pause(start.after(after), peer, reason);
            links.of(peer).stays_strange()
        };
        assert!(!refuse(&mut links, Duration::ZERO, SessionRefusal::Unknown));
        assert!(!refuse(&mut links, STRANGE_AFTER, SessionRefusal::Stalled));
        assert!(!refuse(&mut links, STRANGE_AFTER / 2, SessionRefusal::Unknown));
        assert!(refuse(&mut links, STRANGE_AFTER, SessionRefusal::Unknown));
        links.of(peer).went_well(start.after(STRANGE_AFTER));
        assert!(!refuse(&mut links, 2 * STRANGE_AFTER, SessionRefusal::Unknown), "it begins anew");
        assert!(!links.of(peer).is_apart());
    }

    #[test]
    fn what_others_may_bridge_and_what_is_no_clock_sets_nobody_apart() {
        let peer = NodeTag::from(&"n2".parse().unwrap());
        for reason in [
            SessionRefusal::ClocksApart(BRIDGED_MAX_MS),
            SessionRefusal::Conflict,
            SessionRefusal::Busy,
        ] {
            let mut links = SyncPeers::new(peer, 1);
            for times in 0..3 {
                links.pause(Timestamp(1_000_000).after(times * APART_AFTER), peer, reason);
            }
            assert!(!links.of(peer).is_apart(), "{reason}");
        }
    }
}
