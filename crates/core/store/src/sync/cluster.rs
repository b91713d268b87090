//! This node and its cluster: who it is to the others, who is a member and holds what, who can be
//! talked to, and what a person has to look into. Owns hellos, and whether their sender is one to
//! talk to; knows no sessions.

use std::collections::BTreeSet;

use model::Timestamp;
use model::time::CLOCK_AHEAD_MAX_MS;

use crate::clock::Stamp;
use crate::commit::{Commit, NodeTag};
use crate::event::{Alarm, BatchEntry, Effect, Standing};
use crate::machine::context::Context;
use crate::machine::queue::QueuedItem;
use crate::mutants;
use crate::replica::{Horizons, Replica};
use crate::sum::Fingerprint;
use crate::sync::alarms::Alarms;
use crate::sync::identity::Identity;
use crate::sync::links::SyncPeers;
use crate::sync::members::KnownMembers;
use crate::sync::message::{Body, ClusterId, Hello, SessionRefusal, Vector};
use crate::sync::park::newest_admitted;
use crate::sync::session::SessionId;

/// The time in milliseconds that a hello may have been under way before it counts as a clock that
/// is behind.
const TRANSIT_MAX_MS: u64 = 2000;
/// The session number of what is said unasked; sessions have higher numbers.
const NO_SESSION: u64 = 0;

pub(crate) struct Cluster {
    node: NodeTag,
    identity: Identity,
    members: KnownMembers,
    links: SyncPeers,
    alarms: Alarms,
}

impl Cluster {
    pub fn new(identity: Identity, members: KnownMembers, links: SyncPeers) -> Cluster {
        Cluster { node: members.node(), identity, members, links, alarms: Alarms::default() }
    }

    pub fn node(&self) -> NodeTag {
        self.node
    }

    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    pub fn standing(&self) -> Standing {
        self.identity.standing()
    }

    pub fn members(&self) -> &KnownMembers {
        &self.members
    }

    pub fn links(&self) -> &SyncPeers {
        &self.links
    }

    pub fn alarms(&self) -> impl Iterator<Item = &Alarm> {
        self.alarms.iter()
    }

    /// Returns whether the node has nothing of its cluster yet.
    pub fn is_joining(&self) -> bool {
        self.identity.is_joining()
    }

    /// Returns whether the node has not yet caught up since it joined or lost a part of its past.
    pub fn is_fresh(&self) -> bool {
        let alone = self.members.is_alone() && !self.is_joining();
        !alone && self.standing().fresh_until > self.members.told()
    }

    pub fn is_alone(&self) -> bool {
        self.members.is_alone()
    }

    /// Returns whether there may be somebody to talk to.
    pub fn talks(&self) -> bool {
        !self.is_alone() || self.is_joining() || self.links.is_any_reachable()
    }

    /// Returns how many other members have everything that this node had written up to a stamp.
    pub fn replicas_with(&self, stamp: Stamp) -> usize {
        let links = self.links.iter();
        links.filter(|(peer, link)| self.members.is_member(**peer) && link.has >= stamp).count()
    }

    pub fn hello(&self, cx: &Context<'_>) -> Hello {
        let (standing, history) = (self.standing(), cx.replica.history());
        Hello {
            cluster: standing.cluster,
            node: self.node,
            incarnation: standing.incarnation,
            clock: cx.now,
            horizons: cx.replica.horizons(),
            head: history.head(),
            count: history.len() as u64,
            acks: self.acks_to_tell(),
            fresh: self.is_fresh(),
        }
    }

    /// Returns the acknowledgements to tell. A node that has nothing of its cluster yet has nothing
    /// to tell of itself.
    fn acks_to_tell(&self) -> Vector {
        let mut acks = self.members.acks();
        if self.is_joining() {
            acks.remove(&self.node);
        }
        acks
    }

    /// Checks that a hello comes from one to talk to. `asked` is when this node spoke last, if the
    /// hello answers that.
    pub fn recognise(
        &mut self,
        from: NodeTag,
        hello: &Hello,
        asked: Option<Timestamp>,
        cx: &mut Context<'_>,
    ) -> Result<(), SessionRefusal> {
        if hello.node != from || from == self.node {
            return Err(SessionRefusal::OutOfPlace);
        }
        if hello.cluster != self.standing().cluster {
            return Err(SessionRefusal::OtherCluster);
        }
        check_clocks(cx.now, hello.clock, asked)?;
        check_horizons(cx.now, hello.horizons)?;
        if self.is_joining() {
            return Ok(());
        }
        if self.members.is_evicted(self.node) {
            self.alarm(Alarm::Evicted, cx);
            return Err(SessionRefusal::Unknown);
        }
        if self.members.is_member(from) {
            return Ok(());
        }
        Err(if self.members.is_evicted(from) {
            SessionRefusal::Evicted
        } else {
            SessionRefusal::Unknown
        })
    }

    /// Learns from the hello of one to talk to.
    pub fn hear(&mut self, hello: &Hello, cx: &mut Context<'_>) {
        self.members.hear_from(cx.now, hello.node);
        let remembered = hello.acks.get(&self.node).copied().unwrap_or_default();
        if remembered > self.members.told()
            && remembered > self.standing().fresh_until
            && remembered < newest_admitted(cx.now)
        {
            self.lose_past(hello.node, remembered, cx);
        }
        self.links.heard(hello.node, hello.head);
    }

    /// Returns whether this node must take the peer for the authority before it talks to anybody.
    pub fn must_copy_from(&self, hello: &Hello) -> bool {
        if mutants::active(mutants::NO_RULE_B) {
            return self.is_joining();
        }
        self.is_joining() || hello.horizons.garbage > self.members.told()
    }

    /// Learns from a giver of which this node holds everything now.
    pub fn take_over(&mut self, giver: NodeTag, vector: &Vector, acks: &Vector, limit: Stamp) {
        self.members.merge(vector, limit);
        self.members.hear(acks, limit);
        self.members.confirm(giver);
    }

    /// Notes what a taker holds after a session; `has` is what was promised to it, if it has all.
    pub fn gave(&mut self, taker: NodeTag, head: Fingerprint, has: Option<Stamp>) {
        self.links.gave(taker, head, has);
    }

    /// Notes that a session went well, which ends the alarms about that peer.
    pub fn calm(&mut self, now: Timestamp, peer: NodeTag, whole: bool) {
        self.links.went_well(now, peer);
        self.alarms.end_about(peer, whole, self.is_fresh());
    }

    pub fn alarm(&mut self, alarm: Alarm, cx: &mut Context<'_>) {
        self.alarms.raise(alarm, cx.effects);
    }

    /// Notes who can be reached.
    pub fn set_reachable(&mut self, reachable: &BTreeSet<NodeTag>) {
        self.links.set_reachable(reachable, &self.members.roster());
    }

    /// Ends the alarms about nodes that are no longer members, and about strangers that have gone.
    pub fn calm_about_strangers(&mut self) {
        self.alarms.end_about_strangers(&self.members, &self.links);
    }

    /// Leaves a peer alone for a while, and raises an alarm if somebody has to look into it.
    pub fn shun(&mut self, peer: NodeTag, reason: SessionRefusal, cx: &mut Context<'_>) {
        self.links.pause(cx.now, peer, reason);
        if reason.alarms() {
            self.alarm(Alarm::Quarantined { peer, reason }, cx);
        }
        let strange = reason == SessionRefusal::Unknown && self.links.stays_strange(peer);
        if strange && !self.is_joining() {
            let alarm = match self.members.is_member(peer) {
                true => Alarm::Unlisted { by: peer },
                false => Alarm::Stranger { own: self.node, peer },
            };
            self.alarm(alarm, cx);
        }
    }

    /// Leaves a peer alone for a while whose connection is gone.
    pub fn lost(&mut self, now: Timestamp, peer: NodeTag) {
        self.links.pause(now, peer, SessionRefusal::Stalled);
    }

    /// Leaves a peer alone from which this node would have to copy although it lost nothing.
    pub fn behind(&mut self, peer: NodeTag, cx: &mut Context<'_>) {
        self.alarm(Alarm::Behind, cx);
        self.links.pause(cx.now, peer, SessionRefusal::Implausible);
    }

    /// Tells linked nodes that are on no roster here that they are unknown, as such a node takes
    /// itself for a member. It may have to be told without a session: it hears nothing else, and
    /// may count this node among the dead.
    pub fn tell_strangers(&mut self, cx: &mut Context<'_>) {
        let members = &self.members;
        if self.is_joining() || members.is_evicted(self.node) {
            return;
        }
        let mut strangers = self.links.reachable();
        strangers.retain(|peer| !members.is_member(*peer) && !members.is_evicted(*peer));
        for peer in strangers {
            let unasked = SessionId { peer, number: NO_SESSION };
            cx.send(unasked, Body::Refused(SessionRefusal::Unknown));
            self.shun(peer, SessionRefusal::Unknown, cx);
        }
    }

    /// Returns a peer to talk to: any one, or one whose history differed when last heard of.
    pub fn choose(&mut self, even_equal: bool, cx: &Context<'_>) -> Option<NodeTag> {
        let (joining, head) = (self.is_joining(), cx.replica.history().head());
        let members = &self.members;
        if members.is_evicted(self.node) && !joining {
            return None;
        }
        self.links.choose(cx.now, |peer, link| {
            let member = members.is_member(*peer) || joining;
            member && (even_equal || link.head != Some(head))
        })
    }

    /// Begins to join a cluster that has listed this node at this stamp.
    pub fn join(&mut self, cluster: ClusterId, listed: Stamp, cx: &mut Context<'_>) {
        self.identity.join(cluster, listed, cx.stamps.next(cx.now).0);
        self.keep_standing(cx);
    }

    /// Notes that a node that joins has copied everything.
    pub fn joined(&mut self, cx: &mut Context<'_>) {
        // What this node held before has been issued anew, above its first stamp.
        self.members.confirm_all();
        // Everybody knows this as the node's first stamp; its own stamps are above it.
        match self.members.since(self.node) {
            Some(since) => {
                cx.stamps.learn(since);
                self.identity.joined(since);
                self.keep_standing(cx);
            }
            None => self.alarm(Alarm::Evicted, cx),
        }
    }

    /// Handles that a peer knows more of this node's past than the node itself: its disk was set
    /// back.
    pub fn lose_past(&mut self, authority: NodeTag, until: Stamp, cx: &mut Context<'_>) {
        if until <= self.standing().fresh_until {
            return;
        }
        self.alarm(Alarm::LostPast { authority }, cx);
        self.identity.lose_past(cx.stamps.next(cx.now).0, until);
        self.keep_standing(cx);
    }

    /// Puts the standing into the log.
    pub fn keep_standing(&mut self, cx: &mut Context<'_>) {
        self.identity.restate();
        cx.wait(QueuedItem::Standing);
    }

    /// Returns the standing of a node that must catch up again, for the same batch as the entry on
    /// the roster, so that no crash comes in between: others may remember what this node told of
    /// itself, and it says less from now on.
    pub fn catch_up_again(&mut self, commit: &Commit) -> Option<Standing> {
        if !self.members.would_set_back(commit) {
            return None;
        }
        let told = self.members.told();
        if told <= self.standing().fresh_until {
            return None;
        }
        self.identity.catch_up(told);
        Some(self.standing())
    }

    /// Notes the standing that is in the log now. Returns whether it is of another cluster than
    /// before.
    pub fn standing_logged(&mut self, standing: Standing) -> bool {
        self.identity.log(standing)
    }

    /// Returns what this node holds of others and promises of itself, for the log.
    pub fn vector_entry(&self, cx: &mut Context<'_>) -> BatchEntry {
        let promise = self.members.may_promise(cx.stamps.next(cx.now));
        BatchEntry::Vector { promise, held: self.members.held().clone() }
    }

    /// Returns the same after a copy of everything that a peer holds.
    pub fn copied_entry(
        &mut self,
        vector: &Vector,
        garbage: Stamp,
        cx: &mut Context<'_>,
    ) -> BatchEntry {
        cx.stamps.learn(garbage);
        let joins = self.is_joining();
        if joins {
            self.members.begin_anew();
        }
        self.members.merge(vector, newest_admitted(cx.now));
        let held = self.members.held().clone();
        let stamp = cx.stamps.next(cx.now);
        // All members hold what this node issued up to the horizon, and so does the peer.
        let known = self.members.may_promise(stamp).max(garbage);
        let promise = if joins { stamp } else { known };
        BatchEntry::Copied { promise, held, garbage }
    }

    /// Notes what of this is in the log now.
    pub fn vector_logged(&mut self, promise: Stamp, held: Vector) {
        self.members.keep(promise, held);
    }

    /// Promises to issue nothing more up to `durable`, with nothing of this node under way.
    pub fn promise(&mut self, durable: Stamp) {
        self.members.promise(durable);
    }

    /// Takes back, as the clock went back, promises that nobody can have taken for true.
    pub fn take_back(&mut self, right: Stamp) {
        self.members.take_back(right);
    }

    /// Takes them back in what the log has, too.
    pub fn taken_back(&mut self, clock: Stamp) {
        self.members.taken_back(clock);
    }

    /// Reads the roster, and has everybody here told if it changed.
    pub fn read_roster(&mut self, cx: &mut Context<'_>) {
        if self.members.read_roster(cx.replica, cx.now) {
            self.calm_about_strangers();
            let roster = self.members.roster();
            cx.wait(QueuedItem::Vector);
            cx.effects.push(Effect::Roster(roster));
        }
    }

    /// Returns how far garbage may be collected, below the squash horizon.
    pub fn garbage_below(&mut self, squash: Stamp, cx: &Context<'_>) -> Stamp {
        let garbage = cx.replica.horizons().garbage;
        if self.is_fresh() {
            return garbage;
        }
        let reachable = self.links.reachable();
        let all = self.members.garbage(cx.now, &reachable).unwrap_or_default();
        garbage.max(all.min(Stamp(squash.0.saturating_sub(1))))
    }
}

/// Returns whether the peer missed what this node collected.
pub(crate) fn has_missed(replica: &Replica, hello: &Hello) -> bool {
    let told = hello.acks.get(&hello.node).copied().unwrap_or_default();
    !mutants::active(mutants::NO_RULE_B) && replica.horizons().garbage > told
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
