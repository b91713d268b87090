//! The life of processes: performs the plan's steps and takes note of what became of them. Does not
//! choose what runs; driven by the application's machine.

use std::time::Duration;

use model::application::Settings;
use model::instance::{INCARNATIONS_MAX, ProcessIdentity};
use model::port::InstancePorts;
use model::{Generation, Incarnation, InstanceId, InstanceState, ReleaseId, Timestamp};

use super::absent;
use super::advice::{BACKGROUND, FOR_GOOD, advised};
use super::plan::{PlannedStep, stop_grace};
use super::slot::{Phase, Process, Replace, SlotId, SlotState};
use super::{Application, Effect, Exit, IncarnationId, Mistake, Stage};
use crate::mutants;

const MEGABYTE: u64 = 1_000_000;

impl Application {
    pub(super) fn id(&self, place: &SlotId, generation: Generation) -> IncarnationId {
        let (process, slot) = place.clone();
        let instance = InstanceId { application: self.name.clone(), process, slot };
        IncarnationId { instance, generation }
    }

    pub(super) fn process_mut(&mut self, id: &IncarnationId) -> Option<&mut Process> {
        self.slots.get_mut(&place_of(id))?.get_mut(id.generation)
    }

    pub(super) fn perform(&mut self, now: Timestamp, step: PlannedStep) {
        match step {
            PlannedStep::Build(release) => self.build(&release),
            PlannedStep::Start { place, release, restart } => {
                self.start(now, &place, &release, restart)
            }
            PlannedStep::Retire { place, generation } => self.retire(now, &place, generation),
            PlannedStep::Stop { place, generation } => self.stop(now, &place, generation),
            PlannedStep::GiveUp { place, generation, why } => {
                self.give_up(now, &place, generation, &why)
            }
            PlannedStep::Distrust { place, generation, why } => {
                self.flag(now, &place, generation, Replace::Verdict, why);
            }
            PlannedStep::Trust { place, generation } => {
                let id = self.id(&place, generation);
                if let Some(process) = self.process_mut(&id) {
                    process.replace = None;
                    process.record.reason = None;
                }
            }
            PlannedStep::Tell { place, generation } => {
                let id = self.id(&place, generation);
                if let Some(process) = self.process_mut(&id) {
                    process.told = true;
                }
            }
            PlannedStep::StopStray(id) => self.stop_stray(now, id),
        }
    }

    fn start(&mut self, now: Timestamp, place: &SlotId, id: &ReleaseId, restart: u32) {
        let Some(release) = self.releases.get(id).cloned() else { return };
        let recipe = release.recipe.processes.get(&place.0);
        let concurrency =
            release.settings.limits.concurrency.or(recipe.and_then(|recipe| recipe.concurrency));
        let floor = self.generation_floor;
        // One plan may start two releases in a slot that has room for one: the other comes next.
        if !self.has_room(place) {
            return;
        }
        let slot = self.slots.entry(place.clone()).or_insert_with(|| SlotState::new(now, floor));
        // No record remembers the generations of processes that failed and are gone; time does.
        let past = if mutants::active(mutants::REUSE_GENERATIONS) { 0 } else { now.0 };
        let generation = slot.last_generation.saturating_add(1).max(past);
        slot.last_generation = generation;
        let (restarts, reason) = match slot.crashed.take_if(|crashed| crashed.release == *id) {
            Some(crashed) => (crashed.restarts.saturating_add(1), crashed.reason),
            None => match slot.current_of(id).next_back() {
                Some(old) => {
                    let failure = u32::from(old.replace.is_some());
                    (old.record.restarts.saturating_add(failure), old.record.reason.clone())
                }
                None => (0, None),
            },
        };
        let record = Incarnation {
            generation,
            release: id.clone(),
            restart,
            state: InstanceState::Starting,
            port: None,
            ports: InstancePorts::new(),
            process: None,
            started_at: None,
            concurrency,
            restarts,
            reason,
            remark: None,
        };
        slot.living.push(Process::new(record, Phase::Launching, now));
        let id = self.id(place, generation);
        let start = Effect::Start { id, release, process: place.0.clone() };
        if mutants::active(mutants::START_BEFORE_CLAIM) {
            self.queue.push(start);
        } else {
            self.emit(start);
        }
    }

    /// Returns whether one more process may run in a slot; strays take room until they are gone.
    pub(super) fn has_room(&self, place: &SlotId) -> bool {
        let living = self.slots.get(place).map_or(0, |slot| slot.living.len());
        let strays = self.strays.keys().filter(|id| place_of(id) == *place).count();
        living + strays < INCARNATIONS_MAX
    }

    fn retire(&mut self, now: Timestamp, place: &SlotId, generation: Generation) {
        let id = self.id(place, generation);
        let Some(process) = self.process_mut(&id) else { return };
        match process.phase {
            Phase::Launching => process.doomed = true,
            Phase::Waking => self.stop(now, place, generation),
            // Nothing routes to the others, so nothing has to finish there.
            Phase::Ready if place.0.is_web() || !process.record.ports.is_empty() => {
                process.enter(Phase::Draining, now)
            }
            Phase::Ready => self.stop(now, place, generation),
            Phase::Draining | Phase::Stopping => {}
        }
    }

    /// Stops a process; ordered again when no exit follows.
    fn stop(&mut self, now: Timestamp, place: &SlotId, generation: Generation) {
        let id = self.id(place, generation);
        let Some(process) = self.process_mut(&id) else { return };
        if process.phase == Phase::Launching {
            process.doomed = true;
            return;
        }
        process.enter(Phase::Stopping, now);
        let release = process.record.release.clone();
        let grace = stop_grace(self, &release);
        self.emit(Effect::Stop { id, grace });
    }

    fn give_up(&mut self, now: Timestamp, place: &SlotId, generation: Generation, why: &str) {
        let id = self.id(place, generation);
        let Some(process) = self.process_mut(&id) else { return };
        if !matches!(process.phase, Phase::Launching | Phase::Waking) {
            return;
        }
        let (counts, exists) = (process.is_current(), process.phase == Phase::Waking);
        process.failed = counts;
        process.record.reason = Some(why.into());
        process.enter(Phase::Stopping, now);
        let process = process.clone();
        if counts && exists && self.is_rolling(&process.record.release) {
            if let Some(process) = self.process_mut(&id) {
                process.overdue = Some(why.into());
            }
        } else if counts {
            self.count_failure(now, place, &process, why, "");
            self.consider_taking_back(now, &process, place, why, "");
        }
        self.stop(now, place, generation);
    }

    fn flag(
        &mut self,
        now: Timestamp,
        place: &SlotId,
        generation: Generation,
        replace: Replace,
        why: String,
    ) {
        let id = self.id(place, generation);
        let Some(process) = self.process_mut(&id) else { return };
        if !process.is_ready() || process.replace.is_some() {
            return;
        }
        process.replace = Some(replace);
        process.record.reason = Some(why.clone());
        let (release, restart) = (process.record.release.clone(), process.record.restart);
        let lived = process.lived(now);
        if let Some(slot) = self.slots.get_mut(place) {
            slot.count_failure(now, &release, restart, lived);
        }
        self.note(format!("{} is replaced: {why}", id.instance.label()));
    }

    pub(super) fn started(
        &mut self,
        now: Timestamp,
        id: IncarnationId,
        identity: ProcessIdentity,
        (port, ports): (Option<u16>, InstancePorts),
    ) {
        let Some(process) = self.process_mut(&id) else {
            return self.stop_stray(now, id);
        };
        match process.phase {
            Phase::Launching => {
                process.record.process = Some(identity);
                process.record.port = port;
                process.record.ports = ports;
                process.record.started_at = Some(now);
                process.enter(Phase::Waking, now);
                if process.doomed {
                    return self.stop(now, &place_of(&id), id.generation);
                }
                self.await_healthy(id);
            }
            // The process came into being after all, too late.
            Phase::Stopping if process.record.process.is_none() => {
                process.record.process = Some(identity);
                self.stop(now, &place_of(&id), id.generation);
            }
            _ => {}
        }
    }

    pub(super) fn await_healthy(&mut self, id: IncarnationId) {
        let Some(process) = self.process_mut(&id) else { return };
        let (port, ports) = (process.record.port, process.record.ports.clone());
        let release = process.record.release.clone();
        let settings = self.releases.get(&release).map(|release| release.settings.clone());
        let Settings { health, protocol, .. } = settings.unwrap_or_default();
        self.emit(Effect::AwaitHealthy { id, port, ports, health, protocol });
    }

    pub(super) fn not_yet_healthy(
        &mut self,
        id: &IncarnationId,
        detail: &str,
        mistake: Option<Mistake>,
    ) {
        let Some(process) = self.process_mut(id) else { return };
        let release = process.record.release.clone();
        let said = match mistake {
            Some(mistake) => advised(detail, mistake, self.framework(&release)),
            None => detail.to_owned(),
        };
        if let Some(process) = self.process_mut(id) {
            process.detail = Some(said);
            process.told |= mistake.is_some();
        }
    }

    pub(super) fn hopeless(
        &mut self,
        now: Timestamp,
        id: &IncarnationId,
        detail: &str,
        mistake: Mistake,
    ) {
        let Some(process) = self.process_mut(id) else { return };
        if process.phase == Phase::Waking {
            let release = process.record.release.clone();
            let why = advised(detail, mistake, self.framework(&release));
            self.give_up(now, &place_of(id), id.generation, &why);
        }
    }

    fn framework(&self, release: &ReleaseId) -> &str {
        self.releases.get(release).map_or("", |release| &release.recipe.framework)
    }

    pub(super) fn healthy(
        &mut self,
        now: Timestamp,
        id: &IncarnationId,
        warning: Option<String>,
        remark: Option<String>,
    ) {
        let Some(process) = self.process_mut(id) else { return };
        if process.phase != Phase::Waking {
            return;
        }
        process.enter(Phase::Ready, now);
        process.detail = None;
        process.record.remark = remark;
        let release = process.record.release.clone();
        if let Some(warning) = warning {
            let warning = format!("{} {warning}", id.instance.label());
            if let Some(attempt) = self.attempt.as_mut().filter(|a| a.target == release) {
                attempt.warning.get_or_insert_with(|| warning.clone());
            }
            self.note(warning);
        }
    }

    pub(super) fn memory(&mut self, now: Timestamp, id: &IncarnationId, bytes: u64) {
        let Some(process) = self.process_mut(id) else { return };
        let (phase, release) = (process.phase, process.record.release.clone());
        let limit = self.releases.get(&release).and_then(|r| r.settings.limits.memory_bytes);
        let Some(limit) = limit.filter(|limit| bytes > *limit) else { return };
        let (used, most) = (bytes / MEGABYTE, limit / MEGABYTE);
        let why = format!("used {used} MB, limit {most} MB");
        let place = place_of(id);
        match phase {
            Phase::Waking => self.give_up(now, &place, id.generation, &why),
            Phase::Ready => self.flag(now, &place, id.generation, Replace::Memory, why),
            Phase::Launching | Phase::Draining | Phase::Stopping => {}
        }
    }

    pub(super) fn exited(&mut self, now: Timestamp, id: IncarnationId, exit: Exit) {
        if self.strays.remove(&id).is_some() {
            return self.emit(Effect::Forget { id });
        }
        let place = place_of(&id);
        let slot = self.slots.get_mut(&place);
        let Some(mut process) = slot.and_then(|slot| slot.remove(id.generation)) else { return };
        if exit.lease_over {
            self.lapse(now, &place);
        } else if process.is_current() {
            let background = exit.background && exit.success;
            let how = if background { BACKGROUND.to_owned() } else { exit.how.clone() };
            process.record.reason = Some(how.clone());
            let why = match absent::advice(&how, &exit.last_words) {
                _ if background => how,
                _ if exit.success => format!("ended: {how}; {FOR_GOOD}"),
                Some(advice) => format!("ended: {how}; {advice}"),
                None => format!("ended: {how}"),
            };
            self.count_failure(now, &place, &process, &why, &exit.last_words);
            self.bury(&place, process.clone(), InstanceState::Crashed);
            self.consider_taking_back(now, &process, &place, &why, &exit.last_words);
        } else if process.failed {
            if let Some(why) = process.overdue.take() {
                self.count_failure(now, &place, &process, &why, &exit.last_words);
            }
            self.bury(&place, process, InstanceState::Crashed);
        } else if process.replace.is_some() {
            self.bury(&place, process, InstanceState::Stopped);
        }
        self.emit(Effect::Forget { id });
    }

    /// Notes an exit after which nothing failed. A node that took the place meanwhile has the older
    /// claim from now on.
    pub(super) fn lapse(&mut self, now: Timestamp, place: &SlotId) {
        if let Some(slot) = self.slots.get_mut(place) {
            slot.claimed_at = slot.claimed_at.max(now);
        }
        let label = format!("{}.{}", place.0, place.1);
        self.note(format!("{label} was stopped by its shim while this node was away"));
    }

    pub(super) fn start_failed(&mut self, now: Timestamp, id: &IncarnationId, why: &str) {
        let place = place_of(id);
        let slot = self.slots.get_mut(&place);
        let Some(mut process) = slot.and_then(|slot| slot.remove(id.generation)) else { return };
        if process.is_current() {
            process.record.reason = Some(why.into());
            let message = format!("could not be started: {why}");
            self.count_failure(now, &place, &process, &message, "");
        }
        if process.is_current() || process.failed {
            self.bury(&place, process, InstanceState::Crashed);
        }
    }

    /// Keeps a process that ended to be shown until its successor starts.
    pub(super) fn bury(&mut self, place: &SlotId, process: Process, state: InstanceState) {
        let release = process.record.release.clone();
        let serving = self.serving.as_ref() == Some(&release);
        let followed = self.followed() == Some(&release);
        if !serving
            && !followed
            && self.attempt.as_ref().is_none_or(|attempt| attempt.target != release)
        {
            return;
        }
        let Some(slot) = self.slots.get_mut(place) else { return };
        if slot.current_of(&release).next().is_none() {
            slot.crashed = Some(Incarnation { state, ..process.record });
        }
    }

    /// Returns whether its processes are started for the first time; any failure is then the
    /// rollout's.
    fn is_rolling(&self, release: &ReleaseId) -> bool {
        let attempt = self.attempt.as_ref();
        attempt.is_some_and(|a| a.stage == Stage::Starting && a.target == *release)
    }

    /// Counts that a process ended by itself, or did not become healthy.
    pub(super) fn count_failure(
        &mut self,
        now: Timestamp,
        place: &SlotId,
        process: &Process,
        why: &str,
        last_words: &str,
    ) {
        if self.is_ending() {
            return;
        }
        let release = &process.record.release;
        let label = self.id(place, process.generation()).instance.label();
        if self.is_rolling(release) {
            self.note(format!("{label} of {} {why}", release.short()));
            return self.count_exit(now, place, process, why, last_words);
        }
        if self.serving.as_ref() != Some(release) && self.followed() != Some(release) {
            return;
        }
        self.note_unfit(process, why);
        let Some(slot) = self.slots.get_mut(place) else { return };
        let (restart, lived) = (process.record.restart, process.lived(now));
        let history = slot.count_failure(now, release, restart, lived);
        let wait = history.not_before().since(now);
        let next = match wait {
            Duration::ZERO => "it is started again at once".into(),
            wait if history.became_crash_loop() => {
                format!(
                    "it keeps failing, from now on it is tried less often: in {} s",
                    wait.as_secs()
                )
            }
            wait => format!("it is started again in {} s", wait.as_secs()),
        };
        self.note(format!("{label} of {} {why}; {next}", release.short()));
        self.note_last_words(last_words);
    }

    /// Stops a process that no claim knows.
    pub(super) fn stop_stray(&mut self, now: Timestamp, id: IncarnationId) {
        self.strays.insert(id.clone(), now);
        let grace = Duration::from_millis(model::application::STOP_GRACE_MS_DEFAULT);
        self.emit(Effect::Stop { id, grace });
    }
}

pub(super) fn place_of(id: &IncarnationId) -> SlotId {
    (id.instance.process.clone(), id.instance.slot)
}
