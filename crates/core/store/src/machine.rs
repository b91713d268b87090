//! The machine of one node's store: it stamps writes, gathers those that wait into one batch for
//! the disk, and lets them be seen, acknowledged and announced only when that batch is durable. It
//! routes events to its parts and joins their effects; each part changes its own state alone:
//!
//! | part | owns |
//! | --- | --- |
//! | `Holdings` | the replica: history, winners, horizons, places of values; what watchers hear |
//! | `Stamps` | the hybrid clock, the newest stamp in the log, doubts about the wall clock |
//! | `Intake` | this node's writes that came before it may stamp any |
//! | `DiskQueue` | what waits for the disk, the batch under way, what must be written again |
//! | `Squashing` | when history is squashed |
//! | `Sync` | replication: roster, sessions, copies, alarms (its file says how it is divided) |
//!
//! `Forming` makes a batch of what waits; `Context` is what a part may use of the others.

pub(crate) mod context;
mod forming;
mod holdings;
mod intake;
pub(crate) mod queue;
mod squashing;
pub(crate) mod stamps;

use std::time::Duration;

use model::{Key, Machine, NodeId, Timestamp};

use self::context::Context;
use self::forming::Forming;
use self::holdings::Holdings;
use self::intake::Intake;
use self::queue::{DiskQueue, QueuedItem};
use self::squashing::Squashing;
use self::stamps::{ClockDoubt, Stamps};
use crate::clock::Stamp;
use crate::commit::{Commit, Location, NodeTag, Position};
use crate::event::{Alarm, BatchEntry, Effect, Event, Ticket, Unwritten};
use crate::past::Past;
use crate::replica::{Admitted, Frozen, Replica};
use crate::sync::Sync;
use crate::sync::identity::Identity;
use crate::sync::links::SyncPeers;
use crate::sync::members::{KnownMembers, is_roster_key};
use crate::sync::mend::UNCLEAN_WAIT;
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
/// Expiries announced in one tick, so that writers hardly wait when a million keys end at once.
pub const EXPIRIES_PER_TICK_MAX: usize = 1024;

pub struct StoreMachine {
    holdings: Holdings,
    stamps: Stamps,
    intake: Intake,
    queue: DiskQueue,
    squashing: Squashing,
    sync: Sync,
}

impl StoreMachine {
    /// Creates the machine. `cluster` is the one this node belongs to, unless its log knows of
    /// another.
    pub fn new(node: &NodeId, now: Timestamp, past: Past, cluster: ClusterId) -> StoreMachine {
        let node = NodeTag::from(node);
        let mut stamps = Stamps::new(node, past.clock);
        let incarnation = stamps.next(now).0;
        let holdings = Holdings::new(past.replica, incarnation, now);
        let members = KnownMembers::new(node, holdings.replica(), past.held, past.promised);
        let alone = members.is_alone();
        if !alone {
            // In a cluster of one, no other node's stamps can be in the way.
            stamps.question(now);
        }
        let wait = if past.unclean && !alone { UNCLEAN_WAIT } else { Duration::ZERO };
        let identity = Identity::new(past.standing, cluster, incarnation);
        StoreMachine {
            holdings,
            stamps,
            intake: Intake::new(now.after(wait)),
            queue: DiskQueue::new(now, past.next_batch),
            squashing: Squashing::new(now),
            sync: Sync::new(identity, members, SyncPeers::new(node, incarnation), now),
        }
    }

    pub fn replica(&self) -> &Replica {
        self.holdings.replica()
    }

    pub fn arrivals(&self) -> &Arrivals {
        self.holdings.arrivals()
    }

    pub fn node(&self) -> NodeTag {
        self.stamps.node()
    }

    pub fn sync(&self) -> &Sync {
        &self.sync
    }

    /// Returns the newest stamp this node knows.
    pub fn stamp(&self) -> Stamp {
        self.stamps.last()
    }

    /// Returns the newest stamp that is in the log.
    pub fn durable_stamp(&self) -> Stamp {
        self.stamps.durable()
    }

    pub fn doubt(&self) -> Option<ClockDoubt> {
        self.stamps.doubt()
    }

    /// Returns the alarms that are not over yet.
    pub fn alarms(&self) -> impl Iterator<Item = &Alarm> {
        self.sync.cluster().alarms()
    }

    /// Returns whether the node has not yet caught up since it joined or lost a part of its past.
    pub fn is_fresh(&self) -> bool {
        self.sync.cluster().is_fresh()
    }

    /// Returns whether the node has nothing of its cluster yet.
    pub fn is_joining(&self) -> bool {
        self.sync.cluster().is_joining()
    }

    /// Returns whether a copy is under way, or complete and not yet in the log.
    pub fn is_copying(&self) -> bool {
        self.sync.is_copying() || self.queue.is_concluding()
    }

    /// Returns how many other members have everything that this node had written up to a stamp.
    pub fn replicas_with(&self, stamp: Stamp) -> usize {
        self.sync.cluster().replicas_with(stamp)
    }

    /// Returns the replica as it is; it contains every batch before `next_batch()` if none is under
    /// way.
    pub fn freeze(&self) -> Frozen {
        Frozen {
            history: self.replica().history().clone(),
            horizons: self.replica().horizons(),
            clock: self.stamps.last(),
            promised: self.sync.members().promise_kept(),
            held: self.sync.members().kept().clone(),
            standing: self.sync.cluster().identity().logged(),
        }
    }

    pub fn next_batch(&self) -> u64 {
        self.queue.next_batch()
    }

    /// Stamps a change of this node's board, which no log keeps.
    pub fn stamp_local(&mut self, now: Timestamp, key: &Key) -> (Position, u64) {
        (self.stamps.position(now), self.holdings.announce_local(key))
    }

    /// Returns replication, the intake, and what they may use of the other parts.
    fn parts<'a>(
        &'a mut self,
        now: Timestamp,
        effects: &'a mut Vec<Effect>,
    ) -> (&'a mut Sync, &'a mut Intake, Context<'a>) {
        let StoreMachine { holdings, stamps, intake, queue, sync, .. } = self;
        (sync, intake, Context { now, replica: holdings.replica(), stamps, queue, effects })
    }

    /// Queues what may be written now, and sends the next batch off.
    fn go_on(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let (sync, intake, mut cx) = self.parts(now, effects);
        intake.release(sync, &mut cx);
        self.persist_next(now, effects);
    }

    /// Sends the next batch off, if none is under way and something waits.
    fn persist_next(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if !self.queue.may_send(now) {
            return;
        }
        let (sync, _, mut cx) = self.parts(now, effects);
        // The first batch of a life says whose it is.
        let introduces = !sync.is_standing_kept();
        let mut forming = Forming::new(&cx);
        while forming.len() + usize::from(introduces) < BATCH_WRITES_MAX {
            let Some(waiting) = cx.queue.next() else { break };
            forming.take(waiting, sync, &mut cx);
        }
        let entries = forming.finish(introduces.then(|| sync.standing()));
        if !entries.is_empty() {
            cx.queue.send(entries, cx.effects);
        }
    }

    /// Applies a durable batch: only now is what it changes seen, announced and acknowledged.
    fn persisted(
        &mut self,
        now: Timestamp,
        batch: u64,
        locations: Vec<Location>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(entries) = self.queue.persisted(batch) else { return };
        debug_assert_eq!(entries.len(), locations.len());
        for (entry, location) in entries.into_iter().zip(locations) {
            self.apply(now, entry, location, effects);
        }
        let durable = self.stamps.durable();
        let (sync, _, mut cx) = self.parts(now, effects);
        sync.batch_logged(durable, &mut cx);
        if let Some(before) = self.squashing.early(now, self.holdings.replica()) {
            self.squash(now, before, effects);
        }
    }

    /// Refuses what a batch was to write of which nothing was written.
    fn refused(&mut self, now: Timestamp, batch: u64, effects: &mut Vec<Effect>) {
        for entry in self.queue.refused(now, batch) {
            match entry {
                BatchEntry::Commit { ticket, .. } | BatchEntry::Moved { ticket, .. } => {
                    effects.push(Effect::Refuse { ticket, reason: Unwritten::NoRoom });
                }
                BatchEntry::Foreign { ticket, origin, .. } => {
                    effects.push(Effect::Release { ticket });
                    let (sync, _, mut cx) = self.parts(now, effects);
                    sync.no_room(origin, &mut cx);
                }
                // The next batch states the standing again, and sessions wait for it.
                _ => {}
            }
        }
    }

    fn apply(
        &mut self,
        now: Timestamp,
        entry: BatchEntry,
        location: Location,
        effects: &mut Vec<Effect>,
    ) {
        match entry {
            BatchEntry::Horizons(horizons) => self.holdings.raise(horizons),
            BatchEntry::Moved { ticket, commit } => {
                let held = self.holdings.relocate(commit.at, location);
                let cid = held.then(|| commit.cid());
                effects.push(Effect::Acknowledge { ticket, cid });
            }
            BatchEntry::Arrived { commit } => self.holdings.value_arrived(now, commit, effects),
            BatchEntry::Commit { ticket, commit } => {
                self.queue.reissued(ticket);
                let commit = Commit { location, ..commit };
                let (position, cid) = (commit.at, commit.cid());
                if self.admit(now, ticket, commit, &cid, effects) == Admitted::Conflict {
                    let peer = self.node();
                    let (sync, _, mut cx) = self.parts(now, effects);
                    sync.alarm(Alarm::Conflict { position, peer }, &mut cx);
                }
                effects.push(Effect::Acknowledge { ticket, cid: Some(cid) });
            }
            BatchEntry::Foreign { ticket, commit, origin } => {
                let commit = Commit { location, ..commit };
                let (position, cid) = (commit.at, commit.cid());
                let admitted = self.admit(now, ticket, commit, &cid, effects);
                let (sync, _, mut cx) = self.parts(now, effects);
                if admitted == Admitted::Conflict {
                    sync.clash(position, origin, &mut cx);
                }
                sync.durable(origin, &mut cx);
                effects.push(Effect::Release { ticket });
            }
            BatchEntry::Vector { promise, held } => {
                self.stamps.log(promise);
                self.sync.vector_logged(promise, held);
            }
            BatchEntry::Copied { promise, held, .. } => {
                self.stamps.log(promise);
                let (sync, _, mut cx) = self.parts(now, effects);
                sync.copy_logged(promise, held, &mut cx);
            }
            BatchEntry::Standing(standing) => {
                if self.sync.standing_logged(standing) {
                    self.holdings.lower_horizons();
                }
            }
            BatchEntry::Forgotten { positions, clock } => {
                self.holdings.forget(&positions, clock);
                let (sync, _, mut cx) = self.parts(now, effects);
                sync.forgotten(clock, &mut cx);
                self.holdings.resync(effects);
                self.sync.changed(now);
            }
        }
    }

    fn admit(
        &mut self,
        now: Timestamp,
        ticket: Ticket,
        commit: Commit,
        cid: &[u8; 32],
        effects: &mut Vec<Effect>,
    ) -> Admitted {
        self.stamps.log(commit.at.stamp);
        let admitted = self.holdings.admit(commit.clone(), cid);
        let changes = matches!(admitted, Admitted::Winner | Admitted::Ended);
        if changes && is_roster_key(&commit.key) {
            let (sync, _, mut cx) = self.parts(now, effects);
            sync.read_roster(&mut cx);
        }
        self.holdings.announce(ticket, commit, admitted, effects);
        if changes || admitted == Admitted::Superseded {
            self.sync.changed(now);
        }
        admitted
    }

    /// Notes in the log that these large values have come, for the commits that need them.
    fn fetched(&mut self, hashes: &[[u8; 32]], effects: &mut Vec<Effect>) {
        let absent = self.holdings.replica().absent();
        let needed = hashes.iter().filter_map(|hash| absent.get(hash));
        for at in needed.flat_map(|absent| absent.needed_by.iter().copied()) {
            self.queue.wait(QueuedItem::Arrived(at), effects);
        }
    }

    fn squash(&mut self, now: Timestamp, before: Stamp, effects: &mut Vec<Effect>) {
        // A horizon never passes what this node has issued: a write must not be born behind it.
        let squash = before.min(self.stamps.last()).max(self.replica().horizons().squash);
        let (sync, _, mut cx) = self.parts(now, effects);
        sync.squash(squash, &mut cx);
    }
}

impl Machine for StoreMachine {
    type Event = Event;
    type Effect = Effect;

    fn handle(&mut self, now: Timestamp, event: Event, effects: &mut Vec<Effect>) {
        let (sync, intake, mut cx) = self.parts(now, effects);
        match event {
            Event::Write(writes) => {
                for write in writes {
                    intake.take(write, sync, &mut cx);
                }
            }
            Event::Move(moves) => {
                for (ticket, position) in moves {
                    cx.wait(QueuedItem::Move(ticket, position));
                }
            }
            Event::Persisted { batch, locations } => {
                self.persisted(now, batch, locations, effects);
            }
            Event::Refused { batch } => self.refused(now, batch, effects),
            Event::Squash { before } => self.squash(now, Stamp::start_of(before), effects),
            Event::Received { from, message } => sync.received(from, message, &mut cx),
            Event::Reachable(peers) => sync.set_reachable(now, &peers),
            Event::Lost { peer } => sync.lost(now, peer),
            Event::Fetched(hashes) => self.fetched(&hashes, effects),
            Event::Sync => sync.sync_now(now),
            Event::Join { cluster, listed } => sync.join(cluster, listed, &mut cx),
            Event::TrustClock => sync.trust_clock(&mut cx),
            Event::SetAside { writes } => sync.issue_anew(writes, &mut cx),
        }
        self.go_on(now, effects);
    }

    fn tick(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if let Some(before) = self.squashing.due(now) {
            self.squash(now, before, effects);
        }
        self.holdings.announce_expiries(now, effects);
        let (sync, _, mut cx) = self.parts(now, effects);
        sync.tick(&mut cx);
        self.go_on(now, effects);
    }

    fn deadline(&self) -> Option<Timestamp> {
        let times = [
            Some(self.squashing.deadline()),
            self.holdings.deadline(),
            self.sync.deadline(),
            self.intake.deadline(&self.sync),
            self.queue.deadline(),
        ];
        times.into_iter().flatten().min()
    }

    fn check_invariants(&self) {
        assert!(self.queue.len() <= WRITES_WAITING_MAX);
        assert!(self.intake.len() <= WRITES_WAITING_MAX);
    }
}
