//! The queue for the disk and the next batch: at most one batch is under way, and everything that
//! came meanwhile shares the next.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use model::Timestamp;

use super::{BATCH_WRITES_MAX, StoreMachine, WRITES_WAITING_MAX};
use crate::clock::Stamp;
use crate::commit::{Commit, CommitAction, Location, Position};
use crate::event::{BatchEntry, Change, Effect, Origin, Ticket, Unwritten, Write};
use crate::replica::Horizons;
use crate::sync::members::is_roster_key;
use crate::sync::mend::ClockDoubt;
use crate::sync::message::{Carried, SessionRefusal, Vector};
use crate::sync::park::newest_admitted;

/// The pause before what must be written is tried again on a full disk, where somebody has to make
/// room.
pub(super) const FULL_DISK_PAUSE: Duration = Duration::from_millis(500);
/// Positions in one record of what was forgotten: at most 400 KiB.
const FORGOTTEN_MAX: usize = 1 << 14;

#[derive(Clone, Debug)]
pub(crate) enum QueuedItem {
    Write(Write),
    /// A write that issues anew what was set aside, whatever is at its key now.
    Anew(Write),
    Move(Ticket, Position),
    /// The file of this commit's value is here now.
    Arrived(Position),
    /// A commit from a peer; if horizons are given, it counts only while they are this node's.
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

/// A batch in the making.
struct Forming {
    entries: Vec<BatchEntry>,
    /// Whether the keys that this very batch writes will have a value.
    written: WrittenKeys,
    /// The horizons as they will be when the batch is applied.
    horizons: Horizons,
}

/// The keys that a batch writes, by a number made of the key first: numbers are compared at once,
/// texts lie elsewhere.
#[derive(Default)]
struct WrittenKeys(BTreeMap<(u64, Arc<str>), bool>);

impl WrittenKeys {
    fn note(&mut self, key: &Arc<str>, lives: bool) {
        self.0.insert((number_of(key), key.clone()), lives);
    }

    fn get(&self, key: &Arc<str>) -> Option<bool> {
        self.0.get(&(number_of(key), key.clone())).copied()
    }
}

/// Returns a number for a key. Keys that share one only take longer.
fn number_of(key: &str) -> u64 {
    // FNV-1a, see RFC 9923.
    key.bytes().fold(0xcbf2_9ce4_8422_2325, |number, byte| {
        (number ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

impl QueuedItem {
    /// Returns whether this must be written even if everything else is refused.
    fn is_owed(&self) -> bool {
        matches!(
            self,
            QueuedItem::Anew(_)
                | QueuedItem::Copied { .. }
                | QueuedItem::Standing
                | QueuedItem::Forget(_)
        )
    }
}

impl StoreMachine {
    /// Returns whether a pause lasts; never longer than its length, whatever the clock does
    /// meanwhile.
    fn is_pausing(&self, now: Timestamp) -> bool {
        now < self.persist_from && self.persist_from <= now.after(FULL_DISK_PAUSE)
    }

    /// Returns when the disk is asked again.
    pub(super) fn retry_at(&self) -> Option<Timestamp> {
        // Whatever waits without a pause is under way already.
        let waits = self.on_its_way.is_none() && !self.waiting.is_empty();
        waits.then_some(self.persist_from)
    }

    pub(crate) fn wait(&mut self, waiting: QueuedItem, effects: &mut Vec<Effect>) {
        let owed =
            waiting.is_owed() || self.sync.concluding && matches!(waiting, QueuedItem::Horizons(_));
        if self.waiting.len() < WRITES_WAITING_MAX || owed {
            self.waiting.push_back(waiting);
            return;
        }
        match waiting {
            QueuedItem::Write(Write { ticket, .. }) | QueuedItem::Move(ticket, _) => {
                effects.push(Effect::Refuse { ticket, reason: Unwritten::TooMany });
            }
            // The commit's session stalls and begins again.
            QueuedItem::Admit { carried, .. } => {
                effects.push(Effect::Release { ticket: carried.ticket });
            }
            // The next squash has a higher horizon anyway.
            QueuedItem::Horizons(_) | QueuedItem::Vector => {}
            // The node asks for the value again when it starts.
            QueuedItem::Arrived(_) => {}
            QueuedItem::Anew(_)
            | QueuedItem::Copied { .. }
            | QueuedItem::Standing
            | QueuedItem::Forget(_) => {}
        }
    }

    /// Queues a write. Writes that came too early wait until this node may stamp them.
    pub(super) fn write(&mut self, now: Timestamp, write: Write, effects: &mut Vec<Effect>) {
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
            self.wait(QueuedItem::Write(write), effects);
        }
    }

    pub(super) fn release_held(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.held.is_empty() || now < self.writes_from || self.is_joining() || self.sync.mending
        {
            return;
        }
        for write in std::mem::take(&mut self.held) {
            self.wait(QueuedItem::Write(write), effects);
        }
    }

    /// Sends the next batch off, if none is under way and something waits.
    pub(super) fn persist_next(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.on_its_way.is_some() || self.waiting.is_empty() || self.is_pausing(now) {
            return;
        }
        let mut forming = Forming {
            entries: Vec::with_capacity(BATCH_WRITES_MAX.min(self.waiting.len() + 1)),
            written: WrittenKeys::default(),
            horizons: self.replica.horizons(),
        };
        // The first batch of a life says whose it is.
        let introduces = !self.sync.standing_kept;
        while forming.entries.len() + usize::from(introduces) < BATCH_WRITES_MAX {
            let Some(waiting) = self.waiting.pop_front() else { break };
            let entry = self.entry_of(now, waiting, &mut forming, effects);
            forming.entries.extend(entry);
        }
        let mut entries = forming.entries;
        if entries.is_empty() {
            return;
        }
        if introduces && !entries.iter().any(|e| matches!(e, BatchEntry::Standing(_))) {
            entries.insert(0, BatchEntry::Standing(self.sync.standing));
        }
        let batch = self.next_batch;
        self.next_batch += 1;
        let entries = Arc::new(entries);
        self.on_its_way = Some((batch, entries.clone()));
        effects.push(Effect::Persist { batch, entries });
    }

    fn entry_of(
        &mut self,
        now: Timestamp,
        waiting: QueuedItem,
        forming: &mut Forming,
        effects: &mut Vec<Effect>,
    ) -> Option<BatchEntry> {
        match waiting {
            QueuedItem::Horizons(raised) => {
                forming.horizons = forming.horizons.max(raised);
                let rises = forming.horizons != self.replica.horizons();
                rises.then_some(BatchEntry::Horizons(forming.horizons))
            }
            QueuedItem::Move(ticket, at) => match self.replica.history().get(at) {
                Some(commit) if matches!(commit.location, Location::Log { .. }) => {
                    Some(BatchEntry::Moved { ticket, commit: commit.clone() })
                }
                _ => {
                    effects.push(Effect::Acknowledge { ticket, cid: None });
                    None
                }
            },
            QueuedItem::Arrived(at) => {
                let commit = self.replica.history().get(at)?;
                let absent = commit.location == Location::Nowhere;
                let commit = Commit { location: Location::File, ..commit.clone() };
                absent.then_some(BatchEntry::Arrived { commit })
            }
            QueuedItem::Write(write) => self.commit_of(now, write, forming, effects),
            QueuedItem::Anew(Write { ticket, key, change, .. }) => {
                let key: Arc<str> = key.into();
                self.sync.reissuing.insert(ticket);
                forming.written.note(&key, change.lives(now));
                Some(BatchEntry::Commit { ticket, commit: self.stamp_write(now, key, change) })
            }
            QueuedItem::Admit { carried, origin, horizons } => {
                let Carried { ticket, commit } = carried;
                if horizons.is_some_and(|wanted| wanted != forming.horizons) {
                    effects.push(Effect::Release { ticket });
                    self.outdated(now, origin, effects);
                    return None;
                }
                self.clock.restore(commit.at.stamp);
                if self.sync.members.would_set_back(&commit) {
                    forming.entries.extend(self.catch_up_again());
                }
                Some(BatchEntry::Foreign { ticket, commit, origin })
            }
            QueuedItem::Vector => {
                let stamp = self.clock.next(now);
                let promise = self.sync.members.may_promise(stamp);
                Some(BatchEntry::Vector { promise, held: self.sync.members.held().clone() })
            }
            QueuedItem::Copied { vector, garbage } => {
                self.clock.restore(garbage);
                let joins = self.is_joining();
                if joins {
                    self.sync.members.begin_anew();
                }
                self.sync.members.merge(&vector, newest_admitted(now));
                let held = self.sync.members.held().clone();
                let stamp = self.clock.next(now);
                // All members hold what this node issued up to the horizon, and so does the peer.
                let known = self.sync.members.may_promise(stamp).max(garbage);
                let promise = if joins { stamp } else { known };
                Some(BatchEntry::Copied { promise, held, garbage })
            }
            QueuedItem::Standing => Some(BatchEntry::Standing(self.sync.standing)),
            QueuedItem::Forget(positions) => {
                Some(BatchEntry::Forgotten { positions, clock: self.clock.last() })
            }
        }
    }

    /// Returns the standing of a node that must catch up again, for the same batch as the entry on
    /// the roster, so that no crash comes in between: others may remember what this node told of
    /// itself, and it says less from now on.
    fn catch_up_again(&mut self) -> Option<BatchEntry> {
        let told = self.sync.members.told();
        if told <= self.sync.standing.fresh_until {
            return None;
        }
        self.sync.standing.fresh_until = told;
        self.sync.standing_kept = false;
        Some(BatchEntry::Standing(self.sync.standing))
    }

    fn commit_of(
        &mut self,
        now: Timestamp,
        Write { ticket, key, change, only_over }: Write,
        forming: &mut Forming,
        effects: &mut Vec<Effect>,
    ) -> Option<BatchEntry> {
        let key: Arc<str> = key.into();
        let earlier = forming.written.get(&key);
        let held = || self.replica.get(&key, now).map(|commit| commit.at);
        let overtaken = only_over.is_some() && (earlier.is_some() || held() != only_over);
        let lives = || earlier.unwrap_or_else(|| held().is_some());
        if overtaken || change == Change::Delete && !lives() {
            effects.push(Effect::Acknowledge { ticket, cid: None });
            return None;
        }
        // What is known of a member rests on the time of its first entry.
        if is_roster_key(&key) && change != Change::Delete && lives() {
            effects.push(Effect::Refuse { ticket, reason: Unwritten::OnRoster });
            return None;
        }
        forming.written.note(&key, change.lives(now));
        Some(BatchEntry::Commit { ticket, commit: self.stamp_write(now, key, change) })
    }

    /// Breaks off the session of a commit for which the horizons rose while it waited: whether it
    /// still counts must be asked again.
    fn outdated(&mut self, now: Timestamp, origin: Origin, effects: &mut Vec<Effect>) {
        let Origin { peer, session, .. } = origin;
        if self.sync.taking.get(&peer).is_some_and(|taking| taking.session == session) {
            self.break_off(now, peer, session, SessionRefusal::HorizonsRose, effects);
        }
    }

    fn stamp_write(&mut self, now: Timestamp, key: Arc<str>, change: Change) -> Commit {
        let at = Position { stamp: self.clock.next(now), node: self.node };
        // The log fills in the exact place; that it is in the log is known already.
        let in_log = Location::Log { segment: 0, offset: 0 };
        let (action, location) = match change {
            Change::SetInline { hash, sha1, size, expires } => {
                (CommitAction::Set { hash, sha1, size, expires }, in_log)
            }
            Change::SetFile { hash, sha1, size, expires } => {
                (CommitAction::Set { hash, sha1, size, expires }, Location::File)
            }
            Change::Delete => (CommitAction::Delete, Location::Nowhere),
        };
        Commit { at, key, action, location }
    }

    /// Forgets positions, in portions that fit into a record.
    pub(crate) fn forget(&mut self, positions: &[Position], effects: &mut Vec<Effect>) {
        for portion in positions.chunks(FORGOTTEN_MAX) {
            self.wait(QueuedItem::Forget(portion.to_vec()), effects);
        }
    }
}
