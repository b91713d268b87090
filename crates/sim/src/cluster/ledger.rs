//! The ledger: every commit that was ever durable where it was issued. Nobody inside the world
//! knows it.

use std::collections::BTreeMap;
use std::sync::Arc;

use store_core::{Commit, CommitAction, NodeTag, Position, Replica, Stamp};

#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// The hashes of the commits at this position; more than one if a node lost its past and issued
    /// a stamp again.
    cids: Vec<[u8; 32]>,
    /// Whether it is a delete, or a value that expires.
    droppable: bool,
    /// Whether it is gone with a disk that was set back or destroyed.
    pub lost: bool,
    /// Whether it is lost and held only by nodes that none of those left had on its roster: found
    /// again or not, nobody could know of it meanwhile.
    unheard: bool,
    /// Whether it was issued where the cluster could not hear of it, before a node joined or after
    /// it was evicted.
    pub outside: bool,
    /// Whether it was issued anew, so that it may go.
    pub replaced: bool,
}

impl Known {
    fn counts(&self) -> bool {
        !self.lost && !self.outside && !self.replaced
    }
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub keys: BTreeMap<Arc<str>, BTreeMap<Position, Known>>,
    places: BTreeMap<Position, Arc<str>>,
}

impl Ledger {
    pub fn accept(&mut self, commit: &Commit, outside: bool) {
        let droppable = match commit.action {
            CommitAction::Delete => true,
            CommitAction::Set { expires, .. } => expires.is_some(),
        };
        let cid = commit.cid();
        self.places.insert(commit.at, commit.key.clone());
        let commits = self.keys.entry(commit.key.clone()).or_default();
        let known = commits.entry(commit.at).or_insert_with(|| Known {
            cids: Vec::new(),
            droppable,
            lost: false,
            unheard: false,
            outside,
            replaced: false,
        });
        known.droppable |= droppable;
        if !known.cids.contains(&cid) {
            known.cids.push(cid);
            known.outside = outside;
            known.lost = false;
            known.unheard = false;
            known.replaced = false;
        }
    }

    pub fn knows(&self, commit: &Commit) -> bool {
        let known = self.keys.get(&commit.key).and_then(|commits| commits.get(&commit.at));
        known.is_some_and(|known| known.cids.contains(&commit.cid()))
    }

    /// Notes that a commit that seemed lost was on its way to somebody; returns whether it had
    /// seemed lost.
    pub fn found(&mut self, at: Position) -> bool {
        let Some(known) = self.known_mut(at).filter(|known| known.lost) else { return false };
        known.lost = known.unheard;
        true
    }

    pub fn is_outside(&self, at: Position) -> bool {
        let key = self.places.get(&at);
        key.is_some_and(|key| self.keys[key][&at].outside)
    }

    pub fn replaced(&mut self, at: Position) {
        if let Some(known) = self.known_mut(at) {
            known.replaced = true;
        }
    }

    /// Returns whether the newest word on a key was its end; `None` without any.
    pub fn newest_of(&self, key: &str) -> Option<bool> {
        let commits = self.keys.get(key)?;
        let mut counted = commits.iter().rev().filter(|(_, known)| known.counts());
        counted.next().map(|(_, known)| known.droppable)
    }

    fn known_mut(&mut self, at: Position) -> Option<&mut Known> {
        let key = self.places.get(&at)?;
        self.keys.get_mut(key)?.get_mut(&at)
    }

    /// Returns a commit that ended its key at or after a position and that everybody knew of.
    pub fn ended(&self, key: &str, from: Position, garbage: Stamp) -> Option<Position> {
        let after = self.keys.get(key)?.range(from..);
        let mut ends = after.rev().filter(|(at, known)| known.droppable && at.stamp <= garbage);
        ends.next().map(|(at, _)| *at)
    }

    /// Returns whether a replica holds a commit, or something newer for its key.
    pub fn covers(&self, replica: &Replica, key: &str, at: Position) -> bool {
        match replica.newest(key) {
            Some(newest) => newest.at >= at,
            None => self.ended(key, at, replica.horizons().garbage).is_some(),
        }
    }

    /// Returns a commit that was issued by a node between two stamps and that a replica does not
    /// cover.
    pub fn uncovered(
        &self,
        replica: &Replica,
        origin: NodeTag,
        from: Stamp,
        until: Stamp,
    ) -> Option<(Arc<str>, Position)> {
        let end = Position::start_of(Stamp(until.0.saturating_add(1)));
        self.keys.iter().find_map(|(key, commits)| {
            let start = Position::start_of(from).min(end);
            let mut before = commits.range(start..end).rev();
            let (at, _) = before.find(|(at, known)| at.node == origin && known.counts())?;
            (!self.covers(replica, key, *at)).then(|| (key.clone(), *at))
        })
    }

    /// Notes that a node goes elsewhere: deletes that it collected where it was are no news there.
    pub fn leave_behind(&mut self, node: NodeTag, replica: &Replica) {
        for (key, commits) in &mut self.keys {
            if replica.newest(key).is_none() {
                let own = commits.iter_mut().filter(|(at, known)| at.node == node && known.outside);
                own.for_each(|(_, known)| known.replaced = true);
            }
        }
    }

    /// Judges commits anew after a disk or a member is gone: one that no other holds counts no
    /// more, and goes with the one that `fate` names.
    pub fn reassess(&mut self, fate: &dyn Fn(&Ledger, &str, Position) -> Option<Gone>) {
        let mut fallen = Vec::new();
        for (key, commits) in &self.keys {
            for (at, _) in commits.iter().filter(|(_, known)| known.counts()) {
                fallen.extend(fate(self, key, *at).map(|gone| (*at, gone)));
            }
        }
        for (at, gone) in fallen {
            if let Some(known) = self.known_mut(at) {
                match gone {
                    Gone::Disk => known.lost = true,
                    Gone::Member => known.outside = true,
                }
            }
        }
    }

    /// Notes which lost commits only those nodes know that nobody hears.
    pub fn excuse(&mut self, unheard: &dyn Fn(Position) -> bool) {
        for (at, known) in self.keys.values_mut().flatten().filter(|(_, known)| known.lost) {
            known.unheard |= unheard(*at);
        }
    }

    /// Marks as lost what was issued outside and is held by nobody: it can never come in any more.
    pub fn bury(&mut self, held: &dyn Fn(&Ledger, &str, Position) -> bool) {
        let mut fallen = Vec::new();
        for (key, commits) in &self.keys {
            let outside = commits.iter().filter(|(_, known)| known.outside && !known.lost);
            fallen.extend(outside.filter(|(at, _)| !held(self, key, **at)).map(|(at, _)| *at));
        }
        for at in fallen {
            if let Some(known) = self.known_mut(at) {
                known.lost = true;
            }
        }
    }

    /// Yields what must be readable, or replaced by something newer, when all is quiet.
    pub fn required(
        &self,
        is_member: &dyn Fn(NodeTag) -> bool,
    ) -> impl Iterator<Item = (&Arc<str>, Position)> {
        self.keys.iter().flat_map(move |(key, commits)| {
            let required = commits.iter().filter(|(at, known)| {
                !known.lost && !known.replaced && (!known.outside || is_member(at.node))
            });
            required.map(move |(at, _)| (key, *at)).collect::<Vec<_>>()
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    Disk,
    Member,
}
