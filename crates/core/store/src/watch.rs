//! Arrival numbers: the order in which this node took changes in, which is what a watcher resumes
//! from. Holds the newest arrivals only; a watcher that asks for older ones is told to read anew.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use model::Prefix;
use model::key::SEPARATOR;

/// Arrivals that are kept, a megabyte or so; a watcher that was away for more changes than this
/// reads its prefix again.
pub const ARRIVALS_KEPT_MAX: usize = 16_384;

/// The arrivals of one run of the store; a new run has a new incarnation.
#[derive(Clone, Debug)]
pub struct Arrivals {
    incarnation: u64,
    last: u64,
    kept: VecDeque<Arc<str>>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Since {
    /// Every key that changed, once, by its newest arrival, in order.
    Changed(Vec<(u64, Arc<str>)>),
    /// The cursor is unknown or too old.
    Resync,
}

impl Arrivals {
    pub fn new(incarnation: u64) -> Arrivals {
        Arrivals { incarnation, last: 0, kept: VecDeque::new() }
    }

    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub fn last(&self) -> u64 {
        self.last
    }

    pub fn note(&mut self, key: Arc<str>) -> u64 {
        if self.kept.len() == ARRIVALS_KEPT_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(key);
        self.last += 1;
        self.last
    }

    pub fn since(&self, incarnation: u64, arrival: u64, prefix: &Prefix) -> Since {
        let known = incarnation == self.incarnation && arrival <= self.last;
        if !known || self.last - arrival > self.kept.len() as u64 {
            return Since::Resync;
        }
        let mut seen = BTreeSet::new();
        let mut changed: Vec<(u64, Arc<str>)> = (arrival + 1..=self.last)
            .rev()
            .zip(self.kept.iter().rev())
            .filter(|(_, key)| matches(prefix, key) && seen.insert((*key).clone()))
            .map(|(arrival, key)| (arrival, key.clone()))
            .collect();
        changed.reverse();
        Since::Changed(changed)
    }
}

/// Does what `Prefix::matches` does, for a key that is known to be well formed.
pub fn matches(prefix: &Prefix, key: &str) -> bool {
    match key.strip_prefix(prefix.as_str()) {
        Some(rest) => prefix.as_str().is_empty() || rest.is_empty() || rest.starts_with(SEPARATOR),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn resuming_shows_every_change_after_the_cursor(
            keys in prop::collection::vec("[ab](::[cd])?", 0..40),
            from in 0u64..45,
            prefix in prop::sample::select(vec!["", "a", "a::c", "b"]),
        ) {
            let mut arrivals = Arrivals::new(7);
            for key in &keys {
                arrivals.note(key.as_str().into());
            }
            let prefix: Prefix = prefix.parse().unwrap();
            let expected = if from > keys.len() as u64 {
                Since::Resync
            } else {
                let after = &keys[from as usize..];
                let wanted = |key: &String| prefix.matches(&key.parse().unwrap());
                Since::Changed(
                    after
                        .iter()
                        .enumerate()
                        .filter(|(i, key)| wanted(key) && !after[i + 1..].contains(key))
                        .map(|(i, key)| (from + i as u64 + 1, key.as_str().into()))
                        .collect(),
                )
            };
            prop_assert_eq!(arrivals.since(7, from, &prefix), expected);
            prop_assert_eq!(arrivals.since(8, from, &prefix), Since::Resync);
        }
    }

    #[test]
    fn cursors_older_than_what_is_kept_are_told_to_resync() {
        let mut arrivals = Arrivals::new(1);
        for _ in 0..ARRIVALS_KEPT_MAX + 5 {
            arrivals.note("k".into());
        }
        assert_eq!(arrivals.since(1, 4, &Prefix::all()), Since::Resync);
        let newest = arrivals.last();
        let changed = Since::Changed(vec![(newest, "k".into())]);
        assert_eq!(arrivals.since(1, 5, &Prefix::all()), changed);
        assert_eq!(arrivals.since(1, newest, &Prefix::all()), Since::Changed(Vec::new()));
    }
}
