//! The ledger of requests that were sent and are not answered yet, in their order. Another
//! connection gets all of them again, except those that must not be repeated; and before them what
//! this node lately wrote under keys of its own, since the node that acknowledged it may have
//! passed it on to none. Must not know how connections are made.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use model::{Key, NodeId, TypedKey};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::wire::{self, AnswerPart, At, StoreRequest, ToStore};
use store::StoreError;

/// The number of requests that wait for an answer; further ones are refused.
const PENDING_MAX: usize = 4096;
/// The size in bytes of their values.
const PENDING_BYTES_MAX: usize = 32 << 20;
/// The size of an answer in bytes; it is held whole, as it is on the node that keeps the store.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// The time without a node to ask after which waiting callers are told.
const WITHOUT_MAX: Duration = Duration::from_secs(10);
/// The time for which a disk may stall; after it another node is tried, if there is one.
const WRITE_MAX: Duration = Duration::from_secs(5);
/// The age up to which own writes are sent again: by then, a write that a node acknowledged has
/// long reached the others, if they can be reached at all.
const RECENT_AGE_MAX: Duration = Duration::from_secs(60);
/// The number of own writes kept: a node has a few records for each of its instances.
const RECENT_MAX: usize = 4096;

/// The outcome of a request: the parts of its answer, with their bytes.
pub type RequestResult = Result<Vec<(AnswerPart, Bytes)>, StoreError>;

struct Pending {
    what: StoreRequest,
    value: Bytes,
    reply: oneshot::Sender<RequestResult>,
    parts: Vec<(AnswerPart, Bytes)>,
    bytes: usize,
    /// The time at which it was sent over the present connection; `None` if it was not.
    sent: Option<Instant>,
}

struct Recent {
    what: StoreRequest,
    value: Bytes,
    at: Instant,
}

/// The connection in use.
struct ConnectionInUse {
    node: NodeId,
    out: mpsc::UnboundedSender<Bytes>,
}

struct State {
    node: NodeId,
    line: Option<ConnectionInUse>,
    since: Instant,
    next_id: u64,
    pending: BTreeMap<u64, Pending>,
    pending_bytes: usize,
    recent: BTreeMap<Key, Recent>,
    /// The node that has acknowledged the recent writes.
    told: Option<NodeId>,
    /// The reason why no node can be asked now.
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

    /// Queues a request, in the order of these calls.
    pub fn ask(
        &self,
        what: StoreRequest,
        value: Bytes,
    ) -> Result<oneshot::Receiver<RequestResult>, StoreError> {
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

    /// Uses this connection from now on. Everything that waits goes over it first.
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
        state.line = Some(ConnectionInUse { node, out });
        state.trouble = None;
        let ids: Vec<u64> = state.pending.keys().copied().collect();
        ids.into_iter().for_each(|id| state.send(id));
    }

    /// Ends the use of the connection.
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

    /// Takes a part of an answer; returns `false` if the answer is too large.
    pub fn answered(&self, id: u64, part: AnswerPart, bytes: Bytes, last: bool) -> bool {
        let mut state = self.state();
        // The part is late: the caller has already been told that no node answers.
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

    /// Sets the reason why no node could be reached, for the callers that wait.
    pub fn set_trouble(&self, why: String) {
        self.state().trouble = Some(why);
    }

    /// Returns the node whose store is used.
    pub fn in_use(&self) -> Option<NodeId> {
        self.state().line.as_ref().map(|line| line.node.clone())
    }

    /// Tells callers that have waited too long; to be called from time to time. Returns the node in
    /// use if it does not get on with writing.
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
        // The end of a line is noticed, and everything is sent again.
        line.out.send(wire::frame(&ask, &pending.value)).ok();
        pending.sent = Some(Instant::now());
    }

    fn conclude(&mut self, id: u64, answer: RequestResult) {
        let Some(pending) = self.pending.remove(&id) else { return };
        self.pending_bytes -= pending.value.len();
        if let Ok([(AnswerPart::Written(_), _)]) = answer.as_deref() {
            self.remember(pending.what, pending.value);
        }
        pending.reply.send(answer).ok();
    }

    fn remember(&mut self, what: StoreRequest, value: Bytes) {
        let (StoreRequest::Set { key, .. } | StoreRequest::Delete { key, .. }) = &what else {
            return;
        };
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

/// Returns whether only this node writes the key.
fn is_own(key: &Key, node: &NodeId) -> bool {
    match TypedKey::parse(key) {
        Some(TypedKey::Claim(_, owner) | TypedKey::Probe(owner, _)) => owner == *node,
        Some(TypedKey::NodeInfo(of) | TypedKey::NodeLoad(of) | TypedKey::NodeDisk(of)) => {
            of == *node
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
