//! Tests of the machine in a world in which everything works at once, except what a test breaks.

use model::application::{ProcessSpec, RolloutMode};
use model::instance::ProcessIdentity;
use model::port::PortRecipe;
use model::record::Unknown;
use model::release::{ProcessRecipe, Recipe, Step};
use model::value::ContentHash;
use model::{Fate, Incarnation, InstanceState, Outcome, PortId, ProcessType, RolloutPhase};

use super::*;

const START: u64 = 1_000_000;

/// A world that performs effects at once, as far as it is told to.
struct World {
    now: Timestamp,
    machine: Application,
    claims: BTreeMap<InstanceId, Claim>,
    rollout: Rollout,
    effects: Vec<Effect>,
    next_pid: u32,
    ended: bool,
    /// What happens to processes of a release, by its number.
    broken: BTreeMap<u64, Broken>,
    outcomes: Vec<(ReleaseId, Outcome)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Broken {
    Build,
    Exits,
    NeverReady,
}

fn node() -> NodeId {
    "n1".parse().unwrap()
}

fn release_id(number: u64) -> ReleaseId {
    ReleaseId { number, node: node() }
}

fn identity(pid: u32) -> ProcessIdentity {
    ProcessIdentity { pid, start_ticks: u64::from(pid), boot_id: "b".into() }
}

fn exit(how: &str) -> Exit {
    Exit { how: how.into(), last_words: "Traceback\nKeyError".into(), ..Exit::default() }
}

impl World {
    fn new() -> World {
        let mut world = World {
            now: Timestamp(START),
            machine: Application::new(node(), "shop".parse().unwrap()),
            claims: BTreeMap::new(),
            rollout: Rollout::new(node(), Timestamp(START)),
            effects: Vec::new(),
            next_pid: 1,
            ended: false,
            broken: BTreeMap::new(),
            outcomes: Vec::new(),
        };
        world.event(Event::Spec(Some(ApplicationSpec::new(Timestamp(START)))));
        world.event(Event::Adopted(Vec::new()));
        world
    }

    fn release(number: u64, web: u32) -> Release {
        let recipe = ProcessRecipe { default_count: web, ..ProcessRecipe::default() };
        Release {
            v: 1,
            id: release_id(number),
            source: ContentHash([0; 32]),
            source_bytes: 1,
            build: None,
            recipe: Recipe {
                processes: [(ProcessType::web(), recipe)].into(),
                release: vec![Step { name: "Migrating".into(), command: "true".into() }],
                ..Recipe::default()
            },
            settings: Default::default(),
            created_at: Timestamp(START),
            author: "ann".into(),
            note: String::new(),
            replaces: None,
            revision: None,
            remark: None,
            takes_back: None,
            unknown: Unknown::new(),
        }
    }

    fn push(&mut self, release: Release) {
        let id = release.id.clone();
        self.event(Event::Release(id.clone(), Some(release)));
        self.now = self.now.after(Duration::from_millis(1));
        self.rollout.target = Some(id);
        self.rollout.phase = RolloutPhase::Requested;
        self.rollout.changed_at = self.now;
        self.event(Event::Rollout(Some(self.rollout.clone())));
    }

    fn event(&mut self, event: Event) {
        let mut events = vec![event];
        while !events.is_empty() {
            let mut effects = Vec::new();
            for event in events.drain(..) {
                self.machine.handle(self.now, event, &mut effects);
                self.machine.check_invariants();
            }
            for effect in effects {
                events.extend(self.perform(&effect));
                self.effects.push(effect);
            }
        }
    }

    fn perform(&mut self, effect: &Effect) -> Vec<Event> {
        match effect.clone() {
            Effect::Build { release } => {
                let broken = self.broken.get(&release.id.number) == Some(&Broken::Build);
                let failure = StepFailure {
                    why: "No gem".into(),
                    last_words: "bundler".into(),
                    ..StepFailure::default()
                };
                let result = if broken { Err(failure) } else { Ok(()) };
                vec![Event::Built { release: release.id, result }]
            }
            Effect::RunReleaseSteps { release } => {
                vec![Event::Released { release: release.id, result: Ok(()) }]
            }
            Effect::Start { id, release, process: kind } => {
                let claim = &self.claims[&id.instance];
                assert!(claim.incarnations.iter().any(|i| i.generation == id.generation));
                self.next_pid += 1;
                let process = identity(self.next_pid);
                let port = kind.is_web().then_some(20_000);
                let its = release.recipe.ports.iter().filter(|port| port.process == kind);
                let ports = its.map(|port| (port.id, 20_001)).collect();
                vec![Event::Started { id, process, port, ports }]
            }
            Effect::AwaitHealthy { id, .. } => match self.broken.get(&self.release_of(&id)) {
                Some(Broken::Exits) => vec![Event::Exited { id, exit: exit("exit status 1") }],
                Some(Broken::NeverReady) => {
                    vec![Event::NotYetHealthy {
                        id,
                        detail: "no port is bound".into(),
                        mistake: None,
                    }]
                }
                _ => vec![Event::Healthy { id, warning: None, remark: None }],
            },
            Effect::Stop { id, .. } => {
                let exit = Exit { how: "killed".into(), ..Exit::default() };
                vec![Event::Exited { id, exit }]
            }
            Effect::WriteClaim { instance, claim: Some(claim) } => {
                self.claims.insert(instance, claim);
                Vec::new()
            }
            Effect::WriteClaim { instance, claim: None } => {
                self.claims.remove(&instance);
                Vec::new()
            }
            Effect::WriteRollout(rollout) => {
                self.rollout = rollout;
                vec![Event::Rollout(Some(self.rollout.clone()))]
            }
            Effect::AllStopped => {
                self.ended = true;
                Vec::new()
            }
            Effect::Note(_)
            | Effect::Forget { .. }
            | Effect::PruneBuilds { .. }
            | Effect::NameWritten { .. } => Vec::new(),
            Effect::WriteHolder(_) | Effect::Unfit | Effect::Fit => Vec::new(),
            Effect::WriteOutcome { release, outcome } => {
                self.outcomes.retain(|(of, _)| *of != release);
                self.outcomes.extend(outcome.clone().map(|outcome| (release.clone(), outcome)));
                vec![Event::Outcome(release, outcome)]
            }
            Effect::TakeBack { from, to } => self.take_back(&from, &to),
            // A node that runs everything itself never asks for these.
            Effect::WriteSpec(_) | Effect::ClearRemains => panic!("{effect:?}"),
            Effect::Fetch { .. } | Effect::Share { .. } | Effect::FindBuilders { .. } => {
                panic!("{effect:?}")
            }
        }
    }

    fn release_of(&self, id: &IncarnationId) -> u64 {
        let claim = &self.claims[&id.instance];
        claim.incarnations.iter().find(|i| i.generation == id.generation).unwrap().release.number
    }

    /// Lets time pass, drains included.
    fn pass(&mut self, wait: Duration) {
        let end = self.now.after(wait);
        while let Some(deadline) = self.machine.deadline().filter(|deadline| *deadline <= end) {
            assert!(deadline > self.now, "the deadline lies in the future");
            self.now = deadline;
            let mut effects = Vec::new();
            self.machine.tick(self.now, &mut effects);
            self.machine.check_invariants();
            for effect in effects {
                let events = self.perform(&effect);
                self.effects.push(effect);
                for event in events {
                    self.event(event);
                }
            }
        }
        self.now = end;
    }

    fn drain_all(&mut self) {
        for (instance, claim) in self.claims.clone() {
            for incarnation in claim.incarnations {
                if incarnation.state == InstanceState::Draining {
                    let generation = incarnation.generation;
                    self.event(Event::Drained {
                        id: IncarnationId { instance: instance.clone(), generation },
                    });
                }
            }
        }
    }

    /// Returns all incarnations as `slot:release:state`.
    fn shown(&self) -> String {
        let mut shown = Vec::new();
        for (instance, claim) in &self.claims {
            for i in &claim.incarnations {
                let state = format!("{:?}", i.state).to_lowercase();
                shown.push(format!("{}:v{}:{state}", instance.slot, i.release.number));
            }
        }
        shown.join(" ")
    }

    fn id(&self, slot: u32) -> IncarnationId {
        let (instance, claim) = self.claims.iter().find(|(id, _)| id.slot == slot).unwrap();
        let generation = claim.incarnations.last().unwrap().generation;
        IncarnationId { instance: instance.clone(), generation }
    }

    fn crash(&mut self, slot: u32) {
        let id = self.id(slot);
        self.event(Event::Exited { id, exit: exit("killed by signal 9") });
    }

    fn spec(&mut self, change: impl FnOnce(&mut ApplicationSpec)) {
        let mut spec = self.machine.spec.clone().unwrap();
        change(&mut spec);
        self.event(Event::Spec(Some(spec)));
    }

    fn scale(&mut self, count: u32) {
        self.spec(|spec| {
            spec.processes
                .insert(ProcessType::web(), ProcessSpec { count, ..ProcessSpec::default() });
        });
    }

    fn verdict(&mut self, slot: u32, health: model::probe::HealthState) {
        let id = self.id(slot);
        let verdict = Verdict {
            v: 1,
            generation: id.generation,
            health,
            detail: "connection refused".into(),
            changed_at: self.now,
            unknown: Unknown::new(),
        };
        self.event(Event::Verdict(id.instance, Some(verdict)));
    }

    fn serving(count: u32) -> World {
        let mut world = World::new();
        world.push(World::release(1, count));
        assert_eq!(world.rollout.phase, RolloutPhase::Done);
        world.effects.clear();
        world
    }

    fn phases(&self) -> Vec<RolloutPhase> {
        let phase = |effect: &Effect| match effect {
            Effect::WriteRollout(rollout) => Some(rollout.phase),
            _ => None,
        };
        self.effects.iter().filter_map(phase).collect()
    }
}

#[test]
fn a_request_that_was_overwritten_is_carried_out_all_the_same() {
    let mut world = World::new();
    world.push(World::release(1, 1));
    let second = World::release(2, 1);
    world.event(Event::Release(second.id.clone(), Some(second)));
    assert_eq!(world.rollout.serving, Some(release_id(1)));
    world.pass(super::coordination::REQUEST_WAIT_MAX * 2);
    assert_eq!(world.rollout.serving, Some(release_id(2)));
}

#[test]
fn a_release_of_an_application_that_is_being_destroyed_is_not_rolled_out_again() {
    let mut world = World::serving(1);
    world.event(Event::Rollout(None));
    world.pass(super::coordination::REQUEST_WAIT_MAX * 2);
    assert!(world.phases().is_empty(), "{:?}", world.phases());
    world.event(Event::Spec(None));
    world.drain_all();
    assert!(world.ended);
}

#[test]
fn a_first_release_is_built_released_started_and_serves() {
    let mut world = World::new();
    world.push(World::release(1, 2));
    use RolloutPhase::{Building, Done, Releasing, Starting};
    assert_eq!(world.phases(), [Building, Releasing, Starting, Done]);
    assert_eq!(world.rollout.serving, Some(release_id(1)));
    assert_eq!(world.shown(), "1:v1:ready 2:v1:ready");
}

#[test]
fn a_second_release_starts_beside_the_first_and_the_first_drains() {
    let mut world = World::serving(1);
    world.push(World::release(2, 1));
    assert_eq!(world.rollout.serving, Some(release_id(2)));
    assert_eq!(world.shown(), "1:v1:draining 1:v2:ready");
    world.drain_all();
    assert_eq!(world.shown(), "1:v2:ready");
}

#[test]
fn a_drain_has_a_limit() {
    let mut world = World::serving(1);
    world.push(World::release(2, 1));
    world.pass(DRAIN_MAX);
    assert_eq!(world.shown(), "1:v2:ready");
}

#[test]
fn a_worker_with_a_port_drains_for_as_long_as_its_release_says() {
    let release = |number, ports: bool| {
        let mut release = World::release(number, 1);
        let (web, recipe) = release.recipe.processes.pop_first().unwrap();
        assert!(web.is_web());
        let process: ProcessType = "broker".parse().unwrap();
        release.recipe.processes.insert(process.clone(), recipe);
        release.recipe.ports = vec![PortRecipe {
            id: PortId::tcp(1883),
            process,
            env: "PORT".into(),
            proxy_protocol: None,
            idle_ms: None,
        }];
        release.recipe.ports.retain(|_| ports);
        release.settings.stop_grace_ms = 2 * DRAIN_MAX.as_millis() as u64;
        release
    };
    let mut world = World::new();
    world.push(release(1, true));
    world.push(release(2, true));
    assert_eq!(world.shown(), "1:v1:draining 1:v2:ready");
    world.pass(DRAIN_MAX);
    assert_eq!(world.shown(), "1:v1:draining 1:v2:ready");
    world.pass(DRAIN_MAX);
    assert_eq!(world.shown(), "1:v2:ready");
    world.push(release(3, false));
    world.drain_all();
    assert_eq!(world.shown(), "1:v3:ready", "its connections are known to have ended");
    world.push(release(4, false));
    assert_eq!(world.shown(), "1:v4:ready", "nothing leads to one without a port");
}

fn check_broken(broken: Broken, wait: Duration, message: &str) {
    let mut world = World::serving(2);
    world.broken.insert(2, broken);
    world.push(World::release(2, 2));
    world.pass(wait);
    assert_eq!(world.rollout.phase, RolloutPhase::Failed);
    assert_eq!(world.rollout.serving, Some(release_id(1)));
    assert_eq!(world.rollout.message.as_deref(), Some(message));
    assert_eq!(world.shown(), "1:v1:ready 2:v1:ready");
}

#[test]
fn a_broken_release_leaves_the_old_one_serving() {
    check_broken(Broken::Build, Duration::ZERO, "No gem\nbundler");
    let message = "web.1 ended: exit status 1\nTraceback\nKeyError";
    check_broken(Broken::Exits, Duration::ZERO, message);
    let message = "web.1 was not ready within 60 s: no port is bound";
    check_broken(Broken::NeverReady, Duration::from_secs(60), message);
}

#[test]
fn a_broken_first_release_leaves_nothing() {
    let mut world = World::new();
    world.broken.insert(1, Broken::Exits);
    world.push(World::release(1, 2));
    assert_eq!((world.rollout.phase, &world.rollout.serving), (RolloutPhase::Failed, &None));
    assert_eq!(world.shown(), "");
}

#[test]
fn a_crash_is_repaired_at_once_then_ever_later() {
    let mut world = World::serving(1);
    world.crash(1);
    assert_eq!(world.shown(), "1:v1:ready");
    world.crash(1);
    assert_eq!(world.shown(), "1:v1:crashed");
    world.pass(Duration::from_secs(1));
    assert_eq!(world.shown(), "1:v1:ready");
    let incarnation = world.claims.values().next().unwrap().incarnations[0].clone();
    assert_eq!(incarnation.restarts, 2);
    assert_eq!(incarnation.reason.as_deref(), Some("killed by signal 9"));
}

#[test]
fn a_release_without_processes_is_done_at_once() {
    let mut world = World::serving(1);
    let mut release = World::release(2, 0);
    release.recipe.processes.clear();
    world.push(release);
    world.drain_all();
    assert_eq!((world.rollout.phase, world.shown().as_str()), (RolloutPhase::Done, ""));
}

#[test]
fn scaling_starts_more_and_drains_the_highest() {
    let mut world = World::serving(1);
    world.scale(3);
    assert_eq!(world.shown(), "1:v1:ready 2:v1:ready 3:v1:ready");
    world.scale(1);
    assert_eq!(world.shown(), "1:v1:ready 2:v1:draining 3:v1:draining");
    world.drain_all();
    assert_eq!(world.shown(), "1:v1:ready");
}

#[test]
fn a_restart_replaces_one_slot_after_the_other() {
    let mut world = World::serving(2);
    world.broken.insert(1, Broken::NeverReady);
    world.spec(|spec| spec.restart = 1);
    assert_eq!(world.shown(), "1:v1:ready 1:v1:starting 2:v1:ready");
    world.broken.clear();
    let id = world.id(1);
    world.event(Event::Healthy { id, warning: None, remark: None });
    assert_eq!(world.shown(), "1:v1:draining 1:v1:ready 2:v1:draining 2:v1:ready");
    world.drain_all();
    assert!(world.claims.values().all(|claim| claim.incarnations[0].restart == 1));
}

#[test]
fn stop_first_never_overlaps_and_goes_back_after_a_failure() {
    let mut world = World::serving(2);
    let mut release = World::release(2, 2);
    release.settings.rollout = RolloutMode::StopFirst;
    world.broken.insert(2, Broken::Exits);
    world.push(release);
    assert_eq!(world.shown(), "1:v1:draining 2:v1:draining");
    world.drain_all();
    assert_eq!(world.rollout.phase, RolloutPhase::Failed);
    assert_eq!(world.shown(), "1:v1:ready 2:v1:ready");
}

#[test]
fn too_much_memory_is_drained_before_its_successor_starts() {
    let mut world = World::new();
    let mut release = World::release(1, 1);
    release.settings.limits.memory_bytes = Some(512_000_000);
    world.push(release);
    let id = world.id(1);
    world.event(Event::Memory { id, bytes: 612_000_000 });
    assert_eq!(world.shown(), "1:v1:draining");
    world.drain_all();
    assert_eq!(world.shown(), "1:v1:ready");
    let reason = world.claims.values().next().unwrap().incarnations[0].reason.clone();
    assert_eq!(reason.as_deref(), Some("used 612 MB, limit 512 MB"));
}

#[test]
fn what_the_checker_cannot_reach_is_replaced_when_that_lasts() {
    use model::probe::HealthState;
    let mut world = World::serving(1);
    world.verdict(1, HealthState::Gone);
    world.verdict(1, HealthState::Healthy);
    world.pass(GONE_PATIENCE);
    assert_eq!(world.shown(), "1:v1:ready");
    world.verdict(1, HealthState::Gone);
    world.pass(GONE_PATIENCE);
    assert_eq!(world.shown(), "1:v1:draining 1:v1:ready");
}

#[test]
fn shutdown_and_destruction_stop_everything() {
    for event in [Event::Shutdown, Event::Spec(None)] {
        let mut world = World::serving(2);
        world.event(event);
        assert_eq!((world.shown().as_str(), world.ended), ("", true));
    }
}

/// Ends the node's process and begins another with the same records and `survivors` of the
/// processes.
fn adopt(world: &mut World, survivors: &[u32]) {
    let mut held = Vec::new();
    for (instance, claim) in &world.claims {
        for i in &claim.incarnations {
            if let Some(process) = &i.process
                && survivors.contains(&instance.slot)
            {
                let id = IncarnationId { instance: instance.clone(), generation: i.generation };
                let (process, ports) = (process.clone(), i.ports.clone());
                held.push(Adopted { id, process, port: i.port, ports, exit: None });
            }
        }
    }
    let (spec, releases) = (world.machine.spec.clone(), world.machine.releases.clone());
    world.machine = Application::new(node(), "shop".parse().unwrap());
    world.event(Event::Spec(spec));
    for (id, release) in releases {
        world.event(Event::Release(id, Some(release)));
    }
    world.event(Event::Rollout(Some(world.rollout.clone())));
    for (instance, claim) in world.claims.clone() {
        world.event(Event::Claim(instance, claim));
    }
    world.effects.clear();
    world.event(Event::Adopted(held));
}

fn starts(world: &World) -> usize {
    world.effects.iter().filter(|effect| matches!(effect, Effect::Start { .. })).count()
}

#[test]
fn survivors_are_kept_and_the_lost_are_started_again() {
    let mut world = World::serving(2);
    adopt(&mut world, &[1, 2]);
    assert_eq!((world.shown().as_str(), starts(&world)), ("1:v1:ready 2:v1:ready", 0));
    adopt(&mut world, &[2]);
    assert_eq!((world.shown().as_str(), starts(&world)), ("1:v1:ready 2:v1:ready", 1));
}

#[test]
fn a_rollout_under_way_goes_on_after_adoption() {
    let mut world = World::serving(1);
    world.broken.insert(2, Broken::NeverReady);
    world.push(World::release(2, 1));
    assert_eq!(world.shown(), "1:v1:ready 1:v2:starting");
    world.broken.clear();
    adopt(&mut world, &[1]);
    assert_eq!(world.rollout.phase, RolloutPhase::Done);
    assert_eq!((world.shown().as_str(), starts(&world)), ("1:v1:draining 1:v2:ready", 0));
}

#[test]
fn a_newer_release_overtakes() {
    let mut world = World::serving(1);
    world.broken.insert(2, Broken::NeverReady);
    world.push(World::release(2, 1));
    world.push(World::release(3, 1));
    world.drain_all();
    assert_eq!(world.rollout.serving, Some(release_id(3)));
    assert_eq!(world.shown(), "1:v3:ready");
}

#[test]
fn a_request_is_never_lost_under_the_coordinators_own_writing() {
    let mut request = Rollout::new(node(), Timestamp(7));
    request.target = Some(release_id(3));
    request.phase = RolloutPhase::Requested;
    let mut ours = Rollout::new(node(), Timestamp(8));
    ours.target = Some(release_id(2));
    ours.serving = Some(release_id(2));
    let merged = merge(Some(request.clone()), ours.clone());
    assert_eq!(merged, Rollout { serving: Some(release_id(2)), ..request });
    assert_eq!(merge(None, ours.clone()), ours);
}

mod builds;
mod outside;
mod ready;
mod strays;
