//! The newest commit of every key, in the order of the keys' text. Knows where a winner stands in
//! the history and whether it ends, not what it holds. Shares each key's text with the commits.
//!
//! Whole tokens need no tree of tokens: everything below `a::b` begins with `a::b::` and so lies
//! together. Sorted blocks take half the memory of a trie, and some 60 bytes for a key.

mod guide;

use std::iter::Peekable;
use std::sync::Arc;
use std::vec;

use model::Prefix;
use model::key::SEPARATOR;

use self::guide::{Guide, common_bytes};
use crate::commit::{Commit, Position};

/// Keys in a block; inserting moves half as many entries, some 2 KiB.
const BLOCK_KEYS_MAX: usize = 128;
/// Keys in a block when many come at once, which leaves room for some more.
const BLOCK_KEYS_FILLED: usize = BLOCK_KEYS_MAX - GROWTH;
/// Keys in two neighbouring blocks up to which the two become one.
const BLOCK_KEYS_MERGED: usize = BLOCK_KEYS_MAX / 2;
/// Keys by which a block grows, so that little of it is empty.
const GROWTH: usize = 16;

/// Winners that are sorted in about the time that it takes to look one key up.
const SORTED_FROM: usize = 8;

/// What must be known of a winner when another one takes its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WinnerKind {
    Lasting,
    /// Its value expires.
    Ending,
    Delete,
}

impl WinnerKind {
    pub fn of(commit: &Commit) -> WinnerKind {
        match commit.expires() {
            _ if commit.is_delete() => WinnerKind::Delete,
            Some(_) => WinnerKind::Ending,
            None => WinnerKind::Lasting,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Winner {
    pub at: Position,
    pub kind: WinnerKind,
}

impl Winner {
    pub fn of(commit: &Commit) -> Winner {
        Winner { at: commit.at, kind: WinnerKind::of(commit) }
    }
}

#[derive(Clone, Debug)]
struct KeyWinner {
    key: Arc<str>,
    winner: Winner,
}

#[derive(Clone, Debug, Default)]
struct Block {
    guide: Guide,
    entries: Vec<KeyWinner>,
}

impl Block {
    fn of(entries: Vec<KeyWinner>) -> Block {
        let guide = Guide::of(entries.len(), |index| &*entries[index].key);
        Block { guide, entries }
    }

    fn find(&self, key: &str) -> Result<usize, usize> {
        self.guide.find(key, |index| &*self.entries[index].key)
    }

    fn insert(&mut self, index: usize, entry: KeyWinner) {
        if self.entries.len() == self.entries.capacity() {
            self.entries.reserve_exact(GROWTH);
        }
        self.entries.insert(index, entry);
        let entries = &self.entries;
        self.guide.set(index, entries.len(), |index| &*entries[index].key);
    }

    fn split_off(&mut self, at: usize) -> Block {
        let upper = Block { guide: self.guide.split_off(at), entries: self.entries.split_off(at) };
        self.entries.shrink_to_fit();
        upper
    }
}

/// The answer to whether commits are winners.
pub enum Wins<'a> {
    Looked(&'a Winners),
    Sorted(Peekable<vec::IntoIter<Position>>),
}

impl Wins<'_> {
    pub fn has(&mut self, commit: &Commit) -> bool {
        match self {
            Wins::Looked(winners) => winners.get(&commit.key) == Some(commit.at),
            Wins::Sorted(winners) => {
                while winners.next_if(|at| *at < commit.at).is_some() {}
                winners.peek() == Some(&commit.at)
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct WinnerSlot {
    block: usize,
    index: usize,
    pub winner: Option<Winner>,
}

#[derive(Clone, Debug, Default)]
pub struct Winners {
    /// The blocks in order; none of them is empty.
    blocks: Vec<Block>,
    /// A guide to the first key of each block.
    firsts: Guide,
    len: usize,
}

impl Winners {
    /// Finds the winners among these commits, which come in the order of the history.
    pub fn of<'a>(commits: impl Iterator<Item = &'a Commit>) -> Winners {
        let commits: Vec<&Commit> = commits.collect();
        let common = common_start(&commits);
        // Texts are anywhere in memory: most keys differ in what is copied here.
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
        let mut blocks = Vec::new();
        let mut filling: Vec<KeyWinner> = Vec::new();
        for (_, n) in order {
            let commit = commits[n as usize];
            let entry = KeyWinner { key: commit.key.clone(), winner: Winner::of(commit) };
            if let Some(last) = filling.last_mut().filter(|last| last.key == entry.key) {
                *last = entry;
                continue;
            }
            if filling.len() == BLOCK_KEYS_FILLED {
                let full = std::mem::replace(&mut filling, Vec::with_capacity(BLOCK_KEYS_FILLED));
                blocks.push(Block::of(full));
            }
            filling.push(entry);
        }
        if !filling.is_empty() {
            filling.shrink_to_fit();
            blocks.push(Block::of(filling));
        }
        let len = blocks.iter().map(|block| block.entries.len()).sum();
        let firsts = Guide::of(blocks.len(), |block| first(&blocks, block));
        Winners { blocks, firsts, len }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn get(&self, key: &str) -> Option<Position> {
        self.slot(key).winner.map(|winner| winner.at)
    }

    /// Returns the place of a key, which holds until the next change.
    pub fn slot(&self, key: &str) -> WinnerSlot {
        let (block, found) = self.find(key);
        let winner = found.ok().map(|index| self.blocks[block].entries[index].winner);
        WinnerSlot { block, index: found.unwrap_or_else(|index| index), winner }
    }

    /// Sets the winner of a key and returns the one before.
    pub fn set(&mut self, key: &Arc<str>, winner: Winner) -> Option<Winner> {
        let slot = self.slot(key);
        self.set_in(slot, key, winner);
        slot.winner
    }

    /// Sets it like `set` where the slot of this key was looked up already, which saves half of the
    /// work.
    pub fn set_in(&mut self, slot: WinnerSlot, key: &Arc<str>, winner: Winner) {
        let WinnerSlot { block: at_block, index, winner: before } = slot;
        // An older text goes with its commit: two texts of a key would be kept otherwise.
        let entry = KeyWinner { key: key.clone(), winner };
        if before.is_some() {
            self.blocks[at_block].entries[index] = entry;
            return;
        }
        self.len += 1;
        let Some(block) = self.blocks.get_mut(at_block) else {
            self.blocks.push(Block::of(vec![entry]));
            return self.first_changed(at_block);
        };
        if block.entries.len() < BLOCK_KEYS_MAX {
            block.insert(index, entry);
        } else {
            // Keys that come in order leave full blocks behind.
            let at = if index == BLOCK_KEYS_MAX { index } else { BLOCK_KEYS_MAX / 2 };
            let mut upper = block.split_off(at);
            if index >= at {
                upper.insert(index - at, entry);
            } else {
                block.insert(index, entry);
            }
            self.blocks.insert(at_block + 1, upper);
            self.first_changed(at_block + 1);
        }
        if index == 0 {
            self.first_changed(at_block);
        }
    }

    pub fn remove(&mut self, key: &str) -> Option<Winner> {
        let (at_block, found) = self.find(key);
        let index = found.ok()?;
        let block = &mut self.blocks[at_block];
        let entry = block.entries.remove(index);
        block.guide.remove(index);
        self.len -= 1;
        if block.entries.is_empty() {
            self.remove_block(at_block);
        } else {
            if index == 0 {
                self.first_changed(at_block);
            }
            self.merge_around(at_block);
        }
        Some(entry.winner)
    }

    /// Prepares to ask for many commits in the order of the history, all of them before `until`:
    /// sorting the winners once costs less than looking up so many keys.
    pub fn asked(&self, times: usize, until: Position) -> Wins<'_> {
        if times < self.len / SORTED_FROM {
            return Wins::Looked(self);
        }
        let mut winners = Vec::new();
        self.visit(&Prefix::all(), &mut |at| winners.extend((at < until).then_some(at)));
        winners.sort_unstable();
        Wins::Sorted(winners.into_iter().peekable())
    }

    /// Visits the winners at and below a prefix, in the order of their keys.
    pub fn visit(&self, prefix: &Prefix, visit: &mut dyn FnMut(Position)) {
        let prefix = prefix.as_str();
        let mut visit = |entry: &KeyWinner| visit(entry.winner.at);
        if prefix.is_empty() {
            return self.blocks.iter().flat_map(|block| &block.entries).for_each(visit);
        }
        if let (block, Ok(index)) = self.find(prefix) {
            visit(&self.blocks[block].entries[index]);
        }
        let below = format!("{prefix}{SEPARATOR}");
        self.from(&below).take_while(|entry| entry.key.starts_with(&below)).for_each(visit);
    }

    /// Visits those of the same winners whose keys come after `key`, until `visit` returns false.
    pub fn visit_after(&self, prefix: &Prefix, key: &str, visit: &mut dyn FnMut(Position) -> bool) {
        let prefix = prefix.as_str();
        let mut below = String::new();
        if !prefix.is_empty() {
            below = format!("{prefix}{SEPARATOR}");
            if key < prefix && self.get(prefix).is_some_and(|at| !visit(at)) {
                return;
            }
        }
        let later = self.from(key.max(&below)).skip_while(|entry| *entry.key <= *key);
        let mut below = later.take_while(|entry| entry.key.starts_with(&below));
        below.all(|entry| visit(entry.winner.at));
    }

    fn from(&self, key: &str) -> impl Iterator<Item = &KeyWinner> {
        let (at_block, found) = self.find(key);
        let index = found.unwrap_or_else(|index| index);
        let blocks = self.blocks.get(at_block..).unwrap_or_default();
        blocks.iter().flat_map(|block| &block.entries).skip(index)
    }

    /// Returns the block that holds `key` or would take it, and the index inside it.
    fn find(&self, key: &str) -> (usize, Result<usize, usize>) {
        let at_block = match self.firsts.find(key, |block| first(&self.blocks, block)) {
            Ok(block) => return (block, Ok(0)),
            Err(after) => after.saturating_sub(1),
        };
        (at_block, self.blocks.get(at_block).map_or(Err(0), |block| block.find(key)))
    }

    /// Notes that a block has another first key, or is new.
    fn first_changed(&mut self, at_block: usize) {
        let blocks = &self.blocks;
        self.firsts.set(at_block, blocks.len(), |block| first(blocks, block));
    }

    fn remove_block(&mut self, at_block: usize) -> Block {
        self.firsts.remove(at_block);
        self.blocks.remove(at_block)
    }

    fn merge_around(&mut self, at_block: usize) {
        let keys = |block: &Block| block.entries.len();
        for first in [at_block.saturating_sub(1), at_block] {
            let Some(second) = self.blocks.get(first + 1) else { return };
            if keys(&self.blocks[first]) + keys(second) <= BLOCK_KEYS_MERGED {
                let second = self.remove_block(first + 1);
                let mut entries = std::mem::take(&mut self.blocks[first].entries);
                entries.reserve_exact(second.entries.len());
                entries.extend(second.entries);
                self.blocks[first] = Block::of(entries);
                return;
            }
        }
    }
}

fn first(blocks: &[Block], block: usize) -> &str {
    &blocks[block].entries[0].key
}

/// Returns how many bytes all keys begin with.
fn common_start(commits: &[&Commit]) -> usize {
    let Some(first) = commits.first().map(|commit| commit.key.as_bytes()) else { return 0 };
    commits
        .iter()
        .fold(first.len(), |common, commit| common_bytes(&first[..common], commit.key.as_bytes()))
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

    fn lasting(stamp: u64) -> Winner {
        Winner { at: at(stamp), kind: WinnerKind::Lasting }
    }

    fn check(winners: &Winners, expected: &BTreeMap<Arc<str>, Winner>, prefix: &str) {
        assert_eq!(winners.len(), expected.len());
        let prefix: Prefix = prefix.parse().unwrap();
        let mut found = Vec::new();
        winners.visit(&prefix, &mut |at| found.push(at));
        let wanted = expected.iter().filter(|(key, _)| prefix.matches(&key.parse().unwrap()));
        assert_eq!(found, wanted.map(|(_, winner)| winner.at).collect::<Vec<_>>());
        for block in &winners.blocks {
            assert!((1..=BLOCK_KEYS_MAX).contains(&block.entries.len()));
            assert!(block.entries.capacity() <= BLOCK_KEYS_MAX + GROWTH);
        }
    }

    proptest! {
        #[test]
        fn winners_behave_like_a_sorted_map(
            changes in prop::collection::vec(("[ab!](::[a-c!]{1,2}:?){0,3}", any::<bool>()), 1..400),
            prefix in "(a(::[a-c!])?)?",
        ) {
            let (mut winners, mut expected) = (Winners::default(), BTreeMap::new());
            for (stamp, (key, set)) in changes.iter().enumerate() {
                let (key, winner) = (Arc::from(key.as_str()), lasting(1 + stamp as u64));
                prop_assert_eq!(winners.slot(&key).winner, expected.get(&key).copied());
                if *set {
                    prop_assert_eq!(winners.set(&key, winner), expected.insert(key, winner));
                } else {
                    prop_assert_eq!(winners.remove(&key), expected.remove(&key));
                }
            }
            check(&winners, &expected, &prefix);
        }
    }

    #[test]
    fn many_keys_are_inserted_in_any_order_and_removed_again() {
        for step in [1u64, 7, 1999] {
            let (mut winners, mut expected) = (Winners::default(), BTreeMap::new());
            for n in 0..2000u64 {
                let key: Arc<str> = format!("k::{:04}", n * step % 2000).into();
                winners.set(&key, lasting(n + 1));
                expected.insert(key, lasting(n + 1));
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
