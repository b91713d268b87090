//! The alarms: what a person has to look into, reported once until it is over.

use std::collections::BTreeSet;

use crate::commit::NodeTag;
use crate::event::{Alarm, Effect};
use crate::sync::links::SyncPeers;
use crate::sync::members::KnownMembers;

/// Alarms that are kept until they are over. A person who has not looked into as many will not look
/// into more; a peer that lies makes as many conflicts as it likes.
const ALARMS_MAX: usize = 256;

#[derive(Default)]
pub(crate) struct Alarms {
    raised: BTreeSet<Alarm>,
}

impl Alarms {
    pub fn iter(&self) -> impl Iterator<Item = &Alarm> {
        self.raised.iter()
    }

    /// Raises an alarm, once until it is over.
    pub fn raise(&mut self, alarm: Alarm, effects: &mut Vec<Effect>) {
        if self.raised.len() < ALARMS_MAX && self.raised.insert(alarm.kind()) {
            effects.push(Effect::Alarm(alarm));
        }
    }

    /// Ends the alarms about a peer with which a session went well; a whole session leaves no
    /// difference between the two, and a conflict would have cut it off.
    pub fn end_about(&mut self, peer: NodeTag, whole: bool, catching_up: bool) {
        self.raised.retain(|alarm| match alarm {
            Alarm::Quarantined { peer: other, .. } => *other != peer,
            Alarm::Unlisted { by: other } | Alarm::Stranger { peer: other, .. } => *other != peer,
            Alarm::Behind | Alarm::Evicted => false,
            Alarm::Conflict { peer: other, .. } => *other != peer || !whole,
            Alarm::LostPast { .. } => catching_up,
        });
    }

    /// Ends the alarms about nodes that are no longer members, and about strangers that have gone.
    pub fn end_about_strangers(&mut self, members: &KnownMembers, links: &SyncPeers) {
        let own = members.node();
        self.raised.retain(|alarm| match alarm {
            Alarm::Quarantined { peer, .. }
            | Alarm::Conflict { peer, .. }
            | Alarm::Unlisted { by: peer } => *peer == own || members.is_member(*peer),
            Alarm::Stranger { peer, .. } => !members.is_member(*peer) && links.is_reachable(*peer),
            Alarm::Behind | Alarm::Evicted | Alarm::LostPast { .. } => true,
        });
    }
}
