//! The schedule: when to talk to whom, and what is due. Sessions come every second and soon after a
//! change, this node's vector now and then, garbage, commits whose time has come.

use std::time::Duration;

use model::Timestamp;

use crate::clock::Stamp;
use crate::commit::{NodeTag, Position};
use crate::event::{Alarm, Effect, Origin};
use crate::machine::StoreMachine;
use crate::machine::queue::QueuedItem;
use crate::replica::Horizons;
use crate::sync::members::is_roster_key;
use crate::sync::message::{Body, ClusterId, Message, SessionRefusal};

/// The time within which changes go in one session.
pub const PUSH_DELAY: Duration = Duration::from_millis(20);
pub const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// The time between two vectors in the log, by which garbage lags. Each is one write of the log, in
/// a cluster only.
pub const VECTOR_INTERVAL: Duration = Duration::from_secs(30);

/// The session number of what is said unasked; sessions have higher numbers.
const NO_SESSION: u64 = 0;

impl StoreMachine {
    pub(crate) fn received(
        &mut self,
        now: Timestamp,
        from: NodeTag,
        message: Message,
        effects: &mut Vec<Effect>,
    ) {
        let session = message.session;
        match message.body {
            Body::Open { hello, summaries } => {
                self.take_open(now, from, session, hello, summaries, effects);
            }
            Body::Opened { hello, answers } => {
                self.give_opened(now, from, session, &hello, answers, effects);
            }
            Body::Compare(summaries) => self.take_compare(now, from, session, &summaries, effects),
            Body::Answers(answers) => self.give_answers(now, from, session, &answers, effects),
            Body::Commits { batch, commits } => {
                if self.is_copying_from(from, session) {
                    self.copy_commits(now, from, session, batch, commits, effects);
                } else {
                    self.take_commits(now, from, session, batch, commits, effects);
                }
            }
            Body::Durable { batch } => {
                self.give_durable(now, from, session, batch, effects);
                self.lend_durable(now, from, session, batch, effects);
            }
            Body::Done { vector } => self.take_done(now, from, session, &vector, effects),
            Body::Noted { whole, head } => self.give_noted(now, from, session, whole, head),
            Body::CopyFrom { hello } => self.lend(now, from, session, &hello, effects),
            Body::Copying { hello } => self.copy_begun(now, from, session, &hello, effects),
            Body::Copied { vector, horizons } => {
                self.copied(now, from, session, (vector, horizons), effects);
            }
            Body::Refused(refusal) => self.refused(now, from, session, refusal, effects),
        }
    }

    fn refused(
        &mut self,
        now: Timestamp,
        from: NodeTag,
        session: u64,
        refusal: SessionRefusal,
        effects: &mut Vec<Effect>,
    ) {
        let giving = self.sync.giving.take_if(|g| g.peer == from && g.session == session);
        let copying = self.sync.copying.take_if(|c| c.peer == from && c.session == session);
        self.sync.taking.retain(|peer, taking| *peer != from || taking.session != session);
        self.sync.lending.retain(|peer, lending| *peer != from || lending.session != session);
        let unasked = giving.is_none() && copying.is_none();
        if unasked && refusal != SessionRefusal::Unknown {
            return;
        }
        if refusal == SessionRefusal::Evicted {
            self.alarm(Alarm::Evicted, effects);
        }
        if refusal == SessionRefusal::Behind && self.is_fresh() {
            return self.copy_from(now, from, effects);
        }
        if refusal == SessionRefusal::Behind {
            return self.behind(now, from, effects);
        }
        self.shun(now, from, refusal, effects);
    }

    /// Notes that something is new here, which others are to have soon.
    pub(crate) fn changed(&mut self, now: Timestamp) {
        self.sync.futile = 0;
        self.push_soon(now);
    }

    pub(crate) fn push_soon(&mut self, now: Timestamp) {
        let soon = now.after(PUSH_DELAY);
        self.sync.push_at = Some(self.sync.push_at.map_or(soon, |at| at.min(soon)));
    }

    pub(crate) fn sync_now(&mut self, now: Timestamp) {
        self.sync.push_at = Some(now);
        self.sync.sync_at = now;
    }

    pub(crate) fn join(
        &mut self,
        now: Timestamp,
        (cluster, listed): (ClusterId, Stamp),
        effects: &mut Vec<Effect>,
    ) {
        let foreign = cluster != self.sync.standing.cluster;
        // Until the node has joined, another invitation changes nothing.
        self.sync.standing.foreign = foreign || self.is_joining() && self.sync.standing.foreign;
        if foreign {
            // Members of the other cluster are unknown in this one.
            let history = self.replica.history().iter();
            let roster = history.filter(|commit| is_roster_key(&commit.key));
            let roster: Vec<Position> = roster.map(|commit| commit.at).collect();
            self.forget(&roster, effects);
        }
        self.sync.standing.cluster = cluster;
        self.sync.standing.listed = listed;
        self.sync.standing.incarnation = self.clock.next(now).0;
        self.sync.standing.fresh_until = Stamp(u64::MAX);
        self.sync.giving = None;
        self.sync.taking.clear();
        self.sync.lending.clear();
        self.keep_standing(effects);
        self.sync_now(now);
    }

    pub(crate) fn tick_sync(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        self.give_up_stalled(now, effects);
        for carried in self.sync.parked.due(now) {
            let origin = Origin { peer: self.node, session: 0, batch: 0 };
            self.wait(QueuedItem::Admit { carried, origin, horizons: None }, effects);
        }
        if self.is_in_cluster() && now >= self.sync.vector_at {
            self.keep_vector(now, effects);
            self.collect(now, effects);
        }
        let pushes = self.sync.push_at.is_some_and(|at| now >= at);
        let syncs = now >= self.sync.sync_at;
        if !pushes && !syncs {
            return;
        }
        if syncs {
            self.sync.sync_at = now.after(SYNC_INTERVAL);
            self.tell_strangers(now, effects);
        }
        if self.sync.giving.is_some() || self.sync.copying.is_some() || self.is_mending() {
            // The end of the session looks again.
            if pushes {
                self.sync.push_at = Some(now.after(PUSH_DELAY));
            }
            return;
        }
        self.sync.push_at = None;
        self.begin(now, syncs, effects);
    }

    /// Tells linked nodes that are on no roster here that they are unknown, as such a node takes
    /// itself for a member. It may have to be told without a session: it hears nothing else, and
    /// may count this node among the dead.
    fn tell_strangers(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let members = &self.sync.members;
        if self.is_joining() || members.is_evicted(self.node) {
            return;
        }
        let mut strangers = self.sync.links.reachable();
        strangers.retain(|peer| !members.is_member(*peer) && !members.is_evicted(*peer));
        for peer in strangers {
            self.send(peer, NO_SESSION, Body::Refused(SessionRefusal::Unknown), effects);
            self.shun(now, peer, SessionRefusal::Unknown, effects);
        }
    }

    fn begin(&mut self, now: Timestamp, even_equal: bool, effects: &mut Vec<Effect>) {
        if !self.sync.standing_kept {
            return self.wait_for_standing(now, effects);
        }
        let (joining, head) = (self.is_joining(), self.replica.history().head());
        let members = &self.sync.members;
        if members.is_evicted(self.node) && !joining {
            return;
        }
        let peer = self.sync.links.choose(now, |peer, link| {
            let member = members.is_member(*peer) || joining;
            member && (even_equal || link.head != Some(head))
        });
        match peer {
            Some(peer) if joining => self.copy_from(now, peer, effects),
            Some(peer) => self.give_to(now, peer, effects),
            None => {}
        }
    }

    /// Puts the standing into the log first: peers must not hear of one that a crash could take
    /// back.
    fn wait_for_standing(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        self.keep_standing(effects);
        self.changed(now);
    }

    fn give_up_stalled(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let giving = self.sync.giving.iter().map(|g| (g.peer, g.session, g.deadline));
        let copying = self.sync.copying.iter().map(|c| (c.peer, c.session, c.deadline));
        let taking = self.sync.taking.iter().map(|(peer, t)| (*peer, t.session, t.deadline));
        let lending = self.sync.lending.iter().map(|(peer, l)| (*peer, l.session, l.deadline));
        let stalled: Vec<(NodeTag, u64)> = giving
            .chain(copying)
            .chain(taking)
            .chain(lending)
            .filter(|(_, _, deadline)| now >= *deadline)
            .map(|(peer, session, _)| (peer, session))
            .collect();
        for (peer, session) in stalled {
            self.break_off(now, peer, session, SessionRefusal::Stalled, effects);
        }
    }

    pub(crate) fn is_in_cluster(&self) -> bool {
        !self.sync.members.is_alone()
    }

    /// Puts what this node holds of others, and promises of itself, into the log.
    pub(crate) fn keep_vector(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        self.sync.vector_at = now.after(VECTOR_INTERVAL);
        self.wait(QueuedItem::Vector, effects);
    }

    /// Collects garbage up to what all members are known to hold.
    fn collect(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.is_fresh() || self.sync.mending {
            return;
        }
        let squash = self.replica.horizons().squash;
        let garbage = self.garbage_for(now, squash);
        self.raise_to(Horizons { squash, garbage }, effects);
    }

    pub(crate) fn sync_deadline(&self) -> Option<Timestamp> {
        let sync = &self.sync;
        let stalled = sync
            .giving
            .iter()
            .map(|giving| giving.deadline)
            .chain(sync.copying.iter().map(|copying| copying.deadline))
            .chain(sync.taking.values().map(|taking| taking.deadline))
            .chain(sync.lending.values().map(|lending| lending.deadline))
            .min();
        let talks = self.is_in_cluster() || self.is_joining() || sync.links.is_any_reachable();
        let vector = self.is_in_cluster().then_some(sync.vector_at);
        let times = [
            stalled,
            sync.parked.deadline(),
            talks.then_some(sync.sync_at),
            if talks { sync.push_at } else { None },
            vector,
        ];
        times.into_iter().flatten().min()
    }
}
