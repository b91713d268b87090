//! The rollout: how a release comes to serve. It is built, released, started beside the old one (or
//! after it), and switched to by one write when every process is healthy. Owns the attempt under
//! way; a failed one leaves what served. Driven by the application's machine.

use std::collections::BTreeMap;
use std::time::Duration;

use model::application::RolloutMode;
use model::{Fate, NodeId, ReleaseId, Rollout, RolloutPhase, Timestamp};

use super::building::{Choice, NOWHERE};
use super::coordination::fenced;
use super::plan::{DRAIN_MAX, LAUNCH_MAX, STOP_REPEAT, all_places, mode, stop_grace};
use super::slot::{Process, SlotId};
use super::{Application, Build, Effect, StepFailure, words};
use crate::mutants;

/// Exits after which a release fails: within a second or two, not at the time limit; one alone may
/// be bad luck.
pub const EXITS_MAX: u32 = 2;
/// The time to wait for a release's record, which travels beside the request for it; without it
/// there is nothing to do.
pub const RELEASE_WAIT_MAX: Duration = Duration::from_secs(60);

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

impl Application {
    pub(super) fn begin(&mut self, now: Timestamp, stage: Stage) {
        let target = self.rollout.as_ref().and_then(|rollout| rollout.target.clone());
        let Some(target) = target else { return };
        // What was built before may be gone; asking again is cheap.
        let build = self.build_of(&target);
        if !matches!(self.builds.get(&build), Some(Build::Running(_))) {
            self.builds.remove(&build);
        }
        // Whoever coordinates tries it, though it was left to others before: they may be gone.
        if self.unfit_for.take_if(|unfit| *unfit == target).is_some() {
            self.emit(Effect::Fit);
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
    pub(super) fn open_choice(&mut self) {
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

    pub(super) fn write_rollout(
        &mut self,
        now: Timestamp,
        phase: RolloutPhase,
        message: Option<String>,
    ) {
        let serving = self.serving.clone();
        let coordinator = self.node.clone();
        let Some(record) = &mut self.rollout else { return };
        *record =
            Rollout { serving, phase, coordinator, message, changed_at: now, ..record.clone() };
        let record = record.clone();
        self.emit_rollout(record);
    }
}
