//! One real machine with a disk and a clock made here, whose peers are whatever a test says they
//! say. Keeps the books that no hostile peer may upset: every ticket handed in comes back once,
//! what was shown is never followed by something older, what was acknowledged is there, the log
//! replayed gives the same state, and time always moves on.

use std::collections::{BTreeMap, BTreeSet};

use model::{Machine, Timestamp};
use store_core::event::{Alarm, BatchEntry, Change, Effect, Event, Ticket, Write};
use store_core::sync::members::is_roster_key;
use store_core::sync::message::{Body, Carried, ClusterId, Hello, Message, SessionRefusal, Vector};
use store_core::{
    Commit, CommitAction, Horizons, Location, NodeTag, Past, Position, Stamp, StoreMachine,
};

pub const CLUSTER: ClusterId = ClusterId([7; 16]);
pub const START: Timestamp = Timestamp(1_700_000_000_000);
/// Effects that one event may make for each thing that it brings or that waits.
const EFFECTS_EACH: usize = 8;
const EFFECTS_ANYWAY: usize = 40_000;
/// Times that a machine may want to be woken in one step of time; one that wants more spins.
const TICKS_MAX: usize = 20_000;

pub fn tag(name: &str) -> NodeTag {
    NodeTag::from(&name.parse::<model::NodeId>().unwrap())
}

pub fn stamp(time: Timestamp) -> Stamp {
    Stamp::start_of(time)
}

pub fn set(at: Position, key: &str) -> Commit {
    let action = CommitAction::Set { hash: [1; 32], sha1: [1; 20], size: 0, expires: None };
    Commit { at, key: key.into(), action, location: Location::Log { segment: 0, offset: 0 } }
}

pub fn delete(at: Position, key: &str) -> Commit {
    Commit { at, key: key.into(), action: CommitAction::Delete, location: Location::Nowhere }
}

pub struct Node {
    pub now: Timestamp,
    pub machine: StoreMachine,
    /// The messages that it sent since a test last looked.
    pub sent: Vec<(NodeTag, Message)>,
    pub alarms: Vec<Alarm>,
    /// Whether batches wait until the test says what the disk does.
    pub slow_disk: bool,
    pending: Option<(u64, Vec<BatchEntry>)>,
    log: Vec<(BatchEntry, Location)>,
    /// The tickets that came with commits of peers and are not back yet.
    handed: BTreeSet<Ticket>,
    next_ticket: u64,
    writing: BTreeSet<Ticket>,
    pub refused_writes: usize,
    /// The newest commit of each key that anybody saw.
    shown: BTreeMap<String, Commit>,
    aside: BTreeSet<Position>,
    /// The horizons of the batch that was written last: in the same one it may join a cluster whose
    /// horizons are lower.
    passed: Vec<Horizons>,
}

impl Node {
    pub fn new(name: &str) -> Node {
        let machine = StoreMachine::new(&name.parse().unwrap(), START, Past::default(), CLUSTER);
        Node {
            now: START,
            machine,
            sent: Vec::new(),
            alarms: Vec::new(),
            slow_disk: false,
            pending: None,
            log: Vec::new(),
            handed: BTreeSet::new(),
            next_ticket: 1,
            writing: BTreeSet::new(),
            refused_writes: 0,
            shown: BTreeMap::new(),
            aside: BTreeSet::new(),
            passed: Vec::new(),
        }
    }

    /// Returns a member of a cluster of three that it founded; nobody can be reached yet.
    pub fn founder() -> Node {
        let mut node = Node::new("n1");
        for member in ["n1", "n2", "n3"] {
            node.write(&format!("cluster::nodes::{member}"), true);
        }
        node.pass(100);
        node.sent.clear();
        node
    }

    /// Returns a member that joined by a copy from n2.
    pub fn joined() -> Node {
        let mut node = Node::new("n1");
        let n2 = tag("n2");
        node.event(Event::Join { cluster: CLUSTER, listed: Stamp(0) });
        node.event(Event::Reachable([n2].into()));
        node.pass(2000);
        let session = node.session_to(n2).expect("it asks for a copy");
        let since = Timestamp(START.0 - 5000);
        let at = |n| Position { stamp: Stamp(stamp(since).0 + n), node: n2 };
        let names = ["cluster::nodes::n1", "cluster::nodes::n2", "cluster::nodes::n3"];
        let commits = (1..).zip(names).map(|(n, key)| set(at(n), key)).collect();
        node.say(n2, session, Body::Copying { hello: node.hello_of(n2) });
        node.commits(n2, session, 0, commits);
        let vector: Vector = [(n2, stamp(since))].into();
        node.say(n2, session, Body::Copied { vector, horizons: Horizons::default() });
        assert_eq!(node.machine.sync().members().roster().len(), 3);
        node.event(Event::Reachable(BTreeSet::new()));
        node.pass(100);
        node.sent.clear();
        assert_eq!(node.alarms, []);
        node
    }

    pub fn hello_of(&self, peer: NodeTag) -> Hello {
        Hello {
            cluster: CLUSTER,
            node: peer,
            incarnation: 3,
            clock: self.now,
            horizons: self.machine.replica().horizons(),
            head: self.machine.replica().history().head(),
            count: self.machine.replica().history().len() as u64,
            acks: [(peer, stamp(self.now))].into(),
            fresh: false,
        }
    }

    /// Returns the session of the last opening that this node sent to the peer.
    pub fn session_to(&self, peer: NodeTag) -> Option<u64> {
        let mut openings = self.sent.iter().rev().filter(|(to, m)| {
            *to == peer && matches!(m.body, Body::Open { .. } | Body::CopyFrom { .. })
        });
        openings.next().map(|(_, message)| message.session)
    }

    /// Returns what it said to the peer last, if that was a refusal.
    pub fn refusal_to(&self, peer: NodeTag) -> Option<SessionRefusal> {
        match self.sent.iter().rev().find(|(to, _)| *to == peer)?.1.body {
            Body::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    pub fn write(&mut self, key: &str, sets: bool) {
        let change = if sets {
            Change::SetInline { hash: [2; 32], sha1: [2; 20], size: 0, expires: None }
        } else {
            Change::Delete
        };
        self.change(key, change);
    }

    pub fn change(&mut self, key: &str, change: Change) {
        let ticket = self.ticket();
        self.writing.insert(ticket);
        let write = Write { ticket, key: key.parse().unwrap(), change, only_over: None };
        self.event(Event::Write(vec![write]));
    }

    fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    pub fn commits(&mut self, from: NodeTag, session: u64, batch: u32, commits: Vec<Commit>) {
        let carried = |commit| Carried { ticket: Ticket(0), commit };
        let commits = commits.into_iter().map(carried).collect();
        self.say(from, session, Body::Commits { batch, commits });
    }

    /// Says something to the node as a peer; every commit gets a ticket of its own, as from the
    /// shell.
    pub fn say(&mut self, from: NodeTag, session: u64, mut body: Body) {
        if let Body::Commits { commits, .. } = &mut body {
            for carried in commits {
                carried.ticket = self.ticket();
                self.handed.insert(carried.ticket);
            }
        }
        let message = Message { session, body };
        self.event(Event::Received { from, message });
    }

    pub fn event(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.machine.handle(self.now, event, &mut effects);
        self.perform(effects);
    }

    /// Lets time pass, timer by timer.
    pub fn pass(&mut self, ms: u64) {
        let end = Timestamp(self.now.0.saturating_add(ms));
        for _ in 0..TICKS_MAX {
            let Some(due) = self.machine.deadline().filter(|due| *due <= end) else {
                self.now = end;
                return;
            };
            self.now = self.now.max(due);
            self.tick();
        }
        panic!("it spins");
    }

    pub fn tick(&mut self) {
        let mut effects = Vec::new();
        self.machine.tick(self.now, &mut effects);
        assert!(self.machine.deadline().is_none_or(|next| next > self.now), "it spins");
        self.perform(effects);
    }

    pub fn disk_writes(&mut self) {
        let Some((batch, entries)) = self.pending.take() else { return };
        let here = Location::Log { segment: 1, offset: batch as u32 * 8 };
        let locations: Vec<Location> = entries.iter().map(|entry| entry.location(here)).collect();
        let passed = entries.iter().filter_map(|entry| match entry {
            BatchEntry::Horizons(horizons) => Some(*horizons),
            _ => None,
        });
        self.passed = passed.collect();
        self.log.extend(entries.into_iter().zip(locations.iter().copied()));
        self.event(Event::Persisted { batch, locations });
    }

    pub fn disk_refuses(&mut self) {
        let Some((batch, _)) = self.pending.take() else { return };
        self.event(Event::Refused { batch });
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        let waits = self.handed.len() + self.writing.len();
        assert!(effects.len() <= EFFECTS_ANYWAY + EFFECTS_EACH * waits, "{}", effects.len());
        let mut later = Vec::new();
        for effect in effects {
            match effect {
                Effect::Persist { batch, entries } => {
                    let earlier = self.pending.replace((batch, entries.to_vec()));
                    assert!(earlier.is_none(), "one batch is on its way at most");
                }
                Effect::Send { to, message } => self.sent.push((to, message)),
                Effect::Alarm(alarm) => self.alarms.push(alarm),
                Effect::Release { ticket } => {
                    assert!(self.handed.remove(&ticket), "{ticket:?} comes back once");
                }
                Effect::Acknowledge { ticket, .. } => {
                    assert!(self.writing.remove(&ticket), "{ticket:?} is answered once");
                }
                Effect::Refuse { ticket, .. } => {
                    assert!(self.writing.remove(&ticket), "{ticket:?} is answered once");
                    self.refused_writes += 1;
                }
                Effect::Notify { commit, .. } => self.notice(commit),
                Effect::SetAside { commits, anew } => {
                    self.aside.extend(commits.iter().map(|commit| commit.at));
                    later.push((commits, anew));
                }
                Effect::Arrived { .. } | Effect::Expired { .. } => {}
                Effect::Resync | Effect::Roster(_) => {}
            }
        }
        self.check();
        for (commits, anew) in later {
            self.issue_anew(commits, anew);
        }
        if !self.slow_disk {
            self.disk_writes();
        }
    }

    fn issue_anew(&mut self, commits: Vec<Commit>, anew: Vec<(Position, std::sync::Arc<str>)>) {
        let mut writes = Vec::new();
        for (at, key) in anew {
            let commit = commits.iter().find(|c| c.at == at).expect("it is among the commits");
            let change = match commit.action {
                CommitAction::Set { hash, sha1, size: 0, expires } => {
                    Change::SetInline { hash, sha1, size: 0, expires }
                }
                CommitAction::Set { hash, sha1, size, expires } => {
                    Change::SetFile { hash, sha1, size, expires }
                }
                CommitAction::Delete => Change::Delete,
            };
            let ticket = self.ticket();
            self.writing.insert(ticket);
            writes.push(Write { ticket, key: key.parse().unwrap(), change, only_over: None });
        }
        self.event(Event::SetAside { writes });
    }

    fn notice(&mut self, commit: Commit) {
        let key = commit.key.to_string();
        if let Some(earlier) = self.shown.get(&key).filter(|_| !is_roster_key(&key)) {
            let back = earlier.at > commit.at && !self.aside.contains(&earlier.at);
            let collected = self.was_collected(earlier);
            assert!(!back || collected, "{commit:?} follows the newer {earlier:?}");
        }
        self.shown.insert(key, commit);
    }

    /// Returns whether everybody knew of the commit's end, as far as this node was told.
    fn was_collected(&self, commit: &Commit) -> bool {
        self.machine.replica().horizons().drops_winner(commit)
    }

    fn check(&mut self) {
        self.machine.check_invariants();
        let replica = self.machine.replica();
        replica.check_invariants();
        // What was collected stays so: another cluster's horizons say nothing of it.
        let mut horizons = vec![replica.horizons()];
        horizons.append(&mut self.passed);
        let collected = |shown: &Commit| horizons.iter().any(|one| one.drops_winner(shown));
        self.shown.retain(|key, shown| replica.newest(key).is_some() || !collected(shown));
        // A member of another cluster is unknown here, and its entry is no user's value.
        for (key, shown) in self.shown.iter().filter(|(key, _)| !is_roster_key(key)) {
            let kept = replica.newest(key).is_some_and(|newest| newest.at >= shown.at);
            assert!(kept || self.aside.contains(&shown.at), "{shown:?} is lost");
        }
    }

    /// Checks what every run must leave: nothing waits for ever, and the log tells the same story.
    pub fn finish(&mut self) {
        self.slow_disk = false;
        self.event(Event::Reachable(BTreeSet::new()));
        self.disk_writes();
        // This is longer than any session lives and than anything is parked.
        self.pass(21_000);
        assert!(self.handed.len() <= self.machine.sync().parked(), "{:?}", self.handed);
        let mut past = Past::default();
        for (entry, location) in &self.log {
            assert!(past.replay(entry.record(&[]), *location));
        }
        let replica = self.machine.replica();
        past.replica.check_invariants();
        assert_eq!(past.replica.horizons(), replica.horizons());
        assert_eq!(past.replica.history().head(), replica.history().head());
        assert_eq!(past.held, *self.machine.sync().members().kept());
    }
}
