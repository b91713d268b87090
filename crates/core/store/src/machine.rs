//! The machine of one node's store: it stamps writes, gathers those that wait into one batch for
//! the disk, and lets them be seen, acknowledged and announced only when that batch is durable.
//! What it says to peers is decided in `sync`.

mod applied;
pub(crate) mod queue;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use model::{Key, Machine, NodeId, Timestamp};

use self::queue::QueuedItem;
use crate::clock::{HybridClock, Stamp};
use crate::commit::{NodeTag, Position};
use crate::event::{Alarm, BatchEntry, Effect, Event, Write};
use crate::past::Past;
use crate::replica::{Frozen, Horizons, Replica};
use crate::sync::Sync;
use crate::sync::links::SyncPeers;
use crate::sync::members::KnownMembers;
use crate::sync::mend::{ClockDoubt, UNCLEAN_WAIT, doubt};
use crate::sync::message::ClusterId;
use crate::watch::Arrivals;

/// Writes in one batch: at most 4 MiB of small values, and the time that the last of them waits.
pub const BATCH_WRITES_MAX: usize = 1024;
/// Writes that may wait here. Callers wait for their turn elsewhere; only a caller that does not
/// brings more than this.
pub const WRITES_WAITING_MAX: usize = 16 * BATCH_WRITES_MAX;
pub const SQUASH_INTERVAL: Duration = Duration::from_secs(3600);
/// The time for which superseded commits are kept, so that they tell who set what.
pub const SQUASH_AGE: Duration = Duration::from_secs(24 * 3600);
/// Superseded commits and deletes that may be kept: beyond this, and beyond a share of the keys
/// that have a value, the oldest are squashed early. They take some 12 MB; a node of a small
/// machine may write as many in an hour.
pub const DROPPABLE_MAX: usize = 65_536;
/// Keys with a value for each droppable commit. Finding the oldest half takes a look at every
/// commit, so it is done less often where there are many keys.
const LIVE_PER_DROPPABLE: usize = 4;
/// Expiries announced in one tick, so that writers hardly wait when a million keys end at once.
pub const EXPIRIES_PER_TICK_MAX: usize = 1024;

pub struct StoreMachine {
    pub(crate) node: NodeTag,
    pub(crate) clock: HybridClock,
    /// The newest stamp that is in the log.
    pub(crate) durable_stamp: Stamp,
    pub(crate) replica: Replica,
    arrivals: Arrivals,
    waiting: VecDeque<QueuedItem>,
    /// Writes that came before this node may stamp any.
    held: VecDeque<Write>,
    /// The batch under way. The shell that writes it shares it and is done with it once it is
    /// durable.
    pub(crate) on_its_way: Option<(u64, Arc<Vec<BatchEntry>>)>,
    next_batch: u64,
    /// The time at which to persist again after the disk refused what must be written.
    persist_from: Timestamp,
    squash_at: Timestamp,
    writes_from: Timestamp,
    /// The time of the next expiries, after a tick that left some for the next one.
    expire_not_before: Timestamp,
    /// The number of droppable commits from which on to squash early: what could be dropped at the
    /// last attempt, and some more.
    squash_early_from: usize,
    pub(crate) doubt: Option<ClockDoubt>,
    pub(crate) alarmed: BTreeSet<Alarm>,
    pub(crate) sync: Sync,
}

impl StoreMachine {
    /// Creates the machine. `cluster` is the one this node belongs to, unless its log knows of
    /// another.
    pub fn new(node: &NodeId, now: Timestamp, mut past: Past, cluster: ClusterId) -> StoreMachine {
        // Nobody watches yet, so nobody need be told.
        while past.replica.notice_expiry(now).is_some() {}
        let node = NodeTag::from(node);
        let mut clock = HybridClock::default();
        clock.restore(past.clock);
        let incarnation = clock.next(now).0;
        let members = KnownMembers::new(node, &past.replica, past.held, past.promised);
        let alone = members.is_alone();
        let standing_kept = past.standing.incarnation != 0;
        let mut standing = past.standing;
        if !standing_kept {
            standing.cluster = cluster;
            standing.incarnation = incarnation;
        }
        let wait = if past.unclean && !alone { UNCLEAN_WAIT } else { Duration::ZERO };
        StoreMachine {
            node,
            clock,
            durable_stamp: past.clock,
            replica: past.replica,
            arrivals: Arrivals::new(incarnation),
            waiting: VecDeque::new(),
            held: VecDeque::new(),
            on_its_way: None,
            next_batch: past.next_batch,
            persist_from: now,
            squash_at: now.after(SQUASH_INTERVAL),
            writes_from: now.after(wait),
            expire_not_before: now,
            squash_early_from: 0,
            // In a cluster of one, no other node's stamps can be in the way.
            doubt: if alone { None } else { doubt(now, past.clock) },
            alarmed: BTreeSet::new(),
            sync: Sync::new(
                standing,
                standing_kept,
                members,
                SyncPeers::new(node, incarnation),
                now,
            ),
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

    pub fn sync(&self) -> &Sync {
        &self.sync
    }

    /// Returns the newest stamp this node knows.
    pub fn stamp(&self) -> Stamp {
        self.clock.last()
    }

    /// Returns the newest stamp that is in the log.
    pub fn durable_stamp(&self) -> Stamp {
        self.durable_stamp
    }

    /// Returns the alarms that are not over yet.
    pub fn alarms(&self) -> impl Iterator<Item = &Alarm> {
        self.alarmed.iter()
    }

    /// Returns the replica as it is; it contains every batch before `next_batch()` if none is under
    /// way.
    pub fn freeze(&self) -> Frozen {
        Frozen {
            history: self.replica.history().clone(),
            horizons: self.replica.horizons(),
            clock: self.clock.last(),
            promised: self.sync.members.promise_kept(),
            held: self.sync.members.kept().clone(),
            standing: self.sync.logged,
        }
    }

    pub fn next_batch(&self) -> u64 {
        self.next_batch
    }

    /// Stamps a change of this node's board, which no log keeps.
    pub fn stamp_local(&mut self, now: Timestamp, key: &Key) -> (Position, u64) {
        let at = Position { stamp: self.clock.next(now), node: self.node };
        (at, self.arrivals.note(key.as_str().into()))
    }

    pub(crate) fn raise_to(&mut self, horizons: Horizons, effects: &mut Vec<Effect>) {
        if horizons.max(self.replica.horizons()) != self.replica.horizons() {
            self.wait(QueuedItem::Horizons(horizons), effects);
        }
    }

    pub(crate) fn garbage_for(&mut self, now: Timestamp, squash: Stamp) -> Stamp {
        let garbage = self.replica.horizons().garbage;
        if self.is_fresh() || self.sync.mending {
            return garbage;
        }
        let reachable = self.sync.links.reachable();
        let all = self.sync.members.garbage(now, &reachable).unwrap_or_default();
        garbage.max(all.min(Stamp(squash.0.saturating_sub(1))))
    }

    fn announce_expiries(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        for _ in 0..EXPIRIES_PER_TICK_MAX {
            let Some(commit) = self.replica.notice_expiry(now).cloned() else { return };
            let arrival = self.arrivals.note(commit.key.clone());
            effects.push(Effect::Expired { arrival, commit });
        }
        self.expire_not_before = Timestamp(now.0.saturating_add(1));
    }

    /// Squashes early if there is too much to drop. Deletes that a lost member has not heard of
    /// stay, and are not looked through again with each write.
    fn squash_early(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let droppable = self.replica.droppable();
        if droppable <= DROPPABLE_MAX {
            self.squash_early_from = 0;
            return;
        }
        // This is counted only here, as it looks through what has just expired.
        let most = DROPPABLE_MAX.max(self.replica.live(now) / LIVE_PER_DROPPABLE);
        if droppable <= most {
            self.squash_early_from = 0;
        } else if droppable >= self.squash_early_from {
            self.squash_early_from = droppable + most / 8;
            let before = self.replica.median_droppable();
            self.squash(now, before, effects);
        }
    }

    fn squash(&mut self, now: Timestamp, before: Stamp, effects: &mut Vec<Effect>) {
        // A horizon never passes what this node has issued: a write must not be born behind it.
        let squash = before.min(self.clock.last()).max(self.replica.horizons().squash);
        let garbage = self.garbage_for(now, squash);
        if !self.is_in_cluster() && garbage > self.replica.horizons().garbage {
            // Future members must not think that this node missed what it has collected.
            self.wait(QueuedItem::Vector, effects);
        }
        self.raise_to(Horizons { squash, garbage }, effects);
    }
}

impl Machine for StoreMachine {
    type Event = Event;
    type Effect = Effect;

    fn handle(&mut self, now: Timestamp, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Write(writes) => {
                for write in writes {
                    self.write(now, write, effects);
                }
            }
            Event::Move(moves) => {
                for (ticket, position) in moves {
                    self.wait(QueuedItem::Move(ticket, position), effects);
                }
            }
            Event::Persisted { batch, locations } => {
                self.persisted(now, batch, locations, effects);
            }
            Event::Refused { batch } => self.refused_batch(now, batch, effects),
            Event::Squash { before } => self.squash(now, Stamp::start_of(before), effects),
            Event::Received { from, message } => self.received(now, from, message, effects),
            Event::Reachable(peers) => {
                let roster = self.sync.members.roster();
                self.sync.links.set_reachable(&peers, &roster);
                self.part_from_silent(now, &peers);
                self.calm_about_strangers();
            }
            Event::Lost { peer } => self.lost(now, peer),
            Event::Fetched(hashes) => self.fetched(&hashes, effects),
            Event::Sync => self.sync_now(now),
            Event::Join { cluster, listed } => self.join(now, (cluster, listed), effects),
            Event::TrustClock => self.trust_clock(now, effects),
            Event::SetAside { writes } => self.issue_anew(now, writes, effects),
        }
        self.release_held(now, effects);
        self.persist_next(now, effects);
    }

    fn tick(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if now >= self.squash_at {
            self.squash_at = now.after(SQUASH_INTERVAL);
            let age_ms = u64::try_from(SQUASH_AGE.as_millis()).unwrap_or(u64::MAX);
            self.squash(now, Stamp::start_of(Timestamp(now.0.saturating_sub(age_ms))), effects);
        }
        self.announce_expiries(now, effects);
        self.tick_sync(now, effects);
        self.release_held(now, effects);
        self.persist_next(now, effects);
    }

    fn deadline(&self) -> Option<Timestamp> {
        let early = !self.held.is_empty() && !self.is_joining() && !self.sync.mending;
        let expiry = self.replica.next_expiry();
        let times = [
            Some(self.squash_at),
            expiry.map(|expires| expires.time().max(self.expire_not_before)),
            self.sync_deadline(),
            early.then_some(self.writes_from),
            self.retry_at(),
        ];
        times.into_iter().flatten().min()
    }

    fn check_invariants(&self) {
        assert!(self.waiting.len() <= WRITES_WAITING_MAX);
        assert!(self.held.len() <= WRITES_WAITING_MAX);
    }
}
