//! The machine of one node's store: stamps writes, gathers those that wait into one batch for the
//! disk, and only when that is durable lets them be seen, acknowledged and announced. What it says
//! to peers is decided in `sync`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use model::{Key, Machine, NodeId, Timestamp};

use crate::clock::{HybridClock, Stamp};
use crate::commit::{Action, Commit, Location, NodeTag, Position};
use crate::event::{Alarm, Change, Effect, Entry, Event, Origin, Ticket, Unwritten, Write};
use crate::past::Past;
use crate::replica::{Admitted, Frozen, Horizons, Replica};
use crate::sync::Sync;
use crate::sync::links::Links;
use crate::sync::members::{Members, is_roster_key};
use crate::sync::mend::{ClockDoubt, UNCLEAN_WAIT, doubt};
use crate::sync::message::{Carried, ClusterId, Refusal, Vector};
use crate::sync::park::newest_admitted;
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

/// Positions in one record of what was forgotten: at most 400 KiB.
const FORGOTTEN_MAX: usize = 1 << 14;

#[derive(Clone, Debug)]
pub(crate) enum Waiting {
    Write(Write),
    Move(Ticket, Position),
    /// The file of this commit's value is here now.
    Arrived(Position),
    /// From a peer; if horizons are given, only while they are this node's.
    Admit {
        carried: Carried,
        origin: Origin,
        horizons: Option<Horizons>,
    },
    Horizons(Horizons),
    Vector,
    Copied {
        vector: Vector,
        garbage: Stamp,
    },
    Standing,
    Forget(Vec<Position>),
}

pub struct StoreMachine {
    pub(crate) node: NodeTag,
    pub(crate) clock: HybridClock,
    /// The newest stamp that is in the log.
    pub(crate) durable_stamp: Stamp,
    pub(crate) replica: Replica,
    arrivals: Arrivals,
    waiting: VecDeque<Waiting>,
    /// Writes that came before this node may stamp any.
    held: VecDeque<Write>,
    pub(crate) on_its_way: Option<(u64, Vec<Entry>)>,
    next_batch: u64,
    squash_at: Timestamp,
    writes_from: Timestamp,
    /// After a tick that left some for the next one.
    expire_not_before: Timestamp,
    droppable_max: usize,
    pub(crate) doubt: Option<ClockDoubt>,
    pub(crate) alarmed: BTreeSet<Alarm>,
    pub(crate) sync: Sync,
}

impl StoreMachine {
    /// `cluster` is the one this node belongs to, unless its log knows of another.
    pub fn new(node: &NodeId, now: Timestamp, mut past: Past, cluster: ClusterId) -> StoreMachine {
        // Nobody watches yet, so nobody need be told.
        while past.replica.notice_expiry(now).is_some() {}
        let node = NodeTag::from(node);
        let mut clock = HybridClock::default();
        clock.restore(past.clock);
        let incarnation = clock.next(now).0;
        let members = Members::new(node, &past.replica, past.held, past.clock);
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
            squash_at: now.after(SQUASH_INTERVAL),
            writes_from: now.after(wait),
            expire_not_before: now,
            droppable_max: DROPPABLE_MAX,
            // Alone, nobody else's stamps can be in the way.
            doubt: if alone { None } else { doubt(now, past.clock) },
            alarmed: BTreeSet::new(),
            sync: Sync::new(standing, standing_kept, members, Links::new(incarnation), now),
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

    /// The newest stamp this node knows.
    pub fn stamp(&self) -> Stamp {
        self.clock.last()
    }

    /// The replica as it is; every batch before `next_batch()` is in it when none is on its way.
    pub fn freeze(&self) -> Frozen {
        Frozen {
            history: self.replica.history().clone(),
            horizons: self.replica.horizons(),
            clock: self.clock.last(),
            held: self.sync.members.kept().clone(),
            standing: self.sync.standing,
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

    pub(crate) fn wait(&mut self, waiting: Waiting, effects: &mut Vec<Effect>) {
        if self.waiting.len() < WRITES_WAITING_MAX {
            self.waiting.push_back(waiting);
            return;
        }
        match waiting {
            Waiting::Write(Write { ticket, .. }) | Waiting::Move(ticket, _) => {
                effects.push(Effect::Refuse { ticket, reason: Unwritten::TooMany });
            }
            // Its session stalls and begins again.
            Waiting::Admit { carried, .. } => {
                effects.push(Effect::Release { ticket: carried.ticket });
            }
            // The next squash has a higher horizon anyway.
            Waiting::Horizons(_) | Waiting::Vector => {}
            // Asked again when the node starts.
            Waiting::Arrived(_) => {}
            Waiting::Copied { .. } | Waiting::Standing | Waiting::Forget(_) => {
                self.sync.again.push(waiting);
            }
        }
    }

    /// Writes that came too early wait until this node may stamp them.
    fn write(&mut self, now: Timestamp, write: Write, effects: &mut Vec<Effect>) {
        let early = now < self.writes_from || self.is_joining() || self.sync.mending;
        let reason = match self.doubt {
            Some(ClockDoubt::Behind { by_ms }) => Some(Unwritten::ClockBehind { by_ms }),
            Some(ClockDoubt::Leapt { by_ms }) => Some(Unwritten::ClockLeapt { by_ms }),
            None if early && self.held.len() >= WRITES_WAITING_MAX => Some(Unwritten::TooMany),
            None => None,
        };
        if let Some(reason) = reason {
            effects.push(Effect::Refuse { ticket: write.ticket, reason });
        } else if early {
            self.held.push_back(write);
        } else {
            self.wait(Waiting::Write(write), effects);
        }
    }

    fn release_held(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.held.is_empty() || now < self.writes_from || self.is_joining() || self.sync.mending
        {
            return;
        }
        for write in std::mem::take(&mut self.held) {
            self.wait(Waiting::Write(write), effects);
        }
    }

    /// Sends the next batch off, if none is on its way and something waits.
    fn persist_next(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.on_its_way.is_some() || self.waiting.is_empty() {
            return;
        }
        let mut entries = Vec::new();
        // Whether keys written by this very batch will have a value.
        let mut written: BTreeMap<Arc<str>, bool> = BTreeMap::new();
        let mut horizons = self.replica.horizons();
        // The first batch of a life says whose it is.
        let introduces = !self.sync.standing_kept;
        while entries.len() + usize::from(introduces) < BATCH_WRITES_MAX {
            let Some(waiting) = self.waiting.pop_front() else { break };
            match waiting {
                Waiting::Horizons(raised) => {
                    horizons = horizons.max(raised);
                    if horizons != self.replica.horizons() {
                        entries.push(Entry::Horizons(horizons));
                    }
                }
                Waiting::Move(ticket, at) => match self.replica.history().get(at) {
                    Some(commit) if matches!(commit.location, Location::Log { .. }) => {
                        entries.push(Entry::Moved { ticket, commit: commit.clone() });
                    }
                    _ => effects.push(Effect::Acknowledge { ticket, cid: None }),
                },
                Waiting::Arrived(at) => {
                    if let Some(commit) = self.replica.history().get(at)
                        && commit.location == Location::Nowhere
                    {
                        let commit = Commit { location: Location::File, ..commit.clone() };
                        entries.push(Entry::Arrived { commit });
                    }
                }
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
                    // What is known of a member rests on the time of its first entry.
                    if is_roster_key(&key) && change != Change::Delete && lives() {
                        let reason = Unwritten::OnRoster;
                        effects.push(Effect::Refuse { ticket, reason });
                        continue;
                    }
                    written.insert(key.clone(), change.lives(now));
                    let commit = self.stamp_write(now, key, change);
                    entries.push(Entry::Commit { ticket, commit });
                }
                Waiting::Admit { carried, origin, horizons: wanted } => {
                    if wanted.is_some_and(|wanted| wanted != horizons) {
                        effects.push(Effect::Release { ticket: carried.ticket });
                        self.outdated(now, origin, effects);
                        continue;
                    }
                    let Carried { ticket, commit } = carried;
                    self.clock.restore(commit.at.stamp);
                    entries.push(Entry::Foreign { ticket, commit, origin });
                }
                Waiting::Vector => {
                    let promise = self.clock.next(now);
                    let held = self.sync.members.held().clone();
                    entries.push(Entry::Vector { promise, held });
                }
                Waiting::Copied { vector, garbage } => {
                    self.clock.restore(garbage);
                    self.sync.members.merge(&vector, newest_admitted(now));
                    let held = self.sync.members.held().clone();
                    let promise = self.clock.next(now);
                    entries.push(Entry::Copied { promise, held, garbage });
                }
                Waiting::Standing => entries.push(Entry::Standing(self.sync.standing)),
                Waiting::Forget(positions) => {
                    entries.push(Entry::Forgotten { positions, clock: self.clock.last() });
                }
            }
        }
        if entries.is_empty() {
            return;
        }
        if introduces && !entries.iter().any(|e| matches!(e, Entry::Standing(_))) {
            entries.insert(0, Entry::Standing(self.sync.standing));
        }
        let batch = self.next_batch;
        self.next_batch += 1;
        self.on_its_way = Some((batch, entries.clone()));
        effects.push(Effect::Persist { batch, entries });
    }

    /// The horizons rose while this commit waited: whether it still counts must be asked again.
    fn outdated(&mut self, now: Timestamp, origin: Origin, effects: &mut Vec<Effect>) {
        let Origin { peer, session, .. } = origin;
        if self.sync.taking.get(&peer).is_some_and(|taking| taking.session == session) {
            self.break_off(now, peer, session, Refusal::HorizonsRose, effects);
        }
    }

    fn stamp_write(&mut self, now: Timestamp, key: Arc<str>, change: Change) -> Commit {
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

    fn apply(
        &mut self,
        now: Timestamp,
        entry: Entry,
        location: Location,
        effects: &mut Vec<Effect>,
    ) {
        match entry {
            Entry::Horizons(horizons) => {
                self.replica.raise(horizons);
            }
            Entry::Moved { ticket, commit } => {
                let cid = self.replica.relocate(commit.at, location).then(|| commit.cid());
                effects.push(Effect::Acknowledge { ticket, cid });
            }
            Entry::Arrived { commit } => {
                self.replica.relocate(commit.at, Location::File);
            }
            Entry::Commit { ticket, commit } => {
                let commit = Commit { location, ..commit };
                let position = commit.at;
                let cid = Some(commit.cid());
                if self.admit(now, ticket, commit, effects) == Admitted::Conflict {
                    self.alarm(Alarm::Conflict { position }, effects);
                }
                effects.push(Effect::Acknowledge { ticket, cid });
            }
            Entry::Foreign { ticket, commit, origin } => {
                let commit = Commit { location, ..commit };
                let position = commit.at;
                if self.admit(now, ticket, commit, effects) == Admitted::Conflict {
                    self.clash(now, position, origin, effects);
                }
                self.durable(origin, 1, effects);
                effects.push(Effect::Release { ticket });
            }
            Entry::Vector { promise, held } => {
                self.durable_stamp = self.durable_stamp.max(promise);
                self.sync.members.keep(held);
            }
            Entry::Copied { promise, held, garbage } => {
                self.durable_stamp = self.durable_stamp.max(promise);
                self.sync.members.keep(held);
                self.copy_kept(now, garbage, effects);
            }
            Entry::Standing(standing) => {
                self.sync.standing_kept = standing == self.sync.standing;
            }
            Entry::Forgotten { positions, .. } => {
                self.replica.forget(&positions);
                let more = self.waiting.iter().any(|w| matches!(w, Waiting::Forget(_)));
                self.sync.mending &= more;
                self.read_roster(effects);
                self.arrivals = Arrivals::new(self.arrivals.incarnation() + 1);
                effects.push(Effect::Resync);
                self.changed(now);
            }
        }
    }

    fn admit(
        &mut self,
        now: Timestamp,
        ticket: Ticket,
        commit: Commit,
        effects: &mut Vec<Effect>,
    ) -> Admitted {
        self.durable_stamp = self.durable_stamp.max(commit.at.stamp);
        let admitted = self.replica.admit(commit.clone());
        if admitted == Admitted::Winner {
            if is_roster_key(&commit.key) {
                self.read_roster(effects);
            }
            let arrival = self.arrivals.note(commit.key.clone());
            effects.push(Effect::Notify { arrival, ticket, commit });
        }
        if matches!(admitted, Admitted::Winner | Admitted::Superseded) {
            self.changed(now);
        }
        admitted
    }

    fn read_roster(&mut self, effects: &mut Vec<Effect>) {
        if self.sync.members.read_roster(&self.replica) {
            let roster = self.sync.members.roster();
            self.wait(Waiting::Vector, effects);
            effects.push(Effect::Roster(roster));
        }
    }

    /// In portions that fit into a record.
    pub(crate) fn forget(&mut self, positions: &[Position], effects: &mut Vec<Effect>) {
        for portion in positions.chunks(FORGOTTEN_MAX) {
            self.wait(Waiting::Forget(portion.to_vec()), effects);
        }
    }

    pub(crate) fn raise_to(&mut self, horizons: Horizons, effects: &mut Vec<Effect>) {
        if horizons.max(self.replica.horizons()) != self.replica.horizons() {
            self.wait(Waiting::Horizons(horizons), effects);
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

    fn squash(&mut self, now: Timestamp, before: Stamp, effects: &mut Vec<Effect>) {
        // A horizon never passes what this node has issued: a write must not be born behind it.
        let squash = before.min(self.clock.last()).max(self.replica.horizons().squash);
        let garbage = self.garbage_for(now, squash);
        self.raise_to(Horizons { squash, garbage }, effects);
    }

    fn persisted(
        &mut self,
        now: Timestamp,
        batch: u64,
        locations: Vec<Location>,
        effects: &mut Vec<Effect>,
    ) {
        let Some((_, entries)) = self.on_its_way.take_if(|(sent, _)| *sent == batch) else {
            return;
        };
        debug_assert_eq!(entries.len(), locations.len());
        for (entry, location) in entries.into_iter().zip(locations) {
            self.apply(now, entry, location, effects);
        }
        // Nothing of this node's is on its way now: all it stamped so far is in the log.
        self.sync.members.promise(self.durable_stamp);
        self.give_raised(effects);
        self.take_raised(now, effects);
        if self.replica.droppable() > self.droppable_max {
            let before = self.replica.median_droppable();
            self.squash(now, before, effects);
        }
    }

    /// Nothing was written: the number is free again, and the log has no gap.
    fn refused_batch(&mut self, now: Timestamp, batch: u64, effects: &mut Vec<Effect>) {
        let Some((_, entries)) = self.on_its_way.take_if(|(sent, _)| *sent == batch) else {
            return;
        };
        self.next_batch = batch;
        for entry in entries {
            match entry {
                Entry::Commit { ticket, .. } | Entry::Moved { ticket, .. } => {
                    effects.push(Effect::Refuse { ticket, reason: Unwritten::NoRoom });
                }
                Entry::Foreign { ticket, origin, .. } => {
                    effects.push(Effect::Release { ticket });
                    if origin.peer != self.node {
                        let Origin { peer, session, .. } = origin;
                        self.break_off(now, peer, session, Refusal::NoRoom, effects);
                    }
                }
                Entry::Copied { held, garbage, .. } => {
                    self.sync.again.push(Waiting::Copied { vector: held, garbage });
                }
                Entry::Standing(_) => self.sync.again.push(Waiting::Standing),
                Entry::Forgotten { positions, .. } => {
                    self.sync.again.push(Waiting::Forget(positions));
                }
                Entry::Horizons(_) | Entry::Vector { .. } | Entry::Arrived { .. } => {}
            }
        }
    }

    /// Commits whose large values have come say so from now on.
    fn fetched(&mut self, hashes: &[[u8; 32]], effects: &mut Vec<Effect>) {
        let absent = self.replica.absent();
        let needed = hashes.iter().filter_map(|hash| absent.get(hash));
        let positions: Vec<Position> =
            needed.flat_map(|absent| absent.needed_by.iter().copied()).collect();
        for at in positions {
            self.wait(Waiting::Arrived(at), effects);
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
                    self.write(now, write, effects);
                }
            }
            Event::Move(moves) => {
                for (ticket, position) in moves {
                    self.wait(Waiting::Move(ticket, position), effects);
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
            }
            Event::Lost { peer } => self.lost(now, peer),
            Event::Fetched(hashes) => self.fetched(&hashes, effects),
            Event::Sync => self.sync_now(now),
            Event::Join { cluster } => self.join(now, cluster, effects),
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
        ];
        times.into_iter().flatten().min()
    }

    fn check_invariants(&self) {
        assert!(self.waiting.len() <= WRITES_WAITING_MAX);
        assert!(self.held.len() <= WRITES_WAITING_MAX);
    }
}
