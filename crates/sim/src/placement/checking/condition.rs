//! The condition of processes that have not ended, and what must be true of what is believed of
//! them.

use checker_core::ProbeOutcome;
use model::probe::{HealthState, Verdict};
use model::{Generation, InstanceId};

use super::refused;
use crate::placement::node::Process;
use crate::placement::world::World;
use agent_core::application::IncarnationId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::placement) enum Condition {
    Well,
    /// Nothing listens any more.
    Refuses,
    /// It listens and does not answer.
    Stuck,
}

/// The time until an instance that is well again is no longer held to be ill: two intervals, a call
/// that is given up, a record on its way, liveness, and a checker that has to be found silent
/// first.
const OVER_MAX_MS: u64 = 45_000;
/// The time until an ill instance is out of traffic: probes, patience with it (30 s), a rollout
/// under way that has to end first, and a pause before its successor (60 s).
const ILL_MAX_MS: u64 = 150_000;

impl Process {
    fn is_up(&self) -> bool {
        self.ready && !self.leaving && self.exit.is_none()
    }
}

impl World {
    pub(in crate::placement) fn set_condition(
        &mut self,
        at: usize,
        id: &IncarnationId,
        to: Condition,
    ) {
        let now = self.now;
        let Some(process) = self.nodes[at].processes.get_mut(id) else { return };
        (process.condition, process.changed_at) = (to, now);
        process.was_ill |= to != Condition::Well;
        self.tell(|| format!("{} at {at} is now {to:?}", id.instance));
    }

    pub(super) fn seen(&self, at: usize, instance: &InstanceId, of: Generation) -> ProbeOutcome {
        let id = IncarnationId { instance: instance.clone(), generation: of };
        let process = self.nodes[at].processes.get(&id);
        match process.filter(|process| process.exit.is_none()).map(|process| process.condition) {
            Some(Condition::Well) => ProbeOutcome::Well,
            Some(Condition::Stuck) => ProbeOutcome::Unwell { detail: "no answer in time".into() },
            Some(Condition::Refuses) | None => refused(),
        }
    }

    /// Asserts that no instance that could be reached all along is ever ruled to be ill, whichever
    /// node is cut off, stands still or is mistaken.
    pub(super) fn judge_verdict(&self, at: usize, instance: &InstanceId, verdict: &Verdict) {
        let id = IncarnationId { instance: instance.clone(), generation: verdict.generation };
        let process = self.nodes[at].processes.get(&id).filter(|process| process.exit.is_none());
        let always_well = process.is_some_and(|process| !process.was_ill);
        assert!(!always_well, "{instance} at {at} was never ill, and is ruled to be: {verdict:?}");
    }

    /// Asserts that an ill instance is replaced, and that one that is well again is believed to be,
    /// both before long.
    pub(in crate::placement) fn judge_conditions(&self) {
        let whole = self.is_whole();
        for (at, node) in self.nodes.iter().enumerate() {
            if !node.runs() || node.disk_full {
                continue;
            }
            let checks = node.machines.as_ref().is_some_and(|machines| {
                machines.checking.own.is_some() && !machines.checking.stuck
            });
            for (id, process) in node.processes.iter().filter(|(_, process)| process.is_up()) {
                let mut since = process.changed_at.max(node.free_since);
                if process.condition == Condition::Well {
                    let verdict = node.replica.verdict(&node.id, &id.instance);
                    let standing = verdict.filter(|said| said.generation == id.generation);
                    let ill = standing.is_some_and(|said| said.health != HealthState::Healthy);
                    let long = self.now - since > OVER_MAX_MS;
                    assert!(!(ill && long), "{} at {at} is well: {verdict:?}", id.instance);
                } else if checks || whole {
                    if !checks {
                        since = since.max(self.disturbed_at);
                    }
                    let (long, how) = (self.now - since > ILL_MAX_MS, process.condition);
                    assert!(!long, "{} at {at} {how:?} and is left so", id.instance);
                }
            }
        }
    }

    /// Returns whether every member can be asked.
    fn is_whole(&self) -> bool {
        let mut members = self.nodes.iter().filter(|node| node.member);
        self.cut.is_empty() && members.all(|node| node.runs() && !node.disk_full)
    }

    pub(in crate::placement) fn is_well(&self, at: usize, instance: &InstanceId) -> bool {
        let mut of = self.nodes[at].processes.iter().filter(|(id, _)| id.instance == *instance);
        of.any(|(_, process)| process.is_up() && process.condition == Condition::Well)
    }
}
