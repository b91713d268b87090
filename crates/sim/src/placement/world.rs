//! The world: time, what is to happen, the nodes and what lies between them.

use std::collections::{BTreeMap, BTreeSet};

use agent_core::lease::LEASE;
use agent_core::placement::NodeView;
use model::{ApplicationName, InstanceId, NodeId, ReleaseId, Timestamp, Walls};

use super::happening::Happening;
use super::node::Node;
use super::replica::{Key, Record, Stamp};
use crate::random::Random;

/// The time within which two nodes that see each other settle which of them runs a slot.
pub const LEASE_MS: u64 = LEASE.as_millis() as u64;
/// The time at which a history starts: far enough from zero for clocks that are behind.
pub const START_MS: u64 = 1_000_000_000_000;
/// The limit on happenings, so that a history that never rests ends.
const HAPPENINGS_MAX: u64 = 5_000_000;
const SAMPLE_MS: u64 = 500;
/// The percentage of nodes with a checker; these look after the others.
const CHECKS_PERCENT: u64 = 60;

/// The records that could not be sent yet.
type Unsent = BTreeMap<Key, (Stamp, Option<Record>)>;

pub struct World {
    pub now: u64,
    pub tracing: bool,
    pub trace: Vec<String>,
    /// Counts of the faults that happened, by name.
    pub counts: BTreeMap<&'static str, u64>,
    /// Whether nothing fails: instances must never be missing.
    pub calm: bool,
    pub(super) random: Random,
    pub(super) nodes: Vec<Node>,
    /// The ordered pairs through which nothing passes.
    pub(super) cut: BTreeSet<(usize, usize)>,
    /// The records that wait to get from one node to another.
    pub(super) waiting: BTreeMap<(usize, usize), Unsent>,
    /// The node whose witness finds everything gone; `None` if no witness is mistaken.
    pub(super) mistaken: Option<usize>,
    pub(super) broken: BTreeSet<(ApplicationName, ReleaseId)>,
    /// The releases whose steps fail on a node.
    pub(super) failing: BTreeSet<(ReleaseId, usize)>,
    /// The newest release of each application that ever served. One that is made anew under its
    /// name is another one.
    pub(super) newest: BTreeMap<(ApplicationName, Timestamp), ReleaseId>,
    /// The release steps that were begun, by the number of the machine that did.
    pub(super) begun_steps: BTreeSet<(u64, Option<Timestamp>, ReleaseId)>,
    /// The newest serving release as each node knew it, and when it was last so.
    pub(super) known_serving: BTreeMap<(usize, ApplicationName), (ReleaseId, u64)>,
    pub(super) known_by_actor: BTreeMap<u64, Option<ReleaseId>>,
    pub(super) lives: u64,
    pub(super) next_pid: u32,
    pub(super) moves: u64,
    pub(super) homes: BTreeMap<InstanceId, usize>,
    pub(super) twice_since: BTreeMap<InstanceId, u64>,
    pub(super) disturbed_at: u64,
    pub(super) drained_since: BTreeMap<usize, u64>,
    pub(super) served: BTreeSet<ApplicationName>,
    queue: BTreeMap<(u64, u64), Box<Happening>>,
    sequence: u64,
}

impl World {
    pub fn new(seed: u64, nodes: usize) -> World {
        World::with_spares(seed, nodes, 0)
    }

    /// Creates a world in which some nodes join later.
    pub fn with_spares(seed: u64, nodes: usize, spares: usize) -> World {
        World::of_nodes(seed, &vec![true; nodes + spares], spares)
    }

    /// Creates a world in which some nodes have no checker, and the witness of one that has may be
    /// mistaken.
    pub fn mixed(seed: u64, nodes: usize, spares: usize) -> World {
        let mut random = Random::new(!seed);
        // The first one is never removed.
        let checks = |at: usize, random: &mut Random| at == 0 || random.chance(CHECKS_PERCENT);
        let checks: Vec<bool> = (0..nodes + spares).map(|at| checks(at, &mut random)).collect();
        let mut world = World::of_nodes(seed, &checks, spares);
        let at = random.between(0, nodes as u64) as usize;
        if checks[at] && world.may_be_mistaken() {
            world.mistaken = Some(at);
            world.count("mistaken");
        }
        world
    }

    fn of_nodes(seed: u64, checks: &[bool], spares: usize) -> World {
        let nodes = checks.len() - spares;
        let mut world = World {
            now: START_MS,
            tracing: false,
            trace: Vec::new(),
            counts: BTreeMap::new(),
            calm: false,
            random: Random::new(seed),
            nodes: Vec::new(),
            cut: BTreeSet::new(),
            waiting: BTreeMap::new(),
            mistaken: None,
            broken: BTreeSet::new(),
            failing: BTreeSet::new(),
            newest: BTreeMap::new(),
            begun_steps: BTreeSet::new(),
            known_serving: BTreeMap::new(),
            known_by_actor: BTreeMap::new(),
            lives: 0,
            next_pid: 100,
            moves: 0,
            homes: BTreeMap::new(),
            twice_since: BTreeMap::new(),
            disturbed_at: 0,
            drained_since: BTreeMap::new(),
            served: BTreeSet::new(),
            queue: BTreeMap::new(),
            sequence: 0,
        };
        for (at, checks) in checks.iter().enumerate() {
            let id: NodeId = format!("n{at:02}").parse().expect("a valid id");
            world.nodes.push(Node { checks: *checks, ..Node::new(id) });
            (world.nodes[at].member, world.nodes[at].is_spare) = (at < nodes, at >= nodes);
        }
        for at in 0..nodes {
            let view = world.view();
            let key = Key::Node(world.nodes[at].id.clone());
            for node in &mut world.nodes[..nodes] {
                node.replica.accept(&key, (1, at), Some(Record::Node(view.clone())));
            }
        }
        for at in 0..nodes {
            world.up(at);
        }
        world.later(SAMPLE_MS, Happening::Sample);
        world
    }

    pub(super) fn tell(&mut self, line: impl FnOnce() -> String) {
        if self.tracing {
            let line = line();
            eprintln!("{:>9.3} {line}", (self.now - START_MS) as f64 / 1000.0);
            self.trace.push(format!("{:>9.3} {line}", (self.now - START_MS) as f64 / 1000.0));
        }
    }

    pub(super) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub(super) fn later(&mut self, wait: u64, happening: Happening) {
        self.sequence += 1;
        self.queue.insert((self.now + wait, self.sequence), Box::new(happening));
    }

    pub fn run(&mut self, milliseconds: u64) {
        let end = self.now + milliseconds;
        let mut happenings = 0;
        while let Some(((at, _), _)) = self.queue.first_key_value()
            && *at <= end
        {
            let ((at, _), happening) = self.queue.pop_first().expect("it was there");
            self.now = at;
            self.happen(*happening);
            happenings += 1;
            assert!(happenings < HAPPENINGS_MAX, "the world does not come to rest");
        }
        self.now = end;
    }

    fn happen(&mut self, happening: Happening) {
        if self.is_held_up(&happening) {
            return self.later(500, happening);
        }
        match happening {
            Happening::Arrives { at, key, stamp, record } => self.arrives(at, key, stamp, record),
            Happening::PlacementTick { at, life } => self.placement_tick(at, life),
            Happening::ApplicationTick { at, life, name } => self.application_tick(at, life, &name),
            Happening::ToApplication { at, life, actor, name, event } => {
                if self.is_actor(at, &name, actor) {
                    self.application(at, life, &name, event);
                }
            }
            Happening::Push { at, name, number } => self.push_late(at, &name, number),
            Happening::Launch { at, life, id, release } => self.launch(at, life, id, release),
            Happening::Exit { at, id, lease_over } => self.exit(at, &id, lease_over),
            Happening::ActorUp { at, life, name } => self.actor_up(at, life, &name),
            Happening::Look { at, of } => self.look(at, of),
            Happening::Up { at } => {
                if self.nodes[at].machines.is_none() && self.random.chance(30) {
                    self.turn_clock(at);
                }
                self.up(at);
            }
            Happening::Thaw { at } => self.thaw(at),
            Happening::Wake { at } => self.wake(at),
            Happening::DiskFree { at } => self.disk_free(at),
            Happening::LeaseEnds { at } => self.lease_ends(at),
            Happening::CheckerTick { at, number } => self.checker_tick(at, number),
            Happening::Probe { at, number, instance, generation } => {
                self.probe(at, number, instance, generation);
            }
            Happening::Asked { from, number, of, generation } => {
                self.asked(from, number, of, generation);
            }
            Happening::Answered { at, number, of, generation, outcome } => {
                self.answered(at, number, of, generation, outcome);
            }
            Happening::WriteAgain { at, life } => self.write_again(at, life),
            Happening::PartUp { at, life, part } => self.part_up_again(at, life, part),
            Happening::CheckerGoesOn { at, life } => self.checker_goes_on(at, life),
            Happening::CheckerSilent { at, life } => self.checker_silent(at, life),
            Happening::CheckerTried { at, life } => self.checker_tried(at, life),
            Happening::CheckerProven { at, life } => self.checker_proven(at, life),
            Happening::Recovers { at, id } => self.recovers(at, &id),
            Happening::Sample => {
                self.sample();
                self.later(SAMPLE_MS, Happening::Sample);
            }
        }
    }

    /// Returns whether a happening has to wait: a frozen machine does nothing, nor does a hung node
    /// process, and nothing is lost; a full disk takes no news but the claims of others.
    fn is_held_up(&self, happening: &Happening) -> bool {
        match happening {
            // Claims of others are known in memory all the same.
            Happening::Arrives { at, key, .. } => {
                let node = &self.nodes[*at];
                let lost = node.disk_full && !matches!(key, Key::Claim(..));
                node.frozen || node.hung || lost
            }
            Happening::PlacementTick { at, .. }
            | Happening::ApplicationTick { at, .. }
            | Happening::ToApplication { at, .. }
            | Happening::Launch { at, .. }
            | Happening::ActorUp { at, .. }
            | Happening::CheckerTick { at, .. }
            | Happening::Probe { at, .. }
            | Happening::Answered { at, .. }
            | Happening::PartUp { at, .. }
            | Happening::WriteAgain { at, .. }
            | Happening::CheckerSilent { at, .. }
            | Happening::CheckerTried { at, .. }
            | Happening::CheckerProven { at, .. }
            | Happening::Look { at, .. } => self.nodes[*at].frozen || self.nodes[*at].hung,
            Happening::Exit { at, .. } | Happening::LeaseEnds { at, .. } => self.nodes[*at].frozen,
            _ => false,
        }
    }

    /// Returns the time as a node process has it.
    pub(super) fn clock(&self, at: usize) -> Timestamp {
        Timestamp(self.now.saturating_add_signed(self.nodes[at].clock_off))
    }

    pub(super) fn members(&self, at: usize) -> usize {
        self.nodes[at].replica.members()
    }

    /// Returns a machine with random capacity and load.
    pub(super) fn view(&mut self) -> NodeView {
        let capacity = Some(self.random.between(12, 40) as u32);
        let load = Some(self.random.between(5, 30) as u32);
        let started_at = Some(Timestamp(self.now));
        NodeView { capacity, load, drained: false, walls: Walls::ALL, started_at }
    }

    // --- between the nodes

    /// Returns whether two nodes have a stream, which needs both ways.
    pub(super) fn is_linked(&self, a: usize, b: usize) -> bool {
        self.nodes[a].runs()
            && self.nodes[b].runs()
            && !self.cut.contains(&(a, b))
            && !self.cut.contains(&(b, a))
    }

    /// Returns whether records and probes get through, which also go through one other node.
    pub(super) fn is_connected(&self, a: usize, b: usize) -> bool {
        let through = |c: usize| c != a && c != b && self.is_linked(a, c) && self.is_linked(c, b);
        self.is_linked(a, b) || (!self.cut.is_empty() && (0..self.nodes.len()).any(through))
    }

    /// Writes a record at one node; the others hear of it sooner or later.
    pub(super) fn write(&mut self, at: usize, key: Key, record: Option<Record>) {
        let clock = self.clock(at).0;
        let stamp = self.nodes[at].replica.stamp(clock, at);
        for to in 0..self.nodes.len() {
            if to == at {
                continue;
            }
            if self.is_connected(at, to) {
                let wait = self.random.between(5, 120);
                let wait = if self.random.chance(3) { wait * 8 } else { wait };
                let (key, record) = (key.clone(), record.clone());
                self.later(wait, Happening::Arrives { at: to, key, stamp, record });
            } else {
                self.waits((at, to), key.clone(), (stamp, record.clone()));
            }
        }
        self.arrives(at, key, stamp, record);
    }

    fn waits(&mut self, between: (usize, usize), key: Key, record: (Stamp, Option<Record>)) {
        let waiting = self.waiting.entry(between).or_default();
        if waiting.get(&key).is_none_or(|(stamp, _)| *stamp < record.0) {
            waiting.insert(key, record);
        }
    }

    fn arrives(&mut self, at: usize, key: Key, stamp: Stamp, record: Option<Record>) {
        if self.nodes[at].machines.is_none() {
            // It was on the way when the node died, which hears of it again.
            let from = stamp.1;
            if from != at {
                self.waits((from, at), key, (stamp, record));
            }
            return;
        }
        if self.nodes[at].replica.accept(&key, stamp, record) {
            self.noticed(at, &key);
        }
    }

    fn is_had_near(&self, to: usize, key: &Key, stamp: Stamp) -> bool {
        (0..self.nodes.len()).any(|of| {
            let has = self.nodes[of].replica.records.get(key).is_some_and(|(had, _)| *had == stamp);
            has && self.is_connected(of, to)
        })
    }

    /// Reacts to every change of which nodes reach each other.
    pub(super) fn disturbed(&mut self) {
        self.disturbed_at = self.now;
        let pairs: Vec<(usize, usize)> = self.waiting.keys().copied().collect();
        for (from, to) in pairs {
            let connected = self.is_connected(from, to);
            let mut still = Unsent::new();
            for (key, (stamp, record)) in self.waiting.remove(&(from, to)).unwrap_or_default() {
                // What a dead node wrote others may have.
                if connected || self.is_had_near(to, &key, stamp) {
                    let wait = self.random.between(50, 1_000);
                    self.later(wait, Happening::Arrives { at: to, key, stamp, record });
                } else {
                    still.insert(key, (stamp, record));
                }
            }
            if !still.is_empty() {
                self.waiting.insert((from, to), still);
            }
        }
        for at in 0..self.nodes.len() {
            for of in 0..self.nodes.len() {
                if at != of && self.nodes[at].alive.contains(&of) != self.is_connected(at, of) {
                    let wait = self.random.between(1_200, 3_500);
                    self.later(wait, Happening::Look { at, of });
                }
            }
        }
    }
}
