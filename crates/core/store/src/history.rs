//! All commits in order, in blocks that know the sum of their ids. Appending costs the same however
//! long the history is; a fingerprint of any range costs the sums of whole blocks and the ids of at
//! most two halves of a block. Blocks are shared with frozen copies until they change.

use std::sync::Arc;

use crate::clock::Stamp;
use crate::commit::{Commit, Position};
use crate::sum::{CommitSum, Fingerprint};
use crate::sync::message::StampRange;

/// Commits in a block. The two ends of a range cost at most this many ids to compute; as many
/// commits are one write of about 80 KiB in a snapshot.
pub const BLOCK_COMMITS_MAX: usize = 512;
/// Commits in two neighbouring blocks up to which the two become one.
const BLOCK_COMMITS_MERGED: usize = BLOCK_COMMITS_MAX / 2;

#[derive(Clone, Debug)]
pub struct HistoryBlock {
    commits: Vec<Commit>,
    sum: CommitSum,
}

impl HistoryBlock {
    fn of(commits: Vec<Commit>) -> HistoryBlock {
        let sum = sum_of(&commits);
        HistoryBlock { commits, sum }
    }

    pub fn commits(&self) -> &[Commit] {
        &self.commits
    }

    fn first(&self) -> Position {
        self.commits[0].at
    }

    /// Sums the shorter side and derives the other.
    fn sum_before(&self, index: usize) -> CommitSum {
        let (before, after) = self.commits.split_at(index);
        if before.len() <= after.len() { sum_of(before) } else { self.sum.minus(sum_of(after)) }
    }
}

fn sum_of(commits: &[Commit]) -> CommitSum {
    commits.iter().fold(CommitSum::default(), |sum, c| sum.plus(CommitSum::of(&c.cid())))
}

/// The history. It is cheap to clone: the clone shares every block until one of the two changes it.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The blocks in order; none of them is empty.
    blocks: Vec<Arc<HistoryBlock>>,
    total: CommitSum,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Inserted {
    New,
    /// The same commit was there and took over the new location. Holds the commit with its old one.
    Known(Commit),
    /// Another commit is at this position: two nodes share an id, or one forgot its past.
    Conflict(Commit),
}

impl History {
    pub fn len(&self) -> usize {
        self.total.count as usize
    }

    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub fn blocks(&self) -> impl Iterator<Item = &HistoryBlock> {
        self.blocks.iter().map(|block| &**block)
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Commit> {
        self.blocks.iter().flat_map(|block| &block.commits)
    }

    pub fn last(&self) -> Option<&Commit> {
        self.blocks.last()?.commits.last()
    }

    pub fn get(&self, at: Position) -> Option<&Commit> {
        let (block, index) = self.find(at);
        self.blocks.get(block)?.commits.get(index).filter(|commit| commit.at == at)
    }

    pub fn insert(&mut self, commit: Commit) -> Inserted {
        let cid = commit.cid();
        self.insert_as(commit, &cid)
    }

    /// Inserts a commit whose `cid` was computed elsewhere.
    pub fn insert_as(&mut self, commit: Commit, cid: &[u8; 32]) -> Inserted {
        let sum = CommitSum::of(cid);
        let (at_block, index) = self.find(commit.at);
        if let Some(known) = self.blocks.get(at_block).and_then(|b| b.commits.get(index))
            && known.at == commit.at
        {
            if CommitSum::of(&known.cid()) != sum {
                return Inserted::Conflict(commit);
            }
            let block = Arc::make_mut(&mut self.blocks[at_block]);
            return Inserted::Known(std::mem::replace(&mut block.commits[index], commit));
        }
        self.total = self.total.plus(sum);
        let appends = at_block + 1 >= self.blocks.len()
            && self.blocks.last().is_none_or(|block| index == block.commits.len());
        let full = |block: &Arc<HistoryBlock>| block.commits.len() >= BLOCK_COMMITS_MAX;
        if self.blocks.is_empty() || appends && full(&self.blocks[at_block]) {
            self.blocks.push(Arc::new(HistoryBlock { commits: vec![commit], sum }));
            return Inserted::New;
        }
        let block = Arc::make_mut(&mut self.blocks[at_block]);
        block.commits.insert(index, commit);
        block.sum = block.sum.plus(sum);
        if block.commits.len() > BLOCK_COMMITS_MAX {
            let upper = HistoryBlock::of(block.commits.split_off(block.commits.len() / 2));
            block.sum = block.sum.minus(upper.sum);
            block.commits.shrink_to_fit();
            self.blocks.insert(at_block + 1, Arc::new(upper));
        }
        Inserted::New
    }

    pub fn remove(&mut self, at: Position) -> Option<Commit> {
        let (at_block, index) = self.find(at);
        if self.blocks.get(at_block)?.commits.get(index)?.at != at {
            return None;
        }
        let block = Arc::make_mut(&mut self.blocks[at_block]);
        let commit = block.commits.remove(index);
        let sum = CommitSum::of(&commit.cid());
        block.sum = block.sum.minus(sum);
        self.total = self.total.minus(sum);
        if block.commits.is_empty() {
            self.blocks.remove(at_block);
        } else {
            self.merge_around(at_block);
        }
        Some(commit)
    }

    /// Returns the commit that has this many before it.
    pub fn nth(&self, mut index: usize) -> Option<&Commit> {
        for block in &self.blocks {
            match block.commits.get(index) {
                Some(commit) => return Some(commit),
                None => index -= block.commits.len(),
            }
        }
        None
    }

    /// Returns how many commits are before this position.
    pub fn rank(&self, at: Position) -> usize {
        let (at_block, index) = self.find(at);
        self.blocks[..at_block].iter().map(|block| block.commits.len()).sum::<usize>() + index
    }

    /// Iterates over the commits in order, from this position on.
    pub fn iter_from(&self, at: Position) -> impl Iterator<Item = &Commit> {
        let (at_block, index) = self.find(at);
        let blocks = self.blocks.get(at_block..).unwrap_or_default();
        blocks.iter().flat_map(|block| &block.commits).skip(index)
    }

    pub fn range(&self, range: StampRange) -> impl Iterator<Item = &Commit> {
        let (from, until) = range.bounds();
        self.iter_from(from.unwrap_or(Position::start_of(Stamp(0))))
            .take_while(move |commit| until.is_none_or(|until| commit.at < until))
    }

    /// Returns F of everything: the id of the history.
    pub fn head(&self) -> Fingerprint {
        self.total.fingerprint()
    }

    /// Returns F of the commits from `from` on and before `to`.
    pub fn fingerprint(&self, from: Option<Position>, to: Option<Position>) -> Fingerprint {
        self.sum(from, to).fingerprint()
    }

    pub fn sum(&self, from: Option<Position>, to: Option<Position>) -> CommitSum {
        let upper = to.map_or(self.total, |to| self.sum_before(to));
        match from {
            None => upper,
            Some(from) if to.is_some_and(|to| to <= from) => CommitSum::default(),
            Some(from) => upper.minus(self.sum_before(from)),
        }
    }

    /// Returns an id that is equal on two nodes exactly when their histories up to and including
    /// this commit are equal.
    pub fn chained_id(&self, at: Position) -> Option<[u8; 32]> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.get(at)?.cid());
        hasher.update(&self.sum_before(at).fingerprint().0);
        Some(*hasher.finalize().as_bytes())
    }

    /// Drops commits before `limit` that `keep` does not want and returns them; touches no other
    /// block.
    pub fn retain_before(
        &mut self,
        limit: Position,
        mut keep: impl FnMut(&Commit) -> bool,
    ) -> Vec<Commit> {
        let mut dropped = Vec::new();
        for block in &mut self.blocks {
            if block.first() >= limit {
                break;
            }
            let unwanted: Vec<bool> =
                block.commits.iter().map(|c| c.at < limit && !keep(c)).collect();
            if !unwanted.contains(&true) {
                continue;
            }
            let block = Arc::make_mut(block);
            let (mut rest, before) = (Vec::new(), dropped.len());
            for (commit, unwanted) in std::mem::take(&mut block.commits).into_iter().zip(unwanted) {
                if unwanted { dropped.push(commit) } else { rest.push(commit) }
            }
            // Computing ids is what takes the time, so it is done for the smaller part.
            let gone = &dropped[before..];
            let (sum, all) = (block.sum, rest.len() >= gone.len());
            let sum_left = if all { sum.minus(sum_of(gone)) } else { sum_of(&rest) };
            self.total = self.total.minus(sum.minus(sum_left));
            *block = HistoryBlock { commits: rest, sum: sum_left };
        }
        self.pack();
        dropped
    }

    /// Joins small neighbours after many commits were dropped.
    fn pack(&mut self) {
        let mut packed: Vec<Arc<HistoryBlock>> = Vec::new();
        for block in self.blocks.drain(..).filter(|block| !block.commits.is_empty()) {
            match packed.last_mut() {
                Some(last) if last.commits.len() + block.commits.len() <= BLOCK_COMMITS_MERGED => {
                    let last = Arc::make_mut(last);
                    last.commits.extend_from_slice(&block.commits);
                    last.sum = last.sum.plus(block.sum);
                }
                _ => packed.push(block),
            }
        }
        self.blocks = packed;
    }

    fn sum_before(&self, at: Position) -> CommitSum {
        let (at_block, index) = self.find(at);
        let Some(block) = self.blocks.get(at_block) else { return CommitSum::default() };
        let newer = &self.blocks[at_block + 1..];
        let whole = if at_block <= newer.len() {
            let older = &self.blocks[..at_block];
            older.iter().fold(CommitSum::default(), |sum, b| sum.plus(b.sum))
        } else {
            newer.iter().fold(self.total.minus(block.sum), |sum, b| sum.minus(b.sum))
        };
        whole.plus(block.sum_before(index))
    }

    /// Returns the block that holds `at` or would take it, and the index inside it.
    fn find(&self, at: Position) -> (usize, usize) {
        let Some(last) = self.blocks.last() else { return (0, 0) };
        // New commits come last, and recent ones are asked for most.
        if last.commits.last().is_some_and(|commit| commit.at < at) {
            return (self.blocks.len() - 1, last.commits.len());
        }
        let older = self.blocks.len() - 1;
        let after = match last.first() <= at {
            true => older + 1,
            false => self.blocks[..older].partition_point(|block| block.first() <= at),
        };
        let at_block = after.saturating_sub(1);
        let index = self
            .blocks
            .get(at_block)
            .map_or(0, |block| block.commits.partition_point(|commit| commit.at < at));
        (at_block, index)
    }

    fn merge_around(&mut self, at_block: usize) {
        let left = at_block.saturating_sub(1);
        for first in [left, at_block] {
            let Some(second) = self.blocks.get(first + 1) else { return };
            let together = self.blocks[first].commits.len() + second.commits.len();
            if together <= BLOCK_COMMITS_MERGED {
                let second = self.blocks.remove(first + 1);
                let block = Arc::make_mut(&mut self.blocks[first]);
                block.commits.extend_from_slice(&second.commits);
                block.sum = block.sum.plus(second.sum);
                return;
            }
        }
    }

    /// Recounts everything; for debug builds and tests.
    pub fn check_invariants(&self) {
        let mut total = CommitSum::default();
        let mut last = None;
        for block in &self.blocks {
            assert!((1..=BLOCK_COMMITS_MAX).contains(&block.commits.len()));
            assert_eq!(block.sum, sum_of(&block.commits));
            total = total.plus(block.sum);
            for commit in &block.commits {
                assert!(last < Some(commit.at), "commits are in order");
                last = Some(commit.at);
            }
        }
        assert_eq!(total, self.total);
    }
}
