//! A batch in the making: what waited becomes the records of the log, and writes get their stamps.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::BATCH_WRITES_MAX;
use super::context::Context;
use super::queue::QueuedItem;
use crate::commit::{Commit, CommitAction, Location, Position};
use crate::event::{BatchEntry, Change, Effect, Origin, Standing, Ticket, Unwritten, Write};
use crate::replica::Horizons;
use crate::sync::Sync;
use crate::sync::members::is_roster_key;
use crate::sync::message::Carried;

pub(super) struct Forming {
    entries: Vec<BatchEntry>,
    /// Whether the keys that this very batch writes will have a value.
    written: Written,
    /// The horizons as they will be when the batch is applied.
    horizons: Horizons,
}

/// The keys that a batch writes, by a number made of the key first: numbers are compared at once,
/// texts lie elsewhere.
#[derive(Default)]
struct Written(BTreeMap<(u64, Arc<str>), bool>);

impl Written {
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

impl Forming {
    pub fn new(cx: &Context<'_>) -> Forming {
        Forming {
            entries: Vec::with_capacity(BATCH_WRITES_MAX.min(cx.queue.len() + 1)),
            written: Written::default(),
            horizons: cx.replica.horizons(),
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the batch, which says whose it is if the log does not know that yet.
    pub fn finish(self, introduced: Option<Standing>) -> Vec<BatchEntry> {
        let mut entries = self.entries;
        if let Some(standing) = introduced
            && !entries.is_empty()
            && !entries.iter().any(|e| matches!(e, BatchEntry::Standing(_)))
        {
            entries.insert(0, BatchEntry::Standing(standing));
        }
        entries
    }

    /// Takes in what waited, unless there is nothing to write any more.
    pub fn take(&mut self, waiting: QueuedItem, sync: &mut Sync, cx: &mut Context<'_>) {
        let entry = match waiting {
            QueuedItem::Horizons(raised) => self.raised(raised, cx),
            QueuedItem::Move(ticket, at) => moved(ticket, at, cx),
            QueuedItem::Arrived(at) => arrived(at, cx),
            QueuedItem::Write(write) => self.written(write, cx),
            QueuedItem::Anew(Write { ticket, key, change, .. }) => {
                cx.queue.reissue(ticket);
                Some(self.commit(ticket, key.into(), change, cx))
            }
            QueuedItem::Admit { carried, origin, horizons } => {
                self.admitted(carried, origin, horizons, sync, cx)
            }
            QueuedItem::Vector => Some(sync.vector_entry(cx)),
            QueuedItem::Copied { vector, garbage } => Some(sync.copied_entry(&vector, garbage, cx)),
            QueuedItem::Standing => Some(BatchEntry::Standing(sync.standing())),
            QueuedItem::Forget(positions) => {
                Some(BatchEntry::Forgotten { positions, clock: cx.stamps.last() })
            }
        };
        self.entries.extend(entry);
    }

    fn raised(&mut self, raised: Horizons, cx: &Context<'_>) -> Option<BatchEntry> {
        self.horizons = self.horizons.max(raised);
        let rises = self.horizons != cx.replica.horizons();
        rises.then_some(BatchEntry::Horizons(self.horizons))
    }

    fn written(&mut self, write: Write, cx: &mut Context<'_>) -> Option<BatchEntry> {
        let Write { ticket, key, change, only_over } = write;
        let key: Arc<str> = key.into();
        let earlier = self.written.get(&key);
        let held = || cx.replica.get(&key, cx.now).map(|commit| commit.at);
        let overtaken = only_over.is_some() && (earlier.is_some() || held() != only_over);
        let lives = || earlier.unwrap_or_else(|| held().is_some());
        if overtaken || change == Change::Delete && !lives() {
            cx.effects.push(Effect::Acknowledge { ticket, cid: None });
            return None;
        }
        // What is known of a member rests on the time of its first entry.
        if is_roster_key(&key) && change != Change::Delete && lives() {
            cx.effects.push(Effect::Refuse { ticket, reason: Unwritten::OnRoster });
            return None;
        }
        Some(self.commit(ticket, key, change, cx))
    }

    fn commit(
        &mut self,
        ticket: Ticket,
        key: Arc<str>,
        change: Change,
        cx: &mut Context<'_>,
    ) -> BatchEntry {
        self.written.note(&key, change.lives(cx.now));
        BatchEntry::Commit { ticket, commit: stamped(cx.stamps.position(cx.now), key, change) }
    }

    fn admitted(
        &mut self,
        Carried { ticket, commit }: Carried,
        origin: Origin,
        horizons: Option<Horizons>,
        sync: &mut Sync,
        cx: &mut Context<'_>,
    ) -> Option<BatchEntry> {
        if horizons.is_some_and(|wanted| wanted != self.horizons) {
            cx.release(ticket);
            sync.outdated(origin, cx);
            return None;
        }
        cx.stamps.learn(commit.at.stamp);
        self.entries.extend(sync.catch_up_again(&commit).map(BatchEntry::Standing));
        Some(BatchEntry::Foreign { ticket, commit, origin })
    }
}

fn moved(ticket: Ticket, at: Position, cx: &mut Context<'_>) -> Option<BatchEntry> {
    match cx.replica.history().get(at) {
        Some(commit) if matches!(commit.location, Location::Log { .. }) => {
            Some(BatchEntry::Moved { ticket, commit: commit.clone() })
        }
        _ => {
            cx.effects.push(Effect::Acknowledge { ticket, cid: None });
            None
        }
    }
}

fn arrived(at: Position, cx: &Context<'_>) -> Option<BatchEntry> {
    let commit = cx.replica.history().get(at)?;
    let absent = commit.location == Location::Nowhere;
    let commit = Commit { location: Location::File, ..commit.clone() };
    absent.then_some(BatchEntry::Arrived { commit })
}

fn stamped(at: Position, key: Arc<str>, change: Change) -> Commit {
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
