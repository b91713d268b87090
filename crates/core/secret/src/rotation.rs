//! What one member does next so that the whole cluster seals with one key and then forgets the
//! others. A plan from whole state, without memory: a member that is killed anywhere goes on with
//! what it finds. `ALGORITHM.md` says why no value is ever left without its key.

use std::collections::{BTreeMap, BTreeSet};

use model::NodeId;
use model::record::{RECORD_VERSION, Unknown};
use model::secrets::{NodeSecrets, SealingKeyId, SealingRecord};
use model::time::Timestamp;

/// All that one member knows.
#[derive(Clone, Debug)]
pub struct Picture {
    pub own: NodeId,
    /// The keys on its disk.
    pub held: BTreeSet<SealingKeyId>,
    pub record: Option<SealingRecord>,
    /// The time of the newest order for another key.
    pub asked: Option<Timestamp>,
    /// The members of the roster that keep the store, this node too, and what each says; `None`
    /// from a build that knows nothing of sealed values.
    pub members: BTreeMap<NodeId, Option<NodeSecrets>>,
    /// The members that are alive, this node too.
    pub alive: BTreeSet<NodeId>,
    /// How many secrets of this node's store are sealed with which key; `None` are clear ones.
    pub values: BTreeMap<Option<SealingKeyId>, usize>,
    /// How many secrets have not come to this node yet, so that nobody knows how they are sealed.
    pub unseen: usize,
}

/// One step. Each is durable before the next picture is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Asks these for a key, and keeps it.
    Fetch { key: SealingKeyId, from: Vec<NodeId> },
    /// Writes what this node has and with what it seals.
    Tell(NodeSecrets),
    /// Makes a key, keeps it, and then writes the record with it as the next one.
    Make(SealingRecord),
    /// Writes the record.
    Record(SealingRecord),
    /// Seals what is sealed so with the key that seals now.
    Reseal(Option<SealingKeyId>),
    /// Forgets a key that opens nothing any more.
    Drop(SealingKeyId),
}

/// The reason why nothing can be done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    /// These members run a build that knows no sealed values.
    Older(Vec<NodeId>),
    /// These members do not have the next key yet, or have not said so.
    Holding(Vec<NodeId>),
    /// These members have not said yet that they seal with the new key.
    Sealing(Vec<NodeId>),
    /// These members are not alive, and may have written what is not here yet.
    Away(Vec<NodeId>),
    /// No member that is alive has this key.
    NoHolder(SealingKeyId),
    /// These members still have keys that open nothing any more.
    Dropping(Vec<NodeId>),
    /// The number of secrets that are still on their way to this node.
    Coming(usize),
    /// Another member has to go first.
    Turn(NodeId),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    Do(Step),
    Wait(Wait),
    /// Everything is sealed with one key, and there is no other.
    Settled,
}

impl Picture {
    pub fn next(&self) -> Next {
        let record = self.record.clone().unwrap_or_default();
        if let Some(next) = self.fetch(&record) {
            return next;
        }
        if let Some(key) = self.spent(&record).next() {
            return Next::Do(Step::Drop(key));
        }
        let said = NodeSecrets {
            v: RECORD_VERSION,
            holds: self.held.clone(),
            seals: record.seals.filter(|key| self.held.contains(key)),
            unknown: Unknown::new(),
        };
        if !self.members.contains_key(&self.own) {
            return Next::Settled;
        }
        if self.members.get(&self.own) != Some(&Some(said.clone())) {
            return Next::Do(Step::Tell(said));
        }
        let older = self.members_that(|said| said.is_none());
        if !older.is_empty() {
            return Next::Wait(Wait::Older(older));
        }
        match (record.seals, record.next) {
            (_, Some(next)) => self.hand_out(&record, next),
            (None, None) => self.begin(&record, None),
            (Some(seals), None) => self.settle(&record, seals),
        }
    }

    /// Returns what this node must have first: the keys of the record, and those of values that
    /// somebody else can open.
    fn fetch(&self, record: &SealingRecord) -> Option<Next> {
        let holders = |key: SealingKeyId| {
            let has = |said: &Option<NodeSecrets>| {
                said.as_ref().is_some_and(|said| said.holds.contains(&key))
            };
            let others = self.members.iter().filter(|(node, said)| **node != self.own && has(said));
            let alive = others.filter(|(node, _)| self.alive.contains(node));
            alive.map(|(node, _)| node.clone()).collect::<Vec<_>>()
        };
        let named = record.seals.into_iter().chain(record.next);
        let used = self.values.keys().copied().flatten();
        let lacking = named.clone().chain(used).filter(|key| !self.held.contains(key));
        let mut missing = None;
        for key in lacking {
            let from = holders(key);
            if !from.is_empty() {
                return Some(Next::Do(Step::Fetch { key, from }));
            }
            missing = missing.or(Some(key).filter(|_| named.clone().any(|named| named == key)));
        }
        missing.map(|key| Next::Wait(Wait::NoHolder(key)))
    }

    /// Returns the keys that open nothing and that nobody seals with, nor will.
    fn spent(&self, record: &SealingRecord) -> impl Iterator<Item = SealingKeyId> {
        let all_moved = record.seals.is_some()
            && self.unseen == 0
            && self
                .members
                .values()
                .all(|said| said.as_ref().is_some_and(|said| said.seals == record.seals));
        let named = [record.seals, record.next];
        self.held.iter().copied().filter(move |key| {
            all_moved && !named.contains(&Some(*key)) && self.count(Some(*key)) == 0
        })
    }

    fn count(&self, key: Option<SealingKeyId>) -> usize {
        self.values.get(&key).copied().unwrap_or_default()
    }

    fn members_that(&self, wanted: impl Fn(&Option<NodeSecrets>) -> bool) -> Vec<NodeId> {
        let found = self.members.iter().filter(|(_, said)| wanted(said));
        found.map(|(node, _)| node.clone()).collect()
    }

    fn members_but(&self, wanted: impl Fn(&NodeSecrets) -> bool) -> Vec<NodeId> {
        self.members_that(|said| !said.as_ref().is_some_and(&wanted))
    }

    /// Returns the living member that goes first, and it alone; an error says which one it is.
    fn turn(&self) -> Result<(), Wait> {
        let first = self.members.keys().find(|node| self.alive.contains(node));
        match first {
            Some(first) if *first != self.own => Err(Wait::Turn(first.clone())),
            _ => Ok(()),
        }
    }

    /// Waits until all have the next key; then it seals.
    fn hand_out(&self, record: &SealingRecord, next: SealingKeyId) -> Next {
        let lacking = self.members_but(|said| said.holds.contains(&next));
        if !lacking.is_empty() {
            return Next::Wait(Wait::Holding(lacking));
        }
        match self.turn() {
            Ok(()) => Next::Do(Step::Record(SealingRecord {
                v: RECORD_VERSION,
                seals: Some(next),
                next: None,
                ..record.clone()
            })),
            Err(turn) => Next::Wait(turn),
        }
    }

    /// Has a key made. The first one is made by the first member of the roster, alive or not: two
    /// halves must not make one each.
    fn begin(&self, record: &SealingRecord, made_for: Option<Timestamp>) -> Next {
        let first = self.members.keys().next().filter(|first| **first != self.own);
        let turn = match (record.seals, first) {
            (None, Some(first)) => Err(Wait::Turn(first.clone())),
            (None, None) => Ok(()),
            (Some(_), _) => self.turn(),
        };
        match turn {
            Ok(()) => Next::Do(Step::Make(SealingRecord {
                v: RECORD_VERSION,
                made_for: made_for.or(record.made_for),
                ..record.clone()
            })),
            Err(turn) => Next::Wait(turn),
        }
    }

    /// Goes on once there is a key with all: seals what is not sealed with it, forgets others, and
    /// begins again if somebody asked for another one.
    fn settle(&self, record: &SealingRecord, seals: SealingKeyId) -> Next {
        let behind = self.members_but(|said| said.seals == Some(seals));
        if !behind.is_empty() {
            return Next::Wait(Wait::Sealing(behind));
        }
        let mut waits = None;
        for key in self.values.keys().copied().filter(|key| *key != Some(seals)) {
            if self.count(key) == 0 || key.is_some_and(|key| !self.held.contains(&key)) {
                // What no key opens is left as it is.
                continue;
            }
            let away = self.members.keys().filter(|node| !self.alive.contains(node));
            let away: Vec<_> = away.cloned().collect();
            if !away.is_empty() {
                return Next::Wait(Wait::Away(away));
            }
            match self.opener(key) {
                Some(opener) if opener != self.own => {
                    waits = waits.or(Some(Wait::Turn(opener)));
                }
                _ => return Next::Do(Step::Reseal(key)),
            }
        }
        if let Some(wait) = waits {
            return Next::Wait(wait);
        }
        if self.unseen > 0 {
            return Next::Wait(Wait::Coming(self.unseen));
        }
        if self.asked > record.made_for {
            return self.begin(record, self.asked);
        }
        let unspent = self.members_but(|said| said.holds.len() == 1);
        if !unspent.is_empty() {
            return Next::Wait(Wait::Dropping(unspent));
        }
        Next::Settled
    }

    /// Returns the first living member that can open what is sealed so.
    fn opener(&self, key: Option<SealingKeyId>) -> Option<NodeId> {
        let can = |said: &Option<NodeSecrets>| match (said, key) {
            (Some(said), Some(key)) => said.holds.contains(&key),
            (Some(_), None) => true,
            (None, _) => false,
        };
        let found = self.members.iter().find(|(node, said)| self.alive.contains(node) && can(said));
        found.map(|(node, _)| node.clone())
    }
}

#[cfg(test)]
mod tests;
