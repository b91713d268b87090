//! The positions of scans: a cursor is a number, while a place among keys is a key. They are
//! node-wide, since clients send the request for the next page over any connection of their pool.

use std::collections::BTreeMap;

use model::{Key, Timestamp};

/// The number of cursors kept, 4 MiB with the longest keys; the oldest go first.
const SCANS_MAX: usize = 4096;

#[derive(Debug)]
pub struct Scans {
    next: u64,
    places: BTreeMap<u64, Key>,
}

impl Scans {
    /// Makes a table whose cursors are none of an earlier run's. A cursor must stay below 2^53:
    /// some clients read numbers as floating point.
    pub fn new(now: Timestamp) -> Scans {
        let seconds = now.0 / 1000 % (1 << 32);
        Scans { next: (seconds << 20) + 1, places: BTreeMap::new() }
    }

    /// Returns the key after which to go on; `None` if the cursor is unknown.
    pub fn place(&self, cursor: u64) -> Option<Key> {
        self.places.get(&cursor).cloned()
    }

    pub fn remember(&mut self, last: Key) -> u64 {
        if self.places.len() >= SCANS_MAX {
            self.places.pop_first();
        }
        let cursor = self.next;
        self.next += 1;
        self.places.insert(cursor, last);
        cursor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_bounded_and_forgets_the_oldest() {
        let mut scans = Scans::new(Timestamp(u64::MAX));
        let first = scans.remember("first".parse().unwrap());
        assert!(first < 1 << 53);
        for _ in 0..SCANS_MAX {
            scans.remember("k".parse().unwrap());
        }
        assert_eq!(scans.place(first), None);
        assert_eq!(scans.places.len(), SCANS_MAX);
    }
}
