//! The decision which node tries another binary next, and whether it keeps it. Each node decides
//! for itself from the same records: the roll names an order, and the node whose turn it is acts.
//! Owns these decisions; knows nothing of files, processes and sockets. Driven by the upgrade's
//! shell.

pub mod trial;

use std::collections::{BTreeMap, BTreeSet};

use model::upgrade::{NodeUpgrade, Roll, TrialPhase, TrialRecord};
use model::value::ContentHash;
use model::{NodeId, Timestamp};

/// The milliseconds between the end of one node's trial and the next: one that dies of the new
/// binary soon after its trial keeps the others from it.
pub const SETTLE_MS: u64 = 3_000;

/// What one node knows of all.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    pub roll: Option<Roll>,
    pub nodes: BTreeMap<NodeId, NodeUpgrade>,
    /// The nodes that are alive, including the one that looks.
    pub alive: BTreeSet<NodeId>,
}

/// The progress of a roll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RollStanding {
    /// Nothing was asked for.
    None,
    Finished,
    /// This node tries it.
    Trying(NodeId),
    /// It is this node's turn.
    Turn(NodeId),
    /// Nobody begins until this node is alive.
    Down(NodeId),
    /// Nobody begins before then: the last one has only just been done.
    Settling {
        until: Timestamp,
    },
    /// It failed there; nobody goes on.
    Stopped(NodeId),
}

impl Picture {
    pub fn standing(&self, now: Timestamp) -> RollStanding {
        let Some(roll) = &self.roll else { return RollStanding::None };
        for node in &roll.nodes {
            let phase = self.phase(roll, node);
            if matches!(phase, Some(TrialPhase::Returned | TrialPhase::Refused)) {
                return RollStanding::Stopped(node.clone());
            }
        }
        let mut settled = None;
        for node in &roll.nodes {
            let alive = self.alive.contains(node);
            match self.phase(roll, node) {
                Some(TrialPhase::Trying) => return RollStanding::Trying(node.clone()),
                // This holds also for one that was done: the binary may be what ended it.
                _ if !alive => return RollStanding::Down(node.clone()),
                Some(TrialPhase::Done) => {
                    let trial = self.trial(roll, node);
                    let until = trial.map(|trial| Timestamp(trial.since.0 + SETTLE_MS));
                    settled = settled.max(until);
                }
                Some(_) | None => {
                    return match settled.filter(|until| *until > now) {
                        Some(until) => RollStanding::Settling { until },
                        None => RollStanding::Turn(node.clone()),
                    };
                }
            }
        }
        RollStanding::Finished
    }

    /// Returns how far a node's trial is; `None` if it has not begun.
    pub fn phase(&self, roll: &Roll, node: &NodeId) -> Option<TrialPhase> {
        let trial = self.trial(roll, node).map(|trial| trial.phase);
        let runs_it = self.nodes.get(node).is_some_and(|record| record.binary == roll.binary);
        trial.or(runs_it.then_some(TrialPhase::Done))
    }

    pub fn trial(&self, roll: &Roll, node: &NodeId) -> Option<&TrialRecord> {
        let trial = self.nodes.get(node)?.trial.as_ref()?;
        (trial.roll == roll.id).then_some(trial)
    }
}

/// Returns the order in which nodes get their turn: the one that was asked comes last, as people
/// look on from there.
pub fn order(all: impl IntoIterator<Item = NodeId>, asked: &NodeId) -> Vec<NodeId> {
    let mut order: Vec<NodeId> = all.into_iter().collect();
    order.sort_by_key(|node| (node == asked, node.clone()));
    order.dedup();
    order
}

/// Returns what a node's record becomes when the node starts with no trial under way: a trial that
/// it was in did not stay unless its binary runs.
pub fn at_start(before: Option<NodeUpgrade>, running: ContentHash, now: Timestamp) -> NodeUpgrade {
    let mut record = before.unwrap_or_else(|| NodeUpgrade {
        v: model::record::RECORD_VERSION,
        binary: running,
        trial: None,
        unknown: Default::default(),
    });
    record.binary = running;
    if let Some(trial) = record.trial.as_mut().filter(|one| one.phase == TrialPhase::Trying) {
        trial.since = now;
        trial.phase = TrialPhase::Done;
        if trial.binary != running {
            trial.phase = TrialPhase::Returned;
            trial.why = Some("the node was started anew while it tried the binary".into());
        }
    }
    record
}

#[cfg(test)]
mod tests;
