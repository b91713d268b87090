//! The queue for the disk: at most one batch is under way, and everything that came meanwhile waits
//! for the next. Owns what must be written again where the disk refused it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use model::{Key, Timestamp};

use super::WRITES_WAITING_MAX;
use crate::clock::Stamp;
use crate::commit::{Commit, Position};
use crate::event::{BatchEntry, Change, Effect, Origin, Ticket, Unwritten, Write};
use crate::replica::Horizons;
use crate::sync::message::{Carried, Vector};

/// The pause before what must be written is tried again on a full disk, where somebody has to make
/// room.
const FULL_DISK_PAUSE: Duration = Duration::from_millis(500);
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

pub(crate) struct DiskQueue {
    waiting: VecDeque<QueuedItem>,
    /// The batch under way. The shell that writes it shares it and is done with it once it is
    /// durable.
    under_way: Option<(u64, Arc<Vec<BatchEntry>>)>,
    next_batch: u64,
    /// The time at which to persist again after the disk refused what must be written.
    persist_from: Timestamp,
    /// The writes of the batch under way that issue something anew.
    reissuing: BTreeSet<Ticket>,
    /// Whether a copy is complete and not yet in the log.
    concluding: bool,
}

impl DiskQueue {
    pub fn new(now: Timestamp, next_batch: u64) -> DiskQueue {
        DiskQueue {
            waiting: VecDeque::new(),
            under_way: None,
            next_batch,
            persist_from: now,
            reissuing: BTreeSet::new(),
            concluding: false,
        }
    }

    pub fn next_batch(&self) -> u64 {
        self.next_batch
    }

    /// Returns how much waits for the next batch.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Returns whether a copy is complete and not yet in the log.
    pub fn is_concluding(&self) -> bool {
        self.concluding
    }

    /// Returns whether more is to be forgotten than the log says.
    pub fn has_to_forget(&self) -> bool {
        self.waiting.iter().any(|waiting| matches!(waiting, QueuedItem::Forget(_)))
    }

    pub fn wait(&mut self, waiting: QueuedItem, effects: &mut Vec<Effect>) {
        let owed =
            waiting.is_owed() || self.concluding && matches!(waiting, QueuedItem::Horizons(_));
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

    /// Forgets positions, in portions that fit into a record.
    pub fn forget(&mut self, positions: &[Position], effects: &mut Vec<Effect>) {
        for portion in positions.chunks(FORGOTTEN_MAX) {
            self.wait(QueuedItem::Forget(portion.to_vec()), effects);
        }
    }

    /// Begins to conclude a copy: all that is queued for it until `concluded` must be written.
    pub fn conclude(&mut self) {
        self.concluding = true;
    }

    /// Notes that everything of the copy is in the log.
    pub fn concluded(&mut self) {
        self.concluding = false;
    }

    /// Returns whether a batch may be formed: none is under way, something waits and no pause
    /// lasts.
    pub fn may_send(&self, now: Timestamp) -> bool {
        self.under_way.is_none() && !self.waiting.is_empty() && !self.is_pausing(now)
    }

    /// Returns whether a pause lasts; never longer than its length, whatever the clock does
    /// meanwhile.
    fn is_pausing(&self, now: Timestamp) -> bool {
        now < self.persist_from && self.persist_from <= now.after(FULL_DISK_PAUSE)
    }

    /// Returns when the disk is asked again.
    pub fn deadline(&self) -> Option<Timestamp> {
        // Whatever waits without a pause is under way already.
        let waits = self.under_way.is_none() && !self.waiting.is_empty();
        waits.then_some(self.persist_from)
    }

    /// Takes out what has waited longest.
    pub fn next(&mut self) -> Option<QueuedItem> {
        self.waiting.pop_front()
    }

    /// Notes that the write of this ticket in the batch being formed issues something anew.
    pub fn reissue(&mut self, ticket: Ticket) {
        self.reissuing.insert(ticket);
    }

    pub fn reissued(&mut self, ticket: Ticket) {
        self.reissuing.remove(&ticket);
    }

    /// Sends a batch off.
    pub fn send(&mut self, entries: Vec<BatchEntry>, effects: &mut Vec<Effect>) {
        let batch = self.next_batch;
        self.next_batch += 1;
        let entries = Arc::new(entries);
        self.under_way = Some((batch, entries.clone()));
        effects.push(Effect::Persist { batch, entries });
    }

    /// Takes out the batch under way if it is this one.
    pub fn persisted(&mut self, batch: u64) -> Option<Vec<BatchEntry>> {
        let (_, entries) = self.under_way.take_if(|(sent, _)| *sent == batch)?;
        Some(Arc::unwrap_or_clone(entries))
    }

    /// Takes back a batch of which nothing was written: its number is free again, and the log has
    /// no gap. What must be written is tried again after a pause; returns the rest.
    pub fn refused(&mut self, now: Timestamp, batch: u64) -> Vec<BatchEntry> {
        let Some(entries) = self.persisted(batch) else { return Vec::new() };
        self.next_batch = batch;
        let (mut owed, mut rest) = (Vec::new(), Vec::new());
        for entry in entries {
            match entry {
                BatchEntry::Commit { ticket, commit } if self.reissuing.remove(&ticket) => {
                    owed.extend(written_again(ticket, &commit).map(QueuedItem::Anew));
                }
                BatchEntry::Copied { held, garbage, .. } => {
                    owed.push(QueuedItem::Copied { vector: held, garbage });
                }
                BatchEntry::Forgotten { positions, .. } => owed.push(QueuedItem::Forget(positions)),
                // A copy rests on the horizons of its peer: what was forgotten must not come back.
                BatchEntry::Horizons(horizons) if self.concluding => {
                    owed.push(QueuedItem::Horizons(horizons));
                }
                other => rest.push(other),
            }
        }
        if !owed.is_empty() {
            self.persist_from = now.after(FULL_DISK_PAUSE);
        }
        owed.into_iter().rev().for_each(|waiting| self.waiting.push_front(waiting));
        rest
    }
}

/// Returns the write that a commit came from; its value is still under its ticket.
fn written_again(ticket: Ticket, commit: &Commit) -> Option<Write> {
    let key = Key::try_from(commit.key.clone()).ok()?;
    Some(Write { ticket, key, change: Change::again(commit), only_over: None })
}
