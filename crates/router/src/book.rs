//! The records that routing depends on, and what they say of one application: pure, whole state.
//! Driven by the router's control task, which feeds it the store's changes.

pub mod far;

use std::collections::{BTreeMap, BTreeSet};

use model::key::{Prefix, TypedKey};
use model::probe::{Health, Verdict};
use model::record::{self, RecordError};
use model::release::StaticMount;
use model::{
    ApplicationName, ApplicationSpec, Claim, Generation, InstanceId, InstanceState, Key, NodeId,
    ProcessType, Release, ReleaseId, Rollout, RolloutPhase,
};

use self::far::{FarClaims, FarDescription, Nodes};
use crate::routes;

/// One application as the router's threads need it.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    pub name: ApplicationName,
    /// Normalized, `NAME.localhost` first.
    pub hosts: Vec<String>,
    pub port: Option<u16>,
    pub serving: Option<ReleaseId>,
    pub balance: String,
    pub statics: Vec<StaticMount>,
    pub processes: Processes,
    /// They take requests.
    pub endpoints: Vec<EndpointDescription>,
    /// Other nodes with instances that take requests.
    pub far: Vec<FarDescription>,
    /// All instances are on nodes that cannot be reached.
    pub unreachable: bool,
}

/// Whether it is worth waiting for an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processes {
    /// Endpoints are there or will be.
    Expected,
    /// Scaled to none.
    Stopped,
    /// Static files are all there is.
    FilesOnly,
    /// Nothing was ever released, or the first release failed.
    NoRelease,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointDescription {
    pub instance: InstanceId,
    pub generation: Generation,
    pub port: u16,
    pub concurrency: Option<u32>,
    /// The checker has seen it well since this time.
    pub healthy_since_ms: Option<u64>,
}

/// Which process exactly.
pub type IncarnationKey = (InstanceId, Generation);

#[derive(Debug)]
pub struct Book {
    node: NodeId,
    nodes: Nodes,
    applications: BTreeMap<ApplicationName, Records>,
}

#[derive(Debug, Default)]
struct Records {
    spec: Option<ApplicationSpec>,
    rollout: Option<Rollout>,
    releases: BTreeMap<ReleaseId, Release>,
    claims: BTreeMap<InstanceId, Claim>,
    far: FarClaims,
    verdicts: BTreeMap<InstanceId, Verdict>,
}

impl Records {
    fn is_empty(&self) -> bool {
        self.spec.is_none()
            && self.rollout.is_none()
            && self.releases.is_empty()
            && self.claims.is_empty()
            && self.far.is_empty()
            && self.verdicts.is_empty()
    }
}

/// What is to be watched.
pub fn prefixes(node: &NodeId) -> Vec<Prefix> {
    let probes = format!("probe::{node}");
    ["app", "instance", "cluster::nodes", &probes]
        .iter()
        .filter_map(|text| text.parse().ok())
        .collect()
}

impl Book {
    pub fn new(node: NodeId) -> Book {
        Book { node, nodes: Nodes::default(), applications: BTreeMap::new() }
    }

    /// Takes note of one record; returns the application that it concerns, if any. Of one that
    /// cannot be read what was known goes on, and the error is returned too.
    pub fn apply(
        &mut self,
        key: &Key,
        value: Option<&[u8]>,
    ) -> (Option<ApplicationName>, Option<RecordError>) {
        let Some((typed, name)) = self.noted(key) else { return (None, None) };
        let records = self.applications.entry(name.clone()).or_default();
        let result = records.apply(&self.node, typed, value);
        if records.is_empty() {
            self.applications.remove(&name);
        }
        (Some(name), result.err())
    }

    /// Whether the value of this key says anything about routes; sources, for example, do not.
    pub fn wants(&self, key: &Key) -> bool {
        self.noted(key).is_some()
    }

    fn noted(&self, key: &Key) -> Option<(TypedKey, ApplicationName)> {
        let typed = TypedKey::parse(key)?;
        let name = match &typed {
            TypedKey::Spec(name) | TypedKey::Rollout(name) | TypedKey::Release(name, _) => name,
            TypedKey::Claim(id, _) => &id.application,
            TypedKey::Probe(node, id) if *node == self.node => &id.application,
            _ => return None,
        };
        let name = name.clone();
        Some((typed, name))
    }

    pub fn names(&self) -> impl Iterator<Item = &ApplicationName> {
        self.applications.keys()
    }

    /// None where the application does not exist.
    pub fn describe(&self, name: &ApplicationName) -> Option<Description> {
        let records = self.applications.get(name)?;
        let spec = records.spec.as_ref()?;
        let serving = records.rollout.as_ref().and_then(|rollout| rollout.serving.clone());
        let release = serving.as_ref().and_then(|id| records.releases.get(id));
        let endpoints = serving.as_ref().map(|id| endpoints(records, id)).unwrap_or_default();
        let (far, lost) = match &serving {
            Some(serving) => records.far.describe(serving, &self.nodes),
            None => (Vec::new(), false),
        };
        Some(Description {
            hosts: hosts(name, spec),
            port: spec.port,
            balance: release.map(|release| release.settings.balance.clone()).unwrap_or_default(),
            statics: release.map(|release| release.recipe.statics.clone()).unwrap_or_default(),
            processes: processes(records, spec, release),
            unreachable: lost && far.is_empty() && endpoints.is_empty(),
            endpoints,
            far,
            name: name.clone(),
            serving,
        })
    }

    /// A node came to the roster or left it. Returns the applications whose routes may change.
    pub fn set_member(&mut self, node: &NodeId, member: bool) -> BTreeSet<ApplicationName> {
        match self.nodes.set_member(node, member) {
            true => self.claimed_by(&BTreeSet::from([node.clone()])),
            false => BTreeSet::new(),
        }
    }

    /// Nodes that do not answer. Returns the applications whose routes may change.
    pub fn set_down(&mut self, down: BTreeSet<NodeId>) -> BTreeSet<ApplicationName> {
        let changed = self.nodes.set_down(down);
        self.claimed_by(&changed)
    }

    pub fn is_down(&self, node: &NodeId) -> bool {
        self.nodes.is_down(node)
    }

    pub fn members(&self) -> &BTreeSet<NodeId> {
        self.nodes.members()
    }

    fn claimed_by(&self, nodes: &BTreeSet<NodeId>) -> BTreeSet<ApplicationName> {
        let concerned = self.applications.iter().filter(|(_, records)| records.far.concern(nodes));
        concerned.map(|(name, _)| name.clone()).collect()
    }

    /// Every incarnation of this node that is to be emptied of requests.
    pub fn draining(&self) -> BTreeSet<IncarnationKey> {
        self.incarnations(|state| state == InstanceState::Draining)
    }

    /// Every incarnation of this node that may have requests in flight.
    pub fn alive(&self) -> BTreeSet<IncarnationKey> {
        self.incarnations(|state| matches!(state, InstanceState::Draining | InstanceState::Ready))
    }

    fn incarnations(&self, wanted: impl Fn(InstanceState) -> bool) -> BTreeSet<IncarnationKey> {
        let claims = self.applications.values().flat_map(|records| &records.claims);
        claims
            .flat_map(|(id, claim)| claim.incarnations.iter().map(move |one| (id, one)))
            .filter(|(_, one)| wanted(one.state))
            .map(|(id, one)| (id.clone(), one.generation))
            .collect()
    }
}

impl Records {
    fn apply(
        &mut self,
        here: &NodeId,
        key: TypedKey,
        value: Option<&[u8]>,
    ) -> Result<(), RecordError> {
        fn put<K: Ord, T>(map: &mut BTreeMap<K, T>, key: K, record: Option<T>) {
            match record {
                Some(record) => drop(map.insert(key, record)),
                None => drop(map.remove(&key)),
            }
        }
        match key {
            TypedKey::Spec(_) => self.spec = read(value)?,
            TypedKey::Rollout(_) => {
                let rollout: Option<Rollout> = read(value)?;
                self.rollout = rollout.map(|rollout| self.fenced(rollout));
            }
            TypedKey::Release(_, id) => put(&mut self.releases, id, read(value)?),
            TypedKey::Claim(id, node) if node != *here => self.far.put(node, id, read(value)?),
            TypedKey::Claim(id, _) => put(&mut self.claims, id, read(value)?),
            TypedKey::Probe(_, id) => put(&mut self.verdicts, id, read(value)?),
            _ => {}
        }
        Ok(())
    }

    /// Releases are numbered upwards, a rollback too. A coordinator that was replaced may come back
    /// and say that its own one serves, until the agents put that right.
    fn fenced(&self, rollout: Rollout) -> Rollout {
        let known = self.rollout.as_ref().and_then(|rollout| rollout.serving.as_ref());
        let newer = known
            .filter(|id| self.releases.contains_key(id) && rollout.serving.as_ref() < Some(*id));
        let serving = newer.cloned().or(rollout.serving);
        Rollout { serving, ..rollout }
    }
}

fn read<T: serde::de::DeserializeOwned>(value: Option<&[u8]>) -> Result<Option<T>, RecordError> {
    value.map(record::decode).transpose()
}

fn hosts(name: &ApplicationName, spec: &ApplicationSpec) -> Vec<String> {
    let mut hosts = vec![routes::default_host(name)];
    for domain in &spec.domains {
        let mut buffer = [0; routes::HOST_LENGTH_MAX];
        if let Some(host) = routes::normalize(domain.as_bytes(), &mut buffer)
            && !hosts.iter().any(|known| known == host)
            && !host.ends_with(".localhost")
        {
            hosts.push(host.into());
        }
    }
    hosts
}

fn processes(records: &Records, spec: &ApplicationSpec, release: Option<&Release>) -> Processes {
    let web = ProcessType::web();
    match release {
        None => match records.rollout.as_ref() {
            Some(rollout) if rollout.serving.is_some() => Processes::Expected,
            Some(rollout) if rollout.target.is_some() && rollout.phase != RolloutPhase::Failed => {
                Processes::Expected
            }
            _ => Processes::NoRelease,
        },
        Some(release) => match release.recipe.processes.get(&web) {
            None => Processes::FilesOnly,
            Some(recipe) => {
                let wanted = spec.processes.get(&web).map_or(recipe.default_count, |one| one.count);
                if wanted == 0 { Processes::Stopped } else { Processes::Expected }
            }
        },
    }
}

fn endpoints(records: &Records, serving: &ReleaseId) -> Vec<EndpointDescription> {
    let mut found = Vec::new();
    for (instance, claim) in records.claims.iter().filter(|(id, _)| id.process.is_web()) {
        for one in &claim.incarnations {
            let verdict = records.verdicts.get(instance);
            let verdict = verdict.filter(|verdict| verdict.generation == one.generation);
            let gone = verdict.is_some_and(|verdict| verdict.health == Health::Gone);
            if one.state != InstanceState::Ready || one.release != *serving || gone {
                continue;
            }
            let Some(port) = one.port else { continue };
            found.push(EndpointDescription {
                instance: instance.clone(),
                generation: one.generation,
                port,
                concurrency: one.concurrency,
                healthy_since_ms: verdict
                    .filter(|verdict| verdict.health == Health::Healthy)
                    .map(|verdict| verdict.changed_at.0),
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::application::Settings;
    use model::release::ProcessRecipe;
    use model::value::ContentHash;
    use model::{Incarnation, Recipe, Timestamp};

    fn name() -> ApplicationName {
        "shop".parse().unwrap()
    }

    fn instance(slot: u32) -> InstanceId {
        InstanceId { application: name(), process: ProcessType::web(), slot }
    }

    fn id(number: u64) -> ReleaseId {
        ReleaseId { number, node: "n1".parse().unwrap() }
    }

    fn incarnation(generation: u64, release: u64, state: InstanceState) -> Incarnation {
        Incarnation {
            generation,
            release: id(release),
            restart: 0,
            state,
            port: Some(20_000),
            process: None,
            started_at: None,
            concurrency: Some(1),
            restarts: 0,
            reason: None,
        }
    }

    struct World(Book);

    impl World {
        fn new() -> World {
            World(Book::new("n1".parse().unwrap()))
        }

        fn put<T: serde::Serialize>(&mut self, key: TypedKey, record: &T) -> &mut World {
            let (affected, error) = self.0.apply(&key.key(), Some(&record::encode(record)));
            assert!(error.is_none());
            assert!(affected.is_some_and(|affected| affected == name()), "{key:?}");
            self
        }

        fn serve(&mut self, release: u64, web: bool) -> &mut World {
            let mut recipe = Recipe::default();
            if web {
                let process = ProcessRecipe { default_count: 1, ..ProcessRecipe::default() };
                recipe.processes.insert(ProcessType::web(), process);
            }
            let record = Release {
                v: 1,
                id: id(release),
                source: ContentHash([0; 32]),
                source_bytes: 0,
                recipe,
                settings: Settings::default(),
                created_at: Timestamp(0),
                author: String::new(),
                note: String::new(),
                replaces: None,
                unknown: Default::default(),
            };
            let mut rollout = Rollout::new("n1".parse().unwrap(), Timestamp(0));
            rollout.serving = Some(id(release));
            self.put(TypedKey::Release(name(), id(release)), &record)
                .put(TypedKey::Rollout(name()), &rollout)
        }

        fn claim(&mut self, slot: u32, incarnations: Vec<Incarnation>) -> &mut World {
            self.claim_on("n1", slot, incarnations)
        }

        fn claim_on(
            &mut self,
            node: &str,
            slot: u32,
            incarnations: Vec<Incarnation>,
        ) -> &mut World {
            let mut claim = Claim::new(Timestamp(0));
            claim.incarnations = incarnations;
            self.put(TypedKey::Claim(instance(slot), node.parse().unwrap()), &claim)
        }

        /// Node, instances, concurrency.
        fn far(&self) -> Vec<(String, u32, Option<u32>)> {
            let far = self.0.describe(&name()).unwrap().far;
            let row =
                |one: FarDescription| (one.node.to_string(), one.instances(), one.concurrency);
            far.into_iter().map(row).collect()
        }

        fn generations(&self) -> Vec<u64> {
            let description = self.0.describe(&name()).unwrap();
            description.endpoints.iter().map(|endpoint| endpoint.generation).collect()
        }
    }

    #[test]
    fn ready_instances_of_the_serving_release_take_traffic() {
        let mut world = World::new();
        let mut spec = ApplicationSpec::new(Timestamp(0));
        spec.domains = vec!["Shop.Example.".into(), "other.localhost".into(), "a b".into()];
        world.put(TypedKey::Spec(name()), &spec);
        assert_eq!(world.0.describe(&name()).unwrap().processes, Processes::NoRelease);
        world.serve(1, true).claim(
            1,
            vec![
                incarnation(1, 1, InstanceState::Draining),
                incarnation(2, 1, InstanceState::Ready),
                incarnation(3, 2, InstanceState::Ready),
                incarnation(4, 1, InstanceState::Starting),
            ],
        );
        assert_eq!(world.generations(), [2]);
        assert_eq!(world.0.describe(&name()).unwrap().hosts, ["shop.localhost", "shop.example"]);
        assert_eq!(world.0.draining(), BTreeSet::from([(instance(1), 1)]));
        world.serve(2, true);
        assert_eq!(world.generations(), [3]);
        world.serve(2, false);
        assert_eq!(world.0.describe(&name()).unwrap().processes, Processes::FilesOnly);
    }

    #[test]
    fn a_gone_instance_takes_none() {
        let mut world = World::new();
        world.put(TypedKey::Spec(name()), &ApplicationSpec::new(Timestamp(0))).serve(1, true);
        world.claim(1, vec![incarnation(2, 1, InstanceState::Ready)]);
        let mut verdict = Verdict {
            v: 1,
            generation: 2,
            health: Health::Gone,
            detail: String::new(),
            changed_at: Timestamp(7),
            unknown: Default::default(),
        };
        let key = TypedKey::Probe("n1".parse().unwrap(), instance(1));
        world.put(key.clone(), &verdict);
        assert!(world.generations().is_empty());
        verdict.generation = 1;
        world.put(key, &verdict);
        assert_eq!(world.generations(), [2]);
        // Another node's checker, cut off perhaps, takes nothing from this one.
        verdict.generation = 2;
        let others = TypedKey::Probe("n2".parse().unwrap(), instance(1)).key();
        world.0.apply(&others, Some(&record::encode(&verdict)));
        assert_eq!(world.generations(), [2]);
    }

    #[test]
    fn an_older_release_never_serves_again() {
        let mut world = World::new();
        world.put(TypedKey::Spec(name()), &ApplicationSpec::new(Timestamp(0)));
        world.serve(1, true).serve(2, true).serve(1, true);
        assert_eq!(world.0.describe(&name()).unwrap().serving, Some(id(2)));
        world.serve(3, true);
        assert_eq!(world.0.describe(&name()).unwrap().serving, Some(id(3)));
    }

    #[test]
    fn instances_of_members_that_answer_are_far_endpoints() {
        let node = |id: &str| id.parse::<NodeId>().unwrap();
        let mut world = World::new();
        world.put(TypedKey::Spec(name()), &ApplicationSpec::new(Timestamp(0))).serve(1, true);
        let ready = incarnation(5, 1, InstanceState::Ready);
        let mixed = vec![incarnation(1, 1, InstanceState::Draining), ready.clone()];
        world.claim_on("n2", 1, mixed).claim_on("n2", 2, vec![ready.clone()]);
        let unlimited = Incarnation { concurrency: None, ..ready.clone() };
        world.claim_on("n3", 3, vec![unlimited]);
        world.claim_on("n3", 4, vec![incarnation(5, 2, InstanceState::Ready)]);
        assert!(world.far().is_empty(), "none of them is a member");
        assert!(!world.0.describe(&name()).unwrap().unreachable);
        assert_eq!(world.0.set_member(&node("n2"), true), BTreeSet::from([name()]));
        assert!(world.0.set_member(&node("n2"), true).is_empty(), "no change");
        world.0.set_member(&node("n3"), true);
        assert_eq!(world.far(), [("n2".into(), 2, Some(2)), ("n3".into(), 1, None)]);
        assert!(world.generations().is_empty());
        let down = BTreeSet::from([node("n2")]);
        assert_eq!(world.0.set_down(down.clone()), BTreeSet::from([name()]));
        assert_eq!(world.far(), [("n3".into(), 1, None)]);
        world.0.set_member(&node("n3"), false);
        assert!(world.far().is_empty());
        assert!(world.0.describe(&name()).unwrap().unreachable);
        world.claim(1, vec![ready]);
        assert!(!world.0.describe(&name()).unwrap().unreachable, "one is here");
        assert_eq!(world.0.draining(), BTreeSet::new());
    }

    #[test]
    fn an_unreadable_record_changes_nothing() {
        let mut world = World::new();
        world.put(TypedKey::Spec(name()), &ApplicationSpec::new(Timestamp(0)));
        let (affected, error) = world.0.apply(&TypedKey::Spec(name()).key(), Some(b"{"));
        assert!(affected.is_some() && error.is_some());
        assert!(world.0.describe(&name()).is_some());
        world.0.apply(&TypedKey::Spec(name()).key(), None);
        assert!(world.0.describe(&name()).is_none());
        assert_eq!(world.0.names().count(), 0);
        world.0.apply(&TypedKey::Spec(name()).key(), Some(b"{"));
        assert_eq!(world.0.names().count(), 0);
    }
}
