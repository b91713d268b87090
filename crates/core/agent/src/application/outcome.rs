//! What is on record of releases that do not serve as they were to. A release that was given up on
//! one side of a cut network may serve on the other, and then everywhere: its failure is forgotten.

use model::{Fate, Outcome, ReleaseId, Timestamp};

use super::{Application, Effect};

impl Application {
    pub(super) fn outcome_heard(&mut self, release: ReleaseId, outcome: Option<&Outcome>) {
        if outcome.is_some_and(|outcome| outcome.fate == Fate::Failed) {
            self.failed.insert(release);
        } else {
            self.failed.remove(&release);
        }
    }

    pub(super) fn write_outcome(
        &mut self,
        now: Timestamp,
        release: ReleaseId,
        fate: Fate,
        why: String,
    ) {
        let unknown = model::record::Unknown::new();
        let outcome = Outcome { v: model::record::RECORD_VERSION, fate, why, at: now, unknown };
        self.emit(Effect::WriteOutcome { release, outcome: Some(outcome) });
    }

    /// Removes the failure of a release that serves; its rollout's coordinator does so, or whoever
    /// would take its place. Returns true if something changed.
    pub(super) fn forget_failure(&mut self) -> bool {
        let Some(rollout) = &self.rollout else { return false };
        let gone = !self.elsewhere.live.contains(&rollout.coordinator) && self.is_first_alive();
        let mine = rollout.coordinator == self.node || gone || !self.is_placed();
        let Some(release) = self.serving.clone().filter(|_| mine) else { return false };
        let failed = self.failed.remove(&release);
        if failed {
            self.emit(Effect::WriteOutcome { release, outcome: None });
        }
        failed
    }
}
