//! The jury of a node without a checker, which decides what is believed of its own instances: it
//! hears witnesses, and rules when enough of them agree. Must not probe; the verdict is written as
//! that of the node itself, whose key it is. Driven by a shell on each such node.

use std::collections::{BTreeMap, BTreeSet};

use model::probe::{HealthState, Verdict};
use model::record::{RECORD_VERSION, Unknown};
use model::{Generation, InstanceId, Machine, NodeId, Timestamp};

use crate::mutants;

/// Witnesses that must agree, as one checker may be wrong alone.
pub const WITNESSES_NEEDED: usize = 2;

/// Something that the jury is told and that may change what it believes.
#[derive(Clone, Debug, PartialEq)]
pub enum Evidence {
    /// The incarnation of an instance of this node that is up; `None` if none is any more.
    Ready(InstanceId, Option<Generation>),
    /// What another node's checker says of it.
    Testimony(InstanceId, NodeId, Option<Verdict>),
    /// The nodes on the roster that have a checker, there or not.
    Checkers(BTreeSet<NodeId>),
    /// The other nodes that are alive.
    Alive(BTreeSet<NodeId>),
    /// The verdict in this node's own records, read at start.
    Written(InstanceId, Verdict),
}

/// What is to be written as this node's verdict; `None` if there is nothing to say.
#[derive(Clone, Debug, PartialEq)]
pub struct Ruling {
    pub instance: InstanceId,
    pub verdict: Option<Verdict>,
}

#[derive(Debug, Default)]
pub struct Jury {
    ready: BTreeMap<InstanceId, Generation>,
    testimonies: BTreeMap<InstanceId, BTreeMap<NodeId, Verdict>>,
    checkers: BTreeSet<NodeId>,
    alive: BTreeSet<NodeId>,
    written: BTreeMap<InstanceId, Verdict>,
}

impl Jury {
    pub fn new() -> Jury {
        Jury::default()
    }

    fn note(&mut self, said: Evidence) -> Option<InstanceId> {
        match said {
            Evidence::Ready(instance, Some(generation)) => {
                self.ready.insert(instance.clone(), generation);
                Some(instance)
            }
            Evidence::Ready(instance, None) => {
                self.ready.remove(&instance);
                Some(instance)
            }
            Evidence::Testimony(instance, node, Some(verdict)) => {
                self.testimonies.entry(instance.clone()).or_default().insert(node, verdict);
                Some(instance)
            }
            Evidence::Testimony(instance, node, None) => {
                if let Some(said) = self.testimonies.get_mut(&instance) {
                    said.remove(&node);
                    if said.is_empty() {
                        self.testimonies.remove(&instance);
                    }
                }
                Some(instance)
            }
            Evidence::Checkers(nodes) => {
                self.checkers = nodes;
                None
            }
            Evidence::Alive(nodes) => {
                self.alive = nodes;
                None
            }
            Evidence::Written(instance, verdict) => {
                self.written.insert(instance.clone(), verdict);
                Some(instance)
            }
        }
    }

    /// Returns how many witnesses are needed. Where the roster has one checker alone, no other can
    /// be asked. A node that is cut off is still on the roster, so a cut never makes one witness
    /// enough.
    fn needed(&self) -> usize {
        if mutants::active(mutants::ONE_SUFFICES) {
            return 1;
        }
        self.checkers.len().clamp(1, WITNESSES_NEEDED)
    }

    fn rule(&mut self, now: Timestamp, instance: InstanceId, rulings: &mut Vec<Ruling>) {
        let verdict = self.verdict(now, &instance);
        let before = self.written.get(&instance);
        let same = match (before, &verdict) {
            (None, None) => true,
            (Some(a), Some(b)) => a.generation == b.generation && a.health == b.health,
            _ => false,
        };
        if same {
            return;
        }
        match &verdict {
            Some(verdict) => drop(self.written.insert(instance.clone(), verdict.clone())),
            None => drop(self.written.remove(&instance)),
        }
        rulings.push(Ruling { instance, verdict });
    }

    fn verdict(&self, now: Timestamp, instance: &InstanceId) -> Option<Verdict> {
        let generation = *self.ready.get(instance)?;
        let heard = |node: &NodeId| {
            let lives = self.alive.contains(node) || mutants::active(mutants::THE_DEAD_SPEAK);
            lives && self.checkers.contains(node)
        };
        let all = self.testimonies.get(instance)?.iter();
        let against: Vec<(&NodeId, &Verdict)> = all
            .filter(|(node, verdict)| heard(node) && verdict.generation == generation)
            .filter(|(_, verdict)| verdict.health != HealthState::Healthy)
            .collect();
        let (_, first) = against.first().filter(|_| against.len() >= self.needed())?;
        let gone =
            against.iter().filter(|(_, verdict)| verdict.health == HealthState::Gone).count();
        let names: Vec<&str> = against.iter().map(|(node, _)| node.as_str()).collect();
        Some(Verdict {
            v: RECORD_VERSION,
            generation,
            health: if gone >= self.needed() { HealthState::Gone } else { HealthState::Failing },
            detail: format!("{} (seen by the checkers of {})", first.detail, names.join(", ")),
            changed_at: now,
            unknown: Unknown::new(),
        })
    }
}

impl Machine for Jury {
    type Event = Evidence;
    type Effect = Ruling;

    fn handle(&mut self, now: Timestamp, said: Evidence, rulings: &mut Vec<Ruling>) {
        match self.note(said) {
            Some(instance) => self.rule(now, instance, rulings),
            None => {
                let concerned = self.testimonies.keys().chain(self.written.keys());
                let concerned: BTreeSet<InstanceId> = concerned.cloned().collect();
                concerned.into_iter().for_each(|instance| self.rule(now, instance, rulings));
            }
        }
    }

    fn tick(&mut self, _now: Timestamp, _rulings: &mut Vec<Ruling>) {}

    fn deadline(&self) -> Option<Timestamp> {
        None
    }

    fn check_invariants(&self) {
        for (instance, verdict) in &self.written {
            assert!(
                verdict.health != HealthState::Healthy,
                "{instance}: nothing written means healthy"
            );
        }
    }
}

#[cfg(test)]
mod tests;
