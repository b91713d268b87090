//! The spread of news among many stores, and what finding differences costs: perfect wires with a
//! delay, disks that take a millisecond, machines as they ship. `cargo bench -p sim` prints tables.

use std::collections::BTreeMap;

use model::{Machine, NodeId, Timestamp};
use store_core::event::{Change, Effect, Event, Ticket, Write};
use store_core::record::Record;
use store_core::sync::message::{Body, ClusterId};
use store_core::sync::wire;
use store_core::{Commit, CommitAction, Location, NodeTag, Past, Position, Stamp, StoreMachine};

use crate::random::Random;

const CLUSTER: ClusterId = ClusterId([7; 16]);
const EPOCH: u64 = 1_700_000_000_000;
const SYNC_MS: u64 = 1;
/// The delay one way in milliseconds, as between machines of one country.
const WIRE_MS: (u64, u64) = (1, 10);

enum Happening {
    Tick,
    Synced { batch: u64, entries: usize },
    Arrive { from: usize, bytes: Vec<u8> },
}

pub struct Fleet {
    now: u64,
    random: Random,
    tags: Vec<NodeTag>,
    machines: Vec<StoreMachine>,
    ticks: Vec<Option<u64>>,
    /// The time at which the last message between two nodes arrives: on one stream nothing
    /// overtakes.
    streams: BTreeMap<(usize, usize), u64>,
    queue: BTreeMap<(u64, u64), (usize, Happening)>,
    sequence: u64,
    /// The bytes that were sent, and the part of them that were commits.
    pub bytes: u64,
    pub bytes_of_commits: u64,
    pub messages: u64,
}

fn id(node: usize) -> NodeId {
    format!("n{node}").parse().expect("a valid id")
}

/// Returns a commit as if `node` had made it.
pub fn commit(node: usize, stamp: Stamp, key: &str) -> Commit {
    let hash = *blake3::hash(key.as_bytes()).as_bytes();
    let action = CommitAction::Set { hash, sha1: [1; 20], size: 0, expires: None };
    let at = Position { stamp, node: NodeTag::from(&id(node)) };
    Commit { at, key: key.into(), action, location: Location::Nowhere }
}

impl Fleet {
    /// Creates nodes that have known each other for long. `lacking` are commits that only the first
    /// holds.
    pub fn new(seed: u64, count: usize, shared: &[Commit], lacking: &[Commit]) -> Fleet {
        let mut past = Past::default();
        let nowhere = Location::Nowhere;
        let keep = |past: &mut Past, commit: &Commit| {
            past.replay(Record::Commit { commit: commit.clone(), value: &[] }, nowhere)
        };
        for node in 0..count {
            let stamp = Stamp(Stamp::start_of(Timestamp(EPOCH - 100_000)).0 + node as u64);
            keep(&mut past, &commit(0, stamp, &format!("cluster::nodes::n{node}")));
        }
        shared.iter().for_each(|commit| _ = keep(&mut past, commit));
        past.next_batch = 2;
        past.unclean = false;
        past.standing.cluster = CLUSTER;
        past.standing.incarnation = 1;
        let mut first = past.clone();
        lacking.iter().for_each(|commit| _ = keep(&mut first, commit));
        first.unclean = false;
        let pasts = std::iter::once(first).chain(std::iter::repeat_n(past, count - 1));
        let now = Timestamp(EPOCH);
        let machines: Vec<StoreMachine> = pasts
            .enumerate()
            .map(|(node, past)| StoreMachine::new(&id(node), now, past, CLUSTER))
            .collect();
        let mut fleet = Fleet {
            now: EPOCH,
            random: Random::new(seed),
            tags: (0..count).map(|node| NodeTag::from(&id(node))).collect(),
            ticks: vec![None; count],
            streams: BTreeMap::new(),
            machines,
            queue: BTreeMap::new(),
            sequence: 0,
            bytes: 0,
            bytes_of_commits: 0,
            messages: 0,
        };
        for node in 0..count {
            let others = fleet.tags.iter().copied().filter(|tag| *tag != fleet.tags[node]);
            let others = others.collect();
            fleet.act(node, Event::Reachable(others));
        }
        fleet
    }

    /// Writes one small value at the first node.
    pub fn write(&mut self, key: &str) {
        let change = Change::SetInline { hash: [3; 32], sha1: [1; 20], size: 0, expires: None };
        let key = key.parse().expect("a valid key");
        let write = Write { ticket: Ticket(1), key, change, only_over: None };
        self.act(0, Event::Write(vec![write]));
    }

    pub fn holders(&self, key: &str) -> usize {
        self.machines.iter().filter(|machine| machine.replica().newest(key).is_some()).count()
    }

    pub fn agrees(&self) -> bool {
        let head = self.machines[0].replica().history().head();
        self.machines.iter().all(|machine| machine.replica().history().head() == head)
    }

    /// Lets time pass until `done`; returns how many milliseconds that took.
    pub fn run_until(&mut self, at_most: u64, mut done: impl FnMut(&Fleet) -> bool) -> Option<u64> {
        let begin = self.now;
        while !done(self) {
            let ((at, _), _) = self.queue.first_key_value()?;
            if *at > begin + at_most {
                self.now = begin + at_most;
                return None;
            }
            let ((at, _), (node, happening)) = self.queue.pop_first()?;
            self.now = at;
            self.happen(node, happening);
        }
        Some(self.now - begin)
    }

    fn happen(&mut self, node: usize, happening: Happening) {
        let now = Timestamp(self.now);
        match happening {
            Happening::Tick => {
                if self.ticks[node] != Some(self.now) {
                    return;
                }
                self.ticks[node] = None;
                let mut effects = Vec::new();
                let machine = &mut self.machines[node];
                if machine.deadline().is_some_and(|deadline| deadline <= now) {
                    machine.tick(now, &mut effects);
                }
                self.perform(node, effects);
            }
            Happening::Synced { batch, entries } => {
                let locations = vec![Location::Nowhere; entries];
                self.act(node, Event::Persisted { batch, locations });
            }
            Happening::Arrive { from, bytes } => {
                let message = wire::decode(&bytes).expect("what was encoded can be read").message;
                self.act(node, Event::Received { from: self.tags[from], message });
            }
        }
    }

    fn act(&mut self, node: usize, event: Event) {
        let mut effects = Vec::new();
        self.machines[node].handle(Timestamp(self.now), event, &mut effects);
        self.perform(node, effects);
    }

    fn perform(&mut self, node: usize, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Persist { batch, entries } => {
                    let entries = entries.len();
                    self.later(SYNC_MS, node, Happening::Synced { batch, entries });
                }
                Effect::Send { to, message } => {
                    let to = self.tags.iter().position(|tag| *tag == to).expect("a node");
                    let mut bytes = Vec::new();
                    wire::encode(&message, &[], &mut bytes);
                    self.messages += 1;
                    self.bytes += bytes.len() as u64;
                    if matches!(message.body, Body::Commits { .. }) {
                        self.bytes_of_commits += bytes.len() as u64;
                    }
                    let wait = self.random.between(WIRE_MS.0, WIRE_MS.1 + 1);
                    let last = self.streams.entry((node, to)).or_default();
                    *last = (*last).max(self.now + wait);
                    let wait = *last - self.now;
                    self.later(wait, to, Happening::Arrive { from: node, bytes });
                }
                Effect::Alarm(alarm) => panic!("n{node} alarms: {alarm}"),
                _ => {}
            }
        }
        let Some(deadline) = self.machines[node].deadline() else { return };
        let at = deadline.0.max(self.now);
        if self.ticks[node].is_none_or(|tick| tick > at) {
            self.ticks[node] = Some(at);
            self.later(at - self.now, node, Happening::Tick);
        }
    }

    fn later(&mut self, wait: u64, node: usize, happening: Happening) {
        self.sequence += 1;
        self.queue.insert((self.now + wait, self.sequence), (node, happening));
    }
}
