//! The taking back of a release that serves and whose instances then end: what served before is
//! brought back by itself, as a release of its own, since releases are numbered upwards. Owns the
//! watch over the release that has begun to serve; asked by rollout and supervision. Only the node
//! that coordinated its rollout watches.

use std::time::Duration;

use model::{Fate, Release, ReleaseId, Rollout, RolloutPhase, Timestamp};

use super::rollout::EXITS_MAX;
use super::slot::{Process, SlotId};
use super::{Application, Effect};
use crate::mutants;

/// The time for which a release is watched. What it breaks shows in this time, as a rule: instances
/// that lived so long started well (`restart::LIVED_WELL`).
pub const SERVES_WELL_AFTER: Duration = Duration::from_secs(60);
/// The time after which no watch goes on; an instance that ended in time is given as long again
/// before.
const WATCH_MAX: Duration = Duration::from_secs(120);

/// A release that has begun to serve.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    release: ReleaseId,
    /// The release that served before.
    before: ReleaseId,
    since: Timestamp,
    until: Timestamp,
}

/// What is to be written for `Effect::TakeBack`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TakeBackProgress {
    /// Somebody asked for another release meanwhile.
    Overtaken,
    /// The release was made, by an actor that was interrupted, and has to be asked for.
    Made(ReleaseId),
    Unmade,
}

/// Returns whether `from`, which serves, is still to be taken back.
pub fn taken_back<'a>(
    rollout: Option<&Rollout>,
    mut releases: impl Iterator<Item = &'a Release>,
    from: &ReleaseId,
) -> TakeBackProgress {
    let made = releases.find(|release| release.takes_back.as_ref() == Some(from));
    let serves = rollout.is_some_and(|rollout| {
        let rests = matches!(rollout.phase, RolloutPhase::Done | RolloutPhase::Failed);
        let asked = made.is_some_and(|made| rollout.target.as_ref() >= Some(&made.id));
        rollout.serving.as_ref() == Some(from) && rests && !asked
    });
    match made {
        _ if !serves => TakeBackProgress::Overtaken,
        Some(made) => TakeBackProgress::Made(made.id.clone()),
        None => TakeBackProgress::Unmade,
    }
}

impl Application {
    /// Begins to watch, as another release serves from now on.
    pub(super) fn switched(&mut self, now: Timestamp, before: Option<ReleaseId>) {
        let Some(rollout) = &mut self.rollout else { return };
        if before != self.serving {
            rollout.before = before;
        }
        self.watch(now, now);
    }

    /// Goes on watching after this node's process was away.
    pub(super) fn watch_again(&mut self, now: Timestamp) {
        let since = self.rollout.as_ref().map(|rollout| rollout.changed_at);
        self.watch(now, since.unwrap_or(now));
    }

    fn watch(&mut self, now: Timestamp, since: Timestamp) {
        self.watched = None;
        let rollout = self.rollout.as_ref();
        let before = rollout.and_then(|rollout| rollout.before.clone());
        let (Some(release), Some(before)) = (self.serving.clone(), before) else { return };
        let known = |id: &ReleaseId| self.releases.get(id);
        // A release that was made to take another back is never taken back itself: it would go on
        // so.
        let returned = known(&release).is_some_and(|release| release.takes_back.is_some())
            && !mutants::active(mutants::TAKE_BACK_AGAIN);
        let until = since.after(SERVES_WELL_AFTER);
        if before < release && !returned && until > now && known(&before).is_some() {
            self.watched = Some(Watched { release, before, since, until });
        }
    }

    /// Considers it after a process ended by itself, or did not become ready again; that was
    /// counted already.
    pub(super) fn consider_taking_back(
        &mut self,
        now: Timestamp,
        process: &Process,
        place: &SlotId,
        why: &str,
        last_words: &str,
    ) {
        let release = &process.record.release;
        let watched = self.watched.as_mut().filter(|watched| watched.release == *release);
        let Some(watched) = watched.filter(|watched| watched.until > now) else { return };
        watched.until = now.after(SERVES_WELL_AFTER).min(watched.since.after(WATCH_MAX));
        if process.record.restarts.saturating_add(1) < EXITS_MAX {
            return;
        }
        let (process, slot) = place;
        let words = super::words::last_words(last_words);
        self.take_back(now, format!("{process}.{slot} {why}{words}"));
    }

    /// Considers it after failures on other nodes, and returns true if something changed.
    pub(super) fn look_at_instances_elsewhere(&mut self, now: Timestamp) -> bool {
        let serving = self.serving.as_ref();
        self.watched = self
            .watched
            .take()
            .filter(|watched| watched.until > now && serving == Some(&watched.release));
        let Some(watched) = &self.watched else { return false };
        let failures = self.elsewhere.failures(&watched.release);
        let Some(why) = failures.into_values().next() else {
            let until = watched.until;
            self.wake_at(until);
            return false;
        };
        self.take_back(now, why);
        true
    }

    fn take_back(&mut self, now: Timestamp, why: String) {
        if self.attempt.is_some() || mutants::active(mutants::NEVER_TAKE_BACK) {
            return;
        }
        let Some(Watched { release, before, .. }) = self.watched.take() else { return };
        let (from, to) = (release.short(), before.short());
        let why = format!("its instances ended within a minute: {why}");
        self.note(format!("{to} is brought back by itself, as {from} failed: {why}"));
        self.write_outcome(now, release.clone(), Fate::TakenBack, why);
        self.emit(Effect::TakeBack { from: release, to: before });
    }
}
