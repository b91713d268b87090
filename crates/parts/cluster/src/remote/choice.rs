//! Which of the nodes that keep the store this one uses, and when it moves to another. A machine:
//! the list, what became of each attempt and what is heard go in; whom to call, to use and to leave
//! comes out. Knows no sockets and nothing of what is asked; `remote` drives it.

use std::collections::BTreeMap;
use std::time::Duration;

use model::{Machine, NodeId, Timestamp, hash};

/// Silence of the node in use that is taken for its end: with the call that follows, another one
/// is used within a second.
pub const SILENCE_MAX: Duration = Duration::from_millis(600);
/// So that one lost answer, or a thread that was put off, is no silence.
const PING_INTERVAL: Duration = Duration::from_millis(150);
/// The next node is called while the one before has not answered for so long.
const STAGGER: Duration = Duration::from_millis(150);
/// Calls under way; with more nodes than this gone, somebody looks at the cluster.
const CALLS_MAX: usize = 4;
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// A node that comes back is found within this.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Doublings from the least pause to the longest.
const DOUBLINGS_MAX: u32 = 5;
/// A node that was used for so long is a good one: what failed before counts no more.
const LASTED: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// All nodes that keep the store.
    Known(Vec<NodeId>),
    /// It answers, and would be used.
    Connected(NodeId),
    /// It could not be reached, or does not want to speak.
    Failed(NodeId),
    /// The connection that is used has ended, or does not serve its purpose.
    Lost(NodeId),
    /// It said something.
    Heard(NodeId),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    Call(NodeId),
    /// From now on everything goes there.
    Use(NodeId),
    /// An answer that nobody needs any more.
    Discard(NodeId),
    /// It is not used any more, though its connection may stand.
    Leave(NodeId),
    Ping(NodeId),
}

#[derive(Clone, Debug, Default)]
struct Candidate {
    failures: u32,
    not_before: Timestamp,
    calling: bool,
}

impl Candidate {
    fn fail(&mut self, now: Timestamp) {
        let pause = PAUSE_MIN * 2_u32.pow(self.failures.min(DOUBLINGS_MAX));
        self.failures = self.failures.saturating_add(1);
        self.not_before = now.after(pause.min(PAUSE_MAX));
    }
}

#[derive(Clone, Debug)]
struct InUse {
    node: NodeId,
    since: Timestamp,
    heard: Timestamp,
    pinged: Timestamp,
}

pub struct Choice {
    node: NodeId,
    candidates: BTreeMap<NodeId, Candidate>,
    in_use: Option<InUse>,
    /// No call begins before.
    next_call: Timestamp,
}

impl Choice {
    pub fn new(node: NodeId) -> Choice {
        Choice { node, candidates: BTreeMap::new(), in_use: None, next_call: Timestamp(0) }
    }

    pub fn in_use(&self) -> Option<&NodeId> {
        self.in_use.as_ref().map(|used| &used.node)
    }

    fn is_in_use(&self, node: &NodeId) -> bool {
        self.in_use() == Some(node)
    }

    /// Those without a store spread over those with one: each has an order of its own.
    fn rank(&self, other: &NodeId) -> u64 {
        hash::bytes(format!("{}/{other}", self.node).as_bytes())
    }

    fn know(&mut self, nodes: Vec<NodeId>, effects: &mut Vec<Effect>) {
        self.candidates.retain(|node, _| nodes.contains(node));
        for node in nodes.into_iter().filter(|node| *node != self.node) {
            self.candidates.entry(node).or_default();
        }
        let gone = self.in_use.take_if(|used| !self.candidates.contains_key(&used.node));
        if let Some(used) = gone {
            self.next_call = Timestamp(0);
            effects.push(Effect::Leave(used.node));
        }
    }

    fn leave(&mut self, now: Timestamp) -> Option<NodeId> {
        let used = self.in_use.take()?;
        if let Some(candidate) = self.candidates.get_mut(&used.node) {
            if now.since(used.since) >= LASTED {
                candidate.failures = 0;
            }
            candidate.fail(now);
        }
        self.next_call = now;
        Some(used.node)
    }

    fn calling(&self) -> usize {
        self.candidates.values().filter(|candidate| candidate.calling).count()
    }

    fn next(&self) -> Option<(Timestamp, NodeId)> {
        if self.in_use.is_some() || self.calling() >= CALLS_MAX {
            return None;
        }
        let idle = self.candidates.iter().filter(|(_, candidate)| !candidate.calling);
        let at = |candidate: &Candidate| candidate.not_before.max(self.next_call);
        let first = idle.min_by_key(|(node, candidate)| (at(candidate), self.rank(node)));
        first.map(|(node, candidate)| (at(candidate), node.clone()))
    }

    fn call_some(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        while let Some((at, node)) = self.next()
            && at <= now
        {
            if let Some(candidate) = self.candidates.get_mut(&node) {
                candidate.calling = true;
            }
            self.next_call = now.after(STAGGER);
            effects.push(Effect::Call(node));
        }
    }
}

impl Machine for Choice {
    type Event = Event;
    type Effect = Effect;

    fn handle(&mut self, now: Timestamp, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Known(nodes) => self.know(nodes, effects),
            Event::Connected(node) => {
                let known = self.candidates.get_mut(&node);
                let is_known = known.map(|candidate| candidate.calling = false).is_some();
                if is_known && self.in_use.is_none() {
                    let (since, heard, pinged) = (now, now, now);
                    self.in_use = Some(InUse { node: node.clone(), since, heard, pinged });
                    effects.push(Effect::Use(node));
                } else {
                    effects.push(Effect::Discard(node));
                }
            }
            Event::Failed(node) => {
                if let Some(candidate) = self.candidates.get_mut(&node) {
                    candidate.calling = false;
                    candidate.fail(now);
                    self.next_call = now;
                }
            }
            Event::Lost(node) if self.is_in_use(&node) => {
                effects.extend(self.leave(now).map(Effect::Leave));
            }
            Event::Lost(_) => {}
            Event::Heard(node) => {
                if let Some(used) = self.in_use.as_mut().filter(|used| used.node == node) {
                    used.heard = now;
                }
            }
        }
        self.call_some(now, effects);
    }

    fn tick(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        match &mut self.in_use {
            Some(used) if now >= used.heard.after(SILENCE_MAX) => {
                effects.extend(self.leave(now).map(Effect::Leave));
            }
            Some(used) if now >= used.pinged.after(PING_INTERVAL) => {
                used.pinged = now;
                effects.push(Effect::Ping(used.node.clone()));
            }
            _ => {}
        }
        self.call_some(now, effects);
    }

    fn deadline(&self) -> Option<Timestamp> {
        match &self.in_use {
            Some(used) => Some(used.heard.after(SILENCE_MAX).min(used.pinged.after(PING_INTERVAL))),
            None => self.next().map(|(at, _)| at),
        }
    }

    fn check_invariants(&self) {
        let used = self.in_use();
        assert!(used.is_none_or(|node| self.candidates.contains_key(node)), "it is a known one");
        assert!(self.calling() <= CALLS_MAX, "calls are bounded");
        assert!(!self.candidates.contains_key(&self.node), "it never calls itself");
    }
}

#[cfg(test)]
mod tests;
