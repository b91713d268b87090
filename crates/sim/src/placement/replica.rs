//! The store as one node has it: the last writer wins, and what cannot be sent waits.

use std::collections::BTreeMap;

use agent_core::placement::NodeView;
use model::application::Holder;
use model::probe::Verdict;
use model::{
    ApplicationName, ApplicationSpec, BuildId, Claim, InstanceId, NodeId, Release, ReleaseId,
    Rollout,
};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Node(NodeId),
    Spec(ApplicationName),
    Release(ApplicationName, ReleaseId),
    Artefact(ApplicationName, BuildId, NodeId),
    Rollout(ApplicationName),
    Holder(ApplicationName),
    Claim(InstanceId, NodeId),
    /// Whether a node has a checker, as it says itself.
    Roles(NodeId),
    /// The verdict of a node on an instance of its own.
    Verdict(NodeId, InstanceId),
    /// The testimony of a witness on an instance of another node.
    Testimony(NodeId, InstanceId, NodeId),
}

impl Key {
    pub fn application(&self) -> Option<&ApplicationName> {
        match self {
            Key::Node(_) | Key::Roles(_) | Key::Testimony(..) => None,
            Key::Spec(name)
            | Key::Release(name, _)
            | Key::Artefact(name, ..)
            | Key::Rollout(name)
            | Key::Holder(name) => Some(name),
            Key::Claim(instance, _) | Key::Verdict(_, instance) => Some(&instance.application),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Record {
    Node(NodeView),
    Spec(ApplicationSpec),
    Release(Release),
    Artefact,
    Rollout(Rollout),
    Holder(Holder),
    Claim(Claim),
    Roles { checks: bool },
    Verdict(Verdict),
}

/// The time and the writer of a record.
pub(super) type Stamp = (u64, usize);

#[derive(Clone, Debug, Default)]
pub(super) struct Replica {
    pub records: BTreeMap<Key, (Stamp, Option<Record>)>,
    highest: u64,
}

impl Replica {
    pub fn get(&self, key: &Key) -> Option<&Record> {
        self.records.get(key).and_then(|(_, record)| record.as_ref())
    }

    pub fn stamp(&mut self, now: u64, writer: usize) -> Stamp {
        self.highest = now.max(self.highest + 1);
        (self.highest, writer)
    }

    /// Takes a record; returns false if the one that is there is newer.
    pub fn accept(&mut self, key: &Key, stamp: Stamp, record: Option<Record>) -> bool {
        self.highest = self.highest.max(stamp.0);
        if self.records.get(key).is_some_and(|(held, _)| *held >= stamp) {
            return false;
        }
        self.records.insert(key.clone(), (stamp, record));
        true
    }

    pub fn spec(&self, name: &ApplicationName) -> Option<&ApplicationSpec> {
        match self.get(&Key::Spec(name.clone())) {
            Some(Record::Spec(spec)) => Some(spec),
            _ => None,
        }
    }

    pub fn rollout(&self, name: &ApplicationName) -> Option<&Rollout> {
        match self.get(&Key::Rollout(name.clone())) {
            Some(Record::Rollout(rollout)) => Some(rollout),
            _ => None,
        }
    }

    pub fn holder(&self, name: &ApplicationName) -> Option<&Holder> {
        match self.get(&Key::Holder(name.clone())) {
            Some(Record::Holder(holder)) => Some(holder),
            _ => None,
        }
    }

    pub fn releases(&self, name: &ApplicationName) -> BTreeMap<ReleaseId, Release> {
        let of = |(key, (_, record)): (&Key, &(Stamp, Option<Record>))| match (key, record) {
            (Key::Release(owner, id), Some(Record::Release(release))) if owner == name => {
                Some((id.clone(), release.clone()))
            }
            _ => None,
        };
        self.records.iter().filter_map(of).collect()
    }

    /// Returns whether a release was removed, or was pushed to another application than the one
    /// that has this name now, if any has.
    pub fn disowns(&self, name: &ApplicationName, release: &ReleaseId) -> bool {
        match self.records.get(&Key::Release(name.clone(), release.clone())) {
            Some((_, Some(Record::Release(release)))) => {
                self.spec(name).is_none_or(|spec| !spec.owns(release))
            }
            Some(_) => true,
            None => self.spec(name).is_none(),
        }
    }

    pub fn serving(&self) -> impl Iterator<Item = (&ApplicationName, &ReleaseId)> {
        self.records.iter().filter_map(|(key, (_, record))| match (key, record) {
            (Key::Rollout(name), Some(Record::Rollout(rollout))) => {
                Some((name, rollout.serving.as_ref()?))
            }
            _ => None,
        })
    }

    pub fn members(&self) -> usize {
        let is_member = |(key, (_, record)): &(&Key, &(Stamp, Option<Record>))| {
            matches!(key, Key::Node(_)) && record.is_some()
        };
        self.records.iter().filter(is_member).count()
    }

    /// Returns which nodes have a checker, and which have none.
    pub fn roles(&self) -> impl Iterator<Item = (&NodeId, bool)> {
        self.records.iter().filter_map(|(key, (_, record))| match (key, record) {
            (Key::Roles(node), Some(Record::Roles { checks })) => Some((node, *checks)),
            _ => None,
        })
    }

    pub fn verdicts(&self, of: &NodeId) -> impl Iterator<Item = (InstanceId, Verdict)> {
        self.records.iter().filter_map(move |(key, (_, record))| match (key, record) {
            (Key::Verdict(node, instance), Some(Record::Verdict(verdict))) if node == of => {
                Some((instance.clone(), verdict.clone()))
            }
            _ => None,
        })
    }

    pub fn testimonies(&self) -> impl Iterator<Item = (&NodeId, &InstanceId, &NodeId, &Verdict)> {
        self.records.iter().filter_map(|(key, (_, record))| match (key, record) {
            (Key::Testimony(witness, instance, owner), Some(Record::Verdict(verdict))) => {
                Some((witness, instance, owner, verdict))
            }
            _ => None,
        })
    }

    pub fn claims(&self) -> impl Iterator<Item = (&InstanceId, &NodeId, &Claim)> {
        self.records.iter().filter_map(|(key, (_, record))| match (key, record) {
            (Key::Claim(instance, node), Some(Record::Claim(claim))) => {
                Some((instance, node, claim))
            }
            _ => None,
        })
    }
}
