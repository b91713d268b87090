//! A cluster in one thread: machines, a store on each node whose writes reach the others, an
//! authority, and a clock. Everything follows from a seed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

use model::acme::AcmeOrder;
use model::{CertificateName, Machine, NodeId, Timestamp, hash};

use super::authority::{Authority, Conduct};
use super::{START, node};
use crate::challenge::Means;
use crate::orderer::{Arrival, Effect, Event, Orderer, Outcome, Task};
use crate::renewal::Facts;

/// The moment at which a node is lost: before it does its next step, or when that is done and its
/// answer is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    BeforeActing,
    BeforeTheAnswer,
}

/// How long other nodes take to see that a node is lost, or back.
const SEEN_AFTER: Duration = Duration::from_millis(1500);

#[derive(Clone, Debug)]
enum Value {
    Order(AcmeOrder),
    Certificate(Facts),
}

type Stamp = (Timestamp, u64);
type Slot = (bool, CertificateName);

struct SimNode {
    machine: Option<Orderer>,
    /// The number of its starts: what an earlier one asked for is answered to nobody.
    start: u64,
    store: BTreeMap<Slot, (Stamp, Value)>,
}

enum Happening {
    Act(usize, u64, Effect),
    Deliver(usize, u64, Event),
    Replicate(usize, Slot, Stamp, Value),
    Restart(usize),
    SeeAlive,
}

pub struct World {
    now: Timestamp,
    chance: u64,
    count: u64,
    nodes: Vec<SimNode>,
    queue: BTreeMap<(Timestamp, u64), Happening>,
    authority: Authority,
    wanted: BTreeSet<CertificateName>,
    agreed: bool,
    elsewhere: bool,
    is_cut: bool,
    crash: Option<(u32, Crash, Option<Duration>)>,
    /// Steps of the node that is to be lost: the first one that claims.
    steps: u32,
    victim: Option<usize>,
    crashed: bool,
    known_elsewhere: bool,
    sync: Duration,
    claims: usize,
    story: String,
}

impl World {
    pub fn new(seed: u64, nodes: usize, lifetime_days: u64) -> World {
        let authority = Authority::new(Duration::from_secs(lifetime_days * 24 * 3600));
        let empty = |_| SimNode { machine: None, start: 0, store: BTreeMap::new() };
        let mut world = World {
            now: START,
            chance: hash::mix(seed),
            count: 0,
            nodes: (0..nodes).map(empty).collect(),
            queue: BTreeMap::new(),
            authority,
            wanted: BTreeSet::new(),
            agreed: true,
            elsewhere: false,
            is_cut: false,
            crash: None,
            steps: 0,
            victim: None,
            crashed: false,
            known_elsewhere: false,
            sync: Duration::from_millis(1500),
            claims: 0,
            story: String::new(),
        };
        (0..nodes).for_each(|n| world.start(n));
        world.see_alive();
        world
    }

    pub fn now(&self) -> Timestamp {
        self.now
    }

    pub fn want(&mut self, names: &[CertificateName]) {
        self.wanted = names.iter().cloned().collect();
        for n in 0..self.nodes.len() {
            self.feed(n, Event::Wanted(self.wanted.clone()));
        }
    }

    pub fn agree(&mut self, agreed: bool) {
        self.agreed = agreed;
        for n in 0..self.nodes.len() {
            self.feed(n, Event::Means(self.means()));
        }
    }

    pub fn conduct(&mut self, conduct: Conduct) {
        self.authority.conduct = conduct;
    }

    pub fn lead_elsewhere(&mut self, elsewhere: bool) {
        self.elsewhere = elsewhere;
    }

    pub fn suggest(&mut self, name: &CertificateName, from: Timestamp, to: Timestamp) {
        self.authority.suggest(name, from, to);
    }

    pub fn crash_at(&mut self, step: u32, crash: Crash, down: Option<Duration>) {
        self.crash = Some((step, crash, down));
    }

    pub fn has_crashed(&self) -> bool {
        self.crashed
    }

    /// Sets how long stores take that meet again until they hold the same.
    pub fn sync_takes(&mut self, time: Duration) {
        self.sync = time;
    }

    /// Returns how often a node claimed a name, to make an order.
    pub fn claims(&self) -> usize {
        self.claims
    }

    /// Returns whether another node knew of the order when its node was lost.
    pub fn was_known_elsewhere(&self) -> bool {
        self.known_elsewhere
    }

    /// Cuts the network between the nodes, or mends it.
    pub fn cut(&mut self, cut: bool) {
        self.is_cut = cut;
        if !cut {
            for from in 0..self.nodes.len() {
                let all: Vec<_> = self.nodes[from].store.clone().into_iter().collect();
                for (slot, (stamp, value)) in all {
                    self.replicate(from, self.sync, &slot, stamp, &value);
                }
            }
        }
        self.later(SEEN_AFTER, Happening::SeeAlive);
    }

    /// Nodes lose sight of each other for so long, though what they write arrives.
    pub fn blink(&mut self, span: Duration) {
        for n in 0..self.nodes.len() {
            self.feed(n, Event::Alive(BTreeSet::new()));
        }
        self.later(span, Happening::SeeAlive);
    }

    /// One thing goes wrong, by chance, and what went wrong before is well again.
    pub fn weather(&mut self) {
        self.cut(false);
        self.authority.conduct.away = false;
        match self.draw() % 6 {
            0 => self.cut(true),
            1 => self.authority.conduct.away = true,
            2 | 3 => {
                let n = (self.draw() % self.nodes.len() as u64) as usize;
                let down = Duration::from_millis(self.draw() % 20_000_000);
                self.kill(n, Some(down));
            }
            _ => {}
        }
    }

    /// All nodes are down while so much time passes.
    pub fn leap(&mut self, by: Duration) {
        for n in 0..self.nodes.len() {
            self.kill(n, None);
        }
        self.queue.clear();
        self.now = self.now.after(by);
        (0..self.nodes.len()).for_each(|n| self.start(n));
        self.see_alive();
    }

    pub fn orders(&self, name: &CertificateName) -> usize {
        self.authority.orders(name).len()
    }

    pub fn issued(&self, name: &CertificateName) -> usize {
        self.authority.issued(name)
    }

    pub fn replaced(&self, name: &CertificateName) -> bool {
        self.authority.replaced(name)
    }

    pub fn record(&self, name: &CertificateName) -> Option<AcmeOrder> {
        match self.nodes[0].store.get(&(true, name.clone())) {
            Some((_, Value::Order(order))) => Some(order.clone()),
            _ => None,
        }
    }

    /// Returns the most orders that were made within any span of this length.
    pub fn most_orders_within(&self, name: &CertificateName, span: Duration) -> usize {
        let times = self.authority.orders(name);
        let within = |from: &Timestamp| {
            times.iter().filter(|at| *at >= from && at.since(*from) < span).count()
        };
        times.iter().map(within).max().unwrap_or(0)
    }

    fn certificate(&self, n: usize, name: &CertificateName) -> Option<&Facts> {
        match self.nodes[n].store.get(&(false, name.clone())) {
            Some((_, Value::Certificate(facts))) => Some(facts),
            _ => None,
        }
    }

    /// Returns how long the certificate is good that all nodes which run have.
    pub fn left(&self, name: &CertificateName) -> Option<Duration> {
        let up = (0..self.nodes.len()).filter(|n| self.nodes[*n].machine.is_some());
        let ends = up.map(|n| self.certificate(n, name).map_or(Timestamp(0), |one| one.not_after));
        ends.min().filter(|end| *end > self.now).map(|end| end.since(self.now))
    }

    /// Returns whether the first node still has the first certificate.
    pub fn holds_first(&self, name: &CertificateName) -> bool {
        self.certificate(0, name).is_some_and(|one| one.id == self.authority.first)
    }

    pub fn holds_everywhere(&self, name: &CertificateName) -> bool {
        self.left(name).is_some()
    }

    pub fn story(&self) -> &str {
        &self.story
    }

    pub fn run_for(&mut self, span: Duration) {
        let end = self.now.after(span);
        loop {
            let happens = self.queue.keys().next().map(|(at, _)| *at);
            let due = self.nodes.iter().filter_map(|one| one.machine.as_ref()?.deadline()).min();
            let Some(next) = [happens, due].into_iter().flatten().min() else { break };
            if next > end {
                break;
            }
            self.now = self.now.max(next);
            if happens == Some(next) {
                let (_, happening) = self.queue.pop_first().expect("it is the first");
                self.happen(happening);
            }
            for n in 0..self.nodes.len() {
                let mut effects = Vec::new();
                let Some(machine) = &mut self.nodes[n].machine else { continue };
                if machine.deadline().is_some_and(|at| at <= self.now) {
                    machine.tick(self.now, &mut effects);
                    assert!(machine.deadline().is_none_or(|at| at > self.now), "it would spin");
                    machine.check_invariants();
                }
                self.perform(n, effects);
            }
        }
        self.now = end;
    }

    fn draw(&mut self) -> u64 {
        hash::draw(&mut self.chance)
    }

    fn later(&mut self, after: Duration, happening: Happening) {
        self.count += 1;
        self.queue.insert((self.now.after(after), self.count), happening);
    }

    fn means(&self) -> Option<Means> {
        let means = Means { https: true, dns_hook: false, renewal_info: true };
        self.agreed.then_some(means)
    }

    fn start(&mut self, n: usize) {
        self.nodes[n].machine = Some(Orderer::new(node(n)));
        let stored: Vec<_> = self.nodes[n].store.clone().into_iter().collect();
        for (slot, (_, value)) in stored {
            self.feed(n, event(slot, value));
        }
        self.feed(n, Event::Wanted(self.wanted.clone()));
        self.feed(n, Event::Means(self.means()));
        // It takes a moment until it has found the others.
        self.later(SEEN_AFTER, Happening::SeeAlive);
    }

    fn kill(&mut self, n: usize, down: Option<Duration>) {
        writeln!(self.story, "{} lost {n}", self.now.since(START).as_millis()).unwrap();
        (self.nodes[n].machine, self.nodes[n].start) = (None, self.nodes[n].start + 1);
        self.later(SEEN_AFTER, Happening::SeeAlive);
        if let Some(down) = down {
            self.later(down, Happening::Restart(n));
        }
    }

    fn seen_by(&self, n: usize) -> BTreeSet<NodeId> {
        let others = (0..self.nodes.len()).filter(|other| *other != n && !self.is_cut);
        others.filter(|other| self.nodes[*other].machine.is_some()).map(node).collect()
    }

    fn see_alive(&mut self) {
        for n in 0..self.nodes.len() {
            self.feed(n, Event::Alive(self.seen_by(n)));
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Act(n, start, effect) => self.act(n, start, effect),
            Happening::Deliver(n, start, event) if start == self.nodes[n].start => {
                self.feed(n, event);
            }
            Happening::Deliver(..) => {}
            Happening::Replicate(n, slot, stamp, value) => self.take(n, slot, stamp, value),
            Happening::Restart(n) if self.nodes[n].machine.is_none() => {
                self.start(n);
                // It hears what it missed.
                self.cut(self.is_cut);
            }
            Happening::Restart(_) => {}
            Happening::SeeAlive => self.see_alive(),
        }
    }

    fn feed(&mut self, n: usize, event: Event) {
        let mut effects = Vec::new();
        let Some(machine) = &mut self.nodes[n].machine else { return };
        machine.handle(self.now, event, &mut effects);
        machine.check_invariants();
        self.perform(n, effects);
    }

    fn perform(&mut self, n: usize, effects: Vec<Effect>) {
        for effect in effects {
            let start = self.nodes[n].start;
            if matches!(effect.task, Task::Save(_)) && self.victim.is_none() {
                self.victim = Some(n);
            }
            if self.is_lost(n, Crash::BeforeActing) {
                return;
            }
            // What one node writes is written in order, and at once.
            let wait = match effect.task {
                Task::Save(_) | Task::Write { .. } => 2,
                _ => 20 + self.draw() % 400,
            };
            self.later(Duration::from_millis(wait), Happening::Act(n, start, effect));
        }
    }

    /// Counts the steps of the node that is to be lost; loses it at the right one.
    fn is_lost(&mut self, n: usize, crash: Crash) -> bool {
        let Some((at, when, down)) = self.crash else { return false };
        if self.victim != Some(n) || self.crashed || when != crash {
            return false;
        }
        self.steps += 1;
        let lost = self.steps > at;
        if lost {
            self.crashed = true;
            let others = self.nodes.iter().enumerate().filter(|(other, _)| *other != n);
            self.known_elsewhere = others
                .flat_map(|(_, one)| one.store.values())
                .any(|(_, value)| matches!(value, Value::Order(order) if order.url.is_some()));
            self.kill(n, down);
        }
        lost
    }

    fn act(&mut self, n: usize, start: u64, effect: Effect) {
        let Effect { name, serial, task } = effect;
        let chance = self.draw();
        let outcome = match self.authority.act(self.now, &name, &task, chance) {
            // A request that has left is served, whatever becomes of its node.
            Some(outcome) => outcome,
            None if start != self.nodes[n].start => return,
            None => match &task {
                Task::Save(order) => {
                    self.claims += usize::from(order.active && order.url.is_none());
                    self.write(n, (true, name.clone()), Value::Order((**order).clone()));
                    Outcome::Saved
                }
                Task::Write { facts, .. } => {
                    self.write(n, (false, name.clone()), Value::Certificate(facts.clone()));
                    Outcome::Written
                }
                Task::Check if self.elsewhere => {
                    Outcome::Checked(Arrival::Elsewhere { why: "no".into() })
                }
                Task::Check => Outcome::Checked(Arrival::Arrives { http: true, https: false }),
                Task::Prepare { .. } => Outcome::Prepared,
                _ => return,
            },
        };
        let at = self.now.since(START).as_millis();
        writeln!(self.story, "{at} {n} {name}: {task:?} -> {outcome:?}").unwrap();
        if self.nodes[n].start == start && self.is_lost(n, Crash::BeforeTheAnswer) {
            return;
        }
        let wait = Duration::from_millis(1 + self.draw() % 200);
        let event = Event::Done { name, serial, outcome };
        self.later(wait, Happening::Deliver(n, start, event));
    }

    fn write(&mut self, n: usize, slot: Slot, value: Value) {
        self.count += 1;
        let stamp = (self.now, self.count);
        self.nodes[n].store.insert(slot.clone(), (stamp, value.clone()));
        let start = self.nodes[n].start;
        let news = event(slot.clone(), value.clone());
        let wait = Duration::from_millis(self.draw() % 5);
        self.later(wait, Happening::Deliver(n, start, news));
        self.replicate(n, Duration::ZERO, &slot, stamp, &value);
    }

    fn replicate(
        &mut self,
        from: usize,
        after: Duration,
        slot: &Slot,
        stamp: Stamp,
        value: &Value,
    ) {
        for to in (0..self.nodes.len()).filter(|to| *to != from) {
            if !self.is_cut {
                let wait = after + Duration::from_millis(10 + self.draw() % 900);
                let copy = Happening::Replicate(to, slot.clone(), stamp, value.clone());
                self.later(wait, copy);
            }
        }
    }

    fn take(&mut self, n: usize, slot: Slot, stamp: Stamp, value: Value) {
        let known = self.nodes[n].store.get(&slot).map(|(stamp, _)| *stamp);
        if self.nodes[n].machine.is_none() || self.is_cut || known.is_some_and(|one| one >= stamp) {
            return;
        }
        self.nodes[n].store.insert(slot.clone(), (stamp, value.clone()));
        self.feed(n, event(slot, value));
    }
}

fn event((is_order, name): Slot, value: Value) -> Event {
    match value {
        Value::Order(order) if is_order => Event::Order(name, Some(order)),
        Value::Certificate(facts) => Event::Certificate(name, Some(facts)),
        Value::Order(_) => unreachable!("orders have slots of their own"),
    }
}
