//! The store as one node has it: the last writer wins, and what cannot be sent waits.

use std::collections::BTreeMap;

use agent_core::placement::NodeView;
use agent_core::remains::Remains;
use model::application::Holder;
use model::probe::Verdict;
use model::{
    ApplicationName, ApplicationSpec, BuildId, Claim, InstanceId, NodeId, Outcome, Release,
    ReleaseId, Rollout, Timestamp, TypedKey,
};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Node(NodeId),
    /// The end of the application that was created at that time.
    Destroyed(ApplicationName, Timestamp),
    Spec(ApplicationName),
    Release(ApplicationName, ReleaseId),
    Artefact(ApplicationName, BuildId, NodeId),
    Outcome(ApplicationName, ReleaseId),
    Config(ApplicationName),
    ConfigAt(ApplicationName, ReleaseId),
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
            | Key::Destroyed(name, _)
            | Key::Outcome(name, _)
            | Key::Config(name)
            | Key::ConfigAt(name, _)
            | Key::Rollout(name)
            | Key::Holder(name) => Some(name),
            Key::Claim(instance, _) | Key::Verdict(_, instance) => Some(&instance.application),
        }
    }

    /// Returns the key as the store has it, of what users and coordinators write of an application.
    pub fn typed(&self) -> Option<TypedKey> {
        Some(match self.clone() {
            Key::Spec(name) => TypedKey::Spec(name),
            Key::Release(name, id) => TypedKey::Release(name, id),
            Key::Artefact(name, build, node) => {
                TypedKey::Artefact(name, build, node, String::new())
            }
            Key::Outcome(name, id) => TypedKey::Outcome(name, id),
            Key::Config(name) => TypedKey::Config(name),
            Key::ConfigAt(name, id) => TypedKey::ConfigAt(name, id),
            Key::Rollout(name) => TypedKey::Rollout(name),
            Key::Holder(name) => TypedKey::Holder(name),
            Key::Node(_) | Key::Destroyed(..) | Key::Claim(..) => return None,
            Key::Roles(_) | Key::Verdict(..) | Key::Testimony(..) => return None,
        })
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Record {
    Node(NodeView),
    Spec(ApplicationSpec),
    Release(Release),
    Artefact,
    Destroyed,
    Outcome(Outcome),
    /// Variables, told apart by a number.
    Config(u64),
    Rollout(Rollout),
    Holder(Holder),
    Claim(Claim),
    Roles {
        checks: bool,
    },
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

    pub fn config(&self, key: &Key) -> Option<u64> {
        match self.get(key) {
            Some(Record::Config(number)) => Some(*number),
            _ => None,
        }
    }

    pub fn outcome(&self, name: &ApplicationName, release: &ReleaseId) -> Option<&Outcome> {
        match self.get(&Key::Outcome(name.clone(), release.clone())) {
            Some(Record::Outcome(outcome)) => Some(outcome),
            _ => None,
        }
    }

    /// Returns the keys of what users and coordinators wrote of an application.
    pub fn keys_of(&self, name: &ApplicationName) -> Vec<Key> {
        let whole = |key: &Key| key.application() == Some(name) && key.typed().is_some();
        let there = self.records.iter().filter(|(key, (_, record))| record.is_some() && whole(key));
        there.map(|(key, _)| key.clone()).collect()
    }

    /// Returns what tells the applications of this name apart.
    pub fn remains(&self, name: &ApplicationName) -> Remains {
        let mut remains = Remains::default();
        self.spec(name).iter().for_each(|spec| remains.note_spec(spec));
        self.releases(name).values().for_each(|release| remains.note_release(release));
        remains.destroyed.extend(self.records.keys().filter_map(|key| match key {
            Key::Destroyed(of, created_at) if of == name => Some(*created_at),
            _ => None,
        }));
        remains
    }

    /// Returns whether a release was removed, or was pushed to another application than the one
    /// that has this name now, if any has.
    pub fn disowns(&self, name: &ApplicationName, release: &ReleaseId) -> bool {
        match self.records.get(&Key::Release(name.clone(), release.clone())) {
            Some((_, Some(Record::Release(release)))) => {
                self.owner(name).is_none_or(|spec| !spec.owns(release))
            }
            Some(_) => true,
            None => self.owner(name).is_none(),
        }
    }

    /// Returns the specification, unless it came late of an application that was destroyed.
    fn owner(&self, name: &ApplicationName) -> Option<&ApplicationSpec> {
        let spec = self.spec(name)?;
        let end = Key::Destroyed(name.clone(), spec.created_at);
        self.get(&end).is_none().then_some(spec)
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
