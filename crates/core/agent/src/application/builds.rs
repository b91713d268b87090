//! The builds on this node's disk: which of them stay, and what is left behind with one that
//! another takes over from. Decides; the shell removes and looks. Driven by the application's
//! machine.

use model::{BuildId, Release, ReleaseId};

use super::{Application, Build, Effect};

/// Builds that are kept. Rolling back further is rare; a build of a large application takes
/// hundreds of megabytes.
pub const BUILDS_KEPT: usize = 5;

impl Application {
    /// Names what a build wrote into its own tree once another build has taken over: it stays
    /// behind, on each node that has it.
    pub(super) fn name_written(&mut self) {
        if self.serving == self.served {
            return;
        }
        let before = std::mem::replace(&mut self.served, self.serving.clone());
        let known = |id: Option<&ReleaseId>| id.and_then(|id| self.releases.get(id)).cloned();
        let Some((old, new)) = known(before.as_ref()).zip(known(self.serving.as_ref())) else {
            return;
        };
        if old.build_id() != new.build_id() {
            self.emit(Effect::NameWritten { old, new });
        }
    }

    /// Decides which builds stay on this node's disk. Those that run or may run at any moment come
    /// first, then what a rollback would go to, the newest first.
    pub(super) fn prune(&mut self) {
        if self.is_ending() {
            return;
        }
        let wanted = self.serving.iter().chain(self.rollout.iter().flat_map(|r| &r.target));
        let processes = self.slots.values().flat_map(|slot| &slot.living);
        let running = processes.map(|process| &process.record.release);
        let needed: Vec<&ReleaseId> = wanted.chain(running).collect();
        let mut keep: Vec<BuildId> = Vec::new();
        for release in &needed {
            let build = self.build_of(release);
            if !keep.contains(&build) {
                keep.push(build);
            }
        }
        let needed = keep.len();
        for release in self.releases.values().rev() {
            let build = release.build_id();
            if keep.len() < BUILDS_KEPT.max(needed) && !keep.contains(&build) {
                keep.push(build);
            }
        }
        if self.kept != (keep.clone(), needed) {
            self.builds.retain(|build, _| keep.contains(build));
            self.artefacts.keep(&keep);
            self.kept = (keep.clone(), needed);
            self.emit(Effect::PruneBuilds { keep, needed });
        }
    }

    /// Returns the build that a release runs; the release's own if its record is not known.
    pub(super) fn build_of(&self, release: &ReleaseId) -> BuildId {
        let known = self.releases.get(release).map(Release::build_id);
        known.unwrap_or_else(|| BuildId::Of(release.clone()))
    }

    /// Returns how far the build of a release is.
    pub(super) fn build_state(&self, release: &ReleaseId) -> Option<&Build> {
        self.builds.get(&self.build_of(release))
    }
}
