//! The release steps (migrations) that this node has begun. They run once for a release, however
//! often its rollout is begun again: a push on another node may end an attempt whose steps are
//! under way, and the release is taken up again when that request has been dealt with.

use std::collections::BTreeMap;

use model::{Release, ReleaseId, Timestamp};

use super::rollout::{Attempt, Stage};
use super::{Application, Effect, StepFailure};
use crate::mutants;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Progress {
    Underway,
    Ended(Result<(), StepFailure>),
}

/// The steps that were begun for releases that are still known.
#[derive(Debug, Default)]
pub(super) struct ReleaseSteps {
    begun: BTreeMap<ReleaseId, Progress>,
}

impl ReleaseSteps {
    pub fn forget(&mut self, release: &ReleaseId) {
        self.begun.remove(release);
    }

    pub fn clear(&mut self) {
        self.begun.clear();
    }
}

impl Application {
    pub(super) fn release_or_start(&mut self, now: Timestamp, release: Release) {
        if release.recipe.release.is_empty() {
            return self.enter_stage(now, Stage::Starting);
        }
        self.enter_stage(now, Stage::Releasing);
        let id = release.id.clone();
        let forgets = mutants::active(mutants::RELEASE_STEPS_AGAIN);
        match self.steps.begun.get(&id).filter(|_| !forgets).cloned() {
            None => {
                self.steps.begun.insert(id, Progress::Underway);
                self.emit(Effect::RunReleaseSteps { release });
            }
            Some(Progress::Underway) => {}
            Some(Progress::Ended(result)) => self.released(now, &id, result),
        }
    }

    pub(super) fn released(
        &mut self,
        now: Timestamp,
        release: &ReleaseId,
        result: Result<(), StepFailure>,
    ) {
        let Some(progress) = self.steps.begun.get_mut(release) else { return };
        *progress = Progress::Ended(result.clone());
        let awaited = |a: &Attempt| a.target == *release && a.stage == Stage::Releasing;
        if !self.attempt.as_ref().is_some_and(awaited) {
            return;
        }
        match result {
            Ok(()) => self.enter_stage(now, Stage::Starting),
            Err(failure) => {
                // Whoever asks for it again wants them tried again.
                self.steps.forget(release);
                self.fail_rollout(now, failure.why, &failure.last_words);
            }
        }
    }
}
