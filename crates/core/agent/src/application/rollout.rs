//! The rollout: how a release comes to serve. It is built, released, started beside the old one (or
//! after it), and switched to by one write when every process is healthy. Owns the attempt under
//! way; a failed one leaves what served. Driven by the application's machine.

use std::collections::BTreeMap;
use std::time::Duration;

use model::application::RolloutMode;
use model::{Fate, NodeId, ReleaseId, Rollout, RolloutPhase, Timestamp};

use super::building::{Choice, NOWHERE};
use super::plan::{DRAIN_MAX, LAUNCH_MAX, STOP_REPEAT, all_places, mode, stop_grace};
use super::slot::{Process, SlotId};
use super::{Application, Build, Effect, StepFailure, words};
use crate::lease::{LEASE, LEASE_GRACE};
use crate::mutants;
use crate::placement::UNHEARD_MAX;

/// Exits after which a release fails: within a second or two, not at the time limit; one alone may
/// be bad luck.
pub const EXITS_MAX: u32 = 2;
/// The time to wait for a release's record, which travels beside the request for it; without it
/// there is nothing to do.
pub const RELEASE_WAIT_MAX: Duration = Duration::from_secs(60);
/// The time to wait for a request, which is written right after the release's record; later than
/// that it was overwritten by a write of ours that crossed it.
pub const REQUEST_WAIT_MAX: Duration = Duration::from_secs(2);
/// The time after which a coordinator is replaced; a restarted node process is back by then.
pub const TAKE_OVER_AFTER: Duration = Duration::from_secs(5);
/// The time in which a write reaches everybody, as a rule.
pub(super) const RESTORE_STEP: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Building,
    /// What was built is made available to other nodes.
    Sharing,
    Releasing,
    Starting,
}

/// One try to make a release serve.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub target: ReleaseId,
    pub stage: Stage,
    /// The time at which the stage began.
    pub since: Timestamp,
    /// The choice of the node that builds it.
    pub choice: Choice,
    /// What the build lacks here, until it is known who else could try.
    pub lacking: Option<StepFailure>,
    pub exits: BTreeMap<SlotId, u32>,
    /// A warning for the user who pushed; the first is enough, as all instances are alike.
    pub warning: Option<String>,
    /// The nodes that cannot start it: why, and the last words of what ended there.
    pub failed: BTreeMap<NodeId, (String, String)>,
    /// The time at which the last of them was heard of.
    pub failed_at: Timestamp,
}

impl Attempt {
    fn new(target: ReleaseId, stage: Stage, now: Timestamp) -> Attempt {
        let (exits, failed) = (BTreeMap::new(), BTreeMap::new());
        Attempt {
            target,
            stage,
            since: now,
            choice: Choice::Made,
            lacking: None,
            exits,
            warning: None,
            failed,
            failed_at: now,
        }
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
fn fenced() -> bool {
    !mutants::active(mutants::UNFENCED_RELEASES)
}

impl Application {
    pub(super) fn rollout_changed(&mut self, now: Timestamp, record: Option<Rollout>) {
        // Any record but what this node wrote itself decides what it goes on with.
        self.returned = self.returned.filter(|_| {
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
            if self.accepted.as_ref() == Some(&request) {
                return;
            }
            self.accepted = Some(request);
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
        let since = self.outdated.take();
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
        self.outdated = Some(since.unwrap_or(now));
        Rollout { serving: Some(newer), ..record }
    }

    /// Writes again what an outdated coordinator overwrote. The nodes do so one after the other, as
    /// any of those that live may be the only one to know.
    fn restore_serving(&mut self, now: Timestamp) -> bool {
        let Some(since) = self.outdated else { return false };
        let before = self.elsewhere.live.iter().filter(|node| **node < self.node).count();
        let at = since.after(RESTORE_STEP * u32::try_from(before).unwrap_or(u32::MAX));
        if at > now {
            self.wake_at(at);
            return false;
        }
        self.outdated = None;
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
    fn replace_coordinator(&mut self, now: Timestamp) -> bool {
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
            self.orphaned = None;
            return false;
        }
        let steps_ran = orphan.is_some_and(|rollout| rollout.phase == RolloutPhase::Starting);
        let migrates = self.migrates(target);
        // The coordinator's machine may live, and a step that it began, perhaps unheard, with it:
        // two of them at once could spoil data.
        let waits = migrates && !steps_ran;
        let patience = if waits { LEASE + LEASE_GRACE } else { TAKE_OVER_AFTER };
        let since = *self.orphaned.get_or_insert(now);
        if since.after(patience) > now {
            self.wake_at(since.after(patience));
            return false;
        }
        self.orphaned = None;
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
    fn hand_over(&mut self, now: Timestamp) -> bool {
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
            self.returned = Some(now.after(UNHEARD_MAX));
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
    fn resume_when_heard(&mut self, now: Timestamp) -> bool {
        let Some(until) = self.returned else { return false };
        let alone = self.elsewhere.live.iter().eq([&self.node]);
        if self.is_placed() && !alone && now < until {
            self.wake_at(until);
            return false;
        }
        self.returned = None;
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
                self.accepted = Some((record.target.clone(), record.changed_at));
                self.begin(now, Stage::Building);
            }
            RolloutPhase::Building | RolloutPhase::Releasing => self.begin(now, Stage::Building),
            // The release steps ran: they run once.
            RolloutPhase::Starting => self.begin(now, Stage::Starting),
        }
    }

    fn begin(&mut self, now: Timestamp, stage: Stage) {
        let target = self.rollout.as_ref().and_then(|rollout| rollout.target.clone());
        let Some(target) = target else { return };
        // What was built before may be gone; asking again is cheap.
        let build = self.build_of(&target);
        if !matches!(self.builds.get(&build), Some(Build::Running(_))) {
            self.builds.remove(&build);
        }
        self.note(format!("Rolling out {}", target.short()));
        self.attempt = Some(Attempt::new(target, stage, now));
        if stage == Stage::Building {
            self.built_on(None);
            self.write_rollout(now, RolloutPhase::Building, None);
        }
    }

    /// Leaves open where a release pushed here is built; what was handed to this node is built
    /// here.
    fn open_choice(&mut self) {
        let tried = self.rollout.as_ref().is_some_and(|rollout| !rollout.unable.is_empty());
        let attempt = self.attempt.as_mut().filter(|a| a.target.node == self.node && !tried);
        if let Some(attempt) = attempt {
            attempt.choice = Choice::Open;
        }
    }

    /// Goes on with the rollout and returns true if something changed.
    pub(super) fn advance_rollout(&mut self, now: Timestamp) -> bool {
        if self.is_ending() {
            return false;
        }
        if self.look_at_fitness() {
            return true;
        }
        if self.request_was_lost(now) {
            return true;
        }
        if self.restore_serving(now) || self.replace_coordinator(now) {
            return true;
        }
        if self.resume_when_heard(now) || self.look_at_instances_elsewhere(now) {
            return true;
        }
        let Some(attempt) = self.attempt.clone() else { return false };
        if self.is_placed() && fenced() && Some(&attempt.target) < self.serving.as_ref() {
            let why = "a newer release serves already; push again to replace it";
            self.fail_rollout(now, why.into(), "");
            return true;
        }
        let Some(release) = self.releases.get(&attempt.target).cloned() else {
            return self.give_up_after(now, &attempt, RELEASE_WAIT_MAX, || {
                "its record did not arrive in the store; push again".into()
            });
        };
        if release.recipe.is_tied() {
            if self.is_placed() && self.hand_over(now) {
                return true;
            }
            self.hold_files(now);
        }
        match attempt.stage {
            Stage::Building if attempt.choice != Choice::Made => {
                return self.choose_builder(now, &release);
            }
            Stage::Building => match self.builds.get(&release.build_id()).cloned() {
                None => self.build(&attempt.target),
                Some(Build::Done) if self.share(now, &release) => {}
                Some(Build::Done) => self.release_or_start(now, release),
                Some(Build::Running(_) | Build::Failed(_)) => return false,
            },
            Stage::Sharing if !self.sharing_takes_too_long(now, attempt.since) => return false,
            Stage::Sharing => self.release_or_start(now, release),
            Stage::Releasing => return false,
            Stage::Starting => {
                if self.no_node_can(now, &release) {
                    return true;
                }
                let wanted = all_places(self, &release);
                let ready = |place: &SlotId| {
                    let here = self.slots.get(place);
                    here.is_some_and(|slot| slot.has_ready(&attempt.target))
                        || self.elsewhere.has_ready(place, &attempt.target)
                };
                let early = mutants::active(mutants::SWITCH_BEFORE_ALL_HEALTHY);
                let done = wanted.iter().all(ready) || (early && wanted.iter().any(ready));
                if !done {
                    let start = Duration::from_millis(release.settings.health.start_timeout_ms);
                    let stop = match (mode(self, &attempt.target), &self.serving) {
                        // A drain may take as long as the stop, where connections are no requests.
                        (RolloutMode::StopFirst, Some(old)) => stop_grace(self, old) * 2,
                        _ => Duration::ZERO,
                    };
                    // First starts come one after the other, then all the rest.
                    let types = release.recipe.processes.len();
                    let waves = u32::try_from(types).unwrap_or(u32::MAX).saturating_add(1);
                    let tries = ((start + LAUNCH_MAX) * EXITS_MAX).saturating_mul(waves);
                    let limit = tries + DRAIN_MAX + stop + STOP_REPEAT;
                    return self.give_up_after(now, &attempt, limit, || {
                        "its processes could not be started in time".into()
                    });
                }
                self.attempt = None;
                let before = self.serving.replace(attempt.target.clone());
                let remark = self.remark(&attempt.target);
                let said = attempt.warning.into_iter().chain(remark).chain(self.unable());
                let said: Vec<String> = said.collect();
                let said = (!said.is_empty()).then(|| said.join("; "));
                self.switched(now, before);
                self.write_rollout(now, RolloutPhase::Done, said);
                self.note(format!("{} is serving", attempt.target.short()));
            }
        }
        true
    }

    /// Goes on with a release whose request was lost, as a command's request and our own write may
    /// cross. The release's record says all the same that it was asked for; the node that made it
    /// coordinates its rollout. Without any rollout nothing was written over it: the application
    /// was destroyed, which is still to be heard of.
    fn request_was_lost(&mut self, now: Timestamp) -> bool {
        let newest = self.releases.keys().next_back().filter(|id| id.node == self.node);
        let passed_over = |(rollout, newest): &(&Rollout, &ReleaseId)| {
            rollout.target.as_ref().is_none_or(|target| target < *newest)
        };
        let lost = self.rollout.as_ref().zip(newest).filter(passed_over);
        let Some((record, newest)) = lost.map(|(rollout, id)| (rollout.clone(), id.clone())) else {
            self.unrequested = None;
            return false;
        };
        let since = match &self.unrequested {
            Some((release, since)) if *release == newest => *since,
            _ => now,
        };
        if since.after(REQUEST_WAIT_MAX) > now {
            self.unrequested = Some((newest, since));
            self.wake_at(since.after(REQUEST_WAIT_MAX));
            return false;
        }
        let unable = BTreeMap::new();
        self.rollout = Some(Rollout { target: Some(newest), unable, ..record });
        self.unrequested = None;
        self.begin(now, Stage::Building);
        self.open_choice();
        true
    }

    fn give_up_after(
        &mut self,
        now: Timestamp,
        attempt: &Attempt,
        limit: Duration,
        why: impl FnOnce() -> String,
    ) -> bool {
        let end = attempt.since.after(limit);
        if end > now {
            self.wake_at(end);
            return false;
        }
        self.fail_rollout(now, why(), "");
        true
    }

    pub(super) fn shared(
        &mut self,
        now: Timestamp,
        release: &ReleaseId,
        result: Result<(), String>,
    ) {
        let sharing = |a: &&Attempt| a.target == *release && a.stage == Stage::Sharing;
        let release = self.releases.get(release).cloned();
        let (Some(_), Some(release)) = (self.attempt.as_ref().filter(sharing), release) else {
            return;
        };
        match result {
            Ok(()) => self.built_on(Some(self.node.clone())),
            Err(why) => self.note(format!("Other nodes build it themselves: {why}")),
        }
        self.release_or_start(now, release);
    }

    pub(super) fn enter_stage(&mut self, now: Timestamp, stage: Stage) {
        if let Some(attempt) = &mut self.attempt {
            attempt.stage = stage;
            attempt.since = now;
        }
        let phase = match stage {
            Stage::Building | Stage::Sharing => RolloutPhase::Building,
            Stage::Releasing => RolloutPhase::Releasing,
            Stage::Starting => RolloutPhase::Starting,
        };
        self.write_rollout(now, phase, None);
    }

    pub(super) fn built(
        &mut self,
        now: Timestamp,
        release: &ReleaseId,
        result: Result<(), StepFailure>,
    ) {
        let build = self.build_of(release);
        let Some(Build::Running(mut history)) = self.builds.get(&build).cloned() else { return };
        let Err(failure) = result else {
            self.builds.insert(build, Build::Done);
            return;
        };
        history.failed(now, Duration::ZERO);
        history.failed(now, Duration::ZERO);
        let is_of_it = |id: &ReleaseId| self.build_of(id) == build;
        let awaited = self
            .attempt
            .as_ref()
            .is_some_and(|a| is_of_it(&a.target) && a.stage != Stage::Releasing);
        let followed = self.followed().filter(|id| is_of_it(id)).cloned();
        self.builds.insert(build, Build::Failed(history));
        if awaited {
            if !self.ask_others(now, &failure) {
                self.fail_rollout(now, failure.why, &failure.last_words);
            }
        } else {
            if self.is_placed() {
                if followed.is_some() {
                    self.unfit_for = followed;
                }
                self.emit(Effect::Unfit);
            }
            self.note(format!("Preparing {} failed: {}", release.short(), failure.why));
        }
    }

    /// Counts that a process of the release that is being rolled out ended or could not be started.
    pub(super) fn count_exit(
        &mut self,
        now: Timestamp,
        place: &SlotId,
        process: &Process,
        why: &str,
        last_words: &str,
    ) {
        let Some(attempt) = &mut self.attempt else { return };
        let exits = attempt.exits.entry(place.clone()).or_default();
        *exits += 1;
        if *exits >= EXITS_MAX || process.failed {
            let (process, slot) = place;
            let why = format!("{process}.{slot} {why}");
            if !self.leave_to_others(now, &why, last_words) {
                self.fail_rollout(now, why, last_words);
            }
        }
    }

    pub(super) fn fail_rollout(&mut self, now: Timestamp, why: String, last_words: &str) {
        let Some(attempt) = self.attempt.take() else { return };
        let mut message = why;
        // If other nodes tried before, that may be what has to be fixed.
        if let Some(unable) = self.unable().filter(|_| !message.contains(NOWHERE)) {
            message = format!("{message} ({unable})");
        }
        message.push_str(&words::last_words(last_words));
        let serving = match &self.serving {
            Some(serving) => format!("{} keeps serving", serving.short()),
            None => "nothing serves".into(),
        };
        self.note(format!("{} failed, {serving}: {message}", attempt.target.short()));
        self.write_outcome(now, attempt.target, Fate::Failed, message.clone());
        self.write_rollout(now, RolloutPhase::Failed, Some(message));
    }

    fn write_rollout(&mut self, now: Timestamp, phase: RolloutPhase, message: Option<String>) {
        let serving = self.serving.clone();
        let coordinator = self.node.clone();
        let Some(record) = &mut self.rollout else { return };
        *record =
            Rollout { serving, phase, coordinator, message, changed_at: now, ..record.clone() };
        let record = record.clone();
        self.emit_rollout(record);
    }
}
