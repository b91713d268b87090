//! The taker's side of a session: it says what it lacks, makes durable what comes, and only then
//! concludes that it holds what the giver holds.

use std::collections::BTreeMap;

use model::Timestamp;

use crate::commit::{NodeTag, Position};
use crate::event::{Alarm, Effect, Origin};
use crate::machine::StoreMachine;
use crate::machine::queue::QueuedItem;
use crate::mutants;
use crate::replica::Horizons;
use crate::sync::compare::{self, ROUNDS_MAX, SUMMARIES_MAX};
use crate::sync::give::{BATCHES_UNDURABLE_MAX, STALLED_AFTER};
use crate::sync::message::{Body, Carried, Hello, RangeSummary, SessionRefusal, Vector};
use crate::sync::park::newest_admitted;

pub(crate) struct Taking {
    pub session: u64,
    pub deadline: Timestamp,
    pub horizons: Horizons,
    /// What the giver said that members hold.
    acks: Vector,
    /// The giver's hello and summaries, while they wait until the horizons are as high as the
    /// giver's.
    opening: Option<(Hello, Vec<RangeSummary>)>,
    /// The number of commits of each batch that are not durable yet.
    pub undurable: BTreeMap<u32, usize>,
    rounds: u32,
    /// Whether nothing of the session is parked or lost.
    whole: bool,
}

impl StoreMachine {
    pub(crate) fn take_open(
        &mut self,
        now: Timestamp,
        from: NodeTag,
        session: u64,
        hello: Hello,
        summaries: Vec<RangeSummary>,
        effects: &mut Vec<Effect>,
    ) {
        self.sync.taking.remove(&from);
        let greeted = match summaries.len() {
            0..=SUMMARIES_MAX => self.greet(now, from, &hello, None, effects),
            _ => Err(SessionRefusal::OutOfPlace),
        };
        if let Err(refusal) = greeted {
            self.send(from, session, Body::Refused(refusal), effects);
            return self.shun(now, from, refusal, effects);
        }
        if self.must_copy_from(&hello) {
            self.send(from, session, Body::Refused(SessionRefusal::Busy), effects);
            return self.copy_from(now, from, effects);
        }
        if self.has_missed(&hello) {
            return self.send(from, session, Body::Refused(SessionRefusal::Behind), effects);
        }
        if self.sync.copying.is_some() || self.sync.mending {
            return self.send(from, session, Body::Refused(SessionRefusal::Busy), effects);
        }
        let horizons = self.replica.horizons().max(hello.horizons);
        let taking = Taking {
            session,
            deadline: now.after(STALLED_AFTER),
            horizons,
            acks: hello.acks.clone(),
            opening: Some((hello, summaries)),
            undurable: BTreeMap::new(),
            rounds: 0,
            whole: true,
        };
        self.sync.taking.insert(from, taking);
        if !mutants::active(mutants::HORIZONS_NOT_EXCHANGED) {
            self.raise_to(horizons, effects);
        }
        self.take_raised(now, effects);
    }

    /// Answers the openings that waited for horizons; ends sessions whose horizons are past.
    pub(crate) fn take_raised(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let unexchanged = mutants::active(mutants::HORIZONS_NOT_EXCHANGED);
        let horizons = self.replica.horizons();
        let mut answers = Vec::new();
        let mut past = Vec::new();
        for (peer, taking) in &mut self.sync.taking {
            if unexchanged || taking.horizons == horizons {
                if let Some((hello, summaries)) = taking.opening.take() {
                    let compared = unexchanged || hello.horizons == horizons;
                    let found =
                        compared.then(|| compare::answer(self.replica.history(), &summaries));
                    answers.push((*peer, taking.session, found));
                }
            } else if taking.horizons.max(horizons) == horizons {
                past.push((*peer, taking.session));
            }
        }
        for (peer, session, answers) in answers {
            let hello = self.hello(now);
            self.send(peer, session, Body::Opened { hello, answers }, effects);
        }
        for (peer, session) in past {
            self.sync.taking.remove(&peer);
            self.send(peer, session, Body::Refused(SessionRefusal::HorizonsRose), effects);
        }
    }

    fn taking(&mut self, now: Timestamp, from: NodeTag, session: u64) -> Option<&mut Taking> {
        let taking = self.sync.taking.get_mut(&from)?;
        if taking.session != session || taking.opening.is_some() {
            return None;
        }
        taking.deadline = now.after(STALLED_AFTER);
        Some(taking)
    }

    pub(crate) fn take_compare(
        &mut self,
        now: Timestamp,
        from: NodeTag,
        session: u64,
        summaries: &[RangeSummary],
        effects: &mut Vec<Effect>,
    ) {
        let Some(taking) = self.taking(now, from, session) else {
            return self.send(from, session, Body::Refused(SessionRefusal::OutOfPlace), effects);
        };
        taking.rounds += 1;
        if taking.rounds > ROUNDS_MAX {
            return self.break_off(now, from, session, SessionRefusal::Stalled, effects);
        }
        if summaries.len() > SUMMARIES_MAX {
            return self.break_off(now, from, session, SessionRefusal::OutOfPlace, effects);
        }
        let answers = compare::answer(self.replica.history(), summaries);
        self.send(from, session, Body::Answers(answers), effects);
    }

    pub(crate) fn take_commits(
        &mut self,
        now: Timestamp,
        from: NodeTag,
        session: u64,
        batch: u32,
        commits: Vec<Carried>,
        effects: &mut Vec<Effect>,
    ) {
        let release = |commits: &[Carried], effects: &mut Vec<Effect>| {
            effects.extend(commits.iter().map(|c| Effect::Release { ticket: c.ticket }));
        };
        let Some(taking) = self.taking(now, from, session) else {
            release(&commits, effects);
            return self.send(from, session, Body::Refused(SessionRefusal::OutOfPlace), effects);
        };
        let horizons = taking.horizons;
        if taking.undurable.len() >= BATCHES_UNDURABLE_MAX || taking.undurable.contains_key(&batch)
        {
            release(&commits, effects);
            return self.break_off(now, from, session, SessionRefusal::OutOfPlace, effects);
        }
        if commits.iter().any(|carried| self.is_below_garbage(carried)) {
            release(&commits, effects);
            return self.break_off(now, from, session, SessionRefusal::BelowGarbage, effects);
        }
        let limit = newest_admitted(now);
        let origin = Origin { peer: from, session, batch };
        let (mut waits, mut whole) = (0, true);
        for carried in commits {
            let at = carried.commit.at;
            if at.stamp >= limit && !mutants::active(mutants::NO_SKEW_CHECK) {
                whole = false;
                let unneeded = self.sync.parked.park(carried);
                effects.extend(unneeded.map(|ticket| Effect::Release { ticket }));
            } else if self
                .replica
                .history()
                .get(at)
                .is_some_and(|c| c.cid() == carried.commit.cid())
            {
                effects.push(Effect::Release { ticket: carried.ticket });
            } else {
                waits += 1;
                self.clock.restore(at.stamp);
                self.wait(QueuedItem::Admit { carried, origin, horizons: Some(horizons) }, effects);
            }
        }
        let Some(taking) = self.taking(now, from, session) else { return };
        taking.whole &= whole;
        taking.undurable.insert(batch, waits);
        if mutants::active(mutants::V_BEFORE_DURABLE) {
            taking.undurable.remove(&batch);
            self.send(from, session, Body::Durable { batch }, effects);
        } else if waits == 0 {
            self.durable(origin, 0, effects);
        }
    }

    /// Returns whether everybody was said to hold a commit, or something newer for its key, and
    /// this node does not. Of a delete or an expiry that everybody was said to know nothing is
    /// left, so it is no lie until something older is held.
    fn is_below_garbage(&self, carried: &Carried) -> bool {
        let commit = &carried.commit;
        let horizons = self.replica.horizons();
        commit.at.stamp <= horizons.garbage
            && match self.replica.newest(&commit.key) {
                Some(newest) => newest.at < commit.at,
                None => !horizons.drops_winner(commit),
            }
    }

    /// Notes that so many more commits of a batch are durable.
    pub(crate) fn durable(&mut self, origin: Origin, count: usize, effects: &mut Vec<Effect>) {
        let Origin { peer, session, batch } = origin;
        let taking = self.sync.taking.get_mut(&peer).filter(|taking| taking.session == session);
        let undurable = match taking {
            Some(taking) => &mut taking.undurable,
            None => match &mut self.sync.copying {
                Some(copying) if copying.peer == peer && copying.session == session => {
                    &mut copying.undurable
                }
                _ => return,
            },
        };
        let Some(left) = undurable.get_mut(&batch) else { return };
        *left = left.saturating_sub(count);
        if *left == 0 {
            undurable.remove(&batch);
            self.send(peer, session, Body::Durable { batch }, effects);
        }
    }

    pub(crate) fn take_done(
        &mut self,
        now: Timestamp,
        from: NodeTag,
        session: u64,
        vector: &Vector,
        effects: &mut Vec<Effect>,
    ) {
        let Some(taking) = self.taking(now, from, session) else {
            return self.send(from, session, Body::Refused(SessionRefusal::OutOfPlace), effects);
        };
        if !taking.undurable.is_empty() && !mutants::active(mutants::V_BEFORE_DURABLE) {
            return self.break_off(now, from, session, SessionRefusal::OutOfPlace, effects);
        }
        let whole = taking.whole && !vector.is_empty();
        let taking = self.sync.taking.remove(&from);
        if let Some(taking) = taking.filter(|_| whole) {
            self.sync.members.merge(vector, newest_admitted(now));
            self.sync.members.hear(&taking.acks, newest_admitted(now));
            self.sync.members.confirm(from);
        }
        self.calm(now, from, whole);
        let head = self.replica.history().head();
        self.send(from, session, Body::Noted { whole, head }, effects);
    }

    /// Handles a commit at whose position the log holds another.
    pub(crate) fn clash(
        &mut self,
        now: Timestamp,
        position: Position,
        origin: Origin,
        effects: &mut Vec<Effect>,
    ) {
        self.alarm(Alarm::Conflict { position, peer: origin.peer }, effects);
        if position.node == self.node {
            // The peer has what this node issued before it lost that and issued the stamp again.
            self.lose_past(now, origin.peer, position.stamp, effects);
        }
        if let Some(copying) = &mut self.sync.copying
            && copying.session == origin.session
            && copying.peer == origin.peer
        {
            copying.clashing.insert(position);
            return;
        }
        if self.takes_from(origin.peer, origin.session) {
            self.break_off(now, origin.peer, origin.session, SessionRefusal::Conflict, effects);
        }
    }

    /// Returns whether this session with a giver still goes on; it is broken off once.
    pub(crate) fn takes_from(&self, giver: NodeTag, session: u64) -> bool {
        let taking = self.sync.taking.get(&giver);
        taking.is_some_and(|taking| taking.session == session)
            || self.is_copying_from(giver, session)
    }
}
