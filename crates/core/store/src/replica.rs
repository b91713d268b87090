//! One node's holdings of the store: the history, the winners, the horizons, and what the places of
//! values are still needed for. The replica keeps itself normalised and decides nothing about disks
//! or peers.

mod restore;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{Prefix, Timestamp};

use crate::clock::Stamp;
use crate::commit::{Commit, CommitAction, Location, Position};
use crate::event::Standing;
use crate::expiry::{Expiring, Expiry};
use crate::history::{History, Inserted};
use crate::sync::message::Vector;
use crate::winners::{Winner, WinnerKind, Winners};

pub use self::restore::Restoring;

/// The horizons. `squash`: superseded commits before it are dropped. `garbage`: every member holds
/// everything up to it, so deletes up to it are dropped too.
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

    /// Returns whether a winner is dropped: deletes that every member knows, and sets that every
    /// member knows and whose instant the squash horizon has passed. Horizons are exchanged and
    /// clocks are not, so that two nodes with equal horizons drop the same.
    pub fn drops_winner(&self, commit: &Commit) -> bool {
        let ended = match commit.action {
            CommitAction::Delete => true,
            CommitAction::Set { expires, .. } => {
                expires.is_some_and(|e| e.time() < self.squash.time())
            }
        };
        ended && commit.at.stamp <= self.garbage
    }
}

/// A state that stays as it is while the replica goes on; sharing makes it cheap.
#[derive(Clone, Debug, Default)]
pub struct Frozen {
    pub history: History,
    pub horizons: Horizons,
    /// The newest stamp this node knows of, whose commit the history may no longer hold.
    pub clock: Stamp,
    pub promised: Stamp,
    pub held: Vector,
    pub standing: Standing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admitted {
    /// The commit is the newest of its key.
    Winner,
    /// A newer commit is held; this one is history.
    Superseded,
    /// The commit was held before; its location may be new.
    Known,
    /// The commit was dropped: the horizons say that nobody needs it.
    Dropped,
    /// The commit was dropped, and with it an older one that was held.
    Ended,
    /// Another commit has the same position: two nodes share an id.
    Conflict,
}

#[derive(Clone, Debug, Default)]
pub struct Replica {
    history: History,
    winners: Winners,
    horizons: Horizons,
    /// The number of winners that are deletes.
    deleted: usize,
    expiring: Expiring,
    /// The number of commits that refer to each content-addressed file.
    files: BTreeMap<[u8; 32], u32>,
    /// The bytes of records that hold values of commits, by segment of the log.
    segments: BTreeMap<u32, u64>,
    absent: BTreeMap<[u8; 32], Absent>,
}

/// A large value that is not here yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Absent {
    pub size: u64,
    pub needed_by: BTreeSet<Position>,
}

impl Replica {
    pub fn history(&self) -> &History {
        &self.history
    }

    pub fn horizons(&self) -> Horizons {
        self.horizons
    }

    /// Returns the number of keys that have a value.
    pub fn live(&self, now: Timestamp) -> usize {
        self.winners.len() - self.deleted - self.expiring.passed(now)
    }

    /// Returns the number of commits that a squash may drop: superseded ones, deletes and what has
    /// expired.
    pub fn droppable(&self) -> usize {
        self.history.len() - (self.winners.len() - self.deleted - self.expiring.noticed())
    }

    /// Returns the commit that gave the key its present value.
    pub fn get(&self, key: &str, now: Timestamp) -> Option<&Commit> {
        self.winner(key).filter(|commit| commit.lives(now))
    }

    /// Returns the next instant at which a value ends.
    pub fn next_expiry(&self) -> Option<Expiry> {
        self.expiring.first()
    }

    /// Takes note of one winner whose instant has passed; it stays until the horizons drop it.
    pub fn notice_expiry(&mut self, now: Timestamp) -> Option<&Commit> {
        let at = self.expiring.notice(now)?;
        Some(self.history.get(at).expect("a winner is in the history"))
    }

    /// Returns what `get` does for every key at and below a prefix, in key order.
    pub fn prefix(&self, prefix: &Prefix, now: Timestamp) -> Vec<&Commit> {
        let mut found = Vec::new();
        self.winners.visit(prefix, &mut |at| {
            let commit = self.history.get(at).expect("a winner is in the history");
            if commit.lives(now) {
                found.push(commit);
            }
        });
        found
    }

    /// Returns at most `limit` keys with a value after `after`, in key order.
    pub fn page(&self, prefix: &Prefix, after: &str, limit: usize, now: Timestamp) -> Vec<&Commit> {
        let mut found = Vec::new();
        self.winners.visit_after(prefix, after, &mut |at| {
            let commit = self.history.get(at).expect("a winner is in the history");
            if found.len() < limit && commit.lives(now) {
                found.push(commit);
            }
            found.len() < limit
        });
        found
    }

    pub fn refers_to(&self, hash: &[u8; 32]) -> bool {
        self.files.contains_key(hash)
    }

    /// Returns the bytes of records that hold values, by segment of the log.
    pub fn segments(&self) -> &BTreeMap<u32, u64> {
        &self.segments
    }

    /// Returns the commits whose values are in one segment.
    pub fn located_in(&self, wanted: u32) -> impl Iterator<Item = &Commit> {
        self.history.iter().filter(
            move |c| matches!(c.location, Location::Log { segment, .. } if segment == wanted),
        )
    }

    pub fn admit(&mut self, commit: Commit) -> Admitted {
        let cid = commit.cid();
        self.admit_as(commit, &cid)
    }

    /// Admits a commit whose `cid` was computed elsewhere: opening does that on another thread.
    pub fn admit_as(&mut self, commit: Commit, cid: &[u8; 32]) -> Admitted {
        let slot = self.winners.slot(&commit.key);
        let winner = slot.winner.map(|winner| winner.at);
        // A commit that is held is never beyond the horizons, so `Known` is not cut off below.
        let wins = winner.is_none_or(|winner| winner < commit.at);
        let at = commit.at;
        let droppable = self.horizons.drops_superseded(at.stamp);
        if winner.is_some_and(|winner| winner > at) && droppable {
            return Admitted::Dropped;
        }
        if wins && self.horizons.drops_winner(&commit) {
            return match self.forget_key(&commit.key) {
                true => Admitted::Ended,
                false => Admitted::Dropped,
            };
        }
        let (key, wins_as, expires) = (commit.key.clone(), Winner::of(&commit), commit.expires());
        self.count(&commit);
        match self.history.insert_as(commit, cid) {
            Inserted::New => {}
            Inserted::Known(old) => {
                self.uncount(&old);
                return Admitted::Known;
            }
            Inserted::Conflict(commit) => {
                self.uncount(&commit);
                return Admitted::Conflict;
            }
        }
        if !wins {
            return Admitted::Superseded;
        }
        self.winners.set_in(slot, &key, wins_as);
        self.deleted += usize::from(wins_as.kind == WinnerKind::Delete);
        if let Some(expires) = expires {
            self.expiring.enter(expires, at);
        }
        if let Some(old) = slot.winner {
            self.dethrone(old);
            if self.horizons.drops_superseded(old.at.stamp) {
                self.drop_commit(old.at);
            }
        }
        Admitted::Winner
    }

    /// Gives a commit another location. Returns false if the commit is no longer held.
    pub fn relocate(&mut self, at: Position, location: Location) -> bool {
        let Some(commit) = self.history.get(at) else { return false };
        let moved = Commit { location, ..commit.clone() };
        self.admit(moved) == Admitted::Known
    }

    /// Lowers the horizons to nothing: what one cluster has collected says nothing of another.
    pub fn lower_horizons(&mut self) {
        self.horizons = Horizons::default();
    }

    /// Limits the squash horizon, as a clock that ran ahead may have squashed ahead. What was
    /// dropped had been superseded all the same.
    pub fn limit_squash(&mut self, newest: Stamp) {
        let least = Stamp(self.horizons.garbage.0.saturating_add(1));
        self.horizons.squash = self.horizons.squash.min(newest.max(least));
    }

    /// Raises the horizons, drops what nobody needs any more and returns how many commits that
    /// were.
    pub fn raise(&mut self, horizons: Horizons) -> usize {
        let horizons = self.horizons.max(horizons);
        if horizons == self.horizons {
            return 0;
        }
        self.horizons = horizons;
        let limit = horizons.squash.max(Stamp(horizons.garbage.0.saturating_add(1)));
        let limit = Position::start_of(limit);
        let mut wins = self.winners.asked(self.history.rank(limit), limit);
        let dropped = self.history.retain_before(limit, |commit| {
            if wins.has(commit) {
                !horizons.drops_winner(commit)
            } else {
                !horizons.drops_superseded(commit.at.stamp)
            }
        });
        for commit in &dropped {
            self.uncount(commit);
            // No other winner is dropped.
            let ends = commit.is_delete() || commit.expires().is_some();
            if ends && self.winners.get(&commit.key) == Some(commit.at) {
                self.winners.remove(&commit.key);
                self.deleted -= usize::from(commit.is_delete());
                if let Some(expires) = commit.expires() {
                    self.expiring.leave(expires, commit.at);
                }
            }
        }
        dropped.len()
    }

    /// Takes commits out as if they had never been; the next newest of a key wins it then.
    pub fn forget(&mut self, positions: &[Position]) {
        let mut keys: BTreeSet<Arc<str>> = BTreeSet::new();
        for at in positions {
            let Some(commit) = self.history.get(*at).cloned() else { continue };
            if self.winners.get(&commit.key) == Some(*at)
                && let Some(old) = self.winners.remove(&commit.key)
            {
                self.dethrone(old);
                keys.insert(commit.key.clone());
            }
            self.drop_commit(*at);
        }
        let mut newest: BTreeMap<Arc<str>, &Commit> = BTreeMap::new();
        for commit in self.history.iter().filter(|commit| keys.contains(&commit.key)) {
            newest.insert(commit.key.clone(), commit);
        }
        for (key, commit) in newest {
            self.winners.set(&key, Winner::of(commit));
            self.deleted += usize::from(commit.is_delete());
            if let Some(expires) = commit.expires() {
                self.expiring.enter(expires, commit.at);
            }
        }
        // What is the newest now may be a delete that everybody knows.
        let horizons = std::mem::take(&mut self.horizons);
        self.raise(horizons);
    }

    /// Returns the newest commits of the keys below a prefix, deletes too.
    pub fn winners(&self, prefix: &Prefix) -> Vec<&Commit> {
        let mut found = Vec::new();
        self.winners.visit(prefix, &mut |at| found.extend(self.history.get(at)));
        found
    }

    pub fn newest(&self, key: &str) -> Option<&Commit> {
        self.winner(key)
    }

    /// Returns the large values that commits need and that are not here, with their sizes.
    pub fn absent(&self) -> &BTreeMap<[u8; 32], Absent> {
        &self.absent
    }

    /// Returns the squash horizon that would drop half of what can be dropped.
    pub fn median_droppable(&self) -> Stamp {
        let half = self.droppable() / 2;
        let mut wins = self.winners.asked(self.history.len(), Position::start_of(Stamp(u64::MAX)));
        let droppable = self.history.iter().filter_map(|c| self.drop_at(c, wins.has(c)));
        let mut stamps: Vec<Stamp> = droppable.collect();
        if stamps.len() <= half {
            return Stamp::default();
        }
        *stamps.select_nth_unstable(half).1
    }

    /// Returns the squash horizon, garbage just below it, that would drop this commit; `None` while
    /// it is a live winner.
    fn drop_at(&self, commit: &Commit, wins: bool) -> Option<Stamp> {
        let after = Stamp(commit.at.stamp.0.saturating_add(1));
        if commit.is_delete() || !wins {
            return Some(after);
        }
        let expires = commit.expires()?;
        let noticed = !self.expiring.contains(expires, commit.at);
        noticed.then(|| after.max(Stamp::start_of(Timestamp(expires.time().0.saturating_add(1)))))
    }

    fn winner(&self, key: &str) -> Option<&Commit> {
        self.history.get(self.winners.get(key)?)
    }

    /// Drops a key whose delete every member knows. The delete takes its key's older commits with
    /// it; they are at or below the garbage horizon, so the newest alone can be left.
    fn forget_key(&mut self, key: &str) -> bool {
        let Some(old) = self.winners.remove(key) else { return false };
        self.dethrone(old);
        self.drop_commit(old.at);
        true
    }

    fn dethrone(&mut self, old: Winner) {
        match old.kind {
            WinnerKind::Lasting => {}
            WinnerKind::Delete => self.deleted -= 1,
            WinnerKind::Ending => {
                let commit = self.history.get(old.at);
                if let Some(expires) = commit.and_then(|commit| commit.expires()) {
                    self.expiring.leave(expires, old.at);
                }
            }
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
                let bytes = self.segments.entry(segment).or_default();
                *bytes = bytes.saturating_add(weight(commit));
            }
            (Location::File, CommitAction::Set { hash, .. }) => {
                *self.files.entry(hash).or_default() += 1;
            }
            (Location::Nowhere, CommitAction::Set { hash, size, .. }) => {
                let absent = self.absent.entry(hash).or_default();
                absent.size = size;
                absent.needed_by.insert(commit.at);
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
            (Location::File, CommitAction::Set { hash, .. }) => {
                let count = self.files.entry(hash).or_default();
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.files.remove(&hash);
                }
            }
            (Location::Nowhere, CommitAction::Set { hash, .. }) => {
                if let Some(absent) = self.absent.get_mut(&hash) {
                    absent.needed_by.remove(&commit.at);
                    if absent.needed_by.is_empty() {
                        self.absent.remove(&hash);
                    }
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
        let expiring = |c: &&&Commit| c.expires().is_some_and(|e| self.expiring.contains(e, c.at));
        assert_eq!(newest.values().filter(expiring).count(), self.expiring.ahead());
        let with_expiry = newest.values().filter(|commit| commit.expires().is_some()).count();
        assert_eq!(with_expiry, self.expiring.ahead() + self.expiring.noticed());
        for commit in self.history.iter() {
            let wins = newest[&commit.key].at == commit.at;
            let stamp = commit.at.stamp;
            assert!(wins || !self.horizons.drops_superseded(stamp), "normalised");
            assert!(!wins || !self.horizons.drops_winner(commit), "normalised");
        }
    }
}

/// Returns about what a commit's record takes in the log, in bytes.
fn weight(commit: &Commit) -> u64 {
    (commit.encoded_length() as u64).saturating_add(commit.size())
}
