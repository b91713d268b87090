//! One application on one node: decides what is built, started, drained and stopped here, and
//! coordinates the rollout. Pure; driven by the application's actor in the binary, which performs
//! the effects and reports what happened as events. Decides from whole state, so that any event may
//! be lost or repeated at the cost of latency alone.

pub mod absent;
mod adopt;
mod advice;
mod building;
mod builds;
mod contract;
mod coordination;
mod destroyed;
mod earlier;
mod elsewhere;
mod first;
mod outcome;
mod plan;
mod release_steps;
mod remarks;
mod rollout;
mod slot;
mod supervise;
mod taking_back;
mod unfit;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::instance::INCARNATIONS_MAX;
use model::probe::Verdict;
use model::{
    ApplicationName, ApplicationSpec, BuildId, Claim, Generation, InstanceId, Machine, NodeId,
    Release, ReleaseId, Rollout, Timestamp,
};

use crate::last_words;
use crate::placement::Hold;
use crate::restart::FailureHistory;
use building::Artefacts;
pub use building::{BUILDERS_MAX, BuildCandidate};
pub use builds::BUILDS_KEPT;
pub use contract::{Adopted, Effect, Event, Exit, IncarnationId, Mistake, StepFailure};
use coordination::Coordination;
pub use coordination::merge;
use destroyed::Ends;
use elsewhere::Elsewhere;
pub use plan::{DRAIN_MAX, FAILING_PATIENCE, GONE_PATIENCE, OUTSIDE_MAX};
use release_steps::ReleaseSteps;
pub use rollout::EXITS_MAX;
use rollout::{Attempt, Stage};
use slot::{Phase, SlotId, SlotState};
use taking_back::Watched;
pub use taking_back::{SERVES_WELL_AFTER, TakeBackProgress, taken_back};
pub use words::LAST_WORDS_BYTES_MAX;

/// Lines of an output in the platform's log, which people read: as many as show what went wrong,
/// from the first call or the reason to the last words.
const NOTED_LINES_MAX: usize = 24;
/// Passes over the plan for one event, as steps lead to steps; in practice three are enough.
const PASSES_MAX: usize = 32;
/// The pause before looking again where the passes were not enough: something is wrong, and it must
/// not spin.
const PASSES_PAUSE: Duration = Duration::from_millis(100);

/// The agent's part of one application on one node.
#[derive(Debug)]
pub struct Application {
    node: NodeId,
    name: ApplicationName,
    spec: Option<ApplicationSpec>,
    releases: BTreeMap<ReleaseId, Release>,
    /// Releases of another application of this name, which was destroyed or is to be heard of.
    foreign: BTreeMap<ReleaseId, Release>,
    ends: Ends,
    /// The releases that are on record as failed.
    failed: BTreeSet<ReleaseId>,
    rollout: Option<Rollout>,
    /// The latest rollout that was heard of, with what it says of such releases.
    heard: Option<Rollout>,
    /// The coordinator's own memory of what serves: requests carry what a command read earlier.
    serving: Option<ReleaseId>,
    /// The release that served when that was last looked at.
    served: Option<ReleaseId>,
    attempt: Option<Attempt>,
    coordination: Coordination,
    /// The release that has begun to serve, as long as it may be taken back.
    watched: Option<Watched>,
    builds: BTreeMap<BuildId, Build>,
    steps: ReleaseSteps,
    artefacts: Artefacts,
    /// A release that is being rolled out and could not be started here: others try.
    unfit_for: Option<ReleaseId>,
    slots: BTreeMap<SlotId, SlotState>,
    /// The places of this node; `None` if all places are this node's.
    held: Option<BTreeMap<SlotId, Hold>>,
    elsewhere: Elsewhere,
    /// Processes without a claim, each with the time at which it was told to stop.
    strays: BTreeMap<IncarnationId, Timestamp>,
    verdicts: BTreeMap<SlotId, Seen>,
    /// Claims as they were read, until processes are adopted.
    read: BTreeMap<InstanceId, Claim>,
    adopted: bool,
    shutdown: bool,
    ended: bool,
    /// The generation up to which none is used in a new claim.
    generation_floor: Generation,
    /// What was last said of builds to keep, and how many of them are needed.
    kept: (Vec<BuildId>, usize),
    queue: Vec<Effect>,
    wake: Option<Timestamp>,
}

#[derive(Clone, Debug)]
enum Build {
    Running(FailureHistory),
    Done,
    Failed(FailureHistory),
}

#[derive(Debug)]
struct Seen {
    verdict: Verdict,
    since: Timestamp,
}

impl Application {
    /// Creates the machine, which decides nothing before `Event::Adopted`.
    pub fn new(node: NodeId, name: ApplicationName) -> Application {
        Application {
            node,
            name,
            spec: None,
            releases: BTreeMap::new(),
            foreign: BTreeMap::new(),
            ends: Ends::default(),
            failed: BTreeSet::new(),
            rollout: None,
            heard: None,
            serving: None,
            served: None,
            attempt: None,
            coordination: Coordination::default(),
            watched: None,
            builds: BTreeMap::new(),
            steps: ReleaseSteps::default(),
            artefacts: Artefacts::default(),
            unfit_for: None,
            slots: BTreeMap::new(),
            held: None,
            elsewhere: Elsewhere::default(),
            strays: BTreeMap::new(),
            verdicts: BTreeMap::new(),
            read: BTreeMap::new(),
            adopted: false,
            shutdown: false,
            ended: false,
            generation_floor: 0,
            kept: Default::default(),
            queue: Vec::new(),
            wake: None,
        }
    }

    /// Returns the release that takes traffic, as far as this node knows.
    pub fn serving(&self) -> Option<&ReleaseId> {
        self.serving.as_ref()
    }

    fn is_ending(&self) -> bool {
        self.shutdown || self.spec.is_none()
    }

    fn take_note(&mut self, now: Timestamp, event: Event) {
        match event {
            Event::Spec(spec) => self.spec_heard(now, spec),
            Event::Destroyed { created_at, destroyed } => {
                self.end_heard(now, created_at, destroyed);
            }
            Event::Release(id, Some(release)) => {
                self.note_remains(now, &release);
                let is_own = self.spec.as_ref().is_none_or(|spec| spec.owns(&release));
                self.foreign.remove(&id);
                self.releases.insert(id, release);
                if !is_own {
                    self.sort_releases();
                }
            }
            Event::Release(id, None) => {
                self.releases.remove(&id);
                self.steps.forget(&id);
                self.foreign.remove(&id);
            }
            Event::Rollout(record) => {
                self.heard.clone_from(&record);
                match self.adopted && !self.is_ending() {
                    true => self.rollout_changed(now, record),
                    false => self.rollout = record,
                }
            }
            Event::Claim(instance, claim) => {
                if !self.adopted && instance.application == self.name {
                    self.read.insert(instance, claim);
                }
            }
            Event::Other(instance, node, claim) => self.elsewhere.claimed(instance, node, claim),
            Event::Live(nodes) => {
                self.elsewhere.met |= nodes.len() > 1;
                self.elsewhere.live = nodes;
            }
            Event::Places(places) => self.held = Some(places),
            Event::Outcome(release, outcome) => self.outcome_heard(release, outcome.as_ref()),
            Event::Holder(holder) => self.holder_heard(now, holder),
            Event::Verdict(instance, verdict) => self.verdict_changed(now, instance, verdict),
            Event::Adopted(adopted) => self.adopt(now, adopted),
            Event::Built { release, result } => self.built(now, &release, result),
            Event::Fetched { release, result } => self.fetched(&release, result),
            Event::Shared { release, result } => self.shared(now, &release, result),
            Event::Builders { release, candidates } => {
                self.builders_found(now, &release, candidates);
            }
            Event::Artefact { build, builder, fits } => {
                self.artefacts.note(build, builder, fits);
            }
            Event::Released { release, result } => self.released(now, &release, result),
            Event::Started { id, process, port, ports } => {
                self.started(now, id, process, (port, ports));
            }
            Event::StartFailed { id, why } => self.start_failed(now, &id, &why),
            Event::Healthy { id, warning, remark } => self.healthy(now, &id, warning, remark),
            Event::NotYetHealthy { id, detail, mistake } => {
                self.not_yet_healthy(&id, &detail, mistake);
            }
            Event::Hopeless { id, detail, mistake } => self.hopeless(now, &id, &detail, mistake),
            Event::Exited { id, exit } => self.exited(now, id, exit),
            Event::Drained { id } => {
                if let Some(process) = self.process_mut(&id) {
                    process.drained = process.phase == Phase::Draining;
                }
            }
            Event::Memory { id, bytes } => self.memory(now, &id, bytes),
            Event::Shutdown => {
                self.shutdown = true;
                self.attempt = None;
            }
        }
    }

    fn spec_changed(&mut self, now: Timestamp, spec: Option<ApplicationSpec>) {
        let (before, after) = (self.spec.as_ref(), spec.as_ref());
        if before.zip(after).is_some_and(|(one, other)| one.created_at != other.created_at) {
            // The application was destroyed and made anew, and nothing was heard in between.
            let heard = self.heard.clone();
            self.spec_changed(now, None);
            (self.rollout, self.heard) = (heard.clone(), heard);
        }
        let created = self.spec.is_none() && spec.is_some();
        self.spec = spec;
        self.sort_releases();
        if self.spec.is_none() {
            self.rollout = None;
            self.heard = None;
            self.serving = None;
            self.coordination.forget();
            self.attempt = None;
            self.builds.clear();
            self.steps.clear();
        } else if created && self.adopted && !self.shutdown {
            self.ended = false;
            self.resume_rollout(now);
        }
    }

    fn verdict_changed(&mut self, now: Timestamp, instance: InstanceId, verdict: Option<Verdict>) {
        let place = (instance.process, instance.slot);
        let Some(verdict) = verdict else {
            self.verdicts.remove(&place);
            return;
        };
        let known = self.verdicts.get(&place).filter(|seen| {
            seen.verdict.generation == verdict.generation && seen.verdict.health == verdict.health
        });
        let since = known.map_or(now, |seen| seen.since);
        self.verdicts.insert(place, Seen { verdict, since });
    }

    fn decide(&mut self, now: Timestamp) {
        self.claim_places(now);
        self.await_artefact(now);
        let mut passes = 0;
        loop {
            self.wake = None;
            let moved =
                self.look_at_ends(now) || self.advance_rollout(now) || self.forget_failure();
            let plan = plan::plan(self, now);
            if let Some(wake) = plan.wake {
                self.wake_at(wake);
            }
            if plan.steps.is_empty() && !moved {
                break;
            }
            passes += 1;
            if passes > PASSES_MAX {
                debug_assert!(false, "no rest after {PASSES_MAX} passes: {:?}", plan.steps);
                self.wake = Some(now.after(PASSES_PAUSE));
                break;
            }
            for step in plan.steps {
                self.perform(now, step);
            }
        }
        self.tidy();
        self.flush_claims();
        self.name_written();
        self.prune();
        self.end();
    }

    /// Forgets places that nobody wants and nothing fills.
    fn tidy(&mut self) {
        let roles = if self.is_ending() { Vec::new() } else { plan::roles(self) };
        for (place, slot) in &mut self.slots {
            let wanted = |release: &ReleaseId| {
                // The coordinator has to see it.
                if self.unfit_for.as_ref() == Some(release) && slot.held.is_some() {
                    return true;
                }
                roles.iter().any(|role| role.release == *release && role.places.contains(place))
            };
            slot.crashed = slot.crashed.take().filter(|crashed| wanted(&crashed.release));
        }
        self.flush_claims();
        let floor = &mut self.generation_floor;
        self.slots.retain(|place, slot| {
            let wanted = roles.iter().any(|role| role.places.contains(place));
            let stays = wanted || slot.held.is_some() || slot.written.is_some();
            if !stays {
                *floor = (*floor).max(slot.last_generation);
            }
            stays
        });
        let slots = &self.slots;
        self.verdicts.retain(|place, _| slots.contains_key(place));
    }

    fn end(&mut self) {
        let empty = self.slots.is_empty() && self.strays.is_empty();
        if self.is_ending() && empty && !self.ended && !self.has_remains() {
            self.ended = true;
            self.emit(Effect::AllStopped);
        }
    }

    fn wake_at(&mut self, at: Timestamp) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    /// Queues an effect after the claims: what is done must be known to the process that comes
    /// after a crash.
    fn emit(&mut self, effect: Effect) {
        self.flush_claims();
        self.queue.push(effect);
    }

    fn flush_claims(&mut self) {
        for ((process, slot_number), slot) in &mut self.slots {
            let claim = slot.claim();
            if claim != slot.written {
                let instance = InstanceId {
                    application: self.name.clone(),
                    process: process.clone(),
                    slot: *slot_number,
                };
                slot.written.clone_from(&claim);
                self.queue.push(Effect::WriteClaim { instance, claim });
            }
        }
    }

    /// Notes a text whose first line is ours; what follows is the application's own output.
    fn note(&mut self, text: String) {
        let (said, output) = text.split_once('\n').unwrap_or((&text, ""));
        self.queue.push(Effect::Note(said.into()));
        self.note_last_words(output);
    }

    fn note_last_words(&mut self, output: &str) {
        let words = last_words::pick(output, NOTED_LINES_MAX, LAST_WORDS_BYTES_MAX);
        let lines = words.lines().filter(|line| !line.trim().is_empty());
        self.queue.extend(lines.map(|line| Effect::Note(format!("  | {line}"))));
    }
}

impl Machine for Application {
    type Event = Event;
    type Effect = Effect;

    fn handle(&mut self, now: Timestamp, event: Event, effects: &mut Vec<Effect>) {
        let elsewhere = matches!(event, Event::Other(..));
        self.take_note(now, event);
        if self.adopted && !(elsewhere && self.is_indifferent()) {
            self.decide(now);
        }
        effects.append(&mut self.queue);
    }

    fn tick(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.adopted {
            self.decide(now);
        }
        effects.append(&mut self.queue);
    }

    fn deadline(&self) -> Option<Timestamp> {
        self.wake
    }

    fn check_invariants(&self) {
        assert!(self.queue.is_empty(), "every effect was handed over");
        for (place, slot) in &self.slots {
            assert!(slot.living.len() <= INCARNATIONS_MAX, "too many incarnations in {place:?}");
            let generations = slot.living.iter().map(slot::Process::generation);
            assert!(generations.is_sorted_by(|a, b| a < b), "generations rise in {place:?}");
            assert!(
                slot.living.iter().all(|process| process.generation() <= slot.last_generation),
                "generations are counted in {place:?}"
            );
            assert_eq!(slot.claim(), slot.written, "the claim of {place:?} is written");
        }
        if let Some(attempt) = &self.attempt {
            let target = self.rollout.as_ref().and_then(|rollout| rollout.target.as_ref());
            assert_eq!(target, Some(&attempt.target), "an attempt is at the rollout's target");
        }
    }
}

#[cfg(test)]
mod tests;
