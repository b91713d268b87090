//! The shell: performs the application machines' effects on a node.

use agent_core::application::{
    BuildCandidate, Effect, Event, Exit, IncarnationId, StepFailure, TakeBackProgress, merge,
    taken_back,
};
use model::instance::ProcessIdentity;
use model::{
    ApplicationName, ApplicationSpec, Claim, InstanceState, Release, ReleaseId, RolloutPhase,
};

use super::checking::Condition;
use super::happening::Happening;
use super::node::Process;
use super::replica::{Key, Record};
use super::world::World;
use crate::process::exit;

const WRITE_AGAIN_MS: u64 = 5_000;
/// The duration of release steps, in milliseconds.
const STEPS_MS: (u64, u64) = (100, 6_000);

fn gives_up(claim: &Option<Claim>) -> bool {
    let starts = |state| matches!(state, InstanceState::Starting | InstanceState::Ready);
    !claim.iter().flat_map(|claim| &claim.incarnations).any(|one| starts(one.state))
}

impl World {
    fn answer(&mut self, at: usize, life: u64, name: &ApplicationName, wait: u64, event: Event) {
        let machines = self.nodes[at].machines.as_ref().filter(|machines| machines.life == life);
        let Some(app) = machines.and_then(|machines| machines.applications.get(name)) else {
            return;
        };
        let (name, actor) = (name.clone(), app.number);
        self.later(wait, Happening::ToApplication { at, life, actor, name, event });
    }

    /// Performs an effect; returns false if its actor faults by it.
    pub(super) fn perform(
        &mut self,
        at: usize,
        life: u64,
        name: &ApplicationName,
        effect: Effect,
    ) -> bool {
        let writes = matches!(
            effect,
            Effect::WriteClaim { .. }
                | Effect::WriteRollout(_)
                | Effect::WriteHolder(_)
                | Effect::WriteOutcome { .. }
        );
        if writes && self.nodes[at].disk_full {
            self.count("write refused");
            // What is given up is stopped all the same, and written once that is possible.
            let given_up = matches!(&effect, Effect::WriteClaim { claim, .. } if gives_up(claim));
            if !given_up {
                return false;
            }
            self.count("given up unwritten");
        }
        match effect {
            Effect::Build { release } => {
                let wait = self.random.between(100, 1_500);
                let event = Event::Built { release: release.id, result: Ok(()) };
                self.answer(at, life, name, wait, event);
            }
            Effect::FindBuilders { release } => {
                let candidates = self.candidates(at);
                self.answer(at, life, name, 5, Event::Builders { release, candidates });
            }
            Effect::Share { release } => {
                let full = self.nodes[at].disk_full;
                let result = if full { Err("the disk is full".into()) } else { Ok(()) };
                if !full {
                    self.count("shared");
                    let builder = self.nodes[at].id.clone();
                    let key = Key::Artefact(name.clone(), release.build_id(), builder);
                    self.write(at, key, Some(Record::Artefact));
                }
                let wait = self.random.between(20, 800);
                self.answer(at, life, name, wait, Event::Shared { release: release.id, result });
            }
            Effect::Fetch { release, .. } => {
                let lost = self.random.chance(15);
                self.count(if lost { "not fetched" } else { "fetched" });
                let result = if lost { Err("nobody has it".into()) } else { Ok(()) };
                let wait = self.random.between(20, 800);
                self.answer(at, life, name, wait, Event::Fetched { release: release.id, result });
            }
            Effect::RunReleaseSteps { release } => self.run_steps(at, life, name, release.id),
            Effect::Start { id, release, .. } => {
                let wait = self.random.between(5, 40);
                self.tell(|| format!("start {} {} at {at}", id.instance, release.id.short()));
                self.started(at, &id.instance);
                self.later(wait, Happening::Launch { at, life, id, release: release.id });
            }
            Effect::AwaitHealthy { id, .. } => {
                let process = self.nodes[at].processes.get(&id);
                let broken =
                    |release: &ReleaseId| self.broken.contains(&(name.clone(), release.clone()));
                if process.is_some_and(|process| !broken(&process.release)) {
                    let wait = self.random.between(100, 1_200);
                    let event = Event::Healthy { id: id.clone(), warning: None, remark: None };
                    self.answer(at, life, name, wait, event);
                } else {
                    self.later(60, Happening::Exit { at, id, lease_over: false });
                }
            }
            Effect::Stop { id, .. } => {
                let wait = self.random.between(20, 300);
                self.tell(|| format!("stop {} at {at}", id.instance));
                if self.nodes[at].processes.get(&id).is_some_and(|p| p.exit.is_none()) {
                    self.later(wait, Happening::Exit { at, id, lease_over: false });
                } else {
                    let event = Event::Exited { id, exit: exit("not there", "") };
                    self.answer(at, life, name, 1, event);
                }
            }
            Effect::Forget { id } => drop(self.nodes[at].processes.remove(&id)),
            Effect::WriteClaim { instance, claim } => {
                for one in claim.iter().flat_map(|claim| &claim.incarnations) {
                    let (instance, generation) = (instance.clone(), one.generation);
                    let id = IncarnationId { instance, generation };
                    let Some(process) = self.nodes[at].processes.get_mut(&id) else { continue };
                    process.ready = one.state == InstanceState::Ready;
                    if one.state == InstanceState::Draining && !process.leaving {
                        process.leaving = true;
                        self.answer(at, life, name, 150, Event::Drained { id });
                    }
                }
                let shown = claim.as_ref().map(|claim| {
                    let states: Vec<_> = claim.incarnations.iter().map(|one| one.state).collect();
                    (states, claim.offer)
                });
                self.tell(|| format!("claim {instance} at {at}: {shown:?}"));
                let key = Key::Claim(instance, self.nodes[at].id.clone());
                self.write_or_keep(at, life, key, claim.map(Record::Claim));
            }
            Effect::WriteRollout(rollout) => {
                let stored = self.nodes[at].replica.rollout(name).cloned();
                let rollout = merge(stored, rollout);
                self.tell(|| {
                    let (phase, message) = (rollout.phase, &rollout.message);
                    format!("rollout {name} {:?} {phase:?} by {at}: {message:?}", rollout.target)
                });
                if rollout.phase == RolloutPhase::Requested
                    && rollout.coordinator != self.nodes[at].id
                {
                    self.count("handed over");
                }
                self.judge_rollout(at, name, &rollout);
                self.write(at, Key::Rollout(name.clone()), Some(Record::Rollout(rollout)));
            }
            Effect::WriteHolder(holder) => {
                self.write(at, Key::Holder(name.clone()), Some(Record::Holder(holder)));
            }
            Effect::WriteOutcome { release, outcome } => {
                let key = Key::Outcome(name.clone(), release);
                self.write(at, key, outcome.map(Record::Outcome));
            }
            Effect::WriteSpec(spec) => self.write_spec_again(at, name, spec),
            Effect::ClearRemains => self.clear_remains(at, name),
            Effect::TakeBack { from, to } => self.take_back(at, name, &from, &to),
            Effect::Unfit => self.placement(at, agent_core::placement::Event::Unfit(name.clone())),
            Effect::Fit => self.placement(at, agent_core::placement::Event::Fit(name.clone())),
            Effect::AllStopped => {
                if self.nodes[at].replica.spec(name).is_some() {
                    self.actor_fails(at, life, name);
                } else if let Some(machines) = &mut self.nodes[at].machines {
                    machines.applications.remove(name);
                }
            }
            Effect::Note(_) | Effect::PruneBuilds { .. } | Effect::NameWritten { .. } => {}
        }
        true
    }

    fn write_spec_again(&mut self, at: usize, name: &ApplicationName, spec: ApplicationSpec) {
        let stored = self.nodes[at].replica.spec(name);
        let other = stored.is_none_or(|stored| stored.created_at != spec.created_at);
        if other && !self.nodes[at].disk_full {
            self.tell(|| format!("specification of {name} again at {at}"));
            self.write(at, Key::Spec(name.clone()), Some(Record::Spec(spec)));
        }
    }

    fn clear_remains(&mut self, at: usize, name: &ApplicationName) {
        if self.nodes[at].disk_full {
            return;
        }
        self.tell(|| format!("remains of {name} are cleared at {at}"));
        let replica = &self.nodes[at].replica;
        let (remains, keys) = (replica.remains(name), replica.keys_of(name));
        let of = |key: &Key| match key {
            Key::ConfigAt(_, id) => Some((id.clone(), replica.config(key)?)),
            _ => None,
        };
        let now = replica.config(&Key::Config(name.clone()));
        let mended = remains.mended(now.as_ref(), &keys.iter().filter_map(of).collect());
        if let Some(config) = mended {
            self.write(at, Key::Config(name.clone()), config.map(Record::Config));
        }
        for key in keys {
            if key.typed().is_some_and(|typed| remains.is_left(&typed)) {
                self.write(at, key, None);
            }
        }
    }

    fn run_steps(&mut self, at: usize, life: u64, name: &ApplicationName, release: ReleaseId) {
        let fails = self.failing.contains(&(release.clone(), at));
        let why = StepFailure { why: "Migrating failed".into(), ..StepFailure::default() };
        let result = if fails { Err(why) } else { Ok(()) };
        self.tell(|| format!("steps of {release} at {at}: {result:?}"));
        self.judge_steps(at, name, &release);
        let wait = self.random.between(STEPS_MS.0, STEPS_MS.1);
        self.answer(at, life, name, wait, Event::Released { release, result });
    }

    fn take_back(&mut self, at: usize, name: &ApplicationName, from: &ReleaseId, to: &ReleaseId) {
        let replica = &self.nodes[at].replica;
        let releases: Vec<Release> = replica.releases(name).into_values().collect();
        let rollout = replica.rollout(name).cloned();
        let taken = taken_back(rollout.as_ref(), releases.iter(), from);
        let old = releases.iter().find(|release| release.id == *to);
        let highest = releases.iter().map(|release| release.id.number).max();
        let (TakeBackProgress::Unmade, Some(old), Some(highest), Some(mut rollout)) =
            (taken, old, highest, rollout)
        else {
            return;
        };
        self.count("taken back");
        let node = self.nodes[at].id.clone();
        let id = ReleaseId { number: highest + 1, node: node.clone() };
        let (takes_back, build) = (Some(from.clone()), Some(old.build_id()));
        let release = Release { id: id.clone(), takes_back, build, ..old.clone() };
        self.tell(|| format!("{from} of {name} is taken back by {id}"));
        self.write(at, Key::Release(name.clone(), id.clone()), Some(Record::Release(release)));
        rollout.request(id, node, self.clock(at));
        self.write(at, Key::Rollout(name.clone()), Some(Record::Rollout(rollout)));
    }

    fn write_or_keep(&mut self, at: usize, life: u64, key: Key, record: Option<Record>) {
        let full = self.nodes[at].disk_full;
        let Some(machines) = &mut self.nodes[at].machines else { return };
        machines.unwritten.remove(&key);
        if full {
            machines.unwritten.insert(key, record);
            self.later(WRITE_AGAIN_MS, Happening::WriteAgain { at, life });
        } else {
            self.write(at, key, record);
        }
    }

    pub(super) fn write_again(&mut self, at: usize, life: u64) {
        let full = self.nodes[at].disk_full;
        let machines = self.nodes[at].machines.as_mut().filter(|machines| machines.life == life);
        let Some(machines) = machines.filter(|machines| !machines.unwritten.is_empty()) else {
            return;
        };
        if full {
            return self.later(WRITE_AGAIN_MS, Happening::WriteAgain { at, life });
        }
        for (key, record) in std::mem::take(&mut machines.unwritten) {
            self.write(at, key, record);
        }
    }

    /// Returns the candidates for a build; all are machines of one kind.
    fn candidates(&self, at: usize) -> Vec<BuildCandidate> {
        let records = self.nodes[at].replica.records.iter();
        let found = records.filter_map(|(key, (_, record))| match (key, record) {
            (Key::Node(id), Some(Record::Node(view))) if !view.drained => {
                Some(BuildCandidate { node: id.clone(), load_percent: view.load, alike: true })
            }
            _ => None,
        });
        found.collect()
    }

    pub(super) fn launch(&mut self, at: usize, life: u64, id: IncarnationId, release: ReleaseId) {
        let node = &mut self.nodes[at];
        if node.machines.as_ref().is_none_or(|machines| machines.life != life) {
            return;
        }
        self.next_pid += 1;
        let (pid, boot_id) = (self.next_pid, "boot".to_string());
        let identity = ProcessIdentity { pid, start_ticks: self.now, boot_id };
        let process = identity.clone();
        let kept = Process {
            release,
            identity,
            ready: false,
            leaving: false,
            exit: None,
            condition: Condition::Well,
            changed_at: self.now,
            was_ill: false,
        };
        node.processes.insert(id.clone(), kept);
        let name = id.instance.application.clone();
        self.answer(
            at,
            life,
            &name,
            2,
            Event::Started { id, process, port: None, ports: Default::default() },
        );
    }

    pub(super) fn exit(&mut self, at: usize, id: &IncarnationId, lease_over: bool) {
        let Some(process) = self.nodes[at].processes.get_mut(id) else { return };
        if process.exit.is_some() {
            return;
        }
        let how = Exit { lease_over, ..exit("exit status 1", "") };
        process.exit = Some(how.clone());
        let Some(machines) = &self.nodes[at].machines else { return };
        let (life, name) = (machines.life, id.instance.application.clone());
        self.answer(at, life, &name, 2, Event::Exited { id: id.clone(), exit: how });
    }
}
