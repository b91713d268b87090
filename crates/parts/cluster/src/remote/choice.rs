//! The choice of the store-keeping node that this one uses, and when it moves to another. A
//! machine: its inputs are the list, the outcome of each attempt and what is heard; its outputs are
//! whom to call, to use and to leave. Knows no sockets and nothing of what is asked; `remote`
//! drives it.

use std::collections::BTreeMap;
use std::time::Duration;

use model::{Machine, NodeId, Timestamp, hash};

/// The silence after which the node in use is left: with the call that follows, another one is used
/// within a second.
pub const SILENCE_MAX: Duration = Duration::from_millis(600);
/// The interval of pings, so that one lost answer, or a thread that was put off, is no silence.
const PING_INTERVAL: Duration = Duration::from_millis(150);
/// The time without an answer after which the next node is called as well.
const STAGGER: Duration = Duration::from_millis(150);
/// The number of calls under way; with more nodes than this gone, somebody looks at the cluster.
const CALLS_MAX: usize = 4;
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause between calls, within which a node that comes back is found.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The number of doublings from the shortest pause to the longest.
const DOUBLINGS_MAX: u32 = 5;
/// The time of use after which a node is a good one, and its earlier failures no longer count.
const LASTED: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// All nodes that keep the store.
    Known(Vec<NodeId>),
    /// The node answers and could be used.
    Connected(NodeId),
    /// The node could not be reached, or refused to talk.
    Failed(NodeId),
    /// The connection in use has ended, or does not serve its purpose.
    Lost(NodeId),
    /// The node said something.
    Heard(NodeId),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    Call(NodeId),
    /// From now on every request goes to this node.
    Use(NodeId),
    /// Drop a connection that is no longer needed.
    Discard(NodeId),
    /// Stop using this node, although its connection may stand.
    Leave(NodeId),
    Ping(NodeId),
}

#[derive(Clone, Debug, Default)]
struct KeeperCandidate {
    failures: u32,
    not_before: Timestamp,
    calling: bool,
}

impl KeeperCandidate {
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

pub struct KeeperChoice {
    node: NodeId,
    candidates: BTreeMap<NodeId, KeeperCandidate>,
    in_use: Option<InUse>,
    /// The time before which no call begins.
    next_call: Timestamp,
}

impl KeeperChoice {
    pub fn new(node: NodeId) -> KeeperChoice {
        KeeperChoice { node, candidates: BTreeMap::new(), in_use: None, next_call: Timestamp(0) }
    }

    pub fn in_use(&self) -> Option<&NodeId> {
        self.in_use.as_ref().map(|used| &used.node)
    }

    fn is_in_use(&self, node: &NodeId) -> bool {
        self.in_use() == Some(node)
    }

    /// Returns a node's place in this guest's order. Each guest has an order of its own, so that
    /// guests spread over the nodes that keep the store.
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
        let at = |candidate: &KeeperCandidate| candidate.not_before.max(self.next_call);
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

impl Machine for KeeperChoice {
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
