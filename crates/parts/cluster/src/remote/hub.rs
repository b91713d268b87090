//! The watchers and the board of a node that keeps no store: changes come from the node in use,
//! notes from this one. Cursors are this hub's own, so that a watcher continues where it was when
//! another node is used: from the newest changes, which are kept here, or by reading again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use model::{Key, Prefix, Timestamp};
use store_core::Stamp;
use store_core::clock::HybridClock;

use store::board::{Board, Note};
use store::watchers::Watchers;
use store::{Cursor, Value, Watch, WatchEvent};

/// The number of changes kept; a watcher that missed more reads again. A rollout of a large
/// application changes some hundred keys.
const RECENT_MAX: usize = 4096;
/// The size in bytes of the changes kept.
const RECENT_BYTES_MAX: usize = 4 << 20;

pub struct Hub {
    state: Mutex<State>,
}

struct State {
    incarnation: u64,
    last: u64,
    watchers: Watchers,
    board: Board,
    clock: HybridClock,
    recent: VecDeque<(u64, WatchEvent)>,
    recent_bytes: usize,
    /// The arrival up to which changes are no longer kept.
    forgotten: u64,
    closed: bool,
}

impl Hub {
    /// Makes a hub; `incarnation` belongs to this run alone.
    pub fn new(incarnation: u64) -> Hub {
        let state = State {
            incarnation,
            last: 0,
            watchers: Watchers::default(),
            board: Board::default(),
            clock: HybridClock::default(),
            recent: VecDeque::new(),
            recent_bytes: 0,
            forgotten: 0,
            closed: false,
        };
        Hub { state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces a change that the store has told of.
    pub fn changed(&self, key: &Key, value: Option<Value>, expired: bool) {
        self.state().announce(key, value, expired);
    }

    /// Tells all watchers to read again, since it is unknown what changed meanwhile.
    pub fn resync(&self) {
        let mut state = self.state();
        state.last += 1;
        state.recent.clear();
        state.recent_bytes = 0;
        state.forgotten = state.last;
        let now = state.cursor();
        state.watchers.resync_all(now);
    }

    /// Adds a watcher; `None` if there are too many.
    pub fn subscribe(&self, prefix: Prefix, from: Option<Cursor>) -> Option<Watch> {
        let mut state = self.state();
        let now = state.cursor();
        let first = match from {
            None => Some(Vec::new()),
            Some(from) => state.since(from, &prefix),
        };
        state.watchers.add(prefix, now, first)
    }

    /// Sets a note and returns its stamp.
    pub fn set_note(&self, key: Key, value: Bytes, now: Timestamp) -> Stamp {
        let mut state = self.state();
        let stamp = state.clock.next(now);
        let gone = state.board.set(key.clone(), value.clone(), stamp);
        state.announce(&key, Some(Value::Inline(value)), false);
        for key in gone {
            state.announce(&key, None, false);
        }
        stamp
    }

    pub fn remove_note(&self, key: &Key, now: Timestamp) -> Option<Stamp> {
        let mut state = self.state();
        if !state.board.remove(key) {
            return None;
        }
        let stamp = state.clock.next(now);
        state.announce(key, None, false);
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

    pub fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.watchers.clear();
    }

    pub fn is_closed(&self) -> bool {
        self.state().closed
    }
}

impl State {
    fn cursor(&self) -> Cursor {
        Cursor { incarnation: self.incarnation, arrival: self.last }
    }

    fn announce(&mut self, key: &Key, value: Option<Value>, expired: bool) {
        self.last += 1;
        let cursor = self.cursor();
        let event = WatchEvent::Changed { cursor, key: key.clone(), value, expired };
        self.watchers.notify(key.as_str(), cursor, || event.clone());
        self.recent_bytes += bytes_of(&event);
        self.recent.push_back((self.last, event));
        while self.recent.len() > RECENT_MAX || self.recent_bytes > RECENT_BYTES_MAX {
            let Some((arrival, event)) = self.recent.pop_front() else { break };
            self.recent_bytes -= bytes_of(&event);
            self.forgotten = arrival;
        }
    }

    /// Returns each key that changed since `from` once, by its newest change; `None` if that is not
    /// known.
    fn since(&self, from: Cursor, prefix: &Prefix) -> Option<Vec<WatchEvent>> {
        let is_known = from.incarnation == self.incarnation
            && from.arrival >= self.forgotten
            && from.arrival <= self.last;
        let after = self.recent.iter().filter(|(arrival, _)| *arrival > from.arrival);
        let mut newest: BTreeMap<&Key, (u64, &WatchEvent)> = BTreeMap::new();
        for (arrival, event) in after {
            if let WatchEvent::Changed { key, .. } = event
                && prefix.matches(key)
            {
                newest.insert(key, (*arrival, event));
            }
        }
        let in_order: BTreeMap<u64, &WatchEvent> = newest.into_values().collect();
        is_known.then(|| in_order.into_values().cloned().collect())
    }
}

fn bytes_of(event: &WatchEvent) -> usize {
    match event {
        WatchEvent::Changed { key, value: Some(Value::Inline(bytes)), .. } => {
            key.as_str().len() + bytes.len()
        }
        WatchEvent::Changed { key, .. } => key.as_str().len(),
        WatchEvent::Resync { .. } => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        text.parse().unwrap()
    }

    fn set(hub: &Hub, text: &str) {
        hub.changed(&key(text), Some(Value::Inline(Bytes::from_static(b"v"))), false);
    }

    fn next(watch: &mut Watch) -> (Cursor, Option<String>) {
        match watch.events.try_recv().unwrap() {
            WatchEvent::Changed { cursor, key, .. } => (cursor, Some(key.to_string())),
            WatchEvent::Resync { cursor } => (cursor, None),
        }
    }

    #[test]
    fn a_watcher_goes_on_from_its_cursor_also_after_another_node_is_used() {
        let hub = Hub::new(7);
        let app: Prefix = "app".parse().unwrap();
        let mut watch = hub.subscribe(app.clone(), None).unwrap();
        set(&hub, "app::a");
        let (seen, _) = next(&mut watch);
        drop(watch);
        set(&hub, "other");
        set(&hub, "app::b");
        let mut watch = hub.subscribe(app.clone(), Some(seen)).unwrap();
        let (seen, name) = next(&mut watch);
        assert_eq!(name.as_deref(), Some("app::b"));
        assert!(watch.events.try_recv().is_err());
        // The cursors are from another run, from a time that is not kept, and from before changes
        // were missed.
        let strange = Cursor { incarnation: 8, ..seen };
        assert_eq!(next(&mut hub.subscribe(app.clone(), Some(strange)).unwrap()).1, None);
        hub.resync();
        assert_eq!(next(&mut watch).1, None, "it is told at once");
        let mut again = hub.subscribe(app.clone(), Some(seen)).unwrap();
        let (now, name) = next(&mut again);
        assert_eq!(name, None);
        assert!(hub.subscribe(app.clone(), Some(now)).unwrap().events.try_recv().is_err());
        (0..=RECENT_MAX).for_each(|n| set(&hub, &format!("app::{n}")));
        assert_eq!(next(&mut hub.subscribe(app, Some(now)).unwrap()).1, None);
    }

    #[test]
    fn notes_are_seen_by_watchers_and_stay_here() {
        let hub = Hub::new(1);
        let mut watch = hub.subscribe(Prefix::all(), None).unwrap();
        hub.set_note(key("local::a"), Bytes::from_static(b"1"), Timestamp(5));
        assert_eq!(next(&mut watch).1.as_deref(), Some("local::a"));
        assert_eq!(hub.notes(&Prefix::all()).len(), 1);
        assert!(hub.remove_note(&key("local::a"), Timestamp(6)).is_some());
        assert!(hub.remove_note(&key("local::a"), Timestamp(7)).is_none());
        assert_eq!((next(&mut watch).1.as_deref(), hub.count_notes()), (Some("local::a"), 0));
        hub.close();
        assert!(hub.is_closed() && watch.events.try_recv().is_err());
    }
}
