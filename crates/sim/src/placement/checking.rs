//! The checkers of a cluster, as their shells in the binary drive them: each node that has the role
//! probes its own instances and testifies of those of nodes without it, and a node without it hears
//! witnesses. A ruling is a record like any other, and the application's machine acts on it.

mod condition;
mod hanging;
mod jury;
mod witness;

use std::time::Duration;

use checker_core::{Checker, Effect, Event, Jury, Method, ProbeOutcome, Target, Witnessed};
use model::probe::{HealthState, Verdict};
use model::{Claim, Generation, InstanceId, InstanceState, Machine, Timestamp};

pub(super) use condition::Condition;
use witness::Watching;

use super::happening::Happening;
use super::node::Node;
use super::replica::{Key, Record, Replica};
use super::world::World;

/// The interval of probes, as users may set it: probing each instance every second would be nothing
/// but work for a simulator.
const INTERVAL: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(1);
/// The duration of a probe on loopback, in milliseconds.
const PROBE_MS: (u64, u64) = (1, 30);
/// The pause until a part that failed is started again, in milliseconds.
const REST_MS: (u64, u64) = (100, 5_000);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Checker,
    Witness,
    Jury,
}

/// The parts of it that run while the node process does.
#[derive(Debug, Default)]
pub(super) struct Checking {
    pub own: Option<Driven<InstanceId>>,
    pub witness: Option<Watching>,
    pub jury: Option<Jury>,
    /// Whether its own checker hangs and is not driven.
    pub stuck: bool,
}

#[derive(Debug)]
pub(super) struct Driven<I> {
    /// The number of this run of the part; answers to an earlier one are not for it.
    pub number: u64,
    pub machine: Checker<I>,
    tick: Option<Timestamp>,
}

impl<I: Clone + Ord> Driven<I> {
    fn new(number: u64, seed: u64) -> Driven<I> {
        Driven { number, machine: Checker::new(seed), tick: None }
    }

    fn handle(&mut self, now: Timestamp, event: Event<I>) -> Vec<Effect<I>> {
        let mut effects = Vec::new();
        self.machine.handle(now, event, &mut effects);
        self.machine.check_invariants();
        effects
    }

    fn tick(&mut self, now: Timestamp) -> Vec<Effect<I>> {
        self.tick = None;
        let mut effects = Vec::new();
        if self.machine.deadline().is_some_and(|deadline| deadline <= now) {
            self.machine.tick(now, &mut effects);
            let spins = self.machine.deadline().is_some_and(|deadline| deadline <= now);
            assert!(!spins, "a checker would be asked again at once");
        }
        effects
    }

    /// Returns how long until it is to be driven again, unless a tick already waits for that.
    fn wait(&mut self, now: Timestamp) -> Option<u64> {
        let deadline = self.machine.deadline()?;
        if self.tick.is_some_and(|tick| tick <= deadline) {
            return None;
        }
        self.tick = Some(deadline);
        Some(deadline.0.saturating_sub(now.0))
    }
}

/// Returns the newest ready incarnation: older ones are on their way out, and a starting one is the
/// agent's to watch.
fn ready(claim: &Claim) -> Option<Generation> {
    let mut newest = claim.incarnations.iter().rev();
    newest.find(|one| one.state == InstanceState::Ready).map(|one| one.generation)
}

fn target(generation: Generation, interval: Duration) -> Target {
    Target { generation, method: Method::Tcp { port: 1 }, interval, timeout: TIMEOUT }
}

impl Replica {
    fn claim(&self, instance: &InstanceId, owner: &model::NodeId) -> Option<&Claim> {
        match self.get(&Key::Claim(instance.clone(), owner.clone())) {
            Some(Record::Claim(claim)) => Some(claim),
            _ => None,
        }
    }

    pub(super) fn verdict(&self, owner: &model::NodeId, instance: &InstanceId) -> Option<&Verdict> {
        match self.get(&Key::Verdict(owner.clone(), instance.clone())) {
            Some(Record::Verdict(verdict)) => Some(verdict),
            _ => None,
        }
    }
}

impl World {
    fn checking(&mut self, at: usize) -> Option<&mut Checking> {
        self.nodes[at].machines.as_mut().map(|machines| &mut machines.checking)
    }

    /// Starts checking together with its node process.
    pub(super) fn checking_up(&mut self, at: usize) {
        let checks = self.nodes[at].checks;
        self.say_that_it_checks(at, checks);
        if checks {
            self.part_up(at, Part::Checker);
            self.part_up(at, Part::Witness);
        } else {
            self.part_up(at, Part::Jury);
        }
    }

    /// Starts a part, which knows nothing but what is on record.
    pub(super) fn part_up(&mut self, at: usize, part: Part) {
        self.lives += 1;
        match part {
            Part::Checker => self.checker_up(at),
            Part::Witness => self.witness_up(at),
            Part::Jury => self.jury_up(at),
        }
    }

    pub(super) fn part_fails(&mut self, at: usize, part: Part) {
        let Some(machines) = &mut self.nodes[at].machines else { return };
        let life = machines.life;
        match part {
            Part::Checker => machines.checking.own = None,
            Part::Witness => machines.checking.witness = None,
            Part::Jury => machines.checking.jury = None,
        }
        let wait = self.random.between(REST_MS.0, REST_MS.1);
        self.later(wait, Happening::PartUp { at, life, part });
    }

    pub(super) fn part_up_again(&mut self, at: usize, life: u64, part: Part) {
        let machines = self.nodes[at].machines.as_ref().filter(|machines| machines.life == life);
        // Another part hears for this node by now, or none any more.
        let rests = machines.is_some_and(|machines| match part {
            Part::Checker => machines.checking.own.is_none() && machines.checking.jury.is_none(),
            Part::Witness => machines.checking.witness.is_none(),
            Part::Jury => machines.checking.jury.is_none() && machines.checking.own.is_none(),
        });
        if rests {
            self.part_up(at, part);
        }
    }

    /// Reacts to a record that has changed at this node.
    pub(super) fn checking_noticed(&mut self, at: usize, key: &Key) {
        if let Key::Claim(instance, owner) = key
            && *owner == self.nodes[at].id
        {
            let claim = self.nodes[at].replica.claim(instance, owner);
            let wanted = claim.and_then(ready).map(|generation| target(generation, INTERVAL));
            self.check(at, Event::Target(instance.clone(), wanted));
        }
        self.witness_noticed(at, key);
        self.jury_noticed(at, key);
    }

    /// Reacts to a change of the nodes that this one sees.
    pub(super) fn checking_sees(&mut self, at: usize) {
        self.witness_sees(at);
        self.jury_sees(at);
    }

    fn checker_up(&mut self, at: usize) {
        let (number, seed) = (self.lives, self.random.draw());
        let Node { id, replica, .. } = &self.nodes[at];
        let claims = replica.claims().filter(|(_, owner, _)| *owner == id);
        let targets: Vec<(InstanceId, Option<Generation>)> =
            claims.map(|(instance, _, claim)| (instance.clone(), ready(claim))).collect();
        let written: Vec<(InstanceId, Verdict)> = replica.verdicts(id).collect();
        let Some(checking) = self.checking(at) else { return };
        checking.own = Some(Driven::new(number, seed));
        for (instance, verdict) in written {
            self.check(at, Event::Written(instance.clone(), verdict));
            let watched = targets.iter().any(|(of, ready)| *of == instance && ready.is_some());
            if !watched {
                self.check(at, Event::Target(instance, None));
            }
        }
        for (instance, ready) in targets {
            let wanted = ready.map(|generation| target(generation, INTERVAL));
            self.check(at, Event::Target(instance, wanted));
        }
    }

    fn check(&mut self, at: usize, event: Event) {
        let now = self.clock(at);
        let Some(checking) = self.checking(at).filter(|checking| !checking.stuck) else { return };
        let Some(own) = &mut checking.own else { return };
        let effects = own.handle(now, event);
        self.checked(at, effects);
    }

    pub(super) fn checker_tick(&mut self, at: usize, number: u64) {
        let now = self.clock(at);
        let Some(checking) = self.checking(at) else { return };
        if let Some(own) = checking.own.as_mut().filter(|own| own.number == number) {
            let effects = own.tick(now);
            self.checked(at, effects);
        } else if let Some(watching) = checking.witness.as_mut()
            && watching.driven.number == number
        {
            let effects = watching.driven.tick(now);
            self.witnessed(at, effects);
        }
    }

    fn checked(&mut self, at: usize, effects: Vec<Effect>) {
        let now = self.clock(at);
        let Some(own) = self.checking(at).and_then(|checking| checking.own.as_mut()) else {
            return;
        };
        let (number, wait) = (own.number, own.wait(now));
        if let Some(wait) = wait {
            self.later(wait, Happening::CheckerTick { at, number });
        }
        for effect in effects {
            match effect {
                Effect::Probe { instance, target } => {
                    let wait = self.random.between(PROBE_MS.0, PROBE_MS.1);
                    let generation = target.generation;
                    self.later(wait, Happening::Probe { at, number, instance, generation });
                }
                Effect::WriteVerdict { instance, verdict } => {
                    if !self.rule(at, &instance, verdict, "judged by its checker") {
                        return self.part_fails(at, Part::Checker);
                    }
                }
            }
        }
    }

    pub(super) fn probe(&mut self, at: usize, number: u64, instance: InstanceId, of: Generation) {
        let outcome = self.seen(at, &instance, of);
        let Some(checking) = self.checking(at) else { return };
        if checking.own.as_ref().is_some_and(|own| own.number == number) {
            self.check(at, Event::Probed { instance, generation: of, outcome });
        }
    }

    /// Writes this node's own verdict on an instance of its own; returns false if it cannot be
    /// written.
    fn rule(
        &mut self,
        at: usize,
        instance: &InstanceId,
        verdict: Option<Verdict>,
        what: &'static str,
    ) -> bool {
        if self.nodes[at].disk_full {
            self.count("write refused");
            return false;
        }
        self.tell(|| {
            let said = verdict.as_ref().map(|verdict| (verdict.health, &verdict.detail));
            format!("verdict on {instance} at {at}: {said:?}")
        });
        if let Some(verdict) = verdict.as_ref().filter(|said| said.health != HealthState::Healthy) {
            self.count(what);
            self.judge_verdict(at, instance, verdict);
        }
        let key = Key::Verdict(self.nodes[at].id.clone(), instance.clone());
        self.write(at, key, verdict.map(Record::Verdict));
        true
    }

    /// Handles a question of a witness, which has come to the node that runs the instance or is
    /// lost.
    pub(super) fn asked(&mut self, from: usize, number: u64, of: Witnessed, asked: Generation) {
        let host = self.nodes.iter().position(|node| node.id == of.1);
        let host = host.filter(|host| self.is_linked(from, *host));
        let looked = host.map(|host| {
            let claim = self.nodes[host].replica.claim(&of.0, &of.1);
            match claim.and_then(ready) == Some(asked) {
                true => self.seen(host, &of.0, asked),
                false => ProbeOutcome::Unreached,
            }
        });
        let mistaken = self.mistaken == Some(from);
        let outcome = if mistaken { refused() } else { looked.unwrap_or(ProbeOutcome::Unreached) };
        let wait = match host {
            Some(_) => self.random.between(witness::WAY_MS.0, witness::WAY_MS.1),
            None => witness::CALL_MAX_MS,
        };
        let happening = Happening::Answered { at: from, number, of, generation: asked, outcome };
        self.later(wait, happening);
    }
}

fn refused() -> ProbeOutcome {
    ProbeOutcome::Absent { detail: "connection refused".into() }
}
