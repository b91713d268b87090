//! The coordination of a rollout, and of requests that crossed: a request that was
//! overwritten is taken up again, a coordinator that is gone is replaced, and one that came back
//! does not bring an older release back. Asked by the application's machine.

use std::collections::BTreeMap;
use std::time::Duration;

use model::{ReleaseId, Rollout, RolloutPhase, Timestamp};

use super::Application;
use super::rollout::Stage;
use crate::lease::{LEASE, LEASE_GRACE};
use crate::mutants;
use crate::placement::UNHEARD_MAX;

/// The time to wait for a request, which is written right after the release's record; later than
/// that it was overwritten by a write of ours that crossed it.
pub const REQUEST_WAIT_MAX: Duration = Duration::from_secs(2);
/// The time after which a coordinator is replaced; a restarted node process is back by then.
pub const TAKE_OVER_AFTER: Duration = Duration::from_secs(5);
/// The time in which a write reaches everybody, as a rule.
pub(super) const RESTORE_STEP: Duration = Duration::from_millis(500);

/// What this node waits for before it takes a rollout up or writes one again.
#[derive(Debug, Default)]
pub(super) struct Coordination {
    /// The request that was acted upon last, which may be seen again.
    accepted: Option<(Option<ReleaseId>, Timestamp)>,
    /// A release that nobody asked to roll out yet, and since when.
    unrequested: Option<(ReleaseId, Timestamp)>,
    /// The time since which the record says that an older release serves than the one that does.
    outdated: Option<Timestamp>,
    /// The time until which others may say that they went on, where this node is back in the middle
    /// of release steps.
    returned: Option<Timestamp>,
    /// The time since which the rollout's coordinator is gone.
    orphaned: Option<Timestamp>,
}

impl Coordination {
    /// Gives the application's other records, which are on their way, the time to arrive.
    pub fn wait(&mut self, now: Timestamp) {
        self.outdated = self.outdated.map(|_| now.after(REQUEST_WAIT_MAX));
    }

    /// Forgets that the record says something outdated.
    pub fn is_current(&mut self) {
        self.outdated = None;
    }

    /// Forgets what concerns an application that is destroyed.
    pub fn forget(&mut self) {
        self.accepted = None;
        self.returned = None;
    }
}

/// Returns what the shell stores for a rollout that the machine wrote: a command's request that the
/// machine has not seen yet is never lost, and `serving` is the coordinator's alone.
pub fn merge(stored: Option<Rollout>, ours: Rollout) -> Rollout {
    match stored {
        Some(other) if other.is_of_another(ours.created_at) => ours,
        // This node was replaced as coordinator, and a newer release serves meanwhile.
        Some(newer) if newer.serving > ours.serving && fenced() => {
            if ours.target > newer.serving {
                return Rollout { serving: newer.serving, ..ours };
            }
            newer
        }
        Some(request)
            if request.phase == RolloutPhase::Requested && request.target != ours.target =>
        {
            Rollout { serving: ours.serving, ..request }
        }
        _ => ours,
    }
}

/// Returns whether what serves is never replaced by an older release; a rollback has a new number.
pub(super) fn fenced() -> bool {
    !mutants::active(mutants::UNFENCED_RELEASES)
}

impl Application {
    pub(super) fn rollout_changed(&mut self, now: Timestamp, record: Option<Rollout>) {
        // Any record but what this node wrote itself decides what it goes on with.
        self.coordination.returned = self.coordination.returned.filter(|_| {
            record.as_ref().is_some_and(|record| {
                record.coordinator == self.node && record.phase != RolloutPhase::Requested
            })
        });
        let Some(record) = record else {
            self.attempt = None;
            self.serving = None;
            self.rollout = None;
            return;
        };
        let foreign = self.is_foreign(&record);
        let record = self.fence(now, self.own_part(record));
        if foreign {
            self.wait_for_word(now);
        }
        let request = (record.target.clone(), record.changed_at);
        let mine = record.coordinator == self.node || !self.is_placed();
        if record.phase == RolloutPhase::Requested && mine {
            if self.coordination.accepted.as_ref() == Some(&request) {
                return;
            }
            self.coordination.accepted = Some(request);
            let serving = self.serving.clone();
            self.rollout = Some(Rollout { serving, coordinator: self.node.clone(), ..record });
            self.attempt = None;
            self.begin(now, Stage::Building);
            self.open_choice();
        } else if record.coordinator != self.node {
            // A request says what serves as its command read it.
            if record.phase != RolloutPhase::Requested {
                self.serving = record.serving.clone();
            }
            self.attempt = None;
            self.rollout = Some(Rollout { serving: self.serving.clone(), ..record });
        }
    }

    /// Fences off a coordinator that was replaced and came back and says that its release serves.
    fn fence(&mut self, now: Timestamp, record: Rollout) -> Rollout {
        let since = self.coordination.outdated.take();
        if !self.is_placed() || record.phase == RolloutPhase::Requested || !fenced() {
            return record;
        }
        let known = |id: &&ReleaseId| self.releases.contains_key(id);
        let older = |id: &&ReleaseId| record.serving.as_ref() < Some(*id);
        let newer = self.serving.as_ref().filter(known).filter(older).cloned();
        let Some(newer) = newer else {
            self.serving = record.serving.clone();
            return record;
        };
        if record.coordinator == self.node {
            return record;
        }
        self.coordination.outdated = Some(since.unwrap_or(now));
        Rollout { serving: Some(newer), ..record }
    }

    /// Writes again what an outdated coordinator overwrote. The nodes do so one after the other, as
    /// any of those that live may be the only one to know.
    pub(super) fn restore_serving(&mut self, now: Timestamp) -> bool {
        let Some(since) = self.coordination.outdated else { return false };
        let before = self.elsewhere.live.iter().filter(|node| **node < self.node).count();
        let at = since.after(RESTORE_STEP * u32::try_from(before).unwrap_or(u32::MAX));
        if at > now {
            self.wake_at(at);
            return false;
        }
        self.coordination.outdated = None;
        let Some(rollout) = &mut self.rollout else { return false };
        if rollout.target <= rollout.serving {
            rollout.target = rollout.serving.clone();
            rollout.phase = RolloutPhase::Done;
            rollout.coordinator = self.node.clone();
            rollout.message = None;
            self.attempt = None;
        }
        rollout.changed_at = now;
        let record = rollout.clone();
        self.emit_rollout(record);
        true
    }

    /// Replaces a coordinator that is gone in the middle of it: the first of those that live goes
    /// on.
    pub(super) fn replace_coordinator(&mut self, now: Timestamp) -> bool {
        let orphan = self.rollout.as_ref().filter(|rollout| {
            let under_way = !matches!(rollout.phase, RolloutPhase::Done | RolloutPhase::Failed);
            let gone = !self.elsewhere.live.contains(&rollout.coordinator);
            let other = rollout.coordinator != self.node;
            under_way && gone && other && self.is_placed() && !self.elsewhere.live.is_empty()
        });
        let target = orphan.and_then(|rollout| rollout.target.as_ref());
        let tied = target
            .and_then(|id| self.releases.get(id))
            .is_some_and(|release| release.recipe.is_tied() && self.held_by_other().is_some());
        if target.is_none() || tied || !self.is_first_alive() {
            self.coordination.orphaned = None;
            return false;
        }
        let steps_ran = orphan.is_some_and(|rollout| rollout.phase == RolloutPhase::Starting);
        let migrates = self.migrates(target);
        // The coordinator's machine may live, and a step that it began, perhaps unheard, with it:
        // two of them at once could spoil data.
        let waits = migrates && !steps_ran;
        let patience = if waits { LEASE + LEASE_GRACE } else { TAKE_OVER_AFTER };
        let since = *self.coordination.orphaned.get_or_insert(now);
        if since.after(patience) > now {
            self.wake_at(since.after(patience));
            return false;
        }
        self.coordination.orphaned = None;
        let Some(rollout) = &mut self.rollout else { return false };
        rollout.coordinator = self.node.clone();
        let phase = rollout.phase;
        self.note("The node that coordinated the rollout is gone; this one goes on".into());
        self.resume_rollout(now);
        if phase == RolloutPhase::Starting {
            self.write_rollout(now, phase, None);
        }
        true
    }

    /// Hands the rollout to the node that has its files, which is where its release steps run.
    pub(super) fn hand_over(&mut self, now: Timestamp) -> bool {
        let Some(holder) = self.held_by_other().cloned() else { return false };
        self.attempt = None;
        self.note(format!("Node {holder} holds its data and rolls it out"));
        let Some(rollout) = &mut self.rollout else { return false };
        rollout.coordinator = holder;
        rollout.phase = RolloutPhase::Requested;
        rollout.changed_at = now;
        let record = rollout.clone();
        self.emit_rollout(record);
        true
    }

    /// Returns to the rollout of an earlier process. Another node may have gone on meanwhile: where
    /// release steps run, it is asked first.
    pub(super) fn return_to_rollout(&mut self, now: Timestamp) {
        let Some(record) = &self.rollout else { return };
        let under_way = matches!(record.phase, RolloutPhase::Building | RolloutPhase::Releasing);
        let mine = record.coordinator == self.node;
        if under_way && mine && self.migrates(record.target.as_ref()) {
            self.serving = record.serving.clone();
            self.coordination.returned = Some(now.after(UNHEARD_MAX));
        } else {
            self.resume_rollout(now);
        }
    }

    /// Returns whether a release has steps of its own, as far as is known.
    fn migrates(&self, target: Option<&ReleaseId>) -> bool {
        let release = target.and_then(|id| self.releases.get(id));
        release.is_none_or(|release| !release.recipe.release.is_empty())
    }

    /// Returns true if it went on with what an earlier process was about.
    pub(super) fn resume_when_heard(&mut self, now: Timestamp) -> bool {
        let Some(until) = self.coordination.returned else { return false };
        let alone = self.elsewhere.live.iter().eq([&self.node]);
        if self.is_placed() && !alone && now < until {
            self.wake_at(until);
            return false;
        }
        self.coordination.returned = None;
        self.resume_rollout(now);
        true
    }

    /// Goes on with what an earlier process of this node was about when it ended.
    pub(super) fn resume_rollout(&mut self, now: Timestamp) {
        let Some(record) = &self.rollout else { return };
        self.serving = record.serving.clone();
        if self.is_placed() && record.coordinator != self.node {
            return;
        }
        match record.phase {
            RolloutPhase::Done => self.watch_again(now),
            RolloutPhase::Failed => {}
            RolloutPhase::Requested => {
                self.coordination.accepted = Some((record.target.clone(), record.changed_at));
                self.begin(now, Stage::Building);
            }
            RolloutPhase::Building | RolloutPhase::Releasing => self.begin(now, Stage::Building),
            // The release steps ran: they run once.
            RolloutPhase::Starting => self.begin(now, Stage::Starting),
        }
    }

    /// Goes on with a release whose request was lost, as a command's request and our own write may
    /// cross. The release's record says all the same that it was asked for; the node that made it
    /// coordinates its rollout. Without any rollout nothing was written over it: the application
    /// was destroyed, which is still to be heard of.
    pub(super) fn request_was_lost(&mut self, now: Timestamp) -> bool {
        let newest = self.releases.keys().next_back().filter(|id| id.node == self.node);
        let passed_over = |(rollout, newest): &(&Rollout, &ReleaseId)| {
            rollout.target.as_ref().is_none_or(|target| target < *newest)
        };
        let lost = self.rollout.as_ref().zip(newest).filter(passed_over);
        let Some((record, newest)) = lost.map(|(rollout, id)| (rollout.clone(), id.clone())) else {
            self.coordination.unrequested = None;
            return false;
        };
        let since = match &self.coordination.unrequested {
            Some((release, since)) if *release == newest => *since,
            _ => now,
        };
        if since.after(REQUEST_WAIT_MAX) > now {
            self.coordination.unrequested = Some((newest, since));
            self.wake_at(since.after(REQUEST_WAIT_MAX));
            return false;
        }
        let unable = BTreeMap::new();
        self.rollout = Some(Rollout { target: Some(newest), unable, ..record });
        self.coordination.unrequested = None;
        self.begin(now, Stage::Building);
        self.open_choice();
        true
    }
}
