//! The machine of one node's store: stamps writes, gathers those that wait into one batch for the
//! disk, and only when that is durable lets them be seen, acknowledged and announced.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use model::{Key, Machine, NodeId, Timestamp};

use crate::clock::{HybridClock, Stamp};
use crate::commit::{Action, Commit, Location, NodeTag, Position};
use crate::expiry::Expiry;
use crate::replica::{Admitted, Frozen, Horizons, Replica};
use crate::watch::Arrivals;

/// One write of the log: at most 4 MiB of small values, and the wait of the last of them.
pub const BATCH_WRITES_MAX: usize = 1024;
/// Callers wait for their turn elsewhere; more than this here is a caller that does not.
pub const WRITES_WAITING_MAX: usize = 16 * BATCH_WRITES_MAX;
pub const SQUASH_INTERVAL: Duration = Duration::from_secs(3600);
/// How long superseded commits tell who set what.
pub const SQUASH_AGE: Duration = Duration::from_secs(24 * 3600);
/// Superseded commits and deletes beyond this are squashed early, oldest first: some 40 MB.
pub const DROPPABLE_MAX: usize = 200_000;
/// Expiries announced in one tick, so that writers hardly wait for a million keys that end at once.
pub const EXPIRIES_PER_TICK_MAX: usize = 1024;

/// Names one write until it is acknowledged or refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The value travels inside the commit.
    SetInline {
        hash: [u8; 32],
        sha1: [u8; 20],
        size: u64,
        expires: Option<Expiry>,
    },
    /// The value is a content-addressed file that is already durable.
    SetFile {
        hash: [u8; 32],
        sha1: [u8; 20],
        size: u64,
        expires: Option<Expiry>,
    },
    Delete,
}

impl Change {
    /// Whether the key has a value at this time once the change is made.
    fn lives(&self, now: Timestamp) -> bool {
        match self {
            Change::SetInline { expires, .. } | Change::SetFile { expires, .. } => {
                !expires.is_some_and(|expires| expires.has_passed(now))
            }
            Change::Delete => false,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub ticket: Ticket,
    pub key: Key,
    pub change: Change,
    /// Only while this very commit gives the key its value, as this node sees it: what rests on
    /// reading first, such as a new expiry for the same value, is tried again otherwise.
    pub only_over: Option<Position>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Write(Vec<Write>),
    /// The values of these commits are to be written anew, as their segment is to be freed.
    Move(Vec<(Ticket, Position)>),
    /// The batch is durable; one location per entry, in order.
    Persisted {
        batch: u64,
        locations: Vec<Location>,
    },
    /// The disk could not take the batch, and nothing of it was written.
    Refused {
        batch: u64,
    },
    /// Drop history before this time, now.
    Squash {
        before: Timestamp,
    },
}

/// One record of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The shell holds the value's bytes under the ticket.
    Commit {
        ticket: Ticket,
        commit: Commit,
    },
    /// The same, of a commit that is held and counts only while it is.
    Moved {
        ticket: Ticket,
        commit: Commit,
    },
    Horizons(Horizons),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Make this durable, then report `Persisted`; at most one is on its way.
    Persist {
        batch: u64,
        entries: Vec<Entry>,
    },
    /// None: the delete found nothing to delete, another commit stands where one was expected,
    /// or the moved commit was dropped meanwhile.
    Acknowledge {
        ticket: Ticket,
        cid: Option<[u8; 32]>,
    },
    Refuse {
        ticket: Ticket,
    },
    /// The key's present value changed.
    Notify {
        arrival: u64,
        ticket: Ticket,
        commit: Commit,
    },
    /// The instant of the key's value has passed.
    Expired {
        arrival: u64,
        commit: Commit,
    },
    /// The log holds a commit at a position that another commit has: two nodes share an id.
    Alarm {
        position: Position,
    },
}

#[derive(Clone, Debug)]
enum Waiting {
    Write(Write),
    Move(Ticket, Position),
    Horizons(Horizons),
}

pub struct StoreMachine {
    node: NodeTag,
    clock: HybridClock,
    replica: Replica,
    arrivals: Arrivals,
    waiting: VecDeque<Waiting>,
    on_its_way: Option<(u64, Vec<Entry>)>,
    next_batch: u64,
    squash_at: Timestamp,
    /// After a tick that left some for the next one.
    expire_not_before: Timestamp,
    droppable_max: usize,
}

impl StoreMachine {
    /// `clock` is the newest stamp that the log knows, `next_batch` one more than its last batch.
    pub fn new(
        node: &NodeId,
        now: Timestamp,
        mut replica: Replica,
        clock: Stamp,
        next_batch: u64,
    ) -> StoreMachine {
        let mut hybrid = HybridClock::default();
        hybrid.restore(clock);
        let incarnation = hybrid.next(now).0;
        // Nobody watches yet, so nobody need be told.
        while replica.notice_expiry(now).is_some() {}
        StoreMachine {
            node: NodeTag::from(node),
            clock: hybrid,
            replica,
            arrivals: Arrivals::new(incarnation),
            waiting: VecDeque::new(),
            on_its_way: None,
            next_batch,
            squash_at: now.after(SQUASH_INTERVAL),
            expire_not_before: now,
            droppable_max: DROPPABLE_MAX,
        }
    }

    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    pub fn arrivals(&self) -> &Arrivals {
        &self.arrivals
    }

    pub fn node(&self) -> NodeTag {
        self.node
    }

    /// The replica as it is; every batch before `next_batch()` is in it when none is on its way.
    pub fn freeze(&self) -> Frozen {
        self.replica.freeze(self.clock.last())
    }

    pub fn next_batch(&self) -> u64 {
        self.next_batch
    }

    /// Stamps a change of this node's board, which no log keeps.
    pub fn stamp_local(&mut self, now: Timestamp, key: &Key) -> (Position, u64) {
        let at = Position { stamp: self.clock.next(now), node: self.node };
        (at, self.arrivals.note(key.as_str().into()))
    }

    fn wait(&mut self, waiting: Waiting, effects: &mut Vec<Effect>) {
        if self.waiting.len() < WRITES_WAITING_MAX {
            self.waiting.push_back(waiting);
            return;
        }
        match waiting {
            Waiting::Write(Write { ticket, .. }) | Waiting::Move(ticket, _) => {
                effects.push(Effect::Refuse { ticket });
            }
            // The next squash has a higher horizon anyway.
            Waiting::Horizons(_) => {}
        }
    }

    /// Sends the next batch off, if none is on its way and something waits.
    fn persist_next(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.on_its_way.is_some() {
            return;
        }
        let mut entries = Vec::new();
        // Whether keys written by this very batch will have a value.
        let mut written: BTreeMap<Arc<str>, bool> = BTreeMap::new();
        while entries.len() < BATCH_WRITES_MAX {
            let Some(waiting) = self.waiting.pop_front() else { break };
            match waiting {
                Waiting::Horizons(horizons) => entries.push(Entry::Horizons(horizons)),
                Waiting::Move(ticket, at) => match self.replica.history().get(at) {
                    Some(commit) if matches!(commit.location, Location::Log { .. }) => {
                        entries.push(Entry::Moved { ticket, commit: commit.clone() });
                    }
                    _ => effects.push(Effect::Acknowledge { ticket, cid: None }),
                },
                Waiting::Write(Write { ticket, key, change, only_over }) => {
                    let key: Arc<str> = key.as_str().into();
                    let earlier = written.get(&key).copied();
                    let held = || self.replica.get(&key, now).map(|commit| commit.at);
                    let overtaken =
                        only_over.is_some() && (earlier.is_some() || held() != only_over);
                    let lives = || earlier.unwrap_or_else(|| held().is_some());
                    if overtaken || change == Change::Delete && !lives() {
                        effects.push(Effect::Acknowledge { ticket, cid: None });
                        continue;
                    }
                    written.insert(key.clone(), change.lives(now));
                    let commit = self.stamp(now, key, change);
                    entries.push(Entry::Commit { ticket, commit });
                }
            }
        }
        if !entries.is_empty() {
            let batch = self.next_batch;
            self.next_batch += 1;
            self.on_its_way = Some((batch, entries.clone()));
            effects.push(Effect::Persist { batch, entries });
        }
    }

    fn stamp(&mut self, now: Timestamp, key: Arc<str>, change: Change) -> Commit {
        let at = Position { stamp: self.clock.next(now), node: self.node };
        // The log fills in where exactly; that it is the log is known already.
        let in_log = Location::Log { segment: 0, offset: 0 };
        let (action, location) = match change {
            Change::SetInline { hash, sha1, size, expires } => {
                (Action::Set { hash, sha1, size, expires }, in_log)
            }
            Change::SetFile { hash, sha1, size, expires } => {
                (Action::Set { hash, sha1, size, expires }, Location::File)
            }
            Change::Delete => (Action::Delete, Location::Nowhere),
        };
        Commit { at, key, action, location }
    }

    fn apply(&mut self, entry: Entry, location: Location, effects: &mut Vec<Effect>) {
        match entry {
            Entry::Horizons(horizons) => {
                self.replica.raise(horizons);
            }
            Entry::Moved { ticket, commit } => {
                let cid = self.replica.relocate(commit.at, location).then(|| commit.cid());
                effects.push(Effect::Acknowledge { ticket, cid });
            }
            Entry::Commit { ticket, commit } => {
                let commit = Commit { location, ..commit };
                let position = commit.at;
                let cid = Some(commit.cid());
                match self.replica.admit(commit.clone()) {
                    Admitted::Winner => {
                        let arrival = self.arrivals.note(commit.key.clone());
                        effects.push(Effect::Notify { arrival, ticket, commit });
                    }
                    Admitted::Conflict => effects.push(Effect::Alarm { position }),
                    Admitted::Superseded | Admitted::Known | Admitted::Dropped => {}
                }
                effects.push(Effect::Acknowledge { ticket, cid });
            }
        }
    }

    fn announce_expiries(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        for _ in 0..EXPIRIES_PER_TICK_MAX {
            let Some(commit) = self.replica.notice_expiry(now).cloned() else { return };
            let arrival = self.arrivals.note(commit.key.clone());
            effects.push(Effect::Expired { arrival, commit });
        }
        self.expire_not_before = Timestamp(now.0.saturating_add(1));
    }

    fn squash(&mut self, before: Stamp, effects: &mut Vec<Effect>) {
        // A horizon never passes what this node has issued: a write must not be born behind it.
        let before = before.min(self.clock.last());
        // Alone on the roster, this node's own acknowledgement is all that deletes wait for.
        let garbage = Stamp(before.0.saturating_sub(1));
        let horizons = Horizons { squash: before, garbage };
        if horizons.max(self.replica.horizons()) != self.replica.horizons() {
            self.wait(Waiting::Horizons(horizons), effects);
        }
    }
}

impl Machine for StoreMachine {
    type Event = Event;
    type Effect = Effect;

    fn handle(&mut self, now: Timestamp, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Write(writes) => {
                for write in writes {
                    self.wait(Waiting::Write(write), effects);
                }
            }
            Event::Move(moves) => {
                for (ticket, position) in moves {
                    self.wait(Waiting::Move(ticket, position), effects);
                }
            }
            Event::Persisted { batch, locations } => {
                let Some((_, entries)) = self.on_its_way.take_if(|(sent, _)| *sent == batch) else {
                    return;
                };
                debug_assert_eq!(entries.len(), locations.len());
                for (entry, location) in entries.into_iter().zip(locations) {
                    self.apply(entry, location, effects);
                }
                if self.replica.droppable() > self.droppable_max {
                    let before = self.replica.median_droppable();
                    self.squash(before, effects);
                }
            }
            Event::Refused { batch } => {
                let Some((_, entries)) = self.on_its_way.take_if(|(sent, _)| *sent == batch) else {
                    return;
                };
                // Nothing was written: the number is free again, and the log has no gap.
                self.next_batch = batch;
                for entry in entries {
                    if let Entry::Commit { ticket, .. } | Entry::Moved { ticket, .. } = entry {
                        effects.push(Effect::Refuse { ticket });
                    }
                }
            }
            Event::Squash { before } => self.squash(Stamp::start_of(before), effects),
        }
        self.persist_next(now, effects);
    }

    fn tick(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if now >= self.squash_at {
            self.squash_at = now.after(SQUASH_INTERVAL);
            let age_ms = u64::try_from(SQUASH_AGE.as_millis()).unwrap_or(u64::MAX);
            self.squash(Stamp::start_of(Timestamp(now.0.saturating_sub(age_ms))), effects);
            self.persist_next(now, effects);
        }
        self.announce_expiries(now, effects);
    }

    fn deadline(&self) -> Option<Timestamp> {
        let expiry = self.replica.next_expiry();
        let expiry = expiry.map(|expires| expires.time().max(self.expire_not_before));
        Some(expiry.map_or(self.squash_at, |expiry| expiry.min(self.squash_at)))
    }
}
