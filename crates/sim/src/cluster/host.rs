//! One node of a cluster: its machine while it runs, its disk, its clock, and what its shell keeps
//! in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{NodeId, Timestamp};
use store_core::event::{Alarm, BatchEntry, Standing};
use store_core::sync::message::ClusterId;
use store_core::{NodeTag, Past, Position, Replica, Stamp, StoreMachine, Ticket};

use super::disk::Disk;
use super::operator::roster_key;
use super::world::CLUSTER;

pub(crate) enum State {
    Up(Box<StoreMachine>),
    /// It crashed or was stopped; the value is what its disk says.
    Down(Box<Past>),
}

/// A batch whose sync has not returned.
pub(crate) struct Batch {
    pub number: u64,
    pub entries: Arc<Vec<BatchEntry>>,
}

pub(crate) struct Host {
    pub id: NodeId,
    pub tag: NodeTag,
    pub disk: Disk,
    pub state: State,
    /// The number that tells a process from the one before it.
    pub life: u64,
    /// How far its clock is ahead of the true time, in milliseconds.
    pub offset: i64,
    /// Whether the clock is within what nodes accept of each other.
    pub clock_right: bool,
    last_now: u64,
    pub tick_at: Option<u64>,
    /// The bytes of values that the machine has not released.
    pub values: BTreeMap<Ticket, Vec<u8>>,
    next_ticket: u64,
    pub batch: Option<Batch>,
    pub reachable: BTreeSet<NodeTag>,
    /// The cluster that it is of itself until it joins; that of the first node is the one that
    /// counts.
    pub home: ClusterId,
    /// Whether it is in the cluster's network: it founded it, or somebody let it join.
    pub connected: bool,
    /// Whether it was asked to join, which its shell repeats until it has joined.
    pub joining: bool,
    /// The stamp of the entry on the roster that was made for it.
    pub invited: Option<Stamp>,
    /// Whether the operators removed it.
    pub evicted: bool,
    /// What it had told before its disk was set back; `None` if it has caught up with that.
    pub impaired: Option<Stamp>,
    pub told: Stamp,
    /// The garbage horizon when it was judged last.
    pub garbage: Stamp,
    pub was_evicted: bool,
    /// The commits that somebody could read here, by key.
    pub shown: BTreeMap<Arc<str>, BTreeSet<Position>>,
    /// The commits that it may forget, as they were issued anew.
    pub forgettable: BTreeSet<Position>,
    /// The commits that it may forget, as one that was issued anew had replaced them.
    pub superseded: BTreeSet<Position>,
    /// The cluster that its log names.
    pub cluster: ClusterId,
    /// The writes that issue a commit anew.
    pub anew: BTreeMap<Ticket, Position>,
    pub alarms: BTreeSet<Alarm>,
    pub fetching: bool,
}

impl Host {
    pub fn new(index: usize) -> Host {
        let id: NodeId = format!("n{index}").parse().expect("a valid id");
        Host {
            tag: NodeTag::from(&id),
            id,
            disk: Disk::default(),
            state: State::Down(Box::default()),
            life: 0,
            offset: 0,
            clock_right: true,
            last_now: 0,
            tick_at: None,
            values: BTreeMap::new(),
            next_ticket: 0,
            batch: None,
            reachable: BTreeSet::new(),
            home: if index == 0 { CLUSTER } else { stranger(index) },
            connected: false,
            joining: false,
            invited: None,
            evicted: false,
            impaired: None,
            told: Stamp::default(),
            garbage: Stamp::default(),
            was_evicted: false,
            shown: BTreeMap::new(),
            forgettable: BTreeSet::new(),
            superseded: BTreeSet::new(),
            cluster: ClusterId::default(),
            anew: BTreeMap::new(),
            alarms: BTreeSet::new(),
            fetching: false,
        }
    }

    pub fn standing(&self) -> Standing {
        match &self.state {
            State::Up(machine) => machine.sync().standing(),
            State::Down(past) => past.standing,
        }
    }

    /// Returns whether the other one is on its roster.
    pub fn lists(&self, other: &Host) -> bool {
        let entry = self.replica().newest(&format!("cluster::nodes::{}", other.tag.as_str()));
        entry.is_some_and(|commit| !commit.is_delete())
    }

    /// Returns what its clock says, which never goes back within one life.
    pub fn clock(&mut self, now: u64) -> Timestamp {
        self.last_now = self.last_now.max(now.saturating_add_signed(self.offset));
        Timestamp(self.last_now)
    }

    /// Returns the true time at which its clock will say this.
    pub fn when(&self, local: Timestamp) -> u64 {
        local.0.saturating_add_signed(-self.offset)
    }

    pub fn restart_clock(&mut self) {
        self.last_now = 0;
    }

    pub fn machine(&self) -> Option<&StoreMachine> {
        match &self.state {
            State::Up(machine) => Some(machine),
            State::Down(_) => None,
        }
    }

    pub fn machine_mut(&mut self) -> Option<&mut StoreMachine> {
        match &mut self.state {
            State::Up(machine) => Some(machine),
            State::Down(_) => None,
        }
    }

    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Up(_))
    }

    /// Returns what it holds durably, running or not.
    pub fn replica(&self) -> &Replica {
        match &self.state {
            State::Up(machine) => machine.replica(),
            State::Down(past) => &past.replica,
        }
    }

    pub fn take_ticket(&mut self, value: Vec<u8>) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.values.insert(ticket, value);
        ticket
    }

    /// Forgets what no disk keeps.
    pub fn forget_process(&mut self) {
        self.values.clear();
        self.anew.clear();
        self.reachable.clear();
        self.tick_at = None;
        self.fetching = false;
    }

    /// Returns whether it runs as a member and can say so to others.
    pub fn is_member(&self) -> bool {
        let settled = self.machine().is_some_and(|machine| {
            let standing = machine.sync().standing();
            let joined = standing.fresh_until != Stamp(u64::MAX);
            standing.cluster == CLUSTER && joined && machine.sync().members().is_member(self.tag)
        });
        settled && self.connected && !self.joining && !self.evicted
    }

    /// Returns whether it belongs to the cluster as far as it knows, and has caught up.
    pub fn is_sound(&self, index: usize) -> bool {
        let settled = match &self.state {
            State::Up(machine) => {
                let sync = machine.sync();
                sync.standing().cluster == CLUSTER
                    && sync.standing().fresh_until <= sync.members().told()
                    && sync.members().is_member(self.tag)
            }
            State::Down(past) => {
                let listed = past.replica.newest(roster_key(index).as_str());
                past.standing.cluster == CLUSTER
                    && past.standing.fresh_until <= past.clock
                    && listed.is_some_and(|commit| !commit.is_delete())
            }
        };
        self.connected && !self.joining && !self.evicted && self.impaired.is_none() && settled
    }
}

pub(crate) fn stranger(index: usize) -> ClusterId {
    ClusterId([100 + index as u8; 16])
}
