//! The simulated world of witnesses: hosts without a checker, and checkers elsewhere that testify
//! of what runs there. Records and probes take time, networks are cut, machines stand still, and
//! one checker may be mistaken. The truth about each instance is known here, and what its node
//! believes is compared with it.

mod judge;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use checker_core::{
    Checker, Effect, Event, Evidence, Jury, Method, ProbeOutcome, Ruling, Target, Witnessed,
    is_witness,
};
use model::probe::Verdict;
use model::{Generation, InstanceId, Machine, NodeId, ProcessType, Timestamp};

use crate::random::Random;

const START_MS: u64 = 1_000_000_000;
const INTERVAL: Duration = Duration::from_secs(3);
const STEP_MS: u64 = 50;
/// The time after which a call that is not answered ends.
const CALL_MAX_MS: u64 = 6_000;
/// The time until a change of which nodes reach each other is noticed, in milliseconds.
const NOTICED_MS: (u64, u64) = (1_200, 3_500);

/// The faults, each of which has to happen in a sweep.
pub const FAULTS: [&str; 7] =
    ["cut one way", "cut both ways", "frozen", "sick", "well again", "replaced", "mistaken"];

/// The world of hosts and checkers; hosts come first, then checkers.
pub struct World {
    now: u64,
    random: Random,
    pub counts: BTreeMap<&'static str, u64>,
    names: Vec<NodeId>,
    hosts: Vec<Host>,
    watchers: Vec<Watcher>,
    cut: BTreeSet<(usize, usize)>,
    frozen: BTreeSet<usize>,
    /// The nodes that each node takes for alive.
    alive: Vec<BTreeSet<usize>>,
    queue: BTreeMap<(u64, u64), Happening>,
    sequence: u64,
}

struct Host {
    jury: Jury,
    instances: Vec<Instance>,
    /// The newest testimony of each witness on each instance that has come into its store.
    heard: BTreeMap<(usize, InstanceId), u64>,
}

struct Instance {
    id: InstanceId,
    generation: Generation,
    well: bool,
    changed_at: u64,
    /// The verdict that its node has written of it.
    standing: Option<Verdict>,
}

struct Watcher {
    checker: Checker<Witnessed>,
    told: BTreeMap<Witnessed, Generation>,
    /// What it knows of the hosts' claims.
    claims: BTreeMap<Witnessed, Generation>,
    /// Whether this one finds everything gone.
    mistaken: bool,
}

enum Happening {
    /// A node looks whether another answers.
    Look {
        at: usize,
        of: usize,
    },
    Claim {
        at: usize,
        of: Witnessed,
        generation: Generation,
    },
    Testimony {
        from: usize,
        host: usize,
        instance: InstanceId,
        verdict: Option<Verdict>,
        /// The number of the testimony in the order in which all were written.
        number: u64,
    },
    /// A probe reaches the host.
    Asked {
        from: usize,
        host: usize,
        of: Witnessed,
        generation: Generation,
    },
    Probed {
        at: usize,
        of: Witnessed,
        generation: Generation,
        outcome: ProbeOutcome,
    },
}

impl World {
    pub fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let (hosts, checkers) = (random.between(1, 5) as usize, random.between(1, 6) as usize);
        let names: Vec<NodeId> =
            (0..hosts + checkers).map(|n| format!("n{n}").parse().expect("an id")).collect();
        let mut world = World {
            now: START_MS,
            counts: BTreeMap::new(),
            hosts: Vec::new(),
            watchers: Vec::new(),
            cut: BTreeSet::new(),
            frozen: BTreeSet::new(),
            alive: vec![(0..hosts + checkers).collect(); hosts + checkers],
            queue: BTreeMap::new(),
            sequence: 0,
            names,
            random,
        };
        for _ in 0..checkers {
            let checker = Checker::new(world.random.draw());
            let (told, claims) = (BTreeMap::new(), BTreeMap::new());
            world.watchers.push(Watcher { checker, told, claims, mistaken: false });
        }
        // Two of two have to agree, and one alone is believed: there none may be mistaken.
        if checkers > 1 && world.random.chance(40) {
            let which = world.random.between(0, checkers as u64) as usize;
            world.watchers[which].mistaken = true;
            world.count("mistaken");
        }
        for host in 0..hosts {
            let heard = BTreeMap::new();
            world.hosts.push(Host { jury: Jury::new(), instances: Vec::new(), heard });
            world.hear(host, Evidence::Checkers(world.names[hosts..].iter().cloned().collect()));
            world.noticed(host);
            for slot in 1..=3 {
                let application = "shop".parse().expect("a name");
                let id = InstanceId { application, process: ProcessType::web(), slot };
                let (changed_at, standing) = (world.now, None);
                let instance = Instance { id, generation: 0, well: true, changed_at, standing };
                world.hosts[host].instances.push(instance);
                world.starts(host, slot as usize - 1);
            }
        }
        world
    }

    /// Returns the index of the first node with a checker.
    fn first(&self) -> usize {
        self.names.len() - self.watchers.len()
    }

    fn watcher(&mut self, at: usize) -> &mut Watcher {
        let first = self.first();
        &mut self.watchers[at - first]
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn later(&mut self, wait: u64, happening: Happening) {
        self.sequence += 1;
        self.queue.insert((self.now + wait, self.sequence), happening);
    }

    fn is_linked(&self, a: usize, b: usize) -> bool {
        let whole = !self.cut.contains(&(a, b)) && !self.cut.contains(&(b, a));
        whole && !self.frozen.contains(&a) && !self.frozen.contains(&b)
    }

    /// Returns whether records and liveness get through, which also go through others; a question
    /// does not.
    fn is_connected(&self, a: usize, b: usize) -> bool {
        let through = |c: usize| self.is_linked(a, c) && self.is_linked(c, b);
        self.is_linked(a, b) || (0..self.names.len()).any(through)
    }

    /// Starts another process in its place.
    fn starts(&mut self, host: usize, which: usize) {
        let now = self.now;
        let instance = &mut self.hosts[host].instances[which];
        instance.generation += 1;
        (instance.well, instance.changed_at) = (true, now);
        let (id, generation) = (instance.id.clone(), instance.generation);
        self.hear(host, Evidence::Ready(id.clone(), Some(generation)));
        for at in self.first()..self.names.len() {
            let of = (id.clone(), self.names[host].clone());
            let wait = self.random.between(5, 500);
            self.later(wait, Happening::Claim { at, of, generation });
        }
    }

    fn hear(&mut self, host: usize, said: Evidence) {
        let mut rulings = Vec::new();
        self.hosts[host].jury.handle(Timestamp(self.now), said, &mut rulings);
        self.hosts[host].jury.check_invariants();
        for Ruling { instance, verdict } in rulings {
            let mut instances = self.hosts[host].instances.iter_mut();
            let of = instances.find(|of| of.id == instance).expect("it is one of its own");
            of.standing = verdict;
        }
    }

    /// Tells a node again which nodes are alive.
    fn noticed(&mut self, at: usize) {
        let alive = self.alive[at].iter().filter(|of| **of != at);
        let alive = alive.map(|of| self.names[*of].clone()).collect();
        match at.checked_sub(self.first()) {
            None => self.hear(at, Evidence::Alive(alive)),
            Some(_) => self.chooses(at),
        }
    }

    /// Chooses of which instances it testifies.
    fn chooses(&mut self, at: usize) {
        let hosts = self.first();
        let checkers: Vec<NodeId> = (hosts..self.names.len())
            .filter(|of| *of == at || self.alive[at].contains(of))
            .map(|of| self.names[of].clone())
            .collect();
        let watcher = &self.watchers[at - hosts];
        let mut events = Vec::new();
        for (of, generation) in &watcher.claims {
            let host = self.names.iter().position(|name| *name == of.1).expect("a node");
            let wanted =
                self.alive[at].contains(&host) && is_witness(&self.names[at], of, checkers.iter());
            let wanted = wanted.then_some(*generation);
            if watcher.told.get(of).copied() != wanted {
                events.push((of.clone(), wanted));
            }
        }
        for (of, wanted) in events {
            let told = &mut self.watchers[at - hosts].told;
            match wanted {
                Some(generation) => drop(told.insert(of.clone(), generation)),
                None => drop(told.remove(&of)),
            }
            let (interval, timeout) = (INTERVAL, Duration::from_secs(1));
            let method = Method::Tcp { port: 1 };
            let target = wanted.map(|generation| Target { generation, method, interval, timeout });
            self.check(at, Event::Target(of, target));
        }
    }

    fn check(&mut self, at: usize, event: Event<Witnessed>) {
        let mut effects = Vec::new();
        let now = Timestamp(self.now);
        self.watcher(at).checker.handle(now, event, &mut effects);
        self.checked(at, effects);
    }

    fn checked(&mut self, at: usize, effects: Vec<Effect<Witnessed>>) {
        self.watchers[at - self.first()].checker.check_invariants();
        for effect in effects {
            match effect {
                Effect::Probe { instance: of, target } => {
                    let host = self.names.iter().position(|name| *name == of.1).expect("a node");
                    let (generation, wait) = (target.generation, self.random.between(1, 150));
                    self.later(wait, Happening::Asked { from: at, host, of, generation });
                }
                Effect::WriteVerdict { instance: (instance, owner), verdict } => {
                    let host = self.names.iter().position(|name| *name == owner).expect("a node");
                    let wait = self.random.between(5, 500);
                    let number = self.sequence;
                    let testimony =
                        Happening::Testimony { from: at, host, instance, verdict, number };
                    self.later(wait, testimony);
                }
            }
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Look { at, of } => {
                if self.frozen.contains(&at) {
                    return self.later(STEP_MS, Happening::Look { at, of });
                }
                let changed = match self.is_connected(at, of) {
                    true => self.alive[at].insert(of),
                    false => self.alive[at].remove(&of),
                };
                if changed {
                    self.noticed(at);
                }
            }
            Happening::Claim { at, of, generation } => {
                let host = self.names.iter().position(|name| *name == of.1).expect("a node");
                if !self.is_connected(at, host) {
                    return self.later(STEP_MS, Happening::Claim { at, of, generation });
                }
                let known = self.watcher(at).claims.entry(of).or_default();
                *known = generation.max(*known);
                self.chooses(at);
            }
            Happening::Testimony { from, host, instance, verdict, number } => {
                self.testimony(from, host, instance, verdict, number);
            }
            Happening::Asked { from, host, of, generation } => {
                let (linked, wait) = (self.is_linked(from, host), self.random.between(1, 150));
                let outcome = if linked {
                    self.seen(host, &of.0, generation)
                } else {
                    ProbeOutcome::Unreached
                };
                let mistaken = self.watchers[from - self.first()].mistaken;
                let outcome = if mistaken { gone() } else { outcome };
                let wait = if linked { wait } else { CALL_MAX_MS };
                self.later(wait, Happening::Probed { at: from, of, generation, outcome });
            }
            Happening::Probed { at, of, generation, outcome } => {
                if self.frozen.contains(&at) {
                    return self.later(STEP_MS, Happening::Probed { at, of, generation, outcome });
                }
                self.check(at, Event::Probed { instance: of, generation, outcome });
            }
        }
    }

    /// Brings a testimony; one that could not be sent waits. Whichever way records travel, the
    /// newest stays.
    fn testimony(
        &mut self,
        from: usize,
        host: usize,
        instance: InstanceId,
        verdict: Option<Verdict>,
        number: u64,
    ) {
        if !self.is_connected(from, host) {
            let again = Happening::Testimony { from, host, instance, verdict, number };
            return self.later(STEP_MS, again);
        }
        let heard = self.hosts[host].heard.entry((from, instance.clone())).or_default();
        if number >= *heard {
            *heard = number;
            let witness = self.names[from].clone();
            self.hear(host, Evidence::Testimony(instance, witness, verdict));
        }
    }

    fn seen(&self, host: usize, id: &InstanceId, generation: Generation) -> ProbeOutcome {
        let mut instances = self.hosts[host].instances.iter();
        match instances.find(|of| of.id == *id && of.generation == generation) {
            Some(instance) if instance.well => ProbeOutcome::Well,
            Some(_) => gone(),
            None => ProbeOutcome::Unreached,
        }
    }

    pub fn run(&mut self, milliseconds: u64) {
        let end = self.now + milliseconds;
        while self.now < end {
            self.now += STEP_MS;
            while let Some(entry) = self.queue.first_entry()
                && entry.key().0 <= self.now
            {
                let happening = entry.remove();
                self.happen(happening);
            }
            for at in self.first()..self.names.len() {
                let now = Timestamp(self.now);
                let checker = &mut self.watcher(at).checker;
                let due = checker.deadline().is_some_and(|deadline| deadline <= now);
                if due && !self.frozen.contains(&at) {
                    let mut effects = Vec::new();
                    self.watcher(at).checker.tick(now, &mut effects);
                    self.checked(at, effects);
                }
            }
            self.judge();
        }
    }

    /// Reacts to a change of which nodes reach each other.
    fn disturbed(&mut self) {
        for at in 0..self.names.len() {
            for of in (0..self.names.len()).filter(|of| *of != at) {
                if self.alive[at].contains(&of) != self.is_connected(at, of) {
                    let wait = self.random.between(NOTICED_MS.0, NOTICED_MS.1);
                    self.later(wait, Happening::Look { at, of });
                }
            }
        }
    }

    fn fault(&mut self) {
        let all = self.names.len() as u64;
        let (a, b) = (self.random.between(0, all) as usize, self.random.between(0, all) as usize);
        match self.random.between(0, 10) {
            0 | 1 if a != b => {
                self.cut.insert((a, b));
                self.count("cut one way");
            }
            2 => {
                let others = (0..self.names.len()).filter(|of| *of != a);
                self.cut.extend(others.flat_map(|of| [(a, of), (of, a)]));
                self.count("cut both ways");
            }
            3 if a >= self.first() => {
                self.frozen.insert(a);
                self.count("frozen");
            }
            4 | 5 => {
                self.cut.clear();
                self.frozen.clear();
            }
            _ => return self.instance_fault(),
        }
        self.disturbed();
    }

    fn instance_fault(&mut self) {
        let host = self.random.between(0, self.hosts.len() as u64) as usize;
        let which = self.random.between(0, 3) as usize;
        let (what, now) = (self.random.between(0, 3), self.now);
        let instance = &mut self.hosts[host].instances[which];
        match what {
            0 if instance.well => {
                (instance.well, instance.changed_at) = (false, now);
                self.count("sick");
            }
            1 if !instance.well => {
                (instance.well, instance.changed_at) = (true, now);
                self.count("well again");
            }
            2 => {
                self.starts(host, which);
                self.count("replaced");
            }
            _ => {}
        }
    }
}

fn gone() -> ProbeOutcome {
    ProbeOutcome::Absent { detail: "connection refused".into() }
}

/// Lives through one history of a seed.
pub fn live(seed: u64) -> World {
    let mut world = World::new(seed);
    world.run(10_000);
    for _ in 0..60 {
        world.fault();
        let wait = world.random.between(100, 8_000);
        world.run(wait);
    }
    world.cut.clear();
    world.frozen.clear();
    world.disturbed();
    world.run(40_000);
    world.judge_quiet();
    world
}
