//! The giver's side of a session: it compares what it holds with what the taker holds, and pushes
//! what the taker lacks, oldest first.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use model::Timestamp;

use crate::clock::Stamp;
use crate::commit::{Commit, Location, NodeTag, Position};
use crate::event::Ticket;
use crate::history::History;
use crate::machine::context::Context;
use crate::mutants;
use crate::replica::Horizons;
use crate::sync::cluster::Cluster;
use crate::sync::compare::{self, LACKING_MAX, ROUNDS_MAX, SUMMARIES_MAX};
use crate::sync::message::{Body, Carried, RangeSummary, SessionRefusal, SummaryAnswer, Vector};
use crate::sync::session::SessionId;

/// Bytes of a batch of commits; at most `BATCHES_UNDURABLE_MAX` batches are under way to the
/// taker's disk at once.
pub const BATCH_BYTES_MAX: u64 = 256 << 10;
pub const BATCHES_UNDURABLE_MAX: usize = 4;
/// Ranges that wait to be compared, some 64 bytes each. One message can add as many.
const ASK_MAX: usize = 1 << 18;
/// The time without a sign of life after which a session is given up.
pub const STALLED_AFTER: Duration = Duration::from_secs(10);

/// The one session in which this node gives, if any.
#[derive(Default)]
pub(crate) struct Giver {
    giving: Option<Giving>,
}

struct Giving {
    id: SessionId,
    deadline: Timestamp,
    opened: Timestamp,
    /// The history that is being compared, as it was when the session began.
    history: History,
    horizons: Horizons,
    vector: Vector,
    stage: Stage,
    ask: VecDeque<RangeSummary>,
    /// Whether more was to be compared than is kept; the next session finds it.
    cut: bool,
    lacking: BTreeSet<Position>,
    rounds: u32,
    batch: u32,
    undurable: BTreeSet<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Opening,
    /// Waits until this node's own horizons are as high as the taker's.
    Raising(Horizons),
    Comparing,
    Pushing,
    /// Waits for the last word, as everything is durable on the taker's side.
    Ending,
}

/// What came of a session.
pub(crate) struct Given {
    /// What was promised to the taker.
    pub has: Stamp,
    /// Whether everything was compared.
    pub whole: bool,
    /// Whether any of it was news to the taker.
    pub was_news: bool,
}

impl Giver {
    pub fn peer(&self) -> Option<NodeTag> {
        self.giving.as_ref().map(|giving| giving.id.peer)
    }

    pub fn is_giving(&self) -> bool {
        self.giving.is_some()
    }

    pub fn deadline(&self) -> Option<Timestamp> {
        self.giving.as_ref().map(|giving| giving.deadline)
    }

    /// Returns the session if it has made no progress for too long.
    pub fn stalled(&self, now: Timestamp) -> Option<SessionId> {
        self.giving.as_ref().filter(|giving| now >= giving.deadline).map(|giving| giving.id)
    }

    pub fn stop(&mut self) {
        self.giving = None;
    }

    pub fn end_with(&mut self, peer: NodeTag) {
        self.giving.take_if(|giving| giving.id.peer == peer);
    }

    /// Ends this session. Returns whether it went on.
    pub fn end(&mut self, id: SessionId) -> bool {
        self.giving.take_if(|giving| giving.id == id).is_some()
    }

    pub fn begin(&mut self, id: SessionId, cluster: &Cluster, cx: &mut Context<'_>) {
        let summaries = compare::opening(cx.replica.history());
        self.giving = Some(Giving {
            id,
            deadline: cx.now.after(STALLED_AFTER),
            opened: cx.now,
            history: cx.replica.history().clone(),
            horizons: cx.replica.horizons(),
            vector: cluster.members().vector(),
            stage: Stage::Opening,
            ask: VecDeque::new(),
            cut: false,
            lacking: BTreeSet::new(),
            rounds: 0,
            batch: 0,
            undurable: BTreeSet::new(),
        });
        let hello = cluster.hello(cx);
        cx.send(id, Body::Open { hello, summaries });
    }

    /// Returns this session, which has given a sign of life.
    fn session(&mut self, now: Timestamp, id: SessionId) -> Option<&mut Giving> {
        let giving = self.giving.as_mut().filter(|giving| giving.id == id)?;
        giving.deadline = now.after(STALLED_AFTER);
        Some(giving)
    }

    /// Returns when this session was opened, to which the taker's hello is the answer.
    pub fn asked(
        &mut self,
        now: Timestamp,
        id: SessionId,
    ) -> Result<Option<Timestamp>, SessionRefusal> {
        match self.session(now, id) {
            Some(giving) if giving.stage == Stage::Opening => Ok(Some(giving.opened)),
            Some(_) => Err(SessionRefusal::OutOfPlace),
            None => Ok(None),
        }
    }

    /// Goes on with a session that the taker, whose horizons are these, has agreed to.
    pub fn opened(
        &mut self,
        id: SessionId,
        (theirs, answers): (Horizons, Option<Vec<SummaryAnswer>>),
        cluster: &Cluster,
        cx: &mut Context<'_>,
    ) -> Result<(), SessionRefusal> {
        let raised = cx.replica.horizons().max(theirs);
        let Some(giving) = self.session(cx.now, id) else { return Ok(()) };
        match answers {
            Some(answers) if theirs == giving.horizons => {
                giving.stage = Stage::Comparing;
                return self.learn(&answers, cx);
            }
            _ if mutants::active(mutants::HORIZONS_NOT_EXCHANGED) => self.begin_afresh(cluster, cx),
            _ => {
                giving.stage = Stage::Raising(raised);
                cx.raise_to(raised);
                self.raised(cluster, cx);
            }
        }
        Ok(())
    }

    /// Goes on with a session that waits for horizons; called whenever horizons rose.
    pub fn raised(&mut self, cluster: &Cluster, cx: &mut Context<'_>) {
        let horizons = cx.replica.horizons();
        let raised = self.giving.as_ref().is_some_and(|giving| match giving.stage {
            Stage::Raising(wanted) => horizons.max(wanted) == horizons,
            _ => false,
        });
        if raised {
            self.begin_afresh(cluster, cx);
        }
    }

    /// Compares what is held now.
    fn begin_afresh(&mut self, cluster: &Cluster, cx: &mut Context<'_>) {
        let vector = cluster.members().vector();
        let (history, horizons) = (cx.replica.history().clone(), cx.replica.horizons());
        let Some(giving) = &mut self.giving else { return };
        giving.stage = Stage::Comparing;
        giving.ask = compare::opening(&history).into();
        (giving.history, giving.horizons, giving.vector) = (history, horizons, vector);
        giving.go_on(cx);
    }

    pub fn answered(
        &mut self,
        id: SessionId,
        answers: &[SummaryAnswer],
        cx: &mut Context<'_>,
    ) -> Result<(), SessionRefusal> {
        match self.session(cx.now, id) {
            Some(giving) if giving.stage == Stage::Comparing => self.learn(answers, cx),
            Some(_) => Err(SessionRefusal::OutOfPlace),
            None => Ok(()),
        }
    }

    fn learn(
        &mut self,
        answers: &[SummaryAnswer],
        cx: &mut Context<'_>,
    ) -> Result<(), SessionRefusal> {
        let Some(giving) = &mut self.giving else { return Ok(()) };
        giving.rounds += 1;
        if giving.rounds > ROUNDS_MAX || !compare::is_answer(answers) {
            return Err(SessionRefusal::Stalled);
        }
        let learned = compare::learn(&giving.history, answers);
        // Deeper ranges come first: what is missing is known soon, and few ranges wait meanwhile.
        for summary in learned.ask.into_iter().rev() {
            giving.ask.push_front(summary);
        }
        giving.cut |= giving.ask.len() > ASK_MAX;
        giving.ask.truncate(ASK_MAX);
        giving.lacking.extend(learned.lacking);
        giving.go_on(cx);
        Ok(())
    }

    /// Notes that a batch is durable on the taker's side.
    pub fn durable(&mut self, id: SessionId, batch: u32, cx: &mut Context<'_>) {
        let giving = self.giving.as_mut().filter(|giving| giving.id == id);
        // A batch that was not under way is no progress, and must not cut a comparison short.
        if let Some(giving) = giving
            && giving.undurable.remove(&batch)
        {
            giving.deadline = cx.now.after(STALLED_AFTER);
            giving.go_on(cx);
        }
    }

    /// Ends a session with the taker's last word. Out of turn it says nothing and keeps nothing
    /// alive.
    pub fn noted(&mut self, id: SessionId, node: NodeTag) -> Option<Given> {
        let ends = |giving: &mut Giving| giving.stage == Stage::Ending && giving.id == id;
        let giving = self.giving.take_if(ends)?;
        Some(Given {
            has: giving.vector.get(&node).copied().unwrap_or_default(),
            whole: giving.is_whole(),
            was_news: giving.batch > 0,
        })
    }
}

impl Giving {
    /// Returns whether nothing is left to be compared.
    fn is_whole(&self) -> bool {
        !self.cut && self.ask.is_empty()
    }

    /// Goes on with the session: the next comparison, then the commits, then the last word.
    fn go_on(&mut self, cx: &mut Context<'_>) {
        if self.stage == Stage::Comparing {
            if !self.ask.is_empty() && self.lacking.len() < LACKING_MAX {
                let count = self.ask.len().min(SUMMARIES_MAX);
                let summaries = self.ask.drain(..count).collect();
                return cx.send(self.id, Body::Compare(summaries));
            }
            self.stage = Stage::Pushing;
        }
        while self.stage == Stage::Pushing {
            if self.lacking.is_empty() {
                if !self.undurable.is_empty() {
                    return;
                }
                self.stage = Stage::Ending;
                // What was not compared may be missing too: then nothing is concluded.
                let vector = if self.is_whole() { self.vector.clone() } else { Vector::new() };
                return cx.send(self.id, Body::Done { vector });
            }
            if self.undurable.len() >= BATCHES_UNDURABLE_MAX {
                return;
            }
            let commits = next_batch(&self.history, &mut self.lacking);
            let batch = self.batch;
            self.batch += 1;
            self.undurable.insert(batch);
            let held = cx.replica.history();
            let commits = commits.into_iter().map(|commit| carried(commit, held)).collect();
            cx.send(self.id, Body::Commits { batch, commits });
        }
    }
}

/// Takes out the oldest commits that fit into a batch; at least one.
fn next_batch(history: &History, lacking: &mut BTreeSet<Position>) -> Vec<Commit> {
    let (mut commits, mut bytes) = (Vec::new(), 0);
    while let Some(at) = lacking.first().copied() {
        let Some(commit) = history.get(at) else {
            lacking.pop_first();
            continue;
        };
        bytes += weight(commit);
        if bytes > BATCH_BYTES_MAX && !commits.is_empty() {
            break;
        }
        lacking.pop_first();
        commits.push(commit.clone());
    }
    commits
}

/// Returns a commit as a message has it. Its value may have been moved since the session began.
pub(crate) fn carried(commit: Commit, held: &History) -> Carried {
    let location = held.get(commit.at).map_or(commit.location, |now| now.location);
    Carried { ticket: Ticket(0), commit: Commit { location, ..commit } }
}

/// Returns the bytes of a commit in a message, with a value that travels inside.
pub(crate) fn weight(commit: &Commit) -> u64 {
    let inside = matches!(commit.location, Location::Log { .. });
    (commit.encoded_length() as u64 + 1).saturating_add(if inside { commit.size() } else { 0 })
}
