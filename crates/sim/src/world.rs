//! The world: time, the queue of what is to happen, the records, the processes, and one node's
//! machines. `shell.rs` performs their effects, `judge.rs` watches.

use std::collections::{BTreeMap, BTreeSet};

use agent_core::application::{Application, Event, Exit, IncarnationId};
use checker_core::{Checker, ProbeOutcome};
use model::{ApplicationName, InstanceState, Machine, NodeId, ReleaseId, Timestamp};

use crate::fault::{Counts, Fault, Weather};
use crate::node::Stopping;
use crate::process::{Process, Quality, exit};
use crate::random::Random;
use crate::records::{Notice, Records};

/// The limit on happenings, so that a history that never rests ends.
const HAPPENINGS_MAX: u64 = 2_000_000;

#[derive(Clone, Debug)]
pub(crate) enum Happening {
    /// An event for the machine of an application, unless that was replaced meanwhile.
    Agent {
        name: ApplicationName,
        life: u64,
        event: Event,
    },
    AgentTick {
        name: ApplicationName,
        life: u64,
    },
    Checker {
        life: u64,
        event: checker_core::Event,
    },
    CheckerTick {
        life: u64,
    },
    Notice {
        life: u64,
        notice: Notice,
    },
    /// A process starts for the actor that ordered it.
    Launch {
        life: u64,
        id: IncarnationId,
        release: ReleaseId,
    },
    Exit {
        id: IncarnationId,
        how: &'static str,
    },
    Hang(IncarnationId),
    Grow(IncarnationId),
    CrashLoopEnds(ApplicationName),
    NodeUp,
    /// A node that was told to stop has done so by now.
    MustBeDown {
        life: u64,
    },
    ActorUp {
        name: ApplicationName,
        life: u64,
    },
}

/// The memory of a node process, which is gone when it dies.
#[derive(Debug)]
pub(crate) struct Node {
    pub agents: BTreeMap<ApplicationName, Agent>,
    /// The applications whose actor has panicked and is not up again.
    pub pausing: BTreeSet<ApplicationName>,
    pub checker: Checker,
    pub checker_tick: Option<Timestamp>,
    /// The shutdown under way; `None` while it serves.
    pub stopping: Option<Stopping>,
}

#[derive(Debug)]
pub(crate) struct Agent {
    pub machine: Application,
    /// The number that tells an actor from the one before it.
    pub life: u64,
    pub tick: Option<Timestamp>,
    pub wanted: BTreeMap<model::ProcessType, u32>,
}

pub struct World {
    pub now: u64,
    pub records: Records,
    pub counts: Counts,
    pub weather: Weather,
    pub trace: Vec<String>,
    pub tracing: bool,
    pub(crate) random: Random,
    pub(crate) id: NodeId,
    pub(crate) node: Option<Node>,
    /// The number that tells a node process from the one before it.
    pub(crate) life: u64,
    pub(crate) lives: u64,
    pub(crate) processes: BTreeMap<IncarnationId, Process>,
    pub(crate) qualities: BTreeMap<(ApplicationName, ReleaseId), Quality>,
    pub(crate) crash_loops: BTreeSet<ApplicationName>,
    pub(crate) used: BTreeSet<IncarnationId>,
    pub(crate) starts: BTreeMap<model::InstanceId, Vec<u64>>,
    pub(crate) served: BTreeSet<ApplicationName>,
    /// The releases that came to serve when no process of theirs was wanted.
    pub(crate) untried: BTreeSet<(ApplicationName, ReleaseId)>,
    /// The release that a coordinator has said that it starts: a later request is written over
    /// that, and heard of later.
    pub(crate) starting: BTreeMap<ApplicationName, ReleaseId>,
    /// The process types of which one of a release has been ready.
    pub(crate) proven: BTreeSet<(ApplicationName, ReleaseId, model::ProcessType)>,
    /// The release that began to serve after something good, and when.
    pub(crate) switched: BTreeMap<ApplicationName, (ReleaseId, u64)>,
    /// The time at which the node was away last, or a user asked for something.
    pub(crate) disturbed_at: u64,
    pub(crate) next_pid: u32,
    queue: BTreeMap<(u64, u64), Happening>,
    sequence: u64,
}

impl World {
    pub fn new(seed: u64, weather: Weather) -> World {
        let mut world = World {
            now: 1_000,
            records: Records::default(),
            counts: Counts::new(),
            weather,
            trace: Vec::new(),
            tracing: false,
            random: Random::new(seed),
            id: "n1".parse().expect("a valid id"),
            node: None,
            life: 0,
            lives: 0,
            processes: BTreeMap::new(),
            qualities: BTreeMap::new(),
            crash_loops: BTreeSet::new(),
            used: BTreeSet::new(),
            starts: BTreeMap::new(),
            served: BTreeSet::new(),
            untried: BTreeSet::new(),
            starting: BTreeMap::new(),
            proven: BTreeSet::new(),
            switched: BTreeMap::new(),
            disturbed_at: 0,
            next_pid: 100,
            queue: BTreeMap::new(),
            sequence: 0,
        };
        world.node_up();
        world
    }

    pub(crate) fn timestamp(&self) -> Timestamp {
        Timestamp(self.now)
    }

    pub(crate) fn tell(&mut self, line: impl FnOnce() -> String) {
        if self.tracing {
            let line = line();
            self.trace.push(format!("{:>8.3} {line}", (self.now - 1_000) as f64 / 1000.0));
        }
    }

    pub(crate) fn count(&mut self, fault: Fault) {
        *self.counts.entry(fault).or_default() += 1;
    }

    pub(crate) fn later(&mut self, wait: u64, happening: Happening) {
        self.sequence += 1;
        self.queue.insert((self.now + wait, self.sequence), happening);
    }

    /// Returns a time in between, or the lower one when nothing varies.
    pub(crate) fn delay(&mut self, low: u64, high: u64) -> u64 {
        if self.weather == Weather::Still { low } else { self.random.between(low, high) }
    }

    /// Returns true now and then in a storm.
    pub(crate) fn storm(&mut self, percent: u64) -> bool {
        self.weather == Weather::Storm && self.random.chance(percent)
    }

    pub(crate) fn rough(&mut self, percent: u64) -> bool {
        self.weather != Weather::Still && self.random.chance(percent)
    }

    pub fn run_until(&mut self, end: u64) {
        let mut happenings = 0;
        while let Some(((at, _), _)) = self.queue.first_key_value()
            && *at <= end
        {
            let ((at, _), happening) = self.queue.pop_first().expect("it was there");
            self.now = at;
            self.happen(happening);
            self.judge();
            happenings += 1;
            assert!(happenings < HAPPENINGS_MAX, "the world does not come to rest");
        }
        self.now = end;
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Agent { name, life, event } => self.agent(&name, Some(life), event),
            Happening::AgentTick { name, life } => self.agent_tick(&name, life),
            Happening::Checker { life, event } if life == self.life => self.checker(event),
            Happening::CheckerTick { life } if life == self.life => self.checker_tick(),
            Happening::Notice { life, notice } if life == self.life => self.notice(&notice),
            Happening::Checker { .. } | Happening::CheckerTick { .. } => {}
            Happening::Notice { .. } => {}
            Happening::Launch { life, id, release } => self.launch(life, id, release),
            Happening::Exit { id, how } => self.exit(&id, how),
            Happening::Hang(id) => {
                if let Some(process) = self.processes.get_mut(&id).filter(|p| p.is_alive()) {
                    process.hung = true;
                    self.count(Fault::Hang);
                    self.tell(|| format!("hang {} {}", id.instance, id.generation));
                }
            }
            Happening::Grow(id) => self.grow(&id),
            Happening::CrashLoopEnds(name) => {
                self.crash_loops.remove(&name);
            }
            Happening::NodeUp => self.node_up(),
            Happening::MustBeDown { life } => {
                assert!(life != self.life, "the node does not stop: {:?}", self.node);
            }
            Happening::ActorUp { name, life } if life == self.life => self.agent_up(&name),
            Happening::ActorUp { .. } => {}
        }
    }

    // --- the machines

    /// Hands an event to a machine. `life` is the number of the actor that it is for; `None` means
    /// the current one.
    pub(crate) fn agent(&mut self, name: &ApplicationName, life: Option<u64>, event: Event) {
        let now = self.timestamp();
        let Some(node) = &mut self.node else { return };
        let Some(agent) = node.agents.get_mut(name) else { return };
        if life.is_some_and(|life| life != agent.life) {
            return;
        }
        if let Event::Spec(spec) = &event {
            let counts = spec.iter().flat_map(|spec| &spec.processes);
            agent.wanted = counts.map(|(process, spec)| (process.clone(), spec.count)).collect();
        }
        let mut effects = Vec::new();
        agent.machine.handle(now, event, &mut effects);
        self.agent_acted(name, effects);
    }

    fn agent_tick(&mut self, name: &ApplicationName, life: u64) {
        let now = self.timestamp();
        let Some(node) = &mut self.node else { return };
        let Some(agent) = node.agents.get_mut(name).filter(|agent| agent.life == life) else {
            return;
        };
        agent.tick = None;
        let mut effects = Vec::new();
        if agent.machine.deadline().is_some_and(|deadline| deadline <= now) {
            agent.machine.tick(now, &mut effects);
        }
        self.agent_acted(name, effects);
    }

    fn agent_acted(
        &mut self,
        name: &ApplicationName,
        effects: Vec<agent_core::application::Effect>,
    ) {
        let now = self.timestamp();
        let Some(node) = &mut self.node else { return };
        let Some(agent) = node.agents.get_mut(name) else { return };
        agent.machine.check_invariants();
        let life = agent.life;
        let deadline = agent.machine.deadline();
        assert!(deadline.is_none_or(|at| at > now), "{name} would be asked again at once");
        let mut tick = None;
        if let Some(deadline) = deadline
            && agent.tick.is_none_or(|tick| tick > deadline)
        {
            agent.tick = Some(deadline);
            tick = Some(deadline.0 - now.0);
        }
        if let Some(wait) = tick {
            self.later(wait, Happening::AgentTick { name: name.clone(), life });
        }
        for effect in effects {
            self.perform(name, life, effect);
        }
    }

    pub(crate) fn checker(&mut self, event: checker_core::Event) {
        let now = self.timestamp();
        let Some(node) = &mut self.node else { return };
        let mut effects = Vec::new();
        node.checker.handle(now, event, &mut effects);
        self.checker_acted(effects);
    }

    fn checker_tick(&mut self) {
        let now = self.timestamp();
        let Some(node) = &mut self.node else { return };
        node.checker_tick = None;
        let mut effects = Vec::new();
        if node.checker.deadline().is_some_and(|deadline| deadline <= now) {
            node.checker.tick(now, &mut effects);
        }
        self.checker_acted(effects);
    }

    fn checker_acted(&mut self, effects: Vec<checker_core::Effect>) {
        let now = self.timestamp();
        let life = self.life;
        let Some(node) = &mut self.node else { return };
        node.checker.check_invariants();
        if let Some(deadline) = node.checker.deadline()
            && node.checker_tick.is_none_or(|tick| tick > deadline)
        {
            assert!(deadline > now, "the checker would be asked again at once");
            node.checker_tick = Some(deadline);
            self.later(deadline.0 - now.0, Happening::CheckerTick { life });
        }
        for effect in effects {
            match effect {
                checker_core::Effect::Probe { instance, target } => {
                    let outcome = self.probe(&instance, target.generation);
                    let generation = target.generation;
                    let event = checker_core::Event::Probed { instance, generation, outcome };
                    let wait = self.delay(1, 5);
                    self.later(wait, Happening::Checker { life, event });
                }
                checker_core::Effect::WriteVerdict { instance, verdict } => {
                    self.tell(|| {
                        let health = verdict.as_ref().map(|verdict| verdict.health);
                        format!("verdict {instance} {health:?}")
                    });
                    match verdict {
                        Some(verdict) => self.records.verdicts.insert(instance.clone(), verdict),
                        None => self.records.verdicts.remove(&instance),
                    };
                    self.notify(Notice::Verdict(instance));
                }
            }
        }
    }

    fn probe(&self, instance: &model::InstanceId, generation: u64) -> ProbeOutcome {
        let id = IncarnationId { instance: instance.clone(), generation };
        match self.processes.get(&id) {
            Some(process) if process.is_alive() && process.hung => {
                ProbeOutcome::Unwell { detail: "no answer in time".into() }
            }
            Some(process) if process.is_alive() => ProbeOutcome::Well,
            _ => ProbeOutcome::Absent { detail: "connection refused".into() },
        }
    }

    // --- watchers

    /// Tells the node that a record changed; in bad weather late, twice, or only when it looks at
    /// everything again.
    pub(crate) fn notify(&mut self, notice: Notice) {
        let life = self.life;
        let mut wait = self.delay(1, 10);
        if self.rough(3) {
            self.count(Fault::LostNotice);
            wait = self.delay(1_000, 5_000);
        } else if self.rough(5) {
            self.count(Fault::DelayedNotice);
            wait = self.delay(10, 1_000);
        } else if self.rough(5) {
            self.count(Fault::RepeatedNotice);
            let again = self.delay(1, 2_000);
            self.later(again, Happening::Notice { life, notice: notice.clone() });
        }
        self.later(wait, Happening::Notice { life, notice });
    }

    fn notice(&mut self, notice: &Notice) {
        let name = match notice {
            Notice::Spec(name) | Notice::Release(name, _) | Notice::Rollout(name) => name.clone(),
            Notice::Claim(instance) | Notice::Verdict(instance) => instance.application.clone(),
        };
        let event = match notice {
            Notice::Spec(name) => Event::Spec(self.records.spec(name)),
            Notice::Release(name, id) => {
                let release = self.records.releases.get(&(name.clone(), id.clone()));
                Event::Release(id.clone(), release.cloned())
            }
            Notice::Rollout(name) => Event::Rollout(self.records.rollouts.get(name).cloned()),
            Notice::Claim(instance) => return self.look_at_claim(instance),
            Notice::Verdict(instance) => {
                Event::Verdict(instance.clone(), self.records.verdicts.get(instance).cloned())
            }
        };
        let known = self.node.as_ref().is_some_and(|node| node.agents.contains_key(&name));
        let stopping = self.node.as_ref().is_some_and(|node| node.stopping.is_some());
        if !known && !stopping && self.records.specs.contains_key(&name) {
            return self.agent_up(&name);
        }
        self.agent(&name, None, event);
    }

    /// Lets the checker and the router look at a claim.
    pub(crate) fn look_at_claim(&mut self, instance: &model::InstanceId) {
        let claim = self.records.claims.get(instance).cloned();
        let incarnations = claim.map(|claim| claim.incarnations).unwrap_or_default();
        let ready = incarnations.iter().rev().find(|i| i.state == InstanceState::Ready);
        let target = ready.and_then(|incarnation| {
            let method = checker_core::Method::Tcp { port: incarnation.port? };
            let interval = std::time::Duration::from_secs(5);
            let timeout = std::time::Duration::from_secs(1);
            let generation = incarnation.generation;
            Some(checker_core::Target { generation, method, interval, timeout })
        });
        self.checker(checker_core::Event::Target(instance.clone(), target));
        for incarnation in incarnations {
            if incarnation.state != InstanceState::Draining {
                continue;
            }
            if self.rough(3) {
                self.count(Fault::LostDrained);
                continue;
            }
            let mut wait = self.delay(10, 500);
            if self.rough(5) {
                self.count(Fault::SlowDrain);
                wait = self.delay(500, 60_000);
            }
            let generation = incarnation.generation;
            let id = IncarnationId { instance: instance.clone(), generation };
            let name = instance.application.clone();
            let event = Event::Drained { id };
            let agent = self.node.as_ref().and_then(|node| node.agents.get(&name));
            let Some(agent) = agent else { continue };
            let life = agent.life;
            self.later(wait, Happening::Agent { name, life, event });
        }
    }

    // --- processes

    pub(crate) fn exit(&mut self, id: &IncarnationId, how: &'static str) {
        let Some(process) = self.processes.get_mut(id).filter(|process| process.is_alive()) else {
            return;
        };
        let left = exit(how, "the last words");
        process.exit = Some(left.clone());
        self.tell(|| format!("exit {} {} {how}", id.instance, id.generation));
        self.report_exit(id, left);
    }

    pub(crate) fn report_exit(&mut self, id: &IncarnationId, exit: Exit) {
        let name = id.instance.application.clone();
        let Some(node) = &self.node else { return };
        let Some(agent) = node.agents.get(&name) else { return };
        let life = agent.life;
        let wait = self.delay(1, 20);
        let event = Event::Exited { id: id.clone(), exit };
        // The checker notices it all the same where a port was bound; a stop is ordered again.
        let noticed = self.processes.get(id).is_some_and(|process| {
            let bound =
                process.port.is_some() && process.healthy_at.is_some_and(|at| at < self.now);
            bound || process.stopping
        });
        if noticed && self.storm(2) {
            return self.count(Fault::LostAnswer);
        }
        if self.rough(2) {
            self.later(
                wait + 5,
                Happening::Agent { name: name.clone(), life, event: event.clone() },
            );
        }
        self.later(wait, Happening::Agent { name, life, event });
    }

    fn grow(&mut self, id: &IncarnationId) {
        let Some(process) = self.processes.get_mut(id).filter(|process| process.is_alive()) else {
            return;
        };
        process.fat = true;
        self.count(Fault::Memory);
        let event = Event::Memory { id: id.clone(), bytes: 612_000_000 };
        let name = id.instance.application.clone();
        self.agent(&name, None, event);
        // Memory is measured again and again.
        self.later(5_000, Happening::Grow(id.clone()));
    }
}
