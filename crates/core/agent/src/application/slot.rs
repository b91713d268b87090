//! One place and the processes in it: what is known of each, and the claim that says so to
//! everybody else. Knows nothing of what is wanted; driven by the application's machine.

use std::time::Duration;

use model::instance::INCARNATIONS_MAX;
use model::{Claim, Generation, Incarnation, InstanceState, ProcessType, ReleaseId, Timestamp};

use super::elsewhere::offer_of;
use crate::placement::Hold;
use crate::restart::FailureHistory;

/// A slot of a process type, within one application.
pub(super) type SlotId = (ProcessType, model::Slot);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The process was told to start; whether it exists is not known yet.
    Launching,
    /// The process exists and is not healthy yet.
    Waking,
    Ready,
    /// The router lets its last requests finish.
    Draining,
    /// The process was told to stop; its exit is awaited.
    Stopping,
}

/// The reason why a ready process is to be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replace {
    /// It holds too much memory: its successor starts after it is gone.
    Memory,
    /// The checker cannot reach it: its successor starts beside it.
    Verdict,
}

#[derive(Clone, Debug)]
pub(super) struct Process {
    /// What the claim says; `state` follows from `phase` when the claim is written.
    pub record: Incarnation,
    pub phase: Phase,
    /// The time at which it entered the phase.
    pub since: Timestamp,
    pub ready_at: Option<Timestamp>,
    /// What the last unsuccessful look at its health saw.
    pub detail: Option<String>,
    /// Whether everybody may read that in its claim: it lasts, or somebody has to do something.
    pub told: bool,
    pub replace: Option<Replace>,
    /// Whether it is stopped as soon as it is known to exist.
    pub doomed: bool,
    pub drained: bool,
    /// Whether it was stopped because it failed.
    pub failed: bool,
    /// The way in which it was not ready in time; its rollout fails with this and its last words
    /// once it has ended.
    pub overdue: Option<String>,
}

impl Process {
    pub fn new(record: Incarnation, phase: Phase, now: Timestamp) -> Process {
        Process {
            record,
            phase,
            since: now,
            ready_at: (phase == Phase::Ready).then_some(now),
            detail: None,
            told: false,
            replace: None,
            doomed: false,
            drained: false,
            failed: false,
            overdue: None,
        }
    }

    pub fn generation(&self) -> Generation {
        self.record.generation
    }

    /// Returns whether it serves or is about to.
    pub fn is_current(&self) -> bool {
        match self.phase {
            Phase::Launching => !self.doomed,
            Phase::Waking | Phase::Ready => true,
            Phase::Draining | Phase::Stopping => false,
        }
    }

    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    pub fn enter(&mut self, phase: Phase, now: Timestamp) {
        self.phase = phase;
        self.since = now;
        if phase == Phase::Ready {
            self.ready_at = Some(now);
        }
    }

    pub fn lived(&self, now: Timestamp) -> Duration {
        self.ready_at.map_or(Duration::ZERO, |at| now.since(at))
    }

    fn incarnation(&self) -> Incarnation {
        let state = match self.phase {
            Phase::Launching if self.doomed => InstanceState::Draining,
            Phase::Launching | Phase::Waking => InstanceState::Starting,
            Phase::Ready => InstanceState::Ready,
            Phase::Draining | Phase::Stopping => InstanceState::Draining,
        };
        let mut shown = Incarnation { state, ..self.record.clone() };
        if self.told && self.phase == Phase::Waking {
            shown.reason = self.detail.clone().or(shown.reason);
        }
        shown
    }
}

#[derive(Clone, Debug)]
pub(super) struct SlotState {
    pub claimed_at: Timestamp,
    pub last_generation: Generation,
    /// The processes, oldest first.
    pub living: Vec<Process>,
    /// The last one that failed, until its successor starts.
    pub crashed: Option<Incarnation>,
    /// The hold on the place, from placement; `None` if nothing is placed, or the place is no
    /// longer this node's.
    pub held: Option<Hold>,
    history: FailureHistory,
    /// The release and the restart that the history is of: another release, or the user's wish, is
    /// a new chance.
    history_of: Option<(ReleaseId, u32)>,
    /// The claim that the store holds.
    pub written: Option<Claim>,
}

impl SlotState {
    pub fn new(claimed_at: Timestamp, last_generation: Generation) -> SlotState {
        SlotState {
            claimed_at,
            last_generation,
            living: Vec::new(),
            crashed: None,
            held: None,
            history: FailureHistory::default(),
            history_of: None,
            written: None,
        }
    }

    pub fn get_mut(&mut self, generation: Generation) -> Option<&mut Process> {
        self.living.iter_mut().find(|process| process.generation() == generation)
    }

    pub fn remove(&mut self, generation: Generation) -> Option<Process> {
        let at = self.living.iter().position(|process| process.generation() == generation)?;
        Some(self.living.remove(at))
    }

    pub fn current_of<'a>(
        &'a self,
        release: &'a ReleaseId,
    ) -> impl DoubleEndedIterator<Item = &'a Process> {
        self.living.iter().filter(move |p| p.is_current() && p.record.release == *release)
    }

    pub fn has_ready(&self, release: &ReleaseId) -> bool {
        self.current_of(release).any(Process::is_ready)
    }

    pub fn history(&self, release: &ReleaseId, restart: u32) -> FailureHistory {
        match &self.history_of {
            Some((r, n)) if r == release && *n == restart => self.history.clone(),
            _ => FailureHistory::default(),
        }
    }

    pub fn count_failure(
        &mut self,
        now: Timestamp,
        release: &ReleaseId,
        restart: u32,
        lived: Duration,
    ) -> &FailureHistory {
        self.history = self.history(release, restart);
        self.history_of = Some((release.clone(), restart));
        self.history.failed(now, lived);
        &self.history
    }

    /// Returns what everybody may know; `None` if nothing is here.
    pub fn claim(&self) -> Option<Claim> {
        let mut incarnations: Vec<Incarnation> =
            self.living.iter().map(Process::incarnation).collect();
        if incarnations.len() < INCARNATIONS_MAX {
            incarnations.extend(self.crashed.clone());
        }
        incarnations.sort_by_key(|incarnation| incarnation.generation);
        if incarnations.is_empty() && self.held.is_none() {
            return None;
        }
        // An offer stays in the claim until the process is gone, or the node that took it would
        // think again.
        let given = self.written.as_ref().and_then(|claim| claim.offer);
        let offer = self.held.map_or(given, |hold| offer_of(Some(hold)));
        let unknown = self.written.as_ref().map(|claim| claim.unknown.clone()).unwrap_or_default();
        Some(Claim { incarnations, offer, unknown, ..Claim::new(self.claimed_at) })
    }
}
