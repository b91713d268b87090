//! The taker's side of a session: it says what it lacks, makes durable what comes, and only then
//! concludes that it holds what the giver holds.

use std::collections::BTreeMap;

use model::Timestamp;

use crate::commit::NodeTag;
use crate::event::Origin;
use crate::machine::context::Context;
use crate::machine::queue::QueuedItem;
use crate::mutants;
use crate::replica::{Horizons, Replica};
use crate::sync::cluster::Cluster;
use crate::sync::compare::{self, ROUNDS_MAX, SUMMARIES_MAX};
use crate::sync::give::STALLED_AFTER;
use crate::sync::message::{Body, Carried, Hello, RangeSummary, SessionRefusal, Vector};
use crate::sync::park::{Parked, newest_admitted};
use crate::sync::session::{SessionId, Undurable};

/// The sessions in which this node takes: one with each giver at most.
#[derive(Default)]
pub(crate) struct Taker {
    taking: BTreeMap<NodeTag, Taking>,
}

struct Taking {
    session: u64,
    deadline: Timestamp,
    horizons: Horizons,
    /// What the giver said that members hold.
    acks: Vector,
    /// The giver's hello and summaries, while they wait until the horizons are as high as the
    /// giver's.
    opening: Option<(Hello, Vec<RangeSummary>)>,
    undurable: Undurable,
    rounds: u32,
    /// Whether nothing of the session is parked or lost.
    whole: bool,
}

/// What came of a session of which everything is durable.
pub(crate) struct Taken {
    /// What the giver said that members hold.
    pub acks: Vector,
    /// Whether nothing of the session is parked or lost.
    pub whole: bool,
}

impl Taker {
    pub fn deadline(&self) -> Option<Timestamp> {
        self.taking.values().map(|taking| taking.deadline).min()
    }

    /// Returns the sessions that have made no progress for too long.
    pub fn stalled(&self, now: Timestamp) -> impl Iterator<Item = SessionId> {
        let stalled = self.taking.iter().filter(move |(_, taking)| now >= taking.deadline);
        stalled.map(|(peer, taking)| SessionId { peer: *peer, number: taking.session })
    }

    /// Returns whether this session goes on.
    pub fn takes(&self, id: SessionId) -> bool {
        self.taking.get(&id.peer).is_some_and(|taking| taking.session == id.number)
    }

    pub fn stop(&mut self) {
        self.taking.clear();
    }

    pub fn end_with(&mut self, giver: NodeTag) {
        self.taking.remove(&giver);
    }

    pub fn end(&mut self, id: SessionId) {
        if self.takes(id) {
            self.taking.remove(&id.peer);
        }
    }

    /// Begins a session. The opening is answered once the horizons are as high as the giver's.
    pub fn begin(
        &mut self,
        id: SessionId,
        (hello, summaries): (Hello, Vec<RangeSummary>),
        cx: &mut Context<'_>,
    ) {
        let horizons = cx.replica.horizons().max(hello.horizons);
        let taking = Taking {
            session: id.number,
            deadline: cx.now.after(STALLED_AFTER),
            horizons,
            acks: hello.acks.clone(),
            opening: Some((hello, summaries)),
            undurable: Undurable::default(),
            rounds: 0,
            whole: true,
        };
        self.taking.insert(id.peer, taking);
        if !mutants::active(mutants::HORIZONS_NOT_EXCHANGED) {
            cx.raise_to(horizons);
        }
    }

    /// Answers the openings that waited for horizons; ends sessions whose horizons are past.
    pub fn raised(&mut self, cluster: &Cluster, cx: &mut Context<'_>) {
        let unexchanged = mutants::active(mutants::HORIZONS_NOT_EXCHANGED);
        let horizons = cx.replica.horizons();
        let mut answers = Vec::new();
        let mut past = Vec::new();
        for (peer, taking) in &mut self.taking {
            let id = SessionId { peer: *peer, number: taking.session };
            if unexchanged || taking.horizons == horizons {
                if let Some((hello, summaries)) = taking.opening.take() {
                    let compared = unexchanged || hello.horizons == horizons;
                    let found = compared.then(|| compare::answer(cx.replica.history(), &summaries));
                    answers.push((id, found));
                }
            } else if taking.horizons.max(horizons) == horizons {
                past.push(id);
            }
        }
        for (id, answers) in answers {
            let hello = cluster.hello(cx);
            cx.send(id, Body::Opened { hello, answers });
        }
        for id in past {
            self.taking.remove(&id.peer);
            cx.send(id, Body::Refused(SessionRefusal::HorizonsRose));
        }
    }

    /// Returns this session, which has given a sign of life.
    fn session(&mut self, now: Timestamp, id: SessionId) -> Option<&mut Taking> {
        let taking = self.taking.get_mut(&id.peer)?;
        if taking.session != id.number || taking.opening.is_some() {
            return None;
        }
        taking.deadline = now.after(STALLED_AFTER);
        Some(taking)
    }

    pub fn compare(
        &mut self,
        id: SessionId,
        summaries: &[RangeSummary],
        cx: &mut Context<'_>,
    ) -> Result<(), SessionRefusal> {
        let Some(taking) = self.session(cx.now, id) else {
            cx.send(id, Body::Refused(SessionRefusal::OutOfPlace));
            return Ok(());
        };
        taking.rounds += 1;
        if taking.rounds > ROUNDS_MAX {
            return Err(SessionRefusal::Stalled);
        }
        if summaries.len() > SUMMARIES_MAX {
            return Err(SessionRefusal::OutOfPlace);
        }
        let answers = compare::answer(cx.replica.history(), summaries);
        cx.send(id, Body::Answers(answers));
        Ok(())
    }

    /// Queues commits of the giver for the disk; those from ahead of the clock are parked.
    pub fn take(
        &mut self,
        origin: Origin,
        commits: Vec<Carried>,
        parked: &mut Parked,
        cx: &mut Context<'_>,
    ) -> Result<(), SessionRefusal> {
        let (id, batch) = (SessionId::from(origin), origin.batch);
        let Some(taking) = self.session(cx.now, id) else {
            release(&commits, cx);
            cx.send(id, Body::Refused(SessionRefusal::OutOfPlace));
            return Ok(());
        };
        if !taking.undurable.admits(batch) {
            release(&commits, cx);
            return Err(SessionRefusal::OutOfPlace);
        }
        if commits.iter().any(|carried| is_below_garbage(cx.replica, carried)) {
            release(&commits, cx);
            return Err(SessionRefusal::BelowGarbage);
        }
        let limit = newest_admitted(cx.now);
        let horizons = Some(taking.horizons);
        let mut waits = 0;
        for carried in commits {
            let at = carried.commit.at;
            if at.stamp >= limit && !mutants::active(mutants::NO_SKEW_CHECK) {
                taking.whole = false;
                parked.park(carried, cx);
            } else if cx
                .replica
                .history()
                .get(at)
                .is_some_and(|known| known.cid() == carried.commit.cid())
            {
                cx.release(carried.ticket);
            } else {
                waits += 1;
                cx.stamps.learn(at.stamp);
                cx.wait(QueuedItem::Admit { carried, origin, horizons });
            }
        }
        taking.undurable.begin(batch, waits);
        if mutants::active(mutants::V_BEFORE_DURABLE) {
            taking.undurable.remove(batch);
            cx.send(id, Body::Durable { batch });
        } else if waits == 0 {
            self.durable(origin, 0, cx);
        }
        Ok(())
    }

    /// Notes that so many more commits of a batch are durable. Returns whether the batch is one of
    /// a session here.
    pub fn durable(&mut self, origin: Origin, count: usize, cx: &mut Context<'_>) -> bool {
        let taking = self.taking.get_mut(&origin.peer);
        let Some(taking) = taking.filter(|taking| taking.session == origin.session) else {
            return false;
        };
        if taking.undurable.durable(origin.batch, count) {
            cx.send(origin.into(), Body::Durable { batch: origin.batch });
        }
        true
    }

    /// Ends a session with the giver's last word.
    pub fn done(
        &mut self,
        id: SessionId,
        cx: &mut Context<'_>,
    ) -> Result<Option<Taken>, SessionRefusal> {
        let Some(taking) = self.session(cx.now, id) else {
            cx.send(id, Body::Refused(SessionRefusal::OutOfPlace));
            return Ok(None);
        };
        if !taking.undurable.is_empty() && !mutants::active(mutants::V_BEFORE_DURABLE) {
            return Err(SessionRefusal::OutOfPlace);
        }
        let taking = self.taking.remove(&id.peer);
        Ok(taking.map(|Taking { acks, whole, .. }| Taken { acks, whole }))
    }
}

/// Releases the values of commits that are not taken.
pub(crate) fn release(commits: &[Carried], cx: &mut Context<'_>) {
    commits.iter().for_each(|carried| cx.release(carried.ticket));
}

/// Returns whether everybody was said to hold a commit, or something newer for its key, and this
/// node does not. Of a delete or an expiry that everybody was said to know nothing is left, so it
/// is no lie until something older is held.
fn is_below_garbage(replica: &Replica, carried: &Carried) -> bool {
    let commit = &carried.commit;
    let horizons = replica.horizons();
    commit.at.stamp <= horizons.garbage
        && match replica.newest(&commit.key) {
            Some(newest) => newest.at < commit.at,
            None => !horizons.drops_winner(commit),
        }
}
