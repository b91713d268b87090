//! The watchers of keys. One that does not keep up loses changes and is told so by `Resync`: the
//! last place of its channel is kept for that.

use model::Prefix;
use store_core::watch::matches;
use tokio::sync::mpsc;

use super::{Cursor, Watch, WatchEvent};

/// The number of events queued for a watcher: a rollout of a large application changes some hundred
/// keys at once.
pub const QUEUE_MAX: usize = 1024;
/// The number of watchers: every part of a node has a handful; the rest are clients that follow.
pub const WATCHERS_MAX: usize = 4096;

struct Watcher {
    prefix: Prefix,
    /// The arrival up to which it knows all changes.
    after: u64,
    /// Whether a `Resync` is the last event in its channel; it reads again then, so later changes
    /// are not queued.
    behind: bool,
    events: mpsc::Sender<WatchEvent>,
}

#[derive(Default)]
pub struct Watchers {
    list: Vec<Watcher>,
}

impl Watchers {
    /// Adds a watcher. `first` are the changes since its cursor; `None` if they are not known.
    pub fn add(
        &mut self,
        prefix: Prefix,
        now: Cursor,
        first: Option<Vec<WatchEvent>>,
    ) -> Option<Watch> {
        self.list.retain(|watcher| !watcher.events.is_closed());
        if self.list.len() >= WATCHERS_MAX {
            return None;
        }
        let (sender, events) = mpsc::channel(QUEUE_MAX);
        let mut watcher = Watcher { prefix, after: now.arrival, behind: false, events: sender };
        match first {
            Some(first) if first.len() < QUEUE_MAX / 2 => {
                first.into_iter().for_each(|event| watcher.send(event, now));
            }
            Some(_) | None => watcher.resync(now),
        }
        self.list.push(watcher);
        Some(Watch::new(events))
    }

    /// Notifies the watchers of a key. The change must be readable before this is called. `event`
    /// is called only if somebody watches the key.
    pub fn notify(&mut self, key: &str, cursor: Cursor, event: impl Fn() -> WatchEvent) {
        let mut closed = false;
        for watcher in &mut self.list {
            if watcher.after < cursor.arrival && matches(&watcher.prefix, key) {
                watcher.send(event(), cursor);
            }
            closed |= watcher.events.is_closed();
        }
        if closed {
            self.list.retain(|watcher| !watcher.events.is_closed());
        }
    }

    /// Tells all watchers to read again, since it is unknown what changed. Arrivals may be counted
    /// anew from here.
    pub fn resync_all(&mut self, now: Cursor) {
        for watcher in &mut self.list {
            watcher.after = now.arrival;
            if !watcher.behind || watcher.events.capacity() == watcher.events.max_capacity() {
                watcher.resync(now);
            }
        }
    }

    /// Ends every watch.
    pub fn clear(&mut self) {
        self.list.clear();
    }
}

impl Watcher {
    fn send(&mut self, event: WatchEvent, cursor: Cursor) {
        if self.behind && self.events.capacity() == self.events.max_capacity() {
            self.behind = false;
        }
        if self.behind {
            return;
        }
        if self.events.capacity() <= 1 {
            self.resync(cursor);
        } else {
            // Nobody else sends meanwhile, so there is room; the caller removes closed channels.
            let _ = self.events.try_send(event);
        }
    }

    fn resync(&mut self, cursor: Cursor) {
        self.behind = self.events.try_send(WatchEvent::Resync { cursor }).is_ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursor(arrival: u64) -> Cursor {
        Cursor { incarnation: 1, arrival }
    }

    fn change(watchers: &mut Watchers, arrival: u64) {
        watchers.notify("k", cursor(arrival), || WatchEvent::Changed {
            cursor: cursor(arrival),
            key: "k".parse().unwrap(),
            value: None,
            expired: false,
        });
    }

    #[test]
    fn a_slow_reader_gets_all_up_to_a_resync_and_all_after_it() {
        let mut watchers = Watchers::default();
        let mut watch = watchers.add(Prefix::all(), cursor(0), Some(Vec::new())).unwrap();
        let many = QUEUE_MAX as u64 + 500;
        (1..=many).for_each(|arrival| change(&mut watchers, arrival));
        for expected in 1..QUEUE_MAX as u64 {
            match watch.events.try_recv().unwrap() {
                WatchEvent::Changed { cursor, .. } => assert_eq!(cursor.arrival, expected),
                other => panic!("{other:?}"),
            }
        }
        // The `Resync` has not been read yet: the watcher is still behind.
        change(&mut watchers, many + 1);
        assert!(matches!(watch.events.try_recv(), Ok(WatchEvent::Resync { .. })));
        assert!(watch.events.try_recv().is_err());
        change(&mut watchers, many + 2);
        assert!(matches!(
            watch.events.try_recv(),
            Ok(WatchEvent::Changed { cursor, .. }) if cursor.arrival == many + 2
        ));
    }

    #[test]
    fn dropped_watches_are_forgotten_and_their_number_is_limited() {
        let mut watchers = Watchers::default();
        let kept: Vec<_> = (0..WATCHERS_MAX)
            .map(|_| watchers.add(Prefix::all(), cursor(0), Some(Vec::new())).unwrap())
            .collect();
        assert!(watchers.add(Prefix::all(), cursor(0), None).is_none());
        drop(kept);
        assert!(watchers.add(Prefix::all(), cursor(0), None).is_some());
        assert_eq!(watchers.list.len(), 1);
    }
}
