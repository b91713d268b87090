//! The number of slots that an application wants, and where its files tie it. Derived from the
//! records alone; asked by those that feed the machine.

use std::collections::BTreeMap;

use model::{
    ApplicationSpec, NodeId, ProcessType, Release, ReleaseId, Rollout, RolloutPhase, Walls,
};

/// Slots of one process type, more than any one machine here could run; a typing error in a count
/// must not fill memory.
pub const SLOTS_MAX: u32 = 1_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub counts: BTreeMap<ProcessType, u32>,
    /// The node that has the files of its persistent paths: it runs there or nowhere.
    pub holder: Option<NodeId>,
    /// The walls that it runs behind, and nowhere without.
    pub walls: Walls,
}

/// Returns what is wanted of the release that serves, and during a rollout also of the target; the
/// larger of both counts.
pub fn wanted(
    spec: &ApplicationSpec,
    releases: &BTreeMap<ReleaseId, Release>,
    rollout: Option<&Rollout>,
    holder: Option<&NodeId>,
) -> Wanted {
    let Some(rollout) = rollout else { return Wanted::default() };
    let under_way = !matches!(rollout.phase, RolloutPhase::Done | RolloutPhase::Failed);
    let target = rollout.target.as_ref().filter(|_| under_way);
    let mut wanted = Wanted::default();
    for release in [rollout.serving.as_ref(), target].into_iter().flatten() {
        let own = releases.get(release).filter(|release| spec.owns(release));
        let Some(release) = own else { continue };
        let wall = release.recipe.wall_behind(spec.isolation.as_ref());
        wall.into_iter().for_each(|wall| wanted.walls.insert(wall));
        if release.recipe.is_tied() {
            // Until some node holds its files, the rollout's coordinator is about to.
            wanted.holder = Some(holder.unwrap_or(&rollout.coordinator).clone());
        }
        for process in release.recipe.processes.keys() {
            let count = count(spec, release, process);
            let entry = wanted.counts.entry(process.clone()).or_default();
            *entry = (*entry).max(count);
        }
    }
    wanted
}

/// Returns the wanted instances of one of the release's process types in the whole cluster.
pub fn count(spec: &ApplicationSpec, release: &Release, process: &ProcessType) -> u32 {
    let chosen = spec.processes.get(process).map(|spec| spec.count);
    let usual = release.recipe.processes.get(process).map_or(0, |recipe| recipe.default_count);
    chosen.unwrap_or(usual).min(SLOTS_MAX)
}
