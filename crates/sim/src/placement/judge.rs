//! The judge: what must be true. It looks at processes and records alone.

use std::collections::{BTreeMap, BTreeSet};

use model::{ApplicationName, InstanceId, ProcessType, ReleaseId, Rollout, RolloutPhase};

use super::replica::{Key, Record};
use super::world::{LEASE_MS, START_MS, World};

/// The most moves of one slot in an hour without faults, on average, when loads jump every minute:
/// of 700 clusters one, of eight slots, had more than seven.
pub const MOVES_PER_SLOT_AND_HOUR: u64 = 8;

/// The time within which an older release that is said to serve again is put right.
const RESTORE_MAX_MS: u64 = 15_000;

/// The time within which what was claimed before the node was drained may still come.
const PREPARING_MAX_MS: u64 = 5_000;

impl World {
    /// Notes a start; a slot that starts on another node than before has moved.
    pub(super) fn started(&mut self, at: usize, instance: &InstanceId) {
        let mut here = self.nodes[at].processes.iter().filter(|(id, _)| id.instance == *instance);
        if here.any(|(_, process)| process.exit.is_none()) {
            return;
        }
        if self.homes.insert(instance.clone(), at).is_some_and(|before| before != at) {
            self.moves += 1;
            let since = self.drained_since.get(&at).copied().unwrap_or(self.now);
            let late = self.calm && self.now - since > PREPARING_MAX_MS;
            assert!(!late, "{instance} came to node {at}, which is drained");
        }
    }

    pub fn moves(&self) -> u64 {
        self.moves
    }

    /// Returns the nodes that run each slot for requests.
    fn homes_now(&self) -> BTreeMap<InstanceId, Vec<usize>> {
        let mut homes: BTreeMap<InstanceId, Vec<usize>> = BTreeMap::new();
        for (at, node) in self.nodes.iter().enumerate() {
            for (id, process) in &node.processes {
                if process.exit.is_none() && !process.leaving {
                    let nodes = homes.entry(id.instance.clone()).or_default();
                    if nodes.last() != Some(&at) {
                        nodes.push(at);
                    }
                }
            }
        }
        homes
    }

    /// Judges a rollout that a coordinator writes: what it says serves.
    pub(super) fn judge_rollout(&mut self, at: usize, name: &ApplicationName, rollout: &Rollout) {
        let Some(serving) = &rollout.serving else { return };
        let replica = &self.nodes[at].replica;
        let Some(spec) = replica.spec(name).filter(|_| !replica.disowns(name, serving)) else {
            return;
        };
        let broken = self.broken.contains(&(name.clone(), serving.clone()));
        assert!(!broken, "{name}: {serving} serves and is broken");
        let application = (name.clone(), spec.created_at);
        let newest = self.newest.entry(application).or_insert_with(|| serving.clone());
        *newest = serving.clone().max(newest.clone());
    }

    /// Judges that no machine begins the release steps of a release again: they may spoil data.
    pub(super) fn judge_steps(&mut self, at: usize, name: &ApplicationName, release: &ReleaseId) {
        let machines = self.nodes[at].machines.as_ref();
        let Some(app) = machines.and_then(|machines| machines.applications.get(name)) else {
            return;
        };
        let created_at = self.nodes[at].replica.spec(name).map(|spec| spec.created_at);
        let begun = (app.number, created_at, release.clone());
        let fails = self.failing.contains(&(release.clone(), at));
        let first = self.begun_steps.insert(begun);
        assert!(first || fails, "{name}: steps of {release} begin again at {at}");
    }

    /// Judges now and then: nothing runs twice for long among nodes that see each other, and in a
    /// calm world nothing is missing.
    pub(super) fn sample(&mut self) {
        let homes = self.homes_now();
        let alive = |at: &usize| self.nodes[*at].runs();
        let mut twice = BTreeMap::new();
        for (instance, nodes) in &homes {
            let nodes: Vec<usize> = nodes.iter().copied().filter(|at| alive(at)).collect();
            let together =
                nodes.iter().any(|a| nodes.iter().any(|b| a < b && self.is_connected(*a, *b)));
            // While it is handed over for balance, it runs twice until the new one is ready.
            if together {
                let since = self.twice_since.get(instance).copied().unwrap_or(self.now);
                let mute = self.is_handed_over_to_a_full_disk(instance, &nodes);
                let since = if mute { self.now } else { since.max(self.disturbed_at) };
                let long = self.now - since > LEASE_MS;
                assert!(!long, "{instance} runs on {nodes:?} since {}", since - START_MS);
                twice.insert(instance.clone(), since);
            }
        }
        self.twice_since = twice;
        self.judge_serving();
        self.judge_leases();
        self.judge_conditions();
        if self.calm {
            self.judge_calm();
        }
    }

    /// Returns whether the taker cannot say that it is ready until its disk has room; the giver
    /// waits for that, but not without end.
    fn is_handed_over_to_a_full_disk(&self, instance: &InstanceId, nodes: &[usize]) -> bool {
        let offered = |at: &usize| {
            let node = &self.nodes[*at];
            let key = Key::Claim(instance.clone(), node.id.clone());
            matches!(node.replica.get(&key), Some(Record::Claim(claim)) if claim.offer.is_some())
        };
        nodes.iter().any(|at| self.nodes[*at].disk_full) && nodes.iter().any(offered)
    }

    /// Asserts that what serves according to a node never goes back to an older release for long,
    /// whatever a coordinator that was replaced writes when it returns.
    fn judge_serving(&mut self) {
        for at in 0..self.nodes.len() {
            let node = &self.nodes[at];
            if !node.runs() || node.disk_full {
                continue;
            }
            let machines = node.machines.iter().flat_map(|machines| &machines.applications);
            for (name, app) in machines {
                let known = self.known_by_actor.entry(app.number).or_default();
                let serving = app.machine.serving();
                if serving == known.as_ref() {
                    continue;
                }
                // Nothing serves of one that is destroyed; another one of that name begins anew.
                let goes_on = node.replica.rollout(name).is_some();
                *known = known.take().filter(|id| goes_on && !node.replica.disowns(name, id));
                let back = serving < known.as_ref();
                assert!(!back, "{name}: {serving:?} again at node {at}, after {known:?}");
                *known = serving.cloned();
            }
            for (name, serving) in node.replica.serving() {
                let entry = (at, name.clone());
                if let Some((known, since)) = self.known_serving.get_mut(&entry)
                    && known == serving
                {
                    *since = self.now;
                    continue;
                }
                if node.replica.disowns(name, serving) {
                    self.known_serving.remove(&entry);
                    continue;
                }
                let (known, since) =
                    self.known_serving.entry(entry).or_insert_with(|| (serving.clone(), self.now));
                if serving >= known || node.replica.disowns(name, known) {
                    (*known, *since) = (serving.clone(), self.now);
                    continue;
                }
                let since = (*since).max(self.disturbed_at);
                let long = self.now - since > RESTORE_MAX_MS;
                assert!(!long, "{name}: {serving} serves again at node {at}, after {known}");
            }
        }
    }

    fn judge_calm(&mut self) {
        for name in self.names() {
            let ready = self.ready_slots(&name);
            let wanted = self.wanted_slots(&name);
            if self.served.contains(&name) {
                let missing: Vec<_> = wanted.difference(&ready).collect();
                assert!(missing.is_empty(), "{name} lacks {missing:?} although nothing failed");
            } else if !wanted.is_empty() && wanted.is_subset(&ready) {
                self.served.insert(name);
            }
        }
    }

    pub(super) fn ready_slots(&self, name: &ApplicationName) -> BTreeSet<u32> {
        let ready = self.nodes.iter().flat_map(|node| &node.processes).filter(|(id, process)| {
            let up = process.ready && !process.leaving && process.exit.is_none();
            id.instance.application == *name && up
        });
        ready.map(|(id, _)| id.instance.slot).collect()
    }

    pub(super) fn wanted_slots(&self, name: &ApplicationName) -> BTreeSet<u32> {
        let key = Key::Spec(name.clone());
        let known = self.nodes.iter().filter_map(|node| node.replica.records.get(&key));
        let spec = match known.max_by_key(|(stamp, _)| *stamp) {
            Some((_, Some(Record::Spec(spec)))) => Some(spec),
            _ => None,
        };
        let count = spec.and_then(|spec| spec.processes.get(&ProcessType::web()));
        (1..=count.map_or(0, |count| count.count)).collect()
    }

    pub(super) fn slots(&self) -> u64 {
        self.names().iter().map(|name| self.wanted_slots(name).len() as u64).sum()
    }

    pub(super) fn names(&self) -> Vec<ApplicationName> {
        let keys = self.nodes[0].replica.records.keys();
        let names = keys.filter_map(|key| match key {
            Key::Spec(name) => Some(name.clone()),
            _ => None,
        });
        names.collect()
    }

    /// Asserts, when nothing has happened for long, that every slot runs once, ready, and that all
    /// agree.
    pub fn judge_quiet(&self) {
        let homes = self.homes_now();
        let mut wanted = BTreeSet::new();
        for name in self.names() {
            let tied = self.nodes[0].replica.holder(&name).map(|holder| holder.node.clone());
            if tied.as_ref().is_some_and(|tied| !self.lives(tied)) {
                continue;
            }
            let rollout = self.nodes[0].replica.rollout(&name).expect("it was rolled out");
            let over = matches!(rollout.phase, RolloutPhase::Done | RolloutPhase::Failed);
            assert!(over, "{name}: {rollout:?}");
            // What served and was replaced never comes back, whichever node comes back.
            let spec = self.nodes[0].replica.spec(&name).expect("it is there");
            let newest = self.newest.get(&(name.clone(), spec.created_at));
            assert_eq!(rollout.serving.as_ref(), newest, "{name}: {rollout:?}");
            // Slots that came to be wanted since wait: the node takes nothing new, and no other
            // may.
            let waits = tied.as_ref().is_some_and(|tied| {
                self.nodes
                    .iter()
                    .position(|node| node.id == *tied)
                    .is_some_and(|at| self.is_drained(at))
            });
            for slot in self.wanted_slots(&name) {
                let process = ProcessType::web();
                let instance = InstanceId { application: name.clone(), process, slot };
                let at = homes.get(&instance).cloned().unwrap_or_default();
                if waits && at.is_empty() {
                    continue;
                }
                assert_eq!(at.len(), 1, "{instance} runs on {at:?}");
                assert!(self.is_well(at[0], &instance), "{instance} does not serve");
                let (_, serving) = self.running(at[0], &instance);
                assert_eq!(Some(&serving), rollout.serving.as_ref(), "{instance}");
                if let Some(tied) = &tied {
                    assert_eq!(self.nodes[at[0]].id, *tied, "{instance} left its files");
                }
                let drained = self.is_drained(at[0]);
                assert!(!drained || tied.is_some(), "{instance} is on a drained node");
                wanted.insert(instance);
            }
        }
        let more: Vec<_> = homes.keys().filter(|id| !wanted.contains(id)).collect();
        assert!(more.is_empty(), "nobody wants {more:?}");
        for node in self.nodes.iter().filter(|node| self.lives(&node.id)) {
            let claims = node.replica.claims().filter(|(_, at, _)| self.lives(at));
            let claims: Vec<_> = claims.map(|(id, at, _)| (id, at)).collect();
            assert_eq!(claims.len(), wanted.len(), "claims as {} knows them: {claims:?}", node.id);
        }
    }

    fn running(&self, at: usize, instance: &InstanceId) -> (u64, model::ReleaseId) {
        let mut of = self.nodes[at].processes.iter().filter(|(id, _)| id.instance == *instance);
        let last = of.next_back().expect("it runs");
        (last.0.generation, last.1.release.clone())
    }

    fn lives(&self, id: &model::NodeId) -> bool {
        self.nodes.iter().any(|node| node.id == *id && node.machines.is_some())
    }

    fn is_drained(&self, at: usize) -> bool {
        let key = Key::Node(self.nodes[at].id.clone());
        matches!(self.nodes[at].replica.get(&key), Some(Record::Node(view)) if view.drained)
    }
}
