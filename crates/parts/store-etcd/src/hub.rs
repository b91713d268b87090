//! The hub: what a node keeps in memory beside etcd, namely the watchers, the board of local notes,
//! the ends of values, and the times of revisions. The feed tells it what changed, in order.
//!
//! An arrival is a revision with a counter: the changes of one revision have 1, 2, … and changes on
//! this node alone take the numbers after those.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use model::value::ContentHash;
use model::{Key, NodeId, Prefix, Timestamp};
use store_core::watch::ARRIVALS_KEPT_MAX;
use store_core::{HybridClock, Stamp};
use tokio::sync::watch;

use super::record::StoredRecord;
use store::board::{Board, Note};
use store::values::ValueFiles;
use store::watchers::Watchers;
use store::{Cursor, Value, Watch, WatchEvent};

const COUNTER_BITS: u32 = 24;
const COUNTER_MAX: u64 = (1 << COUNTER_BITS) - 1;
/// The counter above all changes of the revision that the feed begins after.
const COUNTER_UNSEEN: u64 = COUNTER_MAX / 2;
/// The time between two samples of the revision, and so the precision of squashing.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(60);
/// The number of samples kept: a day and an hour, which an hourly squash of a day needs.
const SAMPLES_MAX: usize = 25 * 60;

pub fn arrival(revision: i64, counter: u64) -> u64 {
    (u64::try_from(revision).unwrap_or(0) << COUNTER_BITS) | counter.min(COUNTER_MAX)
}

pub fn revision(arrival: u64) -> i64 {
    i64::try_from(arrival >> COUNTER_BITS).unwrap_or(i64::MAX)
}

/// A change of one key in the feed; `record` is `None` after a delete, or if it cannot be read.
#[derive(Clone, Debug)]
pub struct KeyChange {
    pub key: Key,
    pub record: Option<StoredRecord>,
}

/// A change on this node alone, with its arrival.
#[derive(Clone, Debug)]
pub struct LocalChange {
    pub arrival: u64,
    pub event: WatchEvent,
}

pub enum Subscription {
    Ready(Watch),
    /// The watcher gets what etcd and this node know of `(from, until]`, then what `watch` brings.
    CatchUp {
        watch: Watch,
        local: Vec<LocalChange>,
        from: u64,
        until: Cursor,
    },
}

pub struct Hub {
    state: Mutex<State>,
    /// The newest revision that every watcher has been told of.
    seen: watch::Sender<i64>,
    values: Arc<ValueFiles>,
    node: NodeId,
}

struct State {
    cluster: u64,
    /// The arrival at which this run began; older changes of the board are unknown.
    start: u64,
    /// The arrival of the last resync; etcd's history before it is gone.
    resynced: u64,
    last: u64,
    watchers: Watchers,
    board: Board,
    clock: HybridClock,
    /// The newest changes on this node alone, by arrival.
    recent: VecDeque<(u64, Key)>,
    /// The arrival of the newest of those that were dropped.
    forgotten: u64,
    ends: Ends,
    /// Revisions and their times; no revision with a delete is among them.
    samples: VecDeque<(Timestamp, i64)>,
    closed: bool,
}

/// The ends of keys' values. etcd removes such keys some time later; until then they read as
/// absent.
#[derive(Default)]
struct Ends {
    of: BTreeMap<Key, Timestamp>,
    /// The ends that watchers have not been told of.
    ahead: BTreeSet<(Timestamp, Key)>,
}

impl Ends {
    /// Forgets the end of a key's value; returns it, and whether watchers have been told of it.
    fn forget(&mut self, key: &Key) -> Option<(Timestamp, bool)> {
        let end = self.of.remove(key)?;
        Some((end, !self.ahead.remove(&(end, key.clone()))))
    }

    fn enter(&mut self, key: &Key, end: Timestamp, is_told: bool) {
        self.forget(key);
        self.of.insert(key.clone(), end);
        if !is_told {
            self.ahead.insert((end, key.clone()));
        }
    }
}

impl Hub {
    pub fn new(cluster: u64, opened: i64, values: Arc<ValueFiles>, node: NodeId) -> Hub {
        let start = arrival(opened, COUNTER_UNSEEN);
        let state = State {
            cluster,
            start,
            resynced: 0,
            last: start,
            watchers: Watchers::default(),
            board: Board::default(),
            clock: HybridClock::default(),
            recent: VecDeque::new(),
            forgotten: 0,
            ends: Ends::default(),
            samples: VecDeque::new(),
            closed: false,
        };
        Hub { state: Mutex::new(state), seen: watch::Sender::new(opened), values, node }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies all changes of one revision; those of other keys are `None`.
    pub fn apply(&self, of: i64, changes: Vec<Option<KeyChange>>, now: Timestamp) {
        let mut state = self.state();
        let is_put =
            |change: &Option<KeyChange>| change.as_ref().is_some_and(|c| c.record.is_some());
        let all_puts = changes.iter().all(is_put);
        for (counter, change) in (1..).zip(changes) {
            state.last = arrival(of, counter).max(state.last);
            let Some(KeyChange { key, record }) = change else { continue };
            let before = state.ends.forget(&key);
            let end = record.as_ref().and_then(|record| record.expires);
            let has_ended = |end: &Timestamp| *end <= now;
            if let Some(end) = end {
                state.ends.enter(&key, end, has_ended(&end));
            }
            let value = record.as_ref().filter(|record| !record.has_expired(now));
            let value = value.map(|record| self.value(record));
            // When etcd removes a value whose end has been told, that is no news.
            if value.is_some() || !before.is_some_and(|(_, is_told)| is_told) {
                let of_delete = before.map(|(end, _)| end);
                let expired = value.is_none() && end.or(of_delete).as_ref().is_some_and(has_ended);
                let at = state.last;
                state.announce(at, &key, value, expired);
            }
        }
        if all_puts {
            state.sample(of, now);
        }
        drop(state);
        self.seen.send_replace(of);
    }

    pub fn value(&self, record: &StoredRecord) -> Value {
        match &record.inline {
            Some(bytes) => Value::Inline(Bytes::copy_from_slice(bytes)),
            None => Value::File {
                hash: ContentHash(record.hash),
                size: record.size,
                path: self.values.path(&record.hash),
            },
        }
    }

    /// Returns once watchers know of this revision, or after `patience`, since the feed may be cut
    /// for longer.
    pub async fn wait_until_told(&self, of: i64, patience: Duration) {
        let mut seen = self.seen.subscribe();
        let told = seen.wait_for(|seen| *seen >= of);
        tokio::time::timeout(patience, told).await.ok();
    }

    /// Returns the revision with which the feed goes on.
    pub fn next_revision(&self) -> i64 {
        revision(self.state().last) + 1
    }

    /// Tells all watchers to read again: etcd has dropped changes and goes on after `of`.
    pub fn resync(&self, of: i64) {
        let mut state = self.state();
        state.last = arrival(of, COUNTER_UNSEEN).max(state.last);
        state.resynced = state.last;
        let now = state.cursor(state.last);
        state.watchers.resync_all(now);
        drop(state);
        self.seen.send_replace(of);
    }

    /// Enters the ends of values that were there before the feed began.
    pub fn enter_ends(&self, keys: impl IntoIterator<Item = (Key, Timestamp)>) {
        let mut state = self.state();
        for (key, end) in keys {
            if !state.ends.of.contains_key(&key) {
                state.ends.enter(&key, end, false);
            }
        }
    }

    pub fn next_end(&self) -> Option<Timestamp> {
        self.state().ends.ahead.first().map(|(end, _)| *end)
    }

    /// Tells watchers of values that have ended by now.
    pub fn notice_ends(&self, now: Timestamp) {
        let mut state = self.state();
        while let Some((end, key)) = state.ends.ahead.pop_first() {
            if end > now {
                state.ends.ahead.insert((end, key));
                return;
            }
            state.note_local(&key);
            let at = state.last;
            state.announce(at, &key, None, true);
        }
    }

    /// Returns the number of keys that etcd still counts and whose values have ended.
    pub fn ended(&self, now: Timestamp) -> usize {
        let Ends { of, ahead } = &self.state().ends;
        let untold = ahead.iter().take_while(|(end, _)| *end <= now).count();
        of.len() - ahead.len() + untold
    }

    pub fn has_ended(&self, key: &Key, now: Timestamp) -> bool {
        self.state().ends.of.get(key).is_some_and(|end| *end <= now)
    }

    pub fn subscribe(&self, prefix: Prefix, from: Option<Cursor>) -> Option<Subscription> {
        let mut state = self.state();
        let now = state.cursor(state.last);
        let Some(from) = from else {
            return state.watchers.add(prefix, now, Some(Vec::new())).map(Subscription::Ready);
        };
        let is_known = from.incarnation == state.cluster
            && from.arrival <= state.last
            && from.arrival >= state.resynced.max(state.forgotten)
            && (from.arrival >= state.start || !may_be_local(&prefix));
        if !is_known {
            return state.watchers.add(prefix, now, None).map(Subscription::Ready);
        }
        let local = state.local_since(from.arrival, &prefix);
        let watch = state.watchers.add(prefix, now, Some(Vec::new()))?;
        if from.arrival == now.arrival {
            return Some(Subscription::Ready(watch));
        }
        Some(Subscription::CatchUp { watch, local, from: from.arrival, until: now })
    }

    pub fn set_note(&self, key: Key, value: Bytes, now: Timestamp) -> Stamp {
        let mut state = self.state();
        let stamp = state.clock.next(now);
        let gone = state.board.set(key.clone(), value.clone(), stamp);
        state.note_local(&key);
        let at = state.last;
        state.announce(at, &key, Some(Value::Inline(value)), false);
        for key in gone {
            state.note_local(&key);
            let at = state.last;
            state.announce(at, &key, None, false);
        }
        stamp
    }

    pub fn remove_note(&self, key: &Key, now: Timestamp) -> Option<Stamp> {
        let mut state = self.state();
        if !state.board.remove(key) {
            return None;
        }
        let stamp = state.clock.next(now);
        state.note_local(key);
        let at = state.last;
        state.announce(at, key, None, false);
        Some(stamp)
    }

    pub fn note(&self, key: &Key) -> Option<Note> {
        self.state().board.get(key).cloned()
    }

    pub fn notes(&self, prefix: &Prefix) -> Vec<(Key, Note)> {
        let state = self.state();
        state.board.prefix(prefix).map(|(key, note)| (key.clone(), note.clone())).collect()
    }

    pub fn count_notes(&self) -> usize {
        self.state().board.count()
    }

    pub fn node(&self) -> &NodeId {
        &self.node
    }

    /// Returns the newest revision all of which is older than `before`; `None` if no such revision
    /// is known.
    pub fn revision_before(&self, before: Timestamp) -> Option<i64> {
        let state = self.state();
        state.samples.iter().rev().find(|(at, _)| *at < before).map(|(_, revision)| *revision)
    }

    pub fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.watchers.clear();
    }

    pub fn is_closed(&self) -> bool {
        self.state().closed
    }
}

/// Returns whether notes may be below a prefix: they are in memory only, so those of an earlier run
/// are unknown.
fn may_be_local(prefix: &Prefix) -> bool {
    prefix.tokens().next().is_none_or(|token| token == Key::LOCAL)
}

impl State {
    fn cursor(&self, arrival: u64) -> Cursor {
        Cursor { incarnation: self.cluster, arrival }
    }

    fn announce(&mut self, at: u64, key: &Key, value: Option<Value>, expired: bool) {
        let cursor = self.cursor(at);
        self.watchers.notify(key.as_str(), cursor, || WatchEvent::Changed {
            cursor,
            key: key.clone(),
            value: value.clone(),
            expired,
        });
    }

    /// Gives a change on this node alone its arrival.
    fn note_local(&mut self, key: &Key) {
        if self.last & COUNTER_MAX < COUNTER_MAX {
            self.last += 1;
        } else {
            // Nothing was written for millions of notes: a watcher that resumes from here cannot
            // know which it missed.
            self.forgotten = self.last;
        }
        if self.recent.len() == ARRIVALS_KEPT_MAX {
            let oldest = self.recent.pop_front();
            self.forgotten = oldest.map_or(self.forgotten, |(at, _)| at.max(self.forgotten));
        }
        self.recent.push_back((self.last, key.clone()));
    }

    fn local_since(&self, from: u64, prefix: &Prefix) -> Vec<LocalChange> {
        let after = self.recent.iter().filter(|(at, key)| *at > from && prefix.matches(key));
        let change = |(at, key): &(u64, Key)| {
            let note = self.board.get(key);
            let event = WatchEvent::Changed {
                cursor: self.cursor(*at),
                key: key.clone(),
                value: note.map(|note| Value::Inline(note.value.clone())),
                expired: !key.is_local(),
            };
            LocalChange { arrival: *at, event }
        };
        after.map(change).collect()
    }

    fn sample(&mut self, of: i64, now: Timestamp) {
        let is_due = self.samples.back().is_none_or(|(at, _)| now.since(*at) >= SAMPLE_INTERVAL);
        if is_due {
            if self.samples.len() == SAMPLES_MAX {
                self.samples.pop_front();
            }
            self.samples.push_back((now, of));
        }
    }
}
