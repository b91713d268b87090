//! Hellos: what they tell, and whether the sender is one to talk to.

use std::collections::BTreeSet;

use model::Timestamp;

use crate::clock::Stamp;
use crate::commit::NodeTag;
use crate::event::{Alarm, Effect};
use crate::machine::StoreMachine;
use crate::mutants;
use crate::replica::Horizons;
use crate::sync::message::{Body, Hello, Message, SessionRefusal, Vector};
use crate::sync::park::newest_admitted;
use model::time::CLOCK_AHEAD_MAX_MS;

/// The time in milliseconds that a hello may have been under way before it counts as a clock that
/// is behind.
const TRANSIT_MAX_MS: u64 = 2000;
/// Alarms that are kept until they are over. A person who has not looked into as many will not look
/// into more; a peer that lies makes as many conflicts as it likes.
pub(crate) const ALARMS_MAX: usize = 256;

impl StoreMachine {
    pub(crate) fn hello(&self, now: Timestamp) -> Hello {
        let history = self.replica.history();
        Hello {
            cluster: self.sync.standing.cluster,
            node: self.node,
            incarnation: self.sync.standing.incarnation,
            clock: now,
            horizons: self.replica.horizons(),
            head: history.head(),
            count: history.len() as u64,
            acks: self.acks_to_tell(),
            fresh: self.is_fresh(),
        }
    }

    /// Returns the acknowledgements to tell. A node that has nothing of its cluster yet has nothing
    /// to tell of itself.
    fn acks_to_tell(&self) -> Vector {
        let mut acks = self.sync.members.acks();
        if self.is_joining() {
            acks.remove(&self.node);
        }
        acks
    }

    /// Returns whether the node has not yet caught up since it joined or lost a part of its past.
    pub fn is_fresh(&self) -> bool {
        let alone = self.sync.members.is_alone() && !self.is_joining();
        !alone && self.sync.standing.fresh_until > self.sync.members.told()
    }

    /// Returns whether the node has nothing of its cluster yet.
    pub fn is_joining(&self) -> bool {
        self.sync.standing.fresh_until == Stamp(u64::MAX)
    }

    /// Learns from a hello. `asked` is when this node spoke last, if the hello answers that.
    pub(crate) fn greet(
        &mut self,
        now: Timestamp,
        from: NodeTag,
        hello: &Hello,
        asked: Option<Timestamp>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), SessionRefusal> {
        if hello.node != from || from == self.node {
            return Err(SessionRefusal::OutOfPlace);
        }
        if hello.cluster != self.sync.standing.cluster {
            return Err(SessionRefusal::OtherCluster);
        }
        check_clocks(now, hello.clock, asked)?;
        check_horizons(now, hello.horizons)?;
        let members = &self.sync.members;
        if members.is_evicted(self.node) && !self.is_joining() {
            self.alarm(Alarm::Evicted, effects);
            return Err(SessionRefusal::Unknown);
        }
        if members.is_evicted(from) && !members.is_member(from) && !self.is_joining() {
            return Err(SessionRefusal::Evicted);
        }
        if !members.is_member(from) && !self.is_joining() {
            return Err(SessionRefusal::Unknown);
        }
        if self.doubts_clock(now) {
            self.trust_clock(now, effects);
        }
        if self.sync.mending || self.doubts_clock(now) {
            return Err(SessionRefusal::Busy);
        }
        self.sync.members.hear_from(now, from);
        let remembered = hello.acks.get(&self.node).copied().unwrap_or_default();
        if remembered > self.sync.members.told()
            && remembered > self.sync.standing.fresh_until
            && remembered < newest_admitted(now)
        {
            self.lose_past(now, from, remembered, effects);
        }
        self.sync.links.of(from).head = Some(hello.head);
        Ok(())
    }

    /// Returns whether this node must take the peer for the authority before it talks to anybody.
    pub(crate) fn must_copy_from(&self, hello: &Hello) -> bool {
        if mutants::active(mutants::NO_RULE_B) {
            return self.is_joining();
        }
        self.is_joining() || hello.horizons.garbage > self.sync.members.told()
    }

    /// Returns whether the peer missed what this node collected.
    pub(crate) fn has_missed(&self, hello: &Hello) -> bool {
        let told = hello.acks.get(&hello.node).copied().unwrap_or_default();
        !mutants::active(mutants::NO_RULE_B) && self.replica.horizons().garbage > told
    }

    pub(crate) fn send(&self, to: NodeTag, session: u64, body: Body, effects: &mut Vec<Effect>) {
        effects.push(Effect::Send { to, message: Message { session, body } });
    }

    /// Ends all sessions with a peer, and leaves it alone for a while.
    pub(crate) fn break_off(
        &mut self,
        now: Timestamp,
        peer: NodeTag,
        session: u64,
        reason: SessionRefusal,
        effects: &mut Vec<Effect>,
    ) {
        self.send(peer, session, Body::Refused(reason), effects);
        self.end_sessions(peer);
        self.shun(now, peer, reason, effects);
    }

    pub(crate) fn shun(
        &mut self,
        now: Timestamp,
        peer: NodeTag,
        reason: SessionRefusal,
        effects: &mut Vec<Effect>,
    ) {
        self.sync.links.pause(now, peer, reason);
        if reason.alarms() {
            self.alarm(Alarm::Quarantined { peer, reason }, effects);
        }
        let strange = reason == SessionRefusal::Unknown && self.sync.links.of(peer).stays_strange();
        if strange && !self.is_joining() {
            let alarm = match self.sync.members.is_member(peer) {
                true => Alarm::Unlisted { by: peer },
                false => Alarm::Stranger { own: self.node, peer },
            };
            self.alarm(alarm, effects);
        }
    }

    /// Ends all sessions with a peer whose connection is gone.
    pub(crate) fn lost(&mut self, now: Timestamp, peer: NodeTag) {
        self.end_sessions(peer);
        self.sync.links.pause(now, peer, SessionRefusal::Stalled);
    }

    /// Ends sessions with peers that have fallen silent. They would keep news from all others until
    /// they count as stalled: a machine that lost its power closes no connection.
    pub(crate) fn part_from_silent(&mut self, now: Timestamp, reachable: &BTreeSet<NodeTag>) {
        let giving = self.sync.giving.iter().map(|giving| giving.peer);
        let copying = self.sync.copying.iter().map(|copying| copying.peer);
        let silent: Vec<NodeTag> =
            giving.chain(copying).filter(|peer| !reachable.contains(peer)).collect();
        for peer in silent {
            self.lost(now, peer);
        }
    }

    pub(crate) fn end_sessions(&mut self, peer: NodeTag) {
        self.sync.giving.take_if(|giving| giving.peer == peer);
        self.sync.copying.take_if(|copying| copying.peer == peer);
        self.sync.taking.remove(&peer);
        self.sync.lending.remove(&peer);
    }

    /// Raises an alarm, once until it is over.
    pub(crate) fn alarm(&mut self, alarm: Alarm, effects: &mut Vec<Effect>) {
        if self.alarmed.len() < ALARMS_MAX && self.alarmed.insert(alarm.kind()) {
            effects.push(Effect::Alarm(alarm));
        }
    }

    /// Ends the alarms about a peer with which a session went well; a whole session leaves no
    /// difference between the two, and a conflict would have cut it off.
    pub(crate) fn calm(&mut self, now: Timestamp, peer: NodeTag, whole: bool) {
        self.sync.links.of(peer).went_well(now);
        let catching_up = self.is_fresh();
        self.alarmed.retain(|alarm| match alarm {
            Alarm::Quarantined { peer: other, .. } => *other != peer,
            Alarm::Unlisted { by: other } | Alarm::Stranger { peer: other, .. } => *other != peer,
            Alarm::Behind | Alarm::Evicted => false,
            Alarm::Conflict { peer: other, .. } => *other != peer || !whole,
            Alarm::LostPast { .. } => catching_up,
        });
    }

    /// Ends the alarms about nodes that are no longer members, and about strangers that have gone.
    pub(crate) fn calm_about_strangers(&mut self) {
        let (members, links, own) = (&self.sync.members, &self.sync.links, self.node);
        self.alarmed.retain(|alarm| match alarm {
            Alarm::Quarantined { peer, .. }
            | Alarm::Conflict { peer, .. }
            | Alarm::Unlisted { by: peer } => *peer == own || members.is_member(*peer),
            Alarm::Stranger { peer, .. } => !members.is_member(*peer) && links.is_reachable(*peer),
            Alarm::Behind | Alarm::Evicted | Alarm::LostPast { .. } => true,
        });
    }
}

fn check_clocks(
    now: Timestamp,
    theirs: Timestamp,
    asked: Option<Timestamp>,
) -> Result<(), SessionRefusal> {
    if mutants::active(mutants::NO_SKEW_CHECK) {
        return Ok(());
    }
    // An answer's clock was read between question and answer; an opening's some time before now.
    let earliest = asked.unwrap_or(Timestamp(now.0.saturating_sub(TRANSIT_MAX_MS)));
    let ahead = theirs.0.saturating_sub(now.0);
    let behind = earliest.0.saturating_sub(theirs.0);
    match ahead.max(behind) {
        apart if apart > CLOCK_AHEAD_MAX_MS => Err(SessionRefusal::ClocksApart(apart)),
        _ => Ok(()),
    }
}

/// Checks that horizons are plausible: squashing waits for time, collecting for squashing.
pub(crate) fn check_horizons(now: Timestamp, horizons: Horizons) -> Result<(), SessionRefusal> {
    let plausible = horizons.squash <= newest_admitted(now)
        && (horizons.garbage < horizons.squash || horizons.garbage == Stamp::default());
    if plausible { Ok(()) } else { Err(SessionRefusal::Implausible) }
}
