//! The way back of a node that joins, that lost a part of its past or that was removed: a peer is
//! the authority up to its garbage horizon. The node takes everything the peer holds, drops what
//! the peer collected, and issues anew what the peer never saw of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::Timestamp;

use crate::clock::Stamp;
use crate::commit::{Commit, Location, NodeTag, Position};
use crate::event::{Alarm, Effect, Origin, Ticket};
use crate::history::History;
use crate::machine::StoreMachine;
use crate::machine::queue::QueuedItem;
use crate::mutants;
use crate::replica::Horizons;
use crate::sync::Aside;
use crate::sync::give::{BATCH_BYTES_MAX, BATCHES_UNDURABLE_MAX, STALLED_AFTER, weight};
use crate::sync::greet::check_horizons;
use crate::sync::members::member_of;
use crate::sync::message::{Body, Carried, Hello, SessionRefusal, Vector};
use crate::sync::park::newest_admitted;

/// The beginning of keys that keep what nobody ever saw of a node and what a newer value had
/// replaced meanwhile.
const LOST: &str = "lost::";
const KEY_BYTES_MAX: usize = 1024;

pub(crate) struct Copying {
    pub peer: NodeTag,
    pub session: u64,
    pub deadline: Timestamp,
    asked: Timestamp,
    /// What this node held up to the peer's horizon and the peer has not named yet; `None` until
    /// the peer's horizon is known.
    doubtful: Option<BTreeSet<Position>>,
    /// The doubtful commits that are newer than something that the peer named for their
    /// key. Had the peer collected them, it would have nothing older left.
    surpassing: BTreeSet<Position>,
    /// The newest entry on the roster that the peer has for this node.
    listed: Stamp,
    /// The positions at which the peer has another commit.
    pub clashing: BTreeSet<Position>,
    pub undurable: BTreeMap<u32, usize>,
    ended: Option<Ended>,
}

struct Ended {
    vector: Vector,
    horizons: Horizons,
}

pub(crate) struct Lending {
    pub session: u64,
    pub deadline: Timestamp,
    history: History,
    horizons: Horizons,
    vector: Vector,
    next: Option<Position>,
    batch: u32,
    undurable: BTreeSet<u32>,
}

impl StoreMachine {
    /// Begins a copy if the log says why this node missed something; otherwise somebody must look
    /// into it.
    pub(crate) fn copy_from(&mut self, now: Timestamp, peer: NodeTag, effects: &mut Vec<Effect>) {
        if !self.is_fresh() {
            return self.behind(now, peer, effects);
        }
        if self.sync.copying.is_some() || self.is_mending() || !self.sync.standing_kept {
            return;
        }
        self.sync.giving = None;
        let taking: Vec<NodeTag> = self.sync.taking.keys().copied().collect();
        for giver in taking {
            self.sync.taking.remove(&giver);
        }
        let session = self.next_session();
        self.sync.copying = Some(Copying {
            peer,
            session,
            deadline: now.after(STALLED_AFTER),
            asked: now,
            doubtful: None,
            surpassing: BTreeSet::new(),
            listed: Stamp::default(),
            clashing: BTreeSet::new(),
            undurable: BTreeMap::new(),
            ended: None,
        });
        let hello = self.hello(now);
        self.send(peer, session, Body::CopyFrom { hello }, effects);
    }

    pub(crate) fn lend(
        &mut self,
        now: Timestamp,
        from: NodeTag,
        session: u64,
        hello: &Hello,
        effects: &mut Vec<Effect>,
    ) {
        let refusal = match self.greet(now, from, hello, None, effects) {
            Err(refusal) => Some(refusal),
            Ok(()) if self.is_joining() || self.must_copy_from(hello) => Some(SessionRefusal::Busy),
            Ok(()) if !hello.fresh => Some(SessionRefusal::OutOfPlace),
            Ok(()) => None,
        };
        if let Some(refusal) = refusal {
            self.send(from, session, Body::Refused(refusal), effects);
            return self.shun(now, from, refusal, effects);
        }
        let hello = self.hello(now);
        self.send(from, session, Body::Copying { hello }, effects);
        let lending = Lending {
            session,
            deadline: now.after(STALLED_AFTER),
            history: self.replica.history().clone(),
            horizons: self.replica.horizons(),
            vector: self.sync.members.vector(),
            next: Some(Position::start_of(Stamp(0))),
            batch: 0,
            undurable: BTreeSet::new(),
        };
        self.sync.lending.insert(from, lending);
        self.lend_on(from, effects);
    }

    fn lend_on(&mut self, to: NodeTag, effects: &mut Vec<Effect>) {
        let held = self.replica.history();
        let Some(lending) = self.sync.lending.get_mut(&to) else { return };
        let session = lending.session;
        let mut bodies = Vec::new();
        while let Some(next) = lending.next
            && lending.undurable.len() < BATCHES_UNDURABLE_MAX
        {
            let (mut commits, mut bytes) = (Vec::new(), 0);
            lending.next = None;
            for commit in lending.history.iter_from(next) {
                bytes += weight(commit);
                if bytes > BATCH_BYTES_MAX && !commits.is_empty() {
                    lending.next = Some(commit.at);
                    break;
                }
                let location = held.get(commit.at).map_or(commit.location, |now| now.location);
                let commit = Commit { location, ..commit.clone() };
                commits.push(Carried { ticket: Ticket(0), commit });
            }
            if !commits.is_empty() {
                lending.undurable.insert(lending.batch);
                bodies.push(Body::Commits { batch: lending.batch, commits });
                lending.batch += 1;
            }
        }
        if lending.next.is_none() && lending.undurable.is_empty() {
            bodies.push(Body::Copied {
                vector: std::mem::take(&mut lending.vector),
                horizons: lending.horizons,
            });
            self.sync.lending.remove(&to);
        }
        for body in bodies {
            self.send(to, session, body, effects);
        }
    }

    pub(crate) fn lend_durable(
        &mut self,
        now: Timestamp,
        from: NodeTag,
        session: u64,
        batch: u32,
        effects: &mut Vec<Effect>,
    ) {
        let lending = self.sync.lending.get_mut(&from).filter(|l| l.session == session);
        // A batch that was not under way is no progress.
        if let Some(lending) = lending
            && lending.undurable.remove(&batch)
        {
            lending.deadline = now.after(STALLED_AFTER);
            self.lend_on(from, effects);
        }
    }

    fn copying(&mut self, now: Timestamp, from: NodeTag, session: u64) -> Option<&mut Copying> {
        let copying = self.sync.copying.as_mut();
        let copying = copying.filter(|c| c.peer == from && c.session == session)?;
        copying.deadline = now.after(STALLED_AFTER);
        Some(copying)
    }

    pub(crate) fn is_copying_from(&self, from: NodeTag, session: u64) -> bool {
        let copying = self.sync.copying.as_ref();
        copying.is_some_and(|copying| copying.peer == from && copying.session == session)
    }

    pub(crate) fn copy_begun(
        &mut self,
        now: Timestamp,
        from: NodeTag,
        session: u64,
        hello: &Hello,
        effects: &mut Vec<Effect>,
    ) {
        let Some(copying) = self.copying(now, from, session) else { return };
        if copying.doubtful.is_some() {
            // Beginning again would put in doubt what the peer has named already.
            return self.break_off(now, from, session, SessionRefusal::OutOfPlace, effects);
        }
        let asked = copying.asked;
        if let Err(refusal) = self.greet(now, from, hello, Some(asked), effects) {
            return self.break_off(now, from, session, refusal, effects);
        }
        // A node that joins has issued nothing to this cluster yet: all it holds is in doubt.
        let joins = self.is_joining();
        let garbage = hello.horizons.garbage;
        let held = self.replica.history().iter().map(|commit| commit.at);
        let doubtful = held.take_while(|at| joins || at.stamp <= garbage).collect();
        if let Some(copying) = self.copying(now, from, session) {
            copying.doubtful = Some(doubtful);
        }
    }

    pub(crate) fn copy_commits(
        &mut self,
        now: Timestamp,
        from: NodeTag,
        session: u64,
        batch: u32,
        commits: Vec<Carried>,
        effects: &mut Vec<Effect>,
    ) {
        let awaited = self.copying(now, from, session).is_some_and(|copying| {
            copying.doubtful.is_some()
                && copying.ended.is_none()
                && copying.undurable.len() < BATCHES_UNDURABLE_MAX
                && !copying.undurable.contains_key(&batch)
        });
        if !awaited {
            effects.extend(commits.iter().map(|c| Effect::Release { ticket: c.ticket }));
            return self.break_off(now, from, session, SessionRefusal::OutOfPlace, effects);
        }
        let limit = newest_admitted(now);
        let mut waits = 0;
        let origin = Origin { peer: from, session, batch };
        for carried in commits {
            let at = carried.commit.at;
            if member_of(&carried.commit.key) == Some(self.node)
                && let Some(copying) = &mut self.sync.copying
            {
                copying.listed = copying.listed.max(at.stamp);
            }
            let newest = self.replica.newest(&carried.commit.key).map(|newest| newest.at);
            if let Some(newest) = newest.filter(|newest| *newest > at)
                && let Some(copying) = &mut self.sync.copying
                && copying.doubtful.as_ref().is_some_and(|doubtful| doubtful.contains(&newest))
            {
                copying.surpassing.insert(newest);
            }
            let known = self.replica.history().get(at);
            let same = known.is_some_and(|known| known.cid() == carried.commit.cid());
            if same
                && let Some(copying) = &mut self.sync.copying
                && let Some(doubtful) = &mut copying.doubtful
            {
                doubtful.remove(&at);
            }
            if same {
                effects.push(Effect::Release { ticket: carried.ticket });
            } else if at.stamp >= limit {
                let unneeded = self.sync.parked.park(carried);
                effects.extend(unneeded.map(|ticket| Effect::Release { ticket }));
            } else {
                waits += 1;
                self.clock.restore(at.stamp);
                self.wait(QueuedItem::Admit { carried, origin, horizons: None }, effects);
            }
        }
        let Some(copying) = self.copying(now, from, session) else { return };
        copying.undurable.insert(batch, waits);
        if waits == 0 {
            self.durable(origin, 0, effects);
        }
    }

    pub(crate) fn copied(
        &mut self,
        now: Timestamp,
        from: NodeTag,
        session: u64,
        (vector, horizons): (Vector, Horizons),
        effects: &mut Vec<Effect>,
    ) {
        let Some(copying) = self.copying(now, from, session) else { return };
        if !copying.undurable.is_empty() || copying.doubtful.is_none() || copying.ended.is_some() {
            return self.break_off(now, from, session, SessionRefusal::OutOfPlace, effects);
        }
        if let Err(refusal) = check_horizons(now, horizons) {
            return self.break_off(now, from, session, refusal, effects);
        }
        if self.is_joining() && !self.is_listed_there() {
            // This peer takes the node for the one that it was before.
            return self.break_off(now, from, session, SessionRefusal::Unknown, effects);
        }
        let Some(copying) = self.copying(now, from, session) else { return };
        copying.ended = Some(Ended { vector, horizons });
        self.copy_settle(effects);
    }

    /// Returns whether the peer that is copied from knows the entry on the roster that was made for
    /// this node, or a newer one.
    fn is_listed_there(&self) -> bool {
        let there = self.sync.copying.as_ref().map(|copying| copying.listed).unwrap_or_default();
        there >= self.sync.standing.listed || mutants::active(mutants::JOIN_UNLISTED)
    }

    /// Sorts what is left in doubt: what the peer never saw is issued anew, the rest is dropped.
    fn copy_settle(&mut self, effects: &mut Vec<Effect>) {
        let Some(Copying {
            doubtful: Some(doubtful),
            surpassing,
            clashing,
            ended: Some(ended),
            session,
            ..
        }) = &self.sync.copying
        else {
            return;
        };
        let (mut commits, mut anew) = (Vec::new(), Vec::new());
        for at in doubtful {
            let Some(commit) = self.replica.history().get(*at) else { continue };
            let (told, since) = (ended.vector.get(&at.node), self.sync.members.since(at.node));
            // If the node's entry was renewed, `told` covers what it issued since, and maybe no
            // more.
            let renewed = since
                .is_some_and(|since| at.stamp < since && told.is_some_and(|told| *told >= since));
            // What was written in another cluster is known to nobody in this one.
            let foreign = self.sync.standing.foreign;
            let told = !renewed && !foreign && told.is_some_and(|told| *told >= at.stamp);
            // Even of a former member, all members had what any of them had once garbage was
            // collected beyond it; vectors may say nothing of it any more.
            let here = !foreign && (renewed || at.node != self.node);
            let collected = at.stamp <= ended.horizons.garbage;
            let newest = self.replica.newest(&commit.key);
            let wins = newest.is_some_and(|newest| newest.at == *at);
            // The peer would name it or something newer, unless its disk was set back since.
            let lacked = wins && (!collected || surpassing.contains(at));
            let seen = (told || here && collected) && !lacked;
            if !seen || clashing.contains(at) {
                anew.extend(new_key(self.node, commit, wins).map(|key| (*at, key)));
            }
            commits.push(commit.clone());
        }
        if commits.is_empty() {
            return self.copy_end(effects);
        }
        self.sync.aside = Some(Aside::Copy(*session));
        effects.push(Effect::SetAside { commits, anew });
    }

    /// Ends a copy once everything to be dropped is set aside and what is issued anew is queued
    /// before this.
    pub(crate) fn copy_end(&mut self, effects: &mut Vec<Effect>) {
        let Some(copying) = self.sync.copying.take() else { return };
        let (Some(doubtful), Some(ended)) = (copying.doubtful, copying.ended) else { return };
        self.sync.concluding = true;
        let positions: Vec<Position> = doubtful.into_iter().collect();
        self.forget(&positions, effects);
        self.raise_to(self.replica.horizons().max(ended.horizons), effects);
        self.wait(
            QueuedItem::Copied { vector: ended.vector, garbage: ended.horizons.garbage },
            effects,
        );
    }

    /// Concludes a copy of which everything is durable: the node holds what its peer holds.
    pub(crate) fn copy_kept(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        self.sync.concluding = false;
        if self.is_joining() {
            // What this node held before has been issued anew, above its first stamp.
            self.sync.members.confirm_all();
            // Everybody knows this as the node's first stamp; its own stamps are above it.
            let since = self.sync.members.since(self.node);
            match since {
                Some(since) => {
                    self.clock.restore(since);
                    self.sync.standing.fresh_until = since;
                    self.sync.standing.foreign = false;
                    self.keep_standing(effects);
                }
                None => self.alarm(Alarm::Evicted, effects),
            }
        }
        self.keep_vector(now, effects);
        self.changed(now);
    }
}

/// Returns the key under which a commit is issued anew: its own if it still wins it. Whether this
/// very node is a member is for others to say.
fn new_key(node: NodeTag, commit: &Commit, wins: bool) -> Option<Arc<str>> {
    match member_of(&commit.key) {
        Some(member) => return (wins && member != node).then(|| commit.key.clone()),
        None if wins => return Some(commit.key.clone()),
        None => {}
    }
    let fits = commit.key.len() + LOST.len() <= KEY_BYTES_MAX;
    let has_value = !commit.is_delete() && commit.location != Location::Nowhere;
    (fits && has_value && !commit.key.starts_with(LOST))
        .then(|| format!("{LOST}{}", commit.key).into())
}
