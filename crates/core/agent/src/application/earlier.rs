//! An application that was destroyed and made anew under its name. What is left of the earlier one,
//! or comes late from a node that had not heard of the end, counts for nothing: neither its
//! releases nor what its rollout says of them. Decides nothing; asked whenever a specification, a
//! release or a rollout comes.

use model::{ReleaseId, Rollout, RolloutPhase, Timestamp};

use super::{Application, Effect};

impl Application {
    /// Returns whether a release is not known to be of another application of this name.
    fn owns(&self, release: &ReleaseId) -> bool {
        !self.foreign.contains_key(release)
    }

    pub(super) fn is_foreign(&self, record: &Rollout) -> bool {
        record.is_of_another(self.spec.as_ref().map(|spec| spec.created_at))
    }

    /// Writes a rollout; each that this node writes says which application it is of.
    pub(super) fn emit_rollout(&mut self, record: Rollout) {
        let created_at = self.spec.as_ref().map(|spec| spec.created_at);
        self.emit(Effect::WriteRollout(Rollout { created_at, ..record }));
    }

    /// Waits before it puts right a record of another application. This application's record is
    /// written again if it serves, unless it is this one that was destroyed: then its specification
    /// goes within a moment.
    pub(super) fn wait_for_word(&mut self, now: Timestamp) {
        self.coordination.wait(now);
    }

    /// Returns a rollout without another application's releases.
    pub(super) fn own_part(&self, record: Rollout) -> Rollout {
        if self.is_foreign(&record) {
            let (phase, created_at) = (RolloutPhase::Done, None);
            let (serving, before, target, message) = (None, None, None, None);
            return Rollout { serving, before, target, message, phase, created_at, ..record };
        }
        let own = |id: Option<ReleaseId>| id.filter(|id| self.owns(id));
        let (serving, before) = (own(record.serving), own(record.before));
        let record = Rollout { serving, before, ..record };
        if record.target.as_ref().is_none_or(|target| self.owns(target)) {
            return record;
        }
        let (target, phase) = (record.serving.clone(), RolloutPhase::Done);
        Rollout { target, phase, message: None, ..record }
    }

    /// Tells its own releases from others. A rollout may have been heard of before its release.
    pub(super) fn sort_releases(&mut self) {
        let Some(spec) = &self.spec else { return };
        let mut all = std::mem::take(&mut self.releases);
        all.append(&mut self.foreign);
        (self.releases, self.foreign) =
            all.into_iter().partition(|(_, release)| spec.owns(release));
        if self.serving.as_ref().is_some_and(|serving| !self.owns(serving)) {
            self.serving = None;
            self.served = None;
            self.watched = None;
            self.coordination.is_current();
        }
        let foreign = &self.foreign;
        self.attempt = self.attempt.take().filter(|at| !foreign.contains_key(&at.target));
        self.rollout = self.rollout.take().map(|rollout| self.own_part(rollout));
    }
}

#[cfg(test)]
pub(super) mod tests;
