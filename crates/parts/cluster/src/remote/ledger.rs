//! What was asked and is not answered yet, in the order in which it was asked. Another connection
//! gets all of it again, except what must not be said twice; and first what this node wrote lately
//! under keys of its own, as the node that acknowledged it may have passed it on to nobody. Must
//! not know how connections are made.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use model::{Key, NodeId, TypedKey};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::wire::{self, At, Part, Request, ToStore};
use store::StoreError;

/// Requests that wait for an answer; writers beyond this are refused.
const PENDING_MAX: usize = 4096;
/// Of their values.
const PENDING_BYTES_MAX: usize = 32 << 20;
/// An answer is held whole, as it is where the store is kept.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// Without a node to ask for so long, whoever waits is told.
const WITHOUT_MAX: Duration = Duration::from_secs(10);
/// A disk that stalls for so long is no reason to wait while there are others.
const WRITE_MAX: Duration = Duration::from_secs(5);
/// What a node acknowledged has reached the others long before, if they can be reached at all.
const RECENT_AGE_MAX: Duration = Duration::from_secs(60);
/// A node has a few records for each of its instances.
const RECENT_MAX: usize = 4096;

/// What came of a request: the parts of its answer, with their bytes.
pub type Answer = Result<Vec<(Part, Bytes)>, StoreError>;

struct Pending {
    what: Request,
    value: Bytes,
    reply: oneshot::Sender<Answer>,
    parts: Vec<(Part, Bytes)>,
    bytes: usize,
    /// When it went over the present connection.
    sent: Option<Instant>,
}

struct Recent {
    what: Request,
    value: Bytes,
    at: Instant,
}

/// The connection in use.
struct Line {
    node: NodeId,
    out: mpsc::UnboundedSender<Bytes>,
}

struct State {
    node: NodeId,
    line: Option<Line>,
    since: Instant,
    next_id: u64,
    pending: BTreeMap<u64, Pending>,
    pending_bytes: usize,
    recent: BTreeMap<Key, Recent>,
    /// Who has acknowledged the recent writes.
    told: Option<NodeId>,
    /// Why nobody can be asked now.
    trouble: Option<String>,
    closed: bool,
}

pub struct Ledger {
    state: Mutex<State>,
}

impl Ledger {
    pub fn new(node: NodeId) -> Ledger {
        let state = State {
            node,
            line: None,
            since: Instant::now(),
            next_id: 0,
            pending: BTreeMap::new(),
            pending_bytes: 0,
            recent: BTreeMap::new(),
            told: None,
            trouble: None,
            closed: false,
        };
        Ledger { state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In the order of these calls.
    pub fn ask(
        &self,
        what: Request,
        value: Bytes,
    ) -> Result<oneshot::Receiver<Answer>, StoreError> {
        let mut state = self.state();
        if state.closed {
            return Err(closed());
        }
        let bytes = state.pending_bytes + value.len();
        if state.pending.len() >= PENDING_MAX || bytes > PENDING_BYTES_MAX {
            return Err(StoreError::Refused(
                "too much is being asked of the node that keeps the store; try again later".into(),
            ));
        }
        state.pending_bytes = bytes;
        state.next_id += 1;
        let id = state.next_id;
        let (reply, answer) = oneshot::channel();
        let (parts, bytes, sent) = (Vec::new(), 0, None);
        state.pending.insert(id, Pending { what, value, reply, parts, bytes, sent });
        state.send(id);
        Ok(answer)
    }

    /// From now on this connection is used. What waits goes over it first.
    pub fn connect(&self, node: NodeId, out: mpsc::UnboundedSender<Bytes>, watch: Option<At>) {
        let mut state = self.state();
        out.send(wire::frame(&ToStore::Watch { from: watch }, b"")).ok();
        let now = Instant::now();
        state.recent.retain(|_, recent| now.duration_since(recent.at) < RECENT_AGE_MAX);
        if state.told.as_ref() != Some(&node) {
            for recent in state.recent.values() {
                // Nobody waits for the answer to this one.
                let ask = ToStore::Ask { id: 0, what: recent.what.clone() };
                out.send(wire::frame(&ask, &recent.value)).ok();
            }
        }
        state.told = Some(node.clone());
        state.line = Some(Line { node, out });
        state.trouble = None;
        let ids: Vec<u64> = state.pending.keys().copied().collect();
        ids.into_iter().for_each(|id| state.send(id));
    }

    /// The connection in use has ended.
    pub fn disconnect(&self) {
        let mut state = self.state();
        if state.line.take().is_none() {
            return;
        }
        state.since = Instant::now();
        let mut lost = Vec::new();
        for (id, pending) in &mut state.pending {
            (pending.parts, pending.bytes) = (Vec::new(), 0);
            if pending.sent.take().is_some() && !pending.what.may_be_repeated() {
                lost.push(*id);
            }
        }
        for id in lost {
            let what = "the node that keeps the store was lost before it answered: this may or \
                        may not have been written; look, then try again";
            state.conclude(id, Err(StoreError::Unavailable(what.into())));
        }
    }

    pub fn ping(&self) {
        if let Some(line) = &self.state().line {
            line.out.send(wire::frame(&ToStore::Ping, b"")).ok();
        }
    }

    /// A part of an answer; false for one that is out of bounds.
    pub fn answered(&self, id: u64, part: Part, bytes: Bytes, last: bool) -> bool {
        let mut state = self.state();
        // Late, after whoever asked was told that nobody answers.
        let Some(pending) = state.pending.get_mut(&id) else { return true };
        pending.bytes += bytes.len();
        let fits = pending.bytes <= ANSWER_BYTES_MAX;
        pending.parts.push((part, bytes));
        if !fits {
            let what = "the answer is larger than a node without a store can hold: ask for less";
            state.conclude(id, Err(StoreError::Refused(what.into())));
        } else if last {
            let parts = std::mem::take(&mut pending.parts);
            state.conclude(id, Ok(parts));
        }
        fits
    }

    /// Why nobody could be reached, for those who wait.
    pub fn set_trouble(&self, why: String) {
        self.state().trouble = Some(why);
    }

    /// Whose store is used.
    pub fn in_use(&self) -> Option<NodeId> {
        self.state().line.as_ref().map(|line| line.node.clone())
    }

    /// To be called from time to time: whoever has waited too long hears so. Returns the node in
    /// use where it does not get on with writing.
    pub fn look(&self) -> Option<NodeId> {
        let mut state = self.state();
        let now = Instant::now();
        if let Some(line) = &state.line {
            let late = |pending: &Pending| {
                let sent = pending.sent.filter(|_| pending.what.is_write());
                sent.is_some_and(|sent| now.duration_since(sent) >= WRITE_MAX)
            };
            return state.pending.values().any(late).then(|| line.node.clone());
        }
        if now.duration_since(state.since) >= WITHOUT_MAX {
            let why = state.trouble.clone().unwrap_or_else(|| "none is known".into());
            let what = format!("no node that keeps the store can be reached ({why})");
            state.fail_all(|| StoreError::Unavailable(what.clone()));
        }
        None
    }

    pub fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.line = None;
        state.fail_all(closed);
    }
}

pub fn closed() -> StoreError {
    StoreError::Stopped("it was closed".into())
}

impl State {
    fn send(&mut self, id: u64) {
        let (Some(line), Some(pending)) = (&self.line, self.pending.get_mut(&id)) else { return };
        let ask = ToStore::Ask { id, what: pending.what.clone() };
        // A line that has ended is heard of, and everything sent anew.
        line.out.send(wire::frame(&ask, &pending.value)).ok();
        pending.sent = Some(Instant::now());
    }

    fn conclude(&mut self, id: u64, answer: Answer) {
        let Some(pending) = self.pending.remove(&id) else { return };
        self.pending_bytes -= pending.value.len();
        if let Ok([(Part::Written(_), _)]) = answer.as_deref() {
            self.remember(pending.what, pending.value);
        }
        pending.reply.send(answer).ok();
    }

    fn remember(&mut self, what: Request, value: Bytes) {
        let (Request::Set { key, .. } | Request::Delete { key, .. }) = &what else { return };
        if !what.may_be_repeated() || !is_own(key, &self.node) {
            return;
        }
        let (key, at) = (key.clone(), Instant::now());
        self.recent.insert(key, Recent { what, value, at });
        if self.recent.len() > RECENT_MAX {
            let oldest = self.recent.iter().min_by_key(|(_, recent)| recent.at);
            if let Some(key) = oldest.map(|(key, _)| key.clone()) {
                self.recent.remove(&key);
            }
        }
    }

    fn fail_all(&mut self, error: impl Fn() -> StoreError) {
        self.pending_bytes = 0;
        for (_, pending) in std::mem::take(&mut self.pending) {
            pending.reply.send(Err(error())).ok();
        }
    }
}

/// Whether that node alone writes this key.
fn is_own(key: &Key, node: &NodeId) -> bool {
    match TypedKey::parse(key) {
        Some(TypedKey::Claim(_, owner) | TypedKey::Probe(owner, _)) => owner == *node,
        Some(TypedKey::NodeInfo(of) | TypedKey::NodeLoad(of)) => of == *node,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
