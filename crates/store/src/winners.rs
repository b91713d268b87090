//! The newest commit of every key, in the order of the keys' text. Knows where a winner stands in
//! the history, not what it holds. Shares each key's text with the commits.
//!
//! Whole tokens need no tree of tokens: everything below `a::b` begins with `a::b::` and so lies
//! together. Sorted blocks take half the memory of a trie, and some 50 bytes for a key.

use std::sync::Arc;

use model::Prefix;
use model::key::SEPARATOR;

use crate::commit::{Commit, Position};

/// Inserting moves half of this many entries, some 2 KiB.
const BLOCK_KEYS_MAX: usize = 128;
/// When many keys come at once, blocks leave room for some more.
const BLOCK_KEYS_FILLED: usize = BLOCK_KEYS_MAX - GROWTH;
/// Two neighbours that together hold no more than this become one.
const BLOCK_KEYS_MERGED: usize = BLOCK_KEYS_MAX / 2;
/// A block grows by this much, so that little of it is empty.
const GROWTH: usize = 16;

type Entry = (Arc<str>, Position);

#[derive(Clone, Copy, Debug)]
pub struct Slot {
    block: usize,
    index: usize,
    pub winner: Option<Position>,
}

#[derive(Clone, Debug, Default)]
pub struct Winners {
    /// None is empty.
    blocks: Vec<Vec<Entry>>,
    len: usize,
}

impl Winners {
    /// Of all these commits, which come in the order of the history.
    pub fn of<'a>(commits: impl Iterator<Item = &'a Commit>) -> Winners {
        let commits: Vec<&Commit> = commits.collect();
        let common = common_start(&commits);
        // Texts lie anywhere in memory: most keys differ in what is copied here.
        let start = |(n, commit): (usize, &&Commit)| {
            let mut start = [0; 16];
            let text = &commit.key.as_bytes()[common..];
            let length = text.len().min(start.len());
            start[..length].copy_from_slice(&text[..length]);
            let half = |at: usize| {
                u64::from_be_bytes(start[at..at + 8].try_into().expect("a half has 8 bytes"))
            };
            ([half(0), half(8)], n as u32)
        };
        let mut order: Vec<([u64; 2], u32)> = commits.iter().enumerate().map(start).collect();
        order.sort_unstable_by(|(a, n), (b, m)| {
            let key = |n: &u32| &commits[*n as usize].key;
            a.cmp(b).then_with(|| key(n).cmp(key(m))).then(n.cmp(m))
        });
        let mut winners = Winners::default();
        for (_, n) in order {
            winners.push(commits[n as usize]);
        }
        winners
    }

    /// The key is the last one, or comes after it.
    fn push(&mut self, commit: &Commit) {
        let entry = (commit.key.clone(), commit.at);
        match self.blocks.last_mut() {
            Some(block) if block.last().is_some_and(|(key, _)| *key == entry.0) => {
                block.pop();
                block.push(entry);
            }
            Some(block) if block.len() < BLOCK_KEYS_FILLED => {
                block.push(entry);
                self.len += 1;
            }
            _ => {
                let mut block = Vec::with_capacity(BLOCK_KEYS_FILLED);
                block.push(entry);
                self.blocks.push(block);
                self.len += 1;
            }
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn get(&self, key: &str) -> Option<Position> {
        self.slot(key).winner
    }

    /// The place of a key, which holds until the next change.
    pub fn slot(&self, key: &str) -> Slot {
        let (block, index) = self.find(key);
        let entry = self.blocks.get(block).and_then(|block| block.get(index));
        let winner = entry.filter(|(found, _)| **found == *key).map(|(_, at)| *at);
        Slot { block, index, winner }
    }

    /// Returns the winner before.
    pub fn set(&mut self, key: &Arc<str>, winner: Position) -> Option<Position> {
        self.set_in(self.slot(key), key, winner)
    }

    /// As `set`, where the slot of this key was looked up already: half of the work.
    pub fn set_in(&mut self, slot: Slot, key: &Arc<str>, winner: Position) -> Option<Position> {
        let Slot { block: at_block, index, .. } = slot;
        let Some(block) = self.blocks.get_mut(at_block) else {
            self.blocks.push(vec![(key.clone(), winner)]);
            self.len += 1;
            return None;
        };
        if let Some((found, at)) = block.get_mut(index)
            && *found == *key
        {
            // The older text goes with its commit: two texts of a key would be kept otherwise.
            *found = key.clone();
            return Some(std::mem::replace(at, winner));
        }
        self.len += 1;
        if block.len() == BLOCK_KEYS_MAX {
            // Keys that come in order leave full blocks behind.
            let at = if index == block.len() { index } else { block.len() / 2 };
            let mut upper = block.split_off(at);
            block.shrink_to_fit();
            if index >= at {
                insert(&mut upper, index - at, (key.clone(), winner));
            } else {
                insert(block, index, (key.clone(), winner));
            }
            self.blocks.insert(at_block + 1, upper);
            return None;
        }
        insert(block, index, (key.clone(), winner));
        None
    }

    pub fn remove(&mut self, key: &str) -> Option<Position> {
        let (at_block, index) = self.find(key);
        let block = self.blocks.get_mut(at_block)?;
        if *block.get(index)?.0 != *key {
            return None;
        }
        let (_, at) = block.remove(index);
        self.len -= 1;
        if block.is_empty() {
            self.blocks.remove(at_block);
        } else {
            self.merge_around(at_block);
        }
        Some(at)
    }

    /// The winners at and below a prefix, in the order of their keys.
    pub fn visit(&self, prefix: &Prefix, visit: &mut dyn FnMut(Position)) {
        let prefix = prefix.as_str();
        if prefix.is_empty() {
            return self.blocks.iter().flatten().for_each(|(_, at)| visit(*at));
        }
        if let Some(at) = self.get(prefix) {
            visit(at);
        }
        let below = format!("{prefix}{SEPARATOR}");
        for (_, at) in self.from(&below).take_while(|(key, _)| key.starts_with(&below)) {
            visit(*at);
        }
    }

    /// Of the same winners, those whose keys come after `key`, until `visit` returns false.
    pub fn visit_after(&self, prefix: &Prefix, key: &str, visit: &mut dyn FnMut(Position) -> bool) {
        let prefix = prefix.as_str();
        let mut below = String::new();
        if !prefix.is_empty() {
            below = format!("{prefix}{SEPARATOR}");
            if key < prefix && self.get(prefix).is_some_and(|at| !visit(at)) {
                return;
            }
        }
        let later = self.from(key.max(&below)).skip_while(|(held, _)| **held <= *key);
        let mut below = later.take_while(|(held, _)| held.starts_with(&below));
        below.all(|(_, at)| visit(*at));
    }

    fn from(&self, key: &str) -> impl Iterator<Item = &Entry> {
        let (at_block, index) = self.find(key);
        let blocks = self.blocks.get(at_block..).unwrap_or_default();
        blocks.iter().flatten().skip(index)
    }

    /// The block that holds `key` or would take it, and the index inside of it.
    fn find(&self, key: &str) -> (usize, usize) {
        let after = self.blocks.partition_point(|block| *block[0].0 <= *key);
        let at_block = after.saturating_sub(1);
        let index = self
            .blocks
            .get(at_block)
            .map_or(0, |block| block.partition_point(|(held, _)| **held < *key));
        (at_block, index)
    }

    fn merge_around(&mut self, at_block: usize) {
        for first in [at_block.saturating_sub(1), at_block] {
            let Some(second) = self.blocks.get(first + 1) else { return };
            if self.blocks[first].len() + second.len() <= BLOCK_KEYS_MERGED {
                let second = self.blocks.remove(first + 1);
                self.blocks[first].reserve_exact(second.len());
                self.blocks[first].extend(second);
                return;
            }
        }
    }
}

/// How many bytes all keys begin with.
fn common_start(commits: &[&Commit]) -> usize {
    let Some(first) = commits.first().map(|commit| commit.key.as_bytes()) else { return 0 };
    commits.iter().fold(first.len(), |common, commit| {
        let pairs = first[..common].iter().zip(commit.key.as_bytes());
        pairs.take_while(|(a, b)| a == b).count()
    })
}

fn insert(block: &mut Vec<Entry>, index: usize, entry: Entry) {
    if block.len() == block.capacity() {
        block.reserve_exact(GROWTH);
    }
    block.insert(index, entry);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::clock::Stamp;

    fn at(stamp: u64) -> Position {
        Position::start_of(Stamp(stamp))
    }

    fn check(winners: &Winners, expected: &BTreeMap<Arc<str>, Position>, prefix: &str) {
        assert_eq!(winners.len(), expected.len());
        let prefix: Prefix = prefix.parse().unwrap();
        let mut found = Vec::new();
        winners.visit(&prefix, &mut |at| found.push(at));
        let wanted = expected.iter().filter(|(key, _)| prefix.matches(&key.parse().unwrap()));
        assert_eq!(found, wanted.map(|(_, at)| *at).collect::<Vec<_>>());
        for block in &winners.blocks {
            assert!((1..=BLOCK_KEYS_MAX).contains(&block.len()));
            assert!(block.capacity() <= BLOCK_KEYS_MAX + GROWTH);
        }
    }

    proptest! {
        #[test]
        fn they_are_a_sorted_map(
            changes in prop::collection::vec(("[ab!](::[a-c!]{1,2}:?){0,3}", any::<bool>()), 1..400),
            prefix in "(a(::[a-c!])?)?",
        ) {
            let (mut winners, mut expected) = (Winners::default(), BTreeMap::new());
            for (stamp, (key, set)) in changes.iter().enumerate() {
                let (key, at) = (Arc::from(key.as_str()), at(1 + stamp as u64));
                prop_assert_eq!(winners.get(&key), expected.get(&key).copied());
                if *set {
                    prop_assert_eq!(winners.set(&key, at), expected.insert(key, at));
                } else {
                    prop_assert_eq!(winners.remove(&key), expected.remove(&key));
                }
            }
            check(&winners, &expected, &prefix);
        }
    }

    #[test]
    fn many_keys_in_any_order_and_out_again() {
        for step in [1u64, 7, 1999] {
            let (mut winners, mut expected) = (Winners::default(), BTreeMap::new());
            for n in 0..2000u64 {
                let key: Arc<str> = format!("k::{:04}", n * step % 2000).into();
                winners.set(&key, at(n + 1));
                expected.insert(key, at(n + 1));
            }
            check(&winners, &expected, "k");
            let full = winners.len() * 2 >= winners.blocks.len() * BLOCK_KEYS_MAX;
            assert!(full, "blocks are half full at least: {}", winners.blocks.len());
            for n in 0..1990u64 {
                let key: Arc<str> = format!("k::{n:04}").into();
                assert_eq!(winners.remove(&key), expected.remove(&key));
            }
            check(&winners, &expected, "k");
            assert!(winners.blocks.len() <= 2);
        }
    }
}
