//! The side of a copy that is the authority: it sends everything it holds, oldest first.

use std::collections::{BTreeMap, BTreeSet};

use model::Timestamp;

use crate::clock::Stamp;
use crate::commit::{NodeTag, Position};
use crate::history::History;
use crate::machine::context::Context;
use crate::replica::Horizons;
use crate::sync::give::{BATCH_BYTES_MAX, BATCHES_UNDURABLE_MAX, STALLED_AFTER, carried, weight};
use crate::sync::message::{Body, Vector};
use crate::sync::session::SessionId;

/// The sessions in which others copy from this node: one with each at most.
#[derive(Default)]
pub(crate) struct Lender {
    lending: BTreeMap<NodeTag, Lending>,
}

struct Lending {
    session: u64,
    deadline: Timestamp,
    history: History,
    horizons: Horizons,
    vector: Vector,
    next: Option<Position>,
    batch: u32,
    undurable: BTreeSet<u32>,
}

impl Lender {
    pub fn deadline(&self) -> Option<Timestamp> {
        self.lending.values().map(|lending| lending.deadline).min()
    }

    /// Returns the sessions that have made no progress for too long.
    pub fn stalled(&self, now: Timestamp) -> impl Iterator<Item = SessionId> {
        let stalled = self.lending.iter().filter(move |(_, lending)| now >= lending.deadline);
        stalled.map(|(peer, lending)| SessionId { peer: *peer, number: lending.session })
    }

    pub fn stop(&mut self) {
        self.lending.clear();
    }

    pub fn end_with(&mut self, peer: NodeTag) {
        self.lending.remove(&peer);
    }

    pub fn end(&mut self, id: SessionId) {
        if self.lending.get(&id.peer).is_some_and(|lending| lending.session == id.number) {
            self.lending.remove(&id.peer);
        }
    }

    /// Begins to send everything that is held now, which this vector says.
    pub fn begin(&mut self, id: SessionId, vector: Vector, cx: &mut Context<'_>) {
        let lending = Lending {
            session: id.number,
            deadline: cx.now.after(STALLED_AFTER),
            history: cx.replica.history().clone(),
            horizons: cx.replica.horizons(),
            vector,
            next: Some(Position::start_of(Stamp(0))),
            batch: 0,
            undurable: BTreeSet::new(),
        };
        self.lending.insert(id.peer, lending);
        self.go_on(id, cx);
    }

    /// Notes that a batch is durable on the other side.
    pub fn durable(&mut self, id: SessionId, batch: u32, cx: &mut Context<'_>) {
        let lending = self.lending.get_mut(&id.peer).filter(|l| l.session == id.number);
        // A batch that was not under way is no progress.
        if let Some(lending) = lending
            && lending.undurable.remove(&batch)
        {
            lending.deadline = cx.now.after(STALLED_AFTER);
            self.go_on(id, cx);
        }
    }

    fn go_on(&mut self, id: SessionId, cx: &mut Context<'_>) {
        let Some(lending) = self.lending.get_mut(&id.peer) else { return };
        while let Some(next) = lending.next
            && lending.undurable.len() < BATCHES_UNDURABLE_MAX
        {
            if let Some(body) = lending.next_batch(next, cx.replica.history()) {
                cx.send(id, body);
            }
        }
        if lending.next.is_none() && lending.undurable.is_empty() {
            let vector = std::mem::take(&mut lending.vector);
            let horizons = lending.horizons;
            self.lending.remove(&id.peer);
            cx.send(id, Body::Copied { vector, horizons });
        }
    }
}

impl Lending {
    /// Returns the commits from here on that fit into a batch, if there are any.
    fn next_batch(&mut self, next: Position, held: &History) -> Option<Body> {
        let (mut commits, mut bytes) = (Vec::new(), 0);
        self.next = None;
        for commit in self.history.iter_from(next) {
            bytes += weight(commit);
            if bytes > BATCH_BYTES_MAX && !commits.is_empty() {
                self.next = Some(commit.at);
                break;
            }
            commits.push(carried(commit.clone(), held));
        }
        if commits.is_empty() {
            return None;
        }
        let batch = self.batch;
        self.batch += 1;
        self.undurable.insert(batch);
        Some(Body::Commits { batch, commits })
    }
}
