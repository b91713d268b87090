//! The board of `local::…` keys: notes that parts of this node leave each other. It is in memory
//! only and bounded: beyond the limits the oldest notes go, since losing one costs its reader time,
//! never correctness.

use std::collections::BTreeMap;

use bytes::Bytes;
use model::{Key, Prefix, Timestamp};
use store_core::Stamp;

/// The number of notes: enough for thousands of instances with a few notes each.
pub const ENTRIES_MAX: usize = 65_536;
/// The size of all notes with their keys in bytes; notes are numbers and short texts.
pub const BYTES_MAX: usize = 16 << 20;

#[derive(Clone, Debug)]
pub struct Note {
    pub value: Bytes,
    pub stamp: Stamp,
}

impl Note {
    pub fn set_at(&self) -> Timestamp {
        self.stamp.time()
    }
}

#[derive(Debug, Default)]
pub struct Board {
    notes: BTreeMap<Key, Note>,
    by_age: BTreeMap<Stamp, Key>,
    bytes: usize,
}

impl Board {
    pub fn count(&self) -> usize {
        self.notes.len()
    }

    pub fn get(&self, key: &Key) -> Option<&Note> {
        self.notes.get(key)
    }

    /// Sets a note and returns the keys that had to go.
    pub fn set(&mut self, key: Key, value: Bytes, stamp: Stamp) -> Vec<Key> {
        self.remove(&key);
        self.bytes += weight(&key, &value);
        self.by_age.insert(stamp, key.clone());
        self.notes.insert(key, Note { value, stamp });
        let mut gone = Vec::new();
        while self.notes.len() > ENTRIES_MAX || self.bytes > BYTES_MAX {
            let Some((_, oldest)) = self.by_age.first_key_value() else { break };
            let oldest = oldest.clone();
            self.remove(&oldest);
            gone.push(oldest);
        }
        gone
    }

    pub fn remove(&mut self, key: &Key) -> bool {
        let Some(note) = self.notes.remove(key) else { return false };
        self.by_age.remove(&note.stamp);
        self.bytes -= weight(key, &note.value);
        true
    }

    pub fn prefix(&self, prefix: &Prefix) -> impl Iterator<Item = (&Key, &Note)> {
        let wanted = prefix.tokens().next().is_none_or(|token| token == Key::LOCAL);
        let notes = wanted.then_some(&self.notes).into_iter().flatten();
        notes.filter(move |(key, _)| prefix.matches(key))
    }
}

fn weight(key: &Key, value: &Bytes) -> usize {
    key.as_str().len() + value.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_notes_go_first() {
        let mut board = Board::default();
        let key = |n: usize| format!("local::n::{n}").parse::<Key>().unwrap();
        for n in 0..ENTRIES_MAX {
            assert!(board.set(key(n), Bytes::from_static(b"v"), Stamp(n as u64)).is_empty());
        }
        board.set(key(0), Bytes::from_static(b"w"), Stamp(ENTRIES_MAX as u64));
        let gone = board.set(key(ENTRIES_MAX), Bytes::new(), Stamp(ENTRIES_MAX as u64 + 1));
        assert_eq!(gone, [key(1)]);
        assert!(board.get(&key(0)).is_some() && board.get(&key(1)).is_none());
        let large = Bytes::from(vec![0; BYTES_MAX / 2]);
        for n in 0..3 {
            board.set(key(n), large.clone(), Stamp(u64::MAX - 3 + n as u64));
        }
        assert!(board.bytes <= BYTES_MAX && board.get(&key(2)).is_some());
    }
}
