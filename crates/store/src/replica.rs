//! What one node holds of the store: the history, the winners, the horizons, and what the places
//! of values are still needed for. Keeps itself normalised; decides nothing about disks or peers.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::Prefix;

use crate::clock::Stamp;
use crate::commit::{Action, Commit, Location, Position};
use crate::history::{History, Inserted};
use crate::trie::Trie;

/// `squash`: superseded commits before it are dropped. `garbage`: every member holds everything
/// up to it, so deletes up to it are dropped too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Horizons {
    pub squash: Stamp,
    pub garbage: Stamp,
}

impl Horizons {
    pub fn max(self, other: Horizons) -> Horizons {
        Horizons { squash: self.squash.max(other.squash), garbage: self.garbage.max(other.garbage) }
    }

    fn drops_superseded(&self, stamp: Stamp) -> bool {
        stamp < self.squash || stamp <= self.garbage
    }
}

/// A state that stays as it is while the replica goes on; sharing makes it cheap.
#[derive(Clone, Debug, Default)]
pub struct Frozen {
    pub history: History,
    pub horizons: Horizons,
    /// The newest stamp this node knows of, which the history may hold no longer.
    pub clock: Stamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admitted {
    /// It is the newest of its key.
    Winner,
    /// A newer one is held; this one is history.
    Superseded,
    /// It was held before; its location may be new.
    Known,
    /// The horizons say that nobody needs it.
    Dropped,
    /// Another commit has the same position: two nodes share an id.
    Conflict,
}

#[derive(Clone, Debug, Default)]
pub struct Replica {
    history: History,
    winners: Trie,
    horizons: Horizons,
    /// Winners that are deletes.
    deleted: usize,
    /// How many commits refer to a content-addressed file.
    files: BTreeMap<[u8; 32], u32>,
    /// Bytes of records in each segment of the log that hold values of commits.
    segments: BTreeMap<u32, u64>,
}

impl Replica {
    pub fn history(&self) -> &History {
        &self.history
    }

    pub fn horizons(&self) -> Horizons {
        self.horizons
    }

    /// Keys that have a value.
    pub fn live(&self) -> usize {
        self.winners.len() - self.deleted
    }

    /// Commits that a squash may drop: superseded ones and deletes.
    pub fn droppable(&self) -> usize {
        self.history.len() - self.live()
    }

    /// The commit that gave the key its present value.
    pub fn get(&self, key: &str) -> Option<&Commit> {
        self.winner(key).filter(|commit| !commit.is_delete())
    }

    /// As `get`, for every key at and below a prefix, in key order.
    pub fn prefix(&self, prefix: &Prefix) -> Vec<&Commit> {
        let mut found = Vec::new();
        self.winners.visit(prefix, &mut |at| {
            let commit = self.history.get(at).expect("a winner is in the history");
            if !commit.is_delete() {
                found.push(commit);
            }
        });
        // Token order and text order differ: "a!" stands before "a::b" as a text.
        found.sort_by(|a, b| a.key.cmp(&b.key));
        found
    }

    pub fn refers_to(&self, hash: &[u8; 32]) -> bool {
        self.files.contains_key(hash)
    }

    /// Bytes of records that hold values, by segment of the log.
    pub fn segments(&self) -> &BTreeMap<u32, u64> {
        &self.segments
    }

    /// The commits whose values lie in one segment.
    pub fn located_in(&self, wanted: u32) -> impl Iterator<Item = &Commit> {
        self.history.iter().filter(
            move |c| matches!(c.location, Location::Log { segment, .. } if segment == wanted),
        )
    }

    pub fn freeze(&self, clock: Stamp) -> Frozen {
        Frozen { history: self.history.clone(), horizons: self.horizons, clock }
    }

    pub fn admit(&mut self, commit: Commit) -> Admitted {
        let winner = self.winners.get(&commit.key);
        // A commit that is held is never beyond the horizons, so `Known` is not cut off below.
        let wins = winner.is_none_or(|winner| winner < commit.at);
        let at = commit.at;
        let droppable = self.horizons.drops_superseded(at.stamp);
        if winner.is_some_and(|winner| winner > at) && droppable {
            return Admitted::Dropped;
        }
        if wins && commit.is_delete() && at.stamp <= self.horizons.garbage {
            self.forget_key(&commit.key);
            return Admitted::Dropped;
        }
        let key = commit.key.clone();
        let deletes = commit.is_delete();
        self.count(&commit);
        match self.history.insert(commit.clone()) {
            Inserted::New => {}
            Inserted::Known(old) => {
                self.uncount(&old);
                return Admitted::Known;
            }
            Inserted::Conflict => {
                self.uncount(&commit);
                return Admitted::Conflict;
            }
        }
        if !wins {
            return Admitted::Superseded;
        }
        self.winners.set(&key, at);
        self.deleted += usize::from(deletes);
        if let Some(old) = winner {
            let old_deletes = self.history.get(old).is_some_and(Commit::is_delete);
            self.deleted -= usize::from(old_deletes);
            if self.horizons.drops_superseded(old.stamp) {
                self.drop_commit(old);
            }
        }
        Admitted::Winner
    }

    /// False when the commit is not held any more.
    pub fn relocate(&mut self, at: Position, location: Location) -> bool {
        let Some(commit) = self.history.get(at) else { return false };
        let moved = Commit { location, ..commit.clone() };
        self.admit(moved) == Admitted::Known
    }

    /// Raises the horizons and drops what nobody needs any more.
    pub fn raise(&mut self, horizons: Horizons) -> usize {
        let horizons = self.horizons.max(horizons);
        if horizons == self.horizons {
            return 0;
        }
        self.horizons = horizons;
        let limit = horizons.squash.max(Stamp(horizons.garbage.0.saturating_add(1)));
        let winners = &self.winners;
        let dropped = self.history.retain_before(Position::start_of(limit), |commit| {
            let wins = winners.get(&commit.key) == Some(commit.at);
            let garbage = commit.is_delete() && commit.at.stamp <= horizons.garbage;
            if wins { !garbage } else { !horizons.drops_superseded(commit.at.stamp) }
        });
        for commit in &dropped {
            self.uncount(commit);
            if self.winners.get(&commit.key) == Some(commit.at) {
                self.winners.remove(&commit.key);
                self.deleted -= 1;
            }
        }
        dropped.len()
    }

    /// The stamp below which half of what can be dropped lies.
    pub fn median_droppable(&self) -> Stamp {
        let half = self.droppable() / 2;
        let droppable =
            self.history.iter().filter(|c| c.is_delete() || self.winners.get(&c.key) != Some(c.at));
        droppable.skip(half).map(|commit| commit.at.stamp).next().unwrap_or_default()
    }

    fn winner(&self, key: &str) -> Option<&Commit> {
        self.history.get(self.winners.get(key)?)
    }

    /// A delete that every member knows takes its key's older commits with it; they lie at or
    /// below the garbage horizon, so the newest alone can be left.
    fn forget_key(&mut self, key: &str) {
        if let Some(old) = self.winners.remove(key) {
            let deletes = self.history.get(old).is_some_and(Commit::is_delete);
            self.deleted -= usize::from(deletes);
            self.drop_commit(old);
        }
    }

    fn drop_commit(&mut self, at: Position) {
        if let Some(commit) = self.history.remove(at) {
            self.uncount(&commit);
        }
    }

    fn count(&mut self, commit: &Commit) {
        match (commit.location, commit.action) {
            (Location::Log { segment, .. }, _) => {
                *self.segments.entry(segment).or_default() += weight(commit);
            }
            (Location::File, Action::Set { hash, .. }) => {
                *self.files.entry(hash).or_default() += 1;
            }
            _ => {}
        }
    }

    fn uncount(&mut self, commit: &Commit) {
        match (commit.location, commit.action) {
            (Location::Log { segment, .. }, _) => {
                let bytes = self.segments.entry(segment).or_default();
                *bytes = bytes.saturating_sub(weight(commit));
                if *bytes == 0 {
                    self.segments.remove(&segment);
                }
            }
            (Location::File, Action::Set { hash, .. }) => {
                let count = self.files.entry(hash).or_default();
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.files.remove(&hash);
                }
            }
            _ => {}
        }
    }

    pub fn check_invariants(&self) {
        self.history.check_invariants();
        let mut newest: BTreeMap<Arc<str>, &Commit> = BTreeMap::new();
        for commit in self.history.iter() {
            newest.insert(commit.key.clone(), commit);
        }
        assert_eq!(newest.len(), self.winners.len());
        for (key, commit) in &newest {
            assert_eq!(self.winners.get(key), Some(commit.at));
        }
        let deleted = newest.values().filter(|commit| commit.is_delete()).count();
        assert_eq!(deleted, self.deleted);
        for commit in self.history.iter() {
            let wins = newest[&commit.key].at == commit.at;
            let stamp = commit.at.stamp;
            assert!(wins || !self.horizons.drops_superseded(stamp), "normalised");
            assert!(!wins || !commit.is_delete() || stamp > self.horizons.garbage, "normalised");
        }
    }
}

/// About what a commit's record takes in the log.
fn weight(commit: &Commit) -> u64 {
    commit.encoded_length() as u64 + commit.size()
}
