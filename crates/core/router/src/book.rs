//! The records that routing depends on, and what they say of one application: pure, whole state.
//! Driven by the router's control task, which feeds it the store's changes.

pub mod far;
mod teams;

use std::collections::{BTreeMap, BTreeSet};

use model::application::{InstanceProtocol, Settings};
use model::key::{Prefix, TypedKey};
use model::port::PortRecipe;
use model::probe::{HealthState, Verdict};
use model::record::{self, RecordError};
use model::release::StaticMount;
use model::{
    ApplicationName, ApplicationSpec, BuildId, Claim, Generation, Incarnation, InstanceId,
    InstanceState, Key, NodeId, PortId, ProcessType, Release, ReleaseId, Rollout, RolloutPhase,
    TeamName, Timestamp,
};

use self::far::{FarClaims, FarDescription, FarNodes};
use self::teams::Teams;
use crate::gate::Gate;
use crate::routes::{self, Rights};

/// One application as the router's threads need it.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    pub name: ApplicationName,
    /// The normalized hosts, `NAME.localhost` first.
    pub hosts: Vec<String>,
    pub port: Option<u16>,
    /// The team that it belongs to.
    pub team: Option<TeamName>,
    /// What stands between clients and it.
    pub gate: Gate,
    /// What decides which of them are its own if others want them.
    pub rights: Rights,
    pub serving: Option<ReleaseId>,
    /// The build that it runs; `None` if its record is not known.
    pub build: Option<BuildId>,
    /// The way in which the release wants its requests to be handled.
    pub settings: Settings,
    pub statics: Vec<StaticMount>,
    /// Whether the files are what a build made, not what was pushed.
    pub is_built: bool,
    pub processes: Processes,
    /// The endpoints that take requests.
    pub endpoints: Vec<EndpointDescription>,
    /// Other nodes with instances that take requests.
    pub far: Vec<FarDescription>,
    /// Whether all instances are on nodes that cannot be reached.
    pub unreachable: bool,
    /// The ports of the serving release that speak something else than HTTP.
    pub services: Vec<ServiceDescription>,
}

/// One such port, and where what comes there goes.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceDescription {
    pub recipe: PortRecipe,
    pub endpoints: Vec<EndpointDescription>,
    /// Other nodes that have some.
    pub far: Vec<FarDescription>,
}

/// Whether it is worth waiting for an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processes {
    /// Endpoints are there or will be.
    Expected,
    /// The process is scaled to none.
    Stopped,
    /// There are only static files.
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
    pub protocol: InstanceProtocol,
    /// The time since which the checker has seen it well.
    pub healthy_since_ms: Option<u64>,
}

/// The exact process: an instance and its generation.
pub type IncarnationKey = (InstanceId, Generation);

#[derive(Debug)]
pub struct Book {
    node: NodeId,
    nodes: FarNodes,
    applications: BTreeMap<ApplicationName, RoutingRecords>,
    /// The times at which applications that were destroyed had been created.
    destroyed: BTreeSet<(ApplicationName, Timestamp)>,
    teams: Teams,
}

#[derive(Debug, Default)]
struct RoutingRecords {
    spec: Option<ApplicationSpec>,
    rollout: Option<Rollout>,
    releases: BTreeMap<ReleaseId, Release>,
    claims: BTreeMap<InstanceId, Claim>,
    far: FarClaims,
    verdicts: BTreeMap<InstanceId, Verdict>,
}

impl RoutingRecords {
    fn is_empty(&self) -> bool {
        self.spec.is_none()
            && self.rollout.is_none()
            && self.releases.is_empty()
            && self.claims.is_empty()
            && self.far.is_empty()
            && self.verdicts.is_empty()
    }
}

/// Returns what is to be watched.
pub fn prefixes() -> Vec<Prefix> {
    [
        "cluster::destroyed",
        "app",
        "instance",
        "cluster::nodes",
        "probe",
        "cert",
        "acme",
        "access::teams",
        "cluster::address",
    ]
    .iter()
    .filter_map(|text| text.parse().ok())
    .collect()
}

impl Book {
    pub fn new(node: NodeId) -> Book {
        let (applications, destroyed) = (BTreeMap::new(), BTreeSet::new());
        let teams = Teams::default();
        Book { node, nodes: FarNodes::default(), applications, destroyed, teams }
    }

    /// Takes note of one record; returns the application that it concerns, if any. If a record
    /// cannot be read, what was known goes on, and the error is returned too.
    pub fn apply(
        &mut self,
        key: &Key,
        value: Option<&[u8]>,
    ) -> (Option<ApplicationName>, Option<RecordError>) {
        let Some((typed, name)) = Book::noted(key) else { return (None, None) };
        if let TypedKey::Destroyed(_, created_at) = typed {
            let end = (name.clone(), created_at);
            match value {
                Some(_) => self.destroyed.insert(end),
                None => self.destroyed.remove(&end),
            };
        }
        let records = self.applications.entry(name.clone()).or_default();
        let ended =
            |spec: &ApplicationSpec| self.destroyed.contains(&(name.clone(), spec.created_at));
        let result = records.apply(&self.node, typed, value, ended);
        if records.is_empty() {
            self.applications.remove(&name);
        }
        (Some(name), result.err())
    }

    /// Returns whether the value of this key says anything about routes; sources, for example, do
    /// not.
    pub fn wants(key: &Key) -> bool {
        Book::noted(key).is_some() || matches!(TypedKey::parse(key), Some(TypedKey::Team(_)))
    }

    /// Takes note of a team; returns the applications that it has or had.
    pub fn set_team(
        &mut self,
        team: &TeamName,
        value: Option<&[u8]>,
    ) -> Result<BTreeSet<ApplicationName>, RecordError> {
        Ok(self.teams.set(team, read(value)?))
    }

    fn noted(key: &Key) -> Option<(TypedKey, ApplicationName)> {
        let typed = TypedKey::parse(key)?;
        let name = match &typed {
            TypedKey::Spec(name) | TypedKey::Rollout(name) | TypedKey::Release(name, _) => name,
            TypedKey::Destroyed(name, _) => name,
            TypedKey::Claim(id, _) => &id.application,
            TypedKey::Probe(_, id) => &id.application,
            _ => return None,
        };
        let name = name.clone();
        Some((typed, name))
    }

    pub fn names(&self) -> impl Iterator<Item = &ApplicationName> {
        self.applications.keys()
    }

    /// Describes an application; `None` if it does not exist.
    pub fn describe(&self, name: &ApplicationName) -> Option<Description> {
        let records = self.applications.get(name)?;
        let spec = records.spec.as_ref()?;
        let serving = records.rollout.as_ref().and_then(|rollout| rollout.serving.clone());
        let release = serving.as_ref().and_then(|id| records.releases.get(id));
        let web = Sought { process: ProcessType::web(), port: None };
        let endpoints = serving.as_ref().map(|id| endpoints(records, id, &web));
        let endpoints = endpoints.unwrap_or_default();
        let (far, lost) = match &serving {
            Some(serving) => records.far.describe(serving, &self.nodes, &web),
            None => (Vec::new(), false),
        };
        Some(Description {
            hosts: hosts(name, spec),
            gate: Gate::of(spec),
            rights: Rights::of(spec, serving.is_some()),
            port: spec.port_with(release.map(|release| &release.settings)),
            settings: release.map(|release| release.settings.clone()).unwrap_or_default(),
            statics: release.map(|release| release.recipe.statics.clone()).unwrap_or_default(),
            is_built: release.is_some_and(|release| !release.recipe.build.is_empty()),
            processes: processes(records, spec, release),
            team: self.teams.of(name, spec.created_at),
            services: release.map(|release| self.services(records, release)).unwrap_or_default(),
            unreachable: lost && far.is_empty() && endpoints.is_empty(),
            endpoints,
            far,
            name: name.clone(),
            serving,
            build: release.map(Release::build_id),
        })
    }

    fn services(&self, records: &RoutingRecords, serving: &Release) -> Vec<ServiceDescription> {
        let service = |recipe: &PortRecipe| {
            let sought = Sought { process: recipe.process.clone(), port: Some(recipe.id) };
            let endpoints = endpoints(records, &serving.id, &sought);
            let (far, _) = records.far.describe(&serving.id, &self.nodes, &sought);
            ServiceDescription { recipe: recipe.clone(), endpoints, far }
        };
        serving.recipe.ports.iter().map(service).collect()
    }

    /// Notes that a node came to the roster or left it. Returns the applications whose routes may
    /// change.
    pub fn set_member(&mut self, node: &NodeId, member: bool) -> BTreeSet<ApplicationName> {
        match self.nodes.set_member(node, member) {
            true => self.claimed_by(&BTreeSet::from([node.clone()])),
            false => BTreeSet::new(),
        }
    }

    /// Sets the nodes that do not answer. Returns the applications whose routes may change.
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

    /// Returns the application's incarnations on this node that are to be emptied of requests.
    pub fn draining(&self, name: &ApplicationName) -> BTreeSet<IncarnationKey> {
        self.incarnations(name, |state| state == InstanceState::Draining)
    }

    /// Returns the application's incarnations on this node that may have requests in flight.
    pub fn alive(&self, name: &ApplicationName) -> BTreeSet<IncarnationKey> {
        let alive = |state| matches!(state, InstanceState::Draining | InstanceState::Ready);
        self.incarnations(name, alive)
    }

    fn incarnations(
        &self,
        name: &ApplicationName,
        wanted: impl Fn(InstanceState) -> bool,
    ) -> BTreeSet<IncarnationKey> {
        let claims = self.applications.get(name).into_iter().flat_map(|records| &records.claims);
        claims
            .flat_map(|(id, claim)| claim.incarnations.iter().map(move |one| (id, one)))
            .filter(|(_, one)| wanted(one.state))
            .map(|(id, one)| (id.clone(), one.generation))
            .collect()
    }
}

impl RoutingRecords {
    fn apply(
        &mut self,
        here: &NodeId,
        key: TypedKey,
        value: Option<&[u8]>,
        ended: impl Fn(&ApplicationSpec) -> bool,
    ) -> Result<(), RecordError> {
        fn put<K: Ord, T>(map: &mut BTreeMap<K, T>, key: K, record: Option<T>) {
            match record {
                Some(record) => drop(map.insert(key, record)),
                None => drop(map.remove(&key)),
            }
        }
        match key {
            TypedKey::Spec(_) => {
                let spec: Option<ApplicationSpec> = read(value)?;
                // What comes late of an application that was destroyed replaces nothing.
                if !spec.as_ref().is_some_and(&ended) {
                    self.spec = spec.and_then(ApplicationSpec::unless_ended);
                }
            }
            TypedKey::Destroyed(..) => self.spec = self.spec.take().filter(|spec| !ended(spec)),
            TypedKey::Rollout(_) => {
                let rollout: Option<Rollout> = read(value)?;
                self.rollout = rollout.map(|rollout| self.fenced(rollout));
            }
            TypedKey::Release(_, id) => put(&mut self.releases, id, read(value)?),
            TypedKey::Claim(id, node) if node != *here => self.far.put(node, id, read(value)?),
            TypedKey::Claim(id, _) => put(&mut self.claims, id, read(value)?),
            TypedKey::Probe(node, id) if node != *here => self.far.judge(node, id, read(value)?),
            TypedKey::Probe(_, id) => put(&mut self.verdicts, id, read(value)?),
            _ => {}
        }
        Ok(())
    }

    /// Returns the rollout with the newest release that serves, as releases are numbered upwards, a
    /// rollback too. A coordinator that was replaced may come back and say that its own one serves,
    /// until the agents put that right.
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

fn processes(
    records: &RoutingRecords,
    spec: &ApplicationSpec,
    release: Option<&Release>,
) -> Processes {
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

/// The port of instances that is sought.
#[derive(Clone, Debug)]
struct Sought {
    process: ProcessType,
    /// The port; `None` for that of HTTP.
    port: Option<PortId>,
}

impl Sought {
    /// Returns the port, and how many requests it takes at a time: only requests are limited.
    fn of(&self, one: &Incarnation) -> Option<(u16, Option<u32>)> {
        match &self.port {
            None => Some((one.port?, one.concurrency)),
            Some(id) => Some((*one.ports.get(id)?, None)),
        }
    }
}

fn endpoints(
    records: &RoutingRecords,
    serving: &ReleaseId,
    sought: &Sought,
) -> Vec<EndpointDescription> {
    let mut found = Vec::new();
    let release = records.releases.get(serving);
    let protocol = release.map(|release| release.settings.protocol).unwrap_or_default();
    for (instance, claim) in records.claims.iter().filter(|(id, _)| id.process == sought.process) {
        for one in &claim.incarnations {
            let verdict = records.verdicts.get(instance);
            let verdict = verdict.filter(|verdict| verdict.generation == one.generation);
            let gone = verdict.is_some_and(|verdict| verdict.health == HealthState::Gone);
            if one.state != InstanceState::Ready || one.release != *serving || gone {
                continue;
            }
            let Some((port, concurrency)) = sought.of(one) else { continue };
            found.push(EndpointDescription {
                instance: instance.clone(),
                generation: one.generation,
                port,
                concurrency,
                protocol,
                healthy_since_ms: verdict
                    .filter(|verdict| verdict.health == HealthState::Healthy)
                    .map(|verdict| verdict.changed_at.0),
            });
        }
    }
    found
}

#[cfg(test)]
mod tests;
