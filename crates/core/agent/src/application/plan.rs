//! The plan: what has to happen now for the observed to become the desired, as a list of steps, and
//! when to look again. Only reads the machine's state; the steps are too simple to go wrong.

use std::collections::BTreeSet;
use std::time::Duration;

use model::application::{RolloutMode, STOP_GRACE_MS_DEFAULT};
use model::probe::HealthState;
use model::{Generation, ProcessType, Release, ReleaseId, Timestamp};

use super::first::is_its_turn;
use super::slot::{Phase, Process, Replace, SlotId, SlotState};
use super::{Application, Stage};
use crate::mutants;
use crate::placement;

/// The time for draining. A long answer may finish; a client that never reads may not hold an old
/// release for ever.
pub const DRAIN_MAX: Duration = Duration::from_secs(30);
/// The time between the order to start and the existence of a process: a busy disk may take
/// seconds.
pub const LAUNCH_MAX: Duration = Duration::from_secs(30);
/// The time after its grace at which a stop that was not answered is ordered again.
pub const STOP_REPEAT: Duration = Duration::from_secs(10);
/// The time after which a user who waits is told why; most instances are ready before.
const TELL_AFTER: Duration = Duration::from_secs(3);
/// The time after which a listener that is gone is not expected to come back by itself.
pub const GONE_PATIENCE: Duration = Duration::from_secs(2);
/// The time for which an instance may fail: a database's hiccup should not restart what depends on
/// it.
pub const FAILING_PATIENCE: Duration = Duration::from_secs(30);

/// The time in which what was started outside the wall that an owner wants is to be replaced in a
/// rolling way; after it, it goes without a successor. A program that does not come up behind a
/// wall must not stay outside for that.
pub const OUTSIDE_MAX: Duration = Duration::from_secs(300);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PlannedStep {
    Build(ReleaseId),
    Start {
        place: SlotId,
        release: ReleaseId,
        restart: u32,
    },
    /// Takes it out of traffic, then stops it.
    Retire {
        place: SlotId,
        generation: Generation,
    },
    Stop {
        place: SlotId,
        generation: Generation,
    },
    /// Stops it, as it did not become healthy in time.
    GiveUp {
        place: SlotId,
        generation: Generation,
        why: String,
    },
    /// Has it replaced: it is ready by its own account, unusable by the checker's.
    Distrust {
        place: SlotId,
        generation: Generation,
        why: String,
    },
    /// Keeps it, as the checker changed its mind.
    Trust {
        place: SlotId,
        generation: Generation,
    },
    /// Says what is missing where everybody may read it, as it takes its time.
    Tell {
        place: SlotId,
        generation: Generation,
    },
    StopStray(super::IncarnationId),
}

/// A release that this node is to run, and where.
#[derive(Clone, Debug)]
pub(super) struct PlacedRelease {
    pub release: ReleaseId,
    pub restart: u32,
    /// Whether it does not serve yet: failures are the rollout's business, and restarts wait until
    /// it serves.
    pub target: bool,
    pub places: BTreeSet<SlotId>,
}

impl PlacedRelease {
    fn is_met_by(&self, process: &Process) -> bool {
        self.target || (process.record.restart == self.restart && process.replace.is_none())
    }
}

#[derive(Debug, Default)]
pub(super) struct ApplicationPlan {
    pub steps: Vec<PlannedStep>,
    pub wake: Option<Timestamp>,
    /// The process types in which a slot was chosen to be replaced.
    granted: BTreeSet<ProcessType>,
}

pub(super) fn plan(app: &Application, now: Timestamp) -> ApplicationPlan {
    let mut plan = ApplicationPlan::default();
    plan.time_limits(app, now);
    if app.is_ending() {
        plan.end(app);
        return plan;
    }
    let roles = roles(app);
    for role in roles.iter().filter(|role| app.needs_build(role)) {
        plan.build(app, now, &role.release);
    }
    let mut places: BTreeSet<&SlotId> = app.slots.keys().collect();
    places.extend(roles.iter().flat_map(|role| &role.places));
    for place in places {
        plan.slot(app, now, place, &roles);
    }
    plan
}

/// Returns the places of a release's processes in the whole cluster, as far as users want them.
pub(super) fn all_places(app: &Application, release: &Release) -> BTreeSet<SlotId> {
    let Some(spec) = &app.spec else { return BTreeSet::new() };
    let mut places = BTreeSet::new();
    for process in release.recipe.processes.keys() {
        let count = placement::count(spec, release, process);
        places.extend((1..=count).map(|slot| (process.clone(), slot)));
    }
    places
}

fn places(app: &Application, release: &Release) -> BTreeSet<SlotId> {
    all_places(app, release).into_iter().filter(|place| app.holds(place)).collect()
}

pub(super) fn roles(app: &Application) -> Vec<PlacedRelease> {
    let Some(spec) = &app.spec else { return Vec::new() };
    let mut roles = Vec::new();
    let starting = app.attempt.as_ref().filter(|attempt| attempt.stage == Stage::Starting);
    let target = starting.map(|attempt| &attempt.target).or_else(|| app.followed());
    let alone = target.is_some_and(|target| mode(app, target) == RolloutMode::StopFirst);
    let mut add = |id: &ReleaseId, target: bool| {
        if let Some(release) = app.releases.get(id) {
            let unfit = app.unfit_for.as_ref() == Some(id);
            let places = if unfit { BTreeSet::new() } else { places(app, release) };
            roles.push(PlacedRelease {
                release: id.clone(),
                restart: spec.restart,
                target,
                places,
            });
        }
    };
    if let Some(serving) = &app.serving
        && (!alone || target == Some(serving))
    {
        add(serving, false);
    }
    if let Some(target) = target
        && app.serving.as_ref() != Some(target)
    {
        add(target, true);
    }
    roles
}

pub(super) fn mode(app: &Application, release: &ReleaseId) -> RolloutMode {
    app.releases.get(release).map(|release| release.settings.rollout).unwrap_or_default()
}

pub(super) fn stop_grace(app: &Application, release: &ReleaseId) -> Duration {
    let settings = app.releases.get(release).map(|release| &release.settings);
    Duration::from_millis(settings.map_or(STOP_GRACE_MS_DEFAULT, |s| s.stop_grace_ms))
}

/// Returns the time for draining. Connections that are no requests may last, and only the release
/// knows how long is worthwhile.
fn drain_max(app: &Application, process: &Process) -> Duration {
    let grace = || stop_grace(app, &process.record.release);
    match (process.record.port, process.record.ports.is_empty()) {
        (_, true) => DRAIN_MAX,
        (None, false) => grace(),
        (Some(_), false) => DRAIN_MAX.max(grace()),
    }
}

impl Application {
    /// Returns whether something of a release runs here, or is a site's: the router of each node
    /// serves files from its own disk.
    fn needs_build(&self, role: &PlacedRelease) -> bool {
        let release = self.releases.get(&role.release);
        let is_site = release.is_some_and(|release| release.recipe.is_site());
        !role.places.is_empty() || !self.is_placed() || is_site
    }
}

impl ApplicationPlan {
    fn wait_until(&mut self, at: Timestamp) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    /// Returns true when the time has come; otherwise plans to look again then.
    fn is_over(&mut self, now: Timestamp, since: Timestamp, limit: Duration) -> bool {
        let end = since.after(limit);
        if end > now {
            self.wait_until(end);
        }
        end <= now
    }

    fn time_limits(&mut self, app: &Application, now: Timestamp) {
        for (place, slot) in &app.slots {
            for process in &slot.living {
                self.time_limit(app, now, place, process);
            }
        }
        for (id, since) in &app.strays {
            let limit = Duration::from_millis(STOP_GRACE_MS_DEFAULT) + STOP_REPEAT;
            if self.is_over(now, *since, limit) {
                self.steps.push(PlannedStep::StopStray(id.clone()));
            }
        }
    }

    fn time_limit(&mut self, app: &Application, now: Timestamp, place: &SlotId, process: &Process) {
        let generation = process.generation();
        let place = place.clone();
        let release = app.releases.get(&process.record.release);
        let since = process.since;
        match process.phase {
            Phase::Launching if self.is_over(now, since, LAUNCH_MAX) => {
                let why = format!("was not started within {} s", LAUNCH_MAX.as_secs());
                self.steps.push(PlannedStep::GiveUp { place, generation, why });
            }
            Phase::Waking => {
                let health = release.map(|r| r.settings.health.clone()).unwrap_or_default();
                if self.is_over(now, since, Duration::from_millis(health.start_timeout_ms)) {
                    let detail = process.detail.as_deref().unwrap_or("nothing was heard of it");
                    let seconds = health.start_timeout_ms as f64 / 1000.0;
                    let why = format!("was not ready within {seconds} s: {detail}");
                    self.steps.push(PlannedStep::GiveUp { place, generation, why });
                } else if !process.told
                    && process.detail.is_some()
                    && self.is_over(now, since, TELL_AFTER)
                {
                    self.steps.push(PlannedStep::Tell { place, generation });
                }
            }
            Phase::Draining => {
                if process.drained || self.is_over(now, since, drain_max(app, process)) {
                    self.steps.push(PlannedStep::Stop { place, generation });
                }
            }
            Phase::Stopping => {
                let limit = stop_grace(app, &process.record.release) + STOP_REPEAT;
                if self.is_over(now, since, limit) {
                    self.steps.push(PlannedStep::Stop { place, generation });
                }
            }
            Phase::Ready => self.verdict(app, now, place, process),
            Phase::Launching => {}
        }
    }

    fn verdict(&mut self, app: &Application, now: Timestamp, place: SlotId, process: &Process) {
        let generation = process.generation();
        let seen = app.verdicts.get(&place).filter(|seen| seen.verdict.generation == generation);
        let health = seen.map_or(HealthState::Healthy, |seen| seen.verdict.health);
        let patience = match health {
            HealthState::Gone => GONE_PATIENCE,
            HealthState::Failing => FAILING_PATIENCE,
            HealthState::Healthy => {
                if process.replace == Some(Replace::Verdict) {
                    self.steps.push(PlannedStep::Trust { place, generation });
                }
                return;
            }
        };
        let Some(seen) = seen else { return };
        if process.replace.is_none() && self.is_over(now, seen.since, patience) {
            let why = seen.verdict.detail.clone();
            self.steps.push(PlannedStep::Distrust { place, generation, why });
        }
    }

    /// Stops everything; starts nothing.
    fn end(&mut self, app: &Application) {
        for (place, slot) in &app.slots {
            for process in &slot.living {
                if process.is_current() || process.phase == Phase::Draining {
                    let (place, generation) = (place.clone(), process.generation());
                    self.steps.push(PlannedStep::Stop { place, generation });
                }
            }
        }
    }

    fn build(&mut self, app: &Application, now: Timestamp, release: &ReleaseId) {
        match app.build_state(release) {
            None => match app.artefact_until(release).filter(|until| *until > now) {
                Some(until) => self.wait_until(until),
                None => self.steps.push(PlannedStep::Build(release.clone())),
            },
            Some(super::Build::Failed(history)) if history.not_before() <= now => {
                self.steps.push(PlannedStep::Build(release.clone()));
            }
            Some(super::Build::Failed(history)) => self.wait_until(history.not_before()),
            Some(super::Build::Running(_) | super::Build::Done) => {}
        }
    }

    fn slot(&mut self, app: &Application, now: Timestamp, place: &SlotId, roles: &[PlacedRelease]) {
        let empty = SlotState::new(now, 0);
        let slot = app.slots.get(place).unwrap_or(&empty);
        let mut kept = BTreeSet::new();
        for role in roles.iter().filter(|role| role.places.contains(place)) {
            self.role(app, now, place, slot, role, &mut kept);
        }
        for process in slot.living.iter().filter(|process| process.is_current()) {
            let generation = process.generation();
            if !kept.contains(&generation) {
                self.steps.push(PlannedStep::Retire { place: place.clone(), generation });
            }
        }
    }

    /// Chooses the processes that fill a role, and starts one where none does.
    fn role(
        &mut self,
        app: &Application,
        now: Timestamp,
        place: &SlotId,
        slot: &SlotState,
        role: &PlacedRelease,
        kept: &mut BTreeSet<Generation>,
    ) {
        let fresh = || slot.current_of(&role.release).rev().filter(|p| role.is_met_by(p));
        let newest = fresh().next();
        let ready = fresh().find(|process| process.is_ready());
        let old = slot.current_of(&role.release).rev().find(|p| p.is_ready());
        if let Some(process) = ready {
            kept.insert(process.generation());
            return;
        }
        let old = old.filter(|process| !self.is_outside_too_long(app, now, process));
        if let Some(process) = newest {
            kept.insert(process.generation());
            kept.extend(old.map(Process::generation));
            return;
        }
        let Some(old) = old else {
            return self.start(app, now, place, slot, role);
        };
        let apart = mode(app, &role.release) == RolloutMode::StopFirst
            || old.replace == Some(Replace::Memory)
            || mutants::active(mutants::DRAIN_BEFORE_READY);
        let urgent = old.replace == Some(Replace::Verdict);
        let allowed = urgent || self.may_replace(app, place, role, apart);
        if !(allowed && apart) {
            kept.insert(old.generation());
        }
        if allowed && !apart {
            self.start(app, now, place, slot, role);
        }
    }

    fn is_outside_too_long(
        &mut self,
        app: &Application,
        now: Timestamp,
        process: &Process,
    ) -> bool {
        let mark = app.spec.as_ref().and_then(|spec| spec.isolation.as_ref());
        mark.is_some_and(|mark| {
            mark.is_outside(process.record.restart) && self.is_over(now, mark.since, OUTSIDE_MAX)
        })
    }

    /// Returns whether a slot may be replaced: one of a process type at a time, the lowest first.
    /// One that goes before its successor is there waits until all others are ready.
    fn may_replace(
        &mut self,
        app: &Application,
        place: &SlotId,
        role: &PlacedRelease,
        apart: bool,
    ) -> bool {
        let others = role.places.iter().filter(|other| other.0 == place.0 && *other != place);
        let busy = others.into_iter().any(|other| {
            let Some(slot) = app.slots.get(other) else { return apart };
            let ready = slot.has_ready(&role.release);
            let waking = slot.current_of(&role.release).any(|p| !p.is_ready() && role.is_met_by(p));
            let hopeless = slot.history(&role.release, role.restart).is_crash_loop();
            (ready && waking) || (apart && !ready && !hopeless)
        });
        !busy && self.granted.insert(place.0.clone())
    }

    fn start(
        &mut self,
        app: &Application,
        now: Timestamp,
        place: &SlotId,
        slot: &SlotState,
        role: &PlacedRelease,
    ) {
        let built = matches!(app.build_state(&role.release), Some(super::Build::Done));
        let overdue = |p: &Process| p.overdue.is_some() && p.record.release == role.release;
        let given_up = role.target && slot.living.iter().any(overdue);
        let waits = must_wait_for_others(app, slot, role) || !is_its_turn(app, place, role);
        if !built || given_up || !app.has_room(place) || waits {
            return;
        }
        // Failures in a rollout of its own end the rollout; others are tried again after a pause.
        if !role.target || app.attempt.is_none() {
            let not_before = slot.history(&role.release, role.restart).not_before();
            if not_before > now {
                return self.wait_until(not_before);
            }
        }
        let (place, release) = (place.clone(), role.release.clone());
        self.steps.push(PlannedStep::Start { place, release, restart: role.restart });
    }
}

/// Returns whether a process must wait for others: releases that must not overlap do not, nor do a
/// process that holds too much and its successor.
fn must_wait_for_others(app: &Application, slot: &SlotState, role: &PlacedRelease) -> bool {
    let apart = mode(app, &role.release) == RolloutMode::StopFirst;
    let beside = slot.living.iter().any(|process| {
        let same = process.record.release == role.release;
        same && (process.replace == Some(Replace::Memory) || apart)
    });
    let other_release = app.slots.values().flat_map(|slot| &slot.living).any(|process| {
        let other = &process.record.release;
        let newer = other.max(&role.release);
        *other != role.release && mode(app, newer) == RolloutMode::StopFirst
    });
    let elsewhere = app.elsewhere.running().any(|other| {
        let newer = other.max(&role.release);
        *other != role.release && mode(app, newer) == RolloutMode::StopFirst
    });
    // What a stray was started for is not known: maybe a newer release that allows no other beside
    // it.
    let mut newer = app.releases.keys().filter(|other| **other > role.release);
    let alone = |id: &ReleaseId| mode(app, id) == RolloutMode::StopFirst;
    let stray = !app.strays.is_empty() && (apart || newer.any(alone));
    beside || other_release || elsewhere || stray
}
