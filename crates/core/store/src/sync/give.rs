//! The giver's side of a session: it compares what it holds with what the taker holds, and pushes
//! what the taker lacks, oldest first.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use model::Timestamp;

use crate::clock::Stamp;
use crate::commit::{Commit, NodeTag, Position};
use crate::event::{Alarm, Effect, Ticket};
use crate::history::History;
use crate::machine::StoreMachine;
use crate::mutants;
use crate::replica::Horizons;
use crate::sum::Fingerprint;
use crate::sync::compare::{self, LACKING_MAX, ROUNDS_MAX, SUMMARIES_MAX};
use crate::sync::message::{
    Body, Carried, Hello, RangeSummary, SessionRefusal, SummaryAnswer, Vector,
};

/// Bytes of a batch of commits; at most `BATCHES_UNDURABLE_MAX` batches are under way to the
/// taker's disk at once.
pub const BATCH_BYTES_MAX: u64 = 256 << 10;
pub const BATCHES_UNDURABLE_MAX: usize = 4;
/// Ranges that wait to be compared, some 64 bytes each. One message can add as many.
const ASK_MAX: usize = 1 << 18;
/// Sessions in a row that told nobody anything new before a node stops spreading.
pub(crate) const FUTILE_MAX: u8 = 2;
/// The time without a sign of life after which a session is given up.
pub const STALLED_AFTER: Duration = Duration::from_secs(10);

pub(crate) struct Giving {
    pub peer: NodeTag,
    pub session: u64,
    pub deadline: Timestamp,
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

impl StoreMachine {
    pub(crate) fn give_to(&mut self, now: Timestamp, peer: NodeTag, effects: &mut Vec<Effect>) {
        let session = self.next_session();
        let summaries = compare::opening(self.replica.history());
        self.sync.giving = Some(Giving {
            peer,
            session,
            deadline: now.after(STALLED_AFTER),
            opened: now,
            history: self.replica.history().clone(),
            horizons: self.replica.horizons(),
            vector: self.sync.members.vector(),
            stage: Stage::Opening,
            ask: VecDeque::new(),
            cut: false,
            lacking: BTreeSet::new(),
            rounds: 0,
            batch: 0,
            undurable: BTreeSet::new(),
        });
        let hello = self.hello(now);
        self.send(peer, session, Body::Open { hello, summaries }, effects);
    }

    fn giving(&mut self, now: Timestamp, from: NodeTag, session: u64) -> Option<&mut Giving> {
        let giving = self.sync.giving.as_mut();
        let giving = giving.filter(|giving| giving.peer == from && giving.session == session)?;
        giving.deadline = now.after(STALLED_AFTER);
        Some(giving)
    }

    pub(crate) fn give_opened(
        &mut self,
        now: Timestamp,
        from: NodeTag,
        session: u64,
        hello: &Hello,
        answers: Option<Vec<SummaryAnswer>>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(giving) = self.giving(now, from, session) else { return };
        if giving.stage != Stage::Opening {
            return self.break_off(now, from, session, SessionRefusal::OutOfPlace, effects);
        }
        let (asked, horizons) = (giving.opened, giving.horizons);
        if let Err(refusal) = self.greet(now, from, hello, Some(asked), effects) {
            return self.break_off(now, from, session, refusal, effects);
        }
        if self.must_copy_from(hello) {
            self.end_sessions(from);
            return self.copy_from(now, from, effects);
        }
        if self.has_missed(hello) {
            return self.break_off(now, from, session, SessionRefusal::Behind, effects);
        }
        let raised = self.replica.horizons().max(hello.horizons);
        let Some(giving) = self.giving(now, from, session) else { return };
        match answers {
            Some(answers) if hello.horizons == horizons => {
                giving.stage = Stage::Comparing;
                self.give_learn(now, from, session, &answers, effects);
            }
            _ if mutants::active(mutants::HORIZONS_NOT_EXCHANGED) => self.give_afresh(effects),
            _ => {
                giving.stage = Stage::Raising(raised);
                self.raise_to(raised, effects);
                self.give_raised(effects);
            }
        }
    }

    /// Goes on with a session that waits for horizons; called whenever horizons rose.
    pub(crate) fn give_raised(&mut self, effects: &mut Vec<Effect>) {
        let horizons = self.replica.horizons();
        let raised = self.sync.giving.as_ref().is_some_and(|giving| match giving.stage {
            Stage::Raising(wanted) => horizons.max(wanted) == horizons,
            _ => false,
        });
        if raised {
            self.give_afresh(effects);
        }
    }

    /// Compares what is held now.
    fn give_afresh(&mut self, effects: &mut Vec<Effect>) {
        let vector = self.sync.members.vector();
        let (history, horizons) = (self.replica.history().clone(), self.replica.horizons());
        let Some(giving) = &mut self.sync.giving else { return };
        giving.stage = Stage::Comparing;
        giving.ask = compare::opening(&history).into();
        (giving.history, giving.horizons, giving.vector) = (history, horizons, vector);
        self.give_on(effects);
    }

    pub(crate) fn give_answers(
        &mut self,
        now: Timestamp,
        from: NodeTag,
        session: u64,
        answers: &[SummaryAnswer],
        effects: &mut Vec<Effect>,
    ) {
        match self.giving(now, from, session) {
            Some(giving) if giving.stage == Stage::Comparing => {
                self.give_learn(now, from, session, answers, effects);
            }
            Some(_) => self.break_off(now, from, session, SessionRefusal::OutOfPlace, effects),
            None => {}
        }
    }

    fn give_learn(
        &mut self,
        now: Timestamp,
        from: NodeTag,
        session: u64,
        answers: &[SummaryAnswer],
        effects: &mut Vec<Effect>,
    ) {
        let Some(giving) = &mut self.sync.giving else { return };
        giving.rounds += 1;
        if giving.rounds > ROUNDS_MAX || !compare::is_answer(answers) {
            return self.break_off(now, from, session, SessionRefusal::Stalled, effects);
        }
        let learned = compare::learn(&giving.history, answers);
        // Deeper ranges come first: what is missing is known soon, and few ranges wait meanwhile.
        for summary in learned.ask.into_iter().rev() {
            giving.ask.push_front(summary);
        }
        giving.cut |= giving.ask.len() > ASK_MAX;
        giving.ask.truncate(ASK_MAX);
        giving.lacking.extend(learned.lacking);
        self.give_on(effects);
    }

    /// Goes on with the session: the next comparison, then the commits, then the last word.
    fn give_on(&mut self, effects: &mut Vec<Effect>) {
        let Some(giving) = &mut self.sync.giving else { return };
        let (peer, session) = (giving.peer, giving.session);
        if giving.stage == Stage::Comparing {
            if !giving.ask.is_empty() && giving.lacking.len() < LACKING_MAX {
                let count = giving.ask.len().min(SUMMARIES_MAX);
                let summaries = giving.ask.drain(..count).collect();
                return self.send(peer, session, Body::Compare(summaries), effects);
            }
            giving.stage = Stage::Pushing;
        }
        while giving.stage == Stage::Pushing {
            if giving.lacking.is_empty() {
                if !giving.undurable.is_empty() {
                    return;
                }
                giving.stage = Stage::Ending;
                // What was not compared may be missing too: then nothing is concluded.
                let whole = !giving.cut && giving.ask.is_empty();
                let vector = if whole { giving.vector.clone() } else { Vector::new() };
                return self.send(peer, session, Body::Done { vector }, effects);
            }
            if giving.undurable.len() >= BATCHES_UNDURABLE_MAX {
                return;
            }
            let commits = next_batch(&giving.history, &mut giving.lacking);
            let batch = giving.batch;
            giving.batch += 1;
            giving.undurable.insert(batch);
            // A value may have been moved since the session began.
            let held = self.replica.history();
            let here = |c: Commit| held.get(c.at).map_or(c.location, |now| now.location);
            let carried = |c: Commit| Commit { location: here(c.clone()), ..c };
            let commits = commits
                .into_iter()
                .map(|commit| Carried { ticket: Ticket(0), commit: carried(commit) })
                .collect();
            let message = Body::Commits { batch, commits };
            effects.push(Effect::Send {
                to: peer,
                message: crate::sync::message::Message { session, body: message },
            });
        }
    }

    pub(crate) fn give_durable(
        &mut self,
        now: Timestamp,
        from: NodeTag,
        session: u64,
        batch: u32,
        effects: &mut Vec<Effect>,
    ) {
        let giving = self.sync.giving.as_mut();
        let giving = giving.filter(|giving| giving.peer == from && giving.session == session);
        // A batch that was not under way is no progress, and must not cut a comparison short.
        if giving.is_some_and(|giving| giving.undurable.remove(&batch)) {
            self.giving(now, from, session);
            self.give_on(effects);
        }
    }

    pub(crate) fn give_noted(
        &mut self,
        now: Timestamp,
        from: NodeTag,
        session: u64,
        whole: bool,
        head: Fingerprint,
    ) {
        let node = self.node;
        // Out of turn it says nothing and keeps nothing alive.
        if self.sync.giving.as_ref().is_none_or(|giving| giving.stage != Stage::Ending) {
            return;
        }
        let Some(giving) = self.giving(now, from, session) else { return };
        let has = giving.vector.get(&node).copied().unwrap_or_default();
        let more = giving.cut || !giving.ask.is_empty();
        let was_news = giving.batch > 0;
        self.sync.giving = None;
        self.calm(now, from, whole && !more);
        let link = self.sync.links.of(from);
        link.head = Some(head);
        if whole && !more {
            link.has = link.has.max(has);
        }
        if more {
            self.changed(now);
        }
        self.spread_on(now, was_news);
    }

    /// Has a node with news tell one peer after the other until it is news to nobody: rumor
    /// mongering with feedback (Demers and others, "Epidemic algorithms for replicated database
    /// maintenance", 1987). The rest hears of it in the sessions of every second.
    fn spread_on(&mut self, now: Timestamp, was_news: bool) {
        self.sync.futile = if was_news { 0 } else { self.sync.futile.saturating_add(1) };
        if self.sync.futile < FUTILE_MAX {
            self.push_soon(now);
        }
    }

    /// Returns how many other members have everything that this node had written up to a stamp.
    pub fn replicas_with(&self, stamp: Stamp) -> usize {
        let members = &self.sync.members;
        let links = self.sync.links.iter();
        links.filter(|(peer, link)| members.is_member(**peer) && link.has >= stamp).count()
    }

    pub(crate) fn next_session(&mut self) -> u64 {
        self.sync.next_session += 1;
        self.sync.next_session
    }

    pub(crate) fn behind(&mut self, now: Timestamp, peer: NodeTag, effects: &mut Vec<Effect>) {
        self.alarm(Alarm::Behind, effects);
        self.sync.links.pause(now, peer, SessionRefusal::Implausible);
    }
}

/// Takes out the oldest commits that fit into a batch; at least one.
pub(crate) fn next_batch(history: &History, lacking: &mut BTreeSet<Position>) -> Vec<Commit> {
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

/// Returns the bytes of a commit in a message, with a value that travels inside.
pub(crate) fn weight(commit: &Commit) -> u64 {
    let inside = matches!(commit.location, crate::commit::Location::Log { .. });
    (commit.encoded_length() as u64 + 1).saturating_add(if inside { commit.size() } else { 0 })
}
