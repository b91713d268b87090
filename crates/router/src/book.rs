//! The records that routing depends on, and what they say of one application: pure, whole state.
//! Driven by the router's control task, which feeds it the store's changes.

use std::collections::{BTreeMap, BTreeSet};

use model::key::{Prefix, TypedKey};
use model::probe::{Health, Verdict};
use model::record::{self, RecordError};
use model::release::StaticMount;
use model::{
    ApplicationName, ApplicationSpec, Claim, Generation, InstanceId, InstanceState, Key, NodeId,
    ProcessType, Release, ReleaseId, Rollout, RolloutPhase,
};

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
    applications: BTreeMap<ApplicationName, Records>,
}

#[derive(Debug, Default)]
struct Records {
    spec: Option<ApplicationSpec>,
    rollout: Option<Rollout>,
    releases: BTreeMap<ReleaseId, Release>,
    claims: BTreeMap<InstanceId, Claim>,
    verdicts: BTreeMap<InstanceId, Verdict>,
}

impl Records {
    fn is_empty(&self) -> bool {
        self.spec.is_none()
            && self.rollout.is_none()
            && self.releases.is_empty()
            && self.claims.is_empty()
            && self.verdicts.is_empty()
    }
}

/// What is to be watched.
pub fn prefixes(node: &NodeId) -> Vec<Prefix> {
    let probes = format!("probe::{node}");
    ["app", "instance", &probes].iter().filter_map(|text| text.parse().ok()).collect()
}

impl Book {
    pub fn new(node: NodeId) -> Book {
        Book { node, applications: BTreeMap::new() }
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
        let result = records.apply(typed, value);
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
            TypedKey::Claim(id, node) | TypedKey::Probe(node, id) if *node == self.node => {
                &id.application
            }
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
        Some(Description {
            hosts: hosts(name, spec),
            port: spec.port,
            balance: release.map(|release| release.settings.balance.clone()).unwrap_or_default(),
            statics: release.map(|release| release.recipe.statics.clone()).unwrap_or_default(),
            processes: processes(records, spec, release),
            endpoints: serving.as_ref().map(|id| endpoints(records, id)).unwrap_or_default(),
            name: name.clone(),
            serving,
        })
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
    fn apply(&mut self, key: TypedKey, value: Option<&[u8]>) -> Result<(), RecordError> {
        fn put<K: Ord, T>(map: &mut BTreeMap<K, T>, key: K, record: Option<T>) {
            match record {
                Some(record) => drop(map.insert(key, record)),
                None => drop(map.remove(&key)),
            }
        }
        match key {
            TypedKey::Spec(_) => self.spec = read(value)?,
            TypedKey::Rollout(_) => self.rollout = read(value)?,
            TypedKey::Release(_, id) => put(&mut self.releases, id, read(value)?),
            TypedKey::Claim(id, _) => put(&mut self.claims, id, read(value)?),
            TypedKey::Probe(_, id) => put(&mut self.verdicts, id, read(value)?),
            _ => {}
        }
        Ok(())
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
            let mut claim = Claim::new(Timestamp(0));
            claim.incarnations = incarnations;
            self.put(TypedKey::Claim(instance(slot), "n1".parse().unwrap()), &claim)
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
    fn a_gone_instance_takes_none_and_other_nodes_do_not_count() {
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
        let foreign = TypedKey::Claim(instance(1), "n2".parse().unwrap()).key();
        assert_eq!(world.0.apply(&foreign, None).0, None);
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
