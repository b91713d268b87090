//! The first start of a release, one process after the other: an application that makes its
//! database, its tables or its caches when it starts does so once, with no other process in its
//! way. Asked by plan.
//!
//! That holds for every release and on all nodes together, also where release steps are known or
//! nothing is persistent: what an application does at its start is in its code, where nothing here
//! sees it, and a newer release may do something else. What it costs is one more start's time in a
//! rollout, while what serves goes on serving.

use model::{ProcessType, Release};

use super::Application;
use super::plan::{PlacedRelease, all_places};
use super::slot::{Phase, Process, SlotId};
use crate::mutants;

/// Returns whether a place may start now: a process type's first instance starts alone, web before
/// the others; the rest of a type follows once one of it is ready.
pub(super) fn is_its_turn(app: &Application, place: &SlotId, role: &PlacedRelease) -> bool {
    let Some(release) = app.releases.get(&role.release).filter(|_| role.target) else {
        return true;
    };
    if mutants::active(mutants::FIRST_STARTS_AT_ONCE) || is_proven(app, release, &place.0) {
        return true;
    }
    let unproven = |process: &&ProcessType| !is_proven(app, release, process);
    let wanted = all_places(app, release);
    let firsts = wanted.iter().filter(|(process, _)| unproven(&process));
    let next = firsts.min_by_key(|(process, slot)| (!process.is_web(), process, *slot));
    // A process that failed may still be at it.
    let busy = |process: &Process| process.record.release == release.id && !process.is_ready();
    let mut living = app.slots.iter().filter(|((process, _), _)| unproven(&process));
    let others = living.any(|(_, slot)| slot.living.iter().any(busy));
    next == Some(place) && !others
}

/// Returns whether one process of this type of the release has become ready.
fn is_proven(app: &Application, release: &Release, process: &ProcessType) -> bool {
    let here = app.slots.iter().any(|(place, slot)| {
        place.0 == *process && slot.current_of(&release.id).any(|one| one.phase == Phase::Ready)
    });
    here || app.elsewhere.any_ready(process, &release.id)
}
