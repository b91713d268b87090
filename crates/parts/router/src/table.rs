//! The immutable snapshot that requests read: it maps hosts and ports to applications and
//! endpoints. A change copies the shards that it touches; threads swap to the new snapshot at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use model::application::{HttpsSettings, RequestKey};
use model::port::PortRecipe;
use model::release::StaticMount;
use model::{ApplicationName, PlatformAddress, PortId, ReleaseId, TeamName};
use router_core::balance::Balance;
use router_core::book::Processes;
use router_core::far::FarCandidate;
use router_core::gate::Gate;
use router_core::routes::{self, Precedence, Rights};

use super::endpoint::Endpoint;
use super::files::source::{Roots, Rules};
use super::limits::Limits;
use super::queue::Queue;
use metrics::Labels;
use metrics::ports::PortCounters;
use router_core::http::request::RequestHead;
use router_core::pages::{self, Page};

/// The number of shards: with ten thousand applications a change copies forty of them.
const SHARDS: usize = 256;

pub struct RoutedApplication {
    pub name: ApplicationName,
    /// The labels of what the router itself answers for it.
    pub labels: Arc<Labels>,
    pub hosts: Vec<String>,
    pub port: Option<u16>,
    /// What stands between clients and it.
    pub gate: Gate,
    /// Its own page for clients that come while it is closed.
    pub closed_page: Option<Arc<[u8]>>,
    pub rights: Rights,
    pub processes: Processes,
    pub statics: Vec<StaticMount>,
    /// Whether a build made the static files.
    pub is_built: bool,
    pub serving: Option<ReleaseId>,
    /// The directories that static files may lie in: the serving release's build, then the
    /// persistent one.
    pub roots: Option<Roots>,
    pub limits: Limits,
    pub balance: &'static dyn Balance,
    /// The part of a request that keeps requests together, for strategies that need it.
    pub sticky: RequestKey,
    /// The part of a request that tells clients apart when they wait.
    pub fair: RequestKey,
    /// The time after which another endpoint is asked too, while the first says nothing.
    pub hedge_after: Option<Duration>,
    pub endpoints: Vec<Arc<Endpoint>>,
    /// Whether every endpoint takes a limited number of requests; then it is counted whose they
    /// are.
    pub is_scarce: bool,
    /// The other nodes with instances, one endpoint each.
    pub far: Vec<Arc<Endpoint>>,
    /// Whether all instances are on nodes that do not answer.
    pub unreachable: bool,
    /// Whether static files are found on this machine, if anywhere.
    pub has_files: bool,
    pub queue: Arc<Queue>,
    /// The team that it belongs to.
    pub team: Option<TeamName>,
    pub https: HttpsSettings,
    /// The path that probes of others ask for as well, and which leads nowhere else.
    pub health_path: Option<String>,
    /// Its ports that speak something else than HTTP.
    pub services: BTreeMap<PortId, Arc<Service>>,
}

/// A port that speaks something else than HTTP.
#[derive(Debug)]
pub struct Service {
    pub recipe: PortRecipe,
    /// The endpoints of the port and the clients that wait for them; nothing else of it counts.
    pub application: Arc<RoutedApplication>,
    /// The counters of the port, the same for all releases that have it.
    pub counters: Arc<PortCounters>,
}

impl RoutedApplication {
    /// Creates one with endpoints, a strategy and a queue, and nothing that HTTP would ask for.
    pub fn bare(
        name: ApplicationName,
        balance: &'static dyn Balance,
        queue: &Arc<Queue>,
        endpoints: Vec<Arc<Endpoint>>,
    ) -> RoutedApplication {
        RoutedApplication {
            hosts: vec![routes::default_host(&name)],
            labels: Arc::new(Labels::Router(name.clone())),
            name,
            port: None,
            gate: Gate::default(),
            closed_page: None,
            rights: Rights::default(),
            processes: Processes::Expected,
            statics: Vec::new(),
            is_built: false,
            serving: None,
            roots: None,
            limits: Limits::default(),
            balance,
            sticky: RequestKey::Address,
            fair: RequestKey::Address,
            hedge_after: None,
            is_scarce: endpoints.iter().all(|one| one.is_limited()),
            endpoints,
            far: Vec::new(),
            unreachable: false,
            has_files: false,
            queue: queue.clone(),
            team: None,
            https: HttpsSettings::default(),
            health_path: None,
            services: BTreeMap::new(),
        }
    }

    fn claim(&self, host: &str) -> Precedence<'_> {
        self.rights.to_host(host, &self.name)
    }

    /// Returns the ports that it wants for itself.
    pub fn ports(&self) -> BTreeSet<PortId> {
        self.port.map(PortId::tcp).into_iter().chain(self.services.keys().copied()).collect()
    }

    /// Returns whether a static file on this machine could be the answer.
    pub fn may_have(&self, head: &RequestHead) -> bool {
        !self.statics.is_empty() && self.has_files && matches!(head.method, "GET" | "HEAD")
    }

    /// Returns whether nobody here takes what a request with this method brings.
    pub fn is_only_read(&self, head: &RequestHead) -> bool {
        !self.statics.is_empty() && !matches!(head.method, "GET" | "HEAD")
    }

    /// Returns what a request for an instance is told where none is expected.
    pub fn in_vain(&self) -> Option<Page> {
        match self.processes {
            Processes::Expected => None,
            _ if !self.endpoints.is_empty() || !self.far.is_empty() => None,
            Processes::Stopped => Some(pages::STOPPED),
            Processes::NoRelease => Some(pages::NO_RELEASE),
            Processes::FilesOnly => Some(pages::BEING_BUILT),
        }
    }

    /// Returns what a request is told that no file of a site answers.
    pub fn without_file(&self, head: &RequestHead) -> Option<Page> {
        let is_site = self.processes == Processes::FilesOnly;
        let page = if self.is_only_read(head) { pages::FILES_ONLY } else { pages::NO_FILE };
        (is_site && (self.roots.is_some() || self.is_only_read(head))).then_some(page)
    }

    /// Returns the rules for its static files: where files are all there is, a request that none of
    /// them answers has no answer.
    pub fn file_rules(&self) -> Rules {
        Rules { is_site: self.processes == Processes::FilesOnly, is_built: self.is_built }
    }

    /// Returns how many requests instances take at a time, here and elsewhere.
    pub fn places(&self, now_ms: u64) -> usize {
        let near = self.endpoints.iter().map(|one| one.candidate(now_ms));
        let near = near.filter(|one| one.admits).map(|one| one.concurrency);
        let far = self.far.iter().map(|one| one.concurrency);
        near.chain(far).fold(0, |sum: usize, count| sum.saturating_add(count as usize))
    }

    /// Returns how many of those places are free, as far as is known.
    pub fn free(&self, now_ms: u64) -> usize {
        let near = self.endpoints.iter().map(|one| one.candidate(now_ms).free());
        let far = self.far.iter().map(|one| match one.far_candidate(now_ms) {
            FarCandidate { has_room: true, in_flight, .. } => {
                one.concurrency.saturating_sub(in_flight)
            }
            _ => 0,
        });
        near.chain(far).fold(0, |sum: usize, count| sum.saturating_add(count as usize))
    }

    /// Returns how many near endpoints admit requests beside this one, and how many there are in
    /// all; `None` if this is none of them.
    pub fn others_admitting(
        &self,
        endpoint: &Arc<Endpoint>,
        now_ms: u64,
    ) -> Option<(usize, usize)> {
        let is_it = |one: &&Arc<Endpoint>| Arc::ptr_eq(one, endpoint);
        self.endpoints.iter().find(is_it)?;
        let others = self.endpoints.iter().filter(|one| !Arc::ptr_eq(one, endpoint));
        let admitting = others.filter(|one| one.candidate(now_ms).admits).count();
        Some((admitting, self.endpoints.len()))
    }

    /// Returns the one node that has instances, where this one has none.
    pub fn only_far(&self) -> Option<&Arc<Endpoint>> {
        match &self.far[..] {
            [only] if self.endpoints.is_empty() => Some(only),
            _ => None,
        }
    }
}

impl std::fmt::Debug for RoutedApplication {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} with {} endpoints", self.name, self.endpoints.len())
    }
}

/// A host's entry in the table.
#[derive(Clone, Debug)]
struct Route {
    application: Arc<RoutedApplication>,
    /// Whether clients without TLS are sent there; for a family, if the very host can be.
    is_redirected: bool,
}

/// The application that a host leads to.
pub struct RoutedHost<'a> {
    pub application: &'a Arc<RoutedApplication>,
    /// Whether clients without TLS are sent there.
    pub is_redirected: bool,
    /// Whether the host is only known as one of a family, so that the certificate of that decides.
    pub is_of_family: bool,
}

type Shard = BTreeMap<String, Route>;

#[derive(Clone, Debug)]
pub struct Table {
    shards: Vec<Arc<Shard>>,
    ports: Arc<BTreeMap<PortId, ApplicationName>>,
    /// The name under which the platform's API is found.
    pub own_name: Option<Arc<PlatformAddress>>,
}

impl Default for Table {
    fn default() -> Table {
        Table { shards: vec![Arc::default(); SHARDS], ports: Arc::default(), own_name: None }
    }
}

impl Table {
    pub fn by_host(&self, host: &[u8]) -> Option<&Arc<RoutedApplication>> {
        self.route(host).map(|route| route.application)
    }

    pub fn route(&self, host: &[u8]) -> Option<RoutedHost<'_>> {
        let mut buffer = [0; routes::HOST_LENGTH_MAX];
        let name = routes::normalize(host, &mut buffer)?;
        if let Some(route) = self.entry(name) {
            let Route { application, is_redirected } = route;
            let is_redirected = *is_redirected;
            return Some(RoutedHost { application, is_redirected, is_of_family: false });
        }
        let mut buffer = [0; routes::HOST_LENGTH_MAX];
        let family = routes::families(name, &mut buffer, |one| self.entry(one).is_some());
        let Route { application, is_redirected } = self.entry(family?)?;
        Some(RoutedHost { application, is_redirected: *is_redirected, is_of_family: true })
    }

    /// Returns the application that has exactly this name.
    pub fn named(&self, name: &str) -> Option<&Arc<RoutedApplication>> {
        self.entry(name).map(|route| &route.application)
    }

    fn entry(&self, name: &str) -> Option<&Route> {
        self.shards[shard(name)].get(name)
    }

    /// Decides anew for all hosts whether their clients are redirected.
    pub fn mark_all(&mut self, is_redirected: &dyn Fn(&str, &RoutedApplication) -> bool) {
        for shard in &mut self.shards {
            let is_wrong = |(host, route): &(&String, &Route)| {
                route.is_redirected != is_redirected(host, &route.application)
            };
            let wrong: Vec<String> =
                shard.iter().filter(is_wrong).map(|(host, _)| host.clone()).collect();
            if wrong.is_empty() {
                continue;
            }
            let shard = Arc::make_mut(shard);
            for host in wrong {
                if let Some(route) = shard.get_mut(&host) {
                    route.is_redirected = !route.is_redirected;
                }
            }
        }
    }

    /// Decides for the hosts of one application, which was replaced.
    pub fn mark(
        &mut self,
        hosts: &[String],
        is_redirected: &dyn Fn(&str, &RoutedApplication) -> bool,
    ) {
        for host in hosts {
            let wanted = |route: &Route| is_redirected(host, &route.application);
            let route = self.entry(host);
            if route.is_some_and(|route| route.is_redirected != wanted(route)) {
                let shard = Arc::make_mut(&mut self.shards[shard(host)]);
                if let Some(route) = shard.get_mut(host) {
                    route.is_redirected = !route.is_redirected;
                }
            }
        }
    }

    pub fn by_port(&self, port: u16) -> Option<&Arc<RoutedApplication>> {
        self.owner(PortId::tcp(port))
    }

    fn owner(&self, id: PortId) -> Option<&Arc<RoutedApplication>> {
        self.named(&routes::default_host(self.ports.get(&id)?))
    }

    /// Returns the service on a port; `None` if HTTP is spoken there, or nobody has it.
    pub fn service(&self, id: PortId) -> Option<&Arc<Service>> {
        self.owner(id)?.services.get(&id)
    }

    pub fn ports(&self) -> &Arc<BTreeMap<PortId, ApplicationName>> {
        &self.ports
    }

    /// Puts a new state of an application in the place of the old one. If others of `all` want the
    /// same, the one with the best claim has it, in whatever order they came.
    pub fn replace(
        &mut self,
        old: Option<&Arc<RoutedApplication>>,
        new: Option<&Arc<RoutedApplication>>,
        all: &BTreeMap<ApplicationName, Arc<RoutedApplication>>,
    ) {
        let Some(name) = new.or(old).map(|one| &one.name) else { return };
        let hosts: BTreeSet<&String> =
            [old, new].into_iter().flatten().flat_map(|one| &one.hosts).collect();
        for host in hosts {
            let wanted = new.filter(|new| new.hosts.contains(host));
            let winner = match (self.named(host), wanted) {
                (Some(owner), Some(new))
                    if owner.name == *name && new.claim(host) <= owner.claim(host) =>
                {
                    Some(new)
                }
                (Some(owner), _) if owner.name == *name => {
                    let wanting = all.values().filter(|one| one.hosts.contains(host));
                    wanting.min_by(|a, b| a.claim(host).cmp(&b.claim(host)))
                }
                (Some(owner), Some(new)) if new.claim(host) < owner.claim(host) => Some(new),
                (None, Some(new)) => Some(new),
                (_, _) => continue,
            };
            let shard = Arc::make_mut(&mut self.shards[shard(host)]);
            match winner {
                Some(winner) => {
                    let application = winner.clone();
                    let route = Route { application, is_redirected: false };
                    shard.insert(host.clone(), route);
                }
                None => drop(shard.remove(host)),
            }
        }
        self.replace_ports(old, new, all);
    }

    fn replace_ports(
        &mut self,
        old: Option<&Arc<RoutedApplication>>,
        new: Option<&Arc<RoutedApplication>>,
        all: &BTreeMap<ApplicationName, Arc<RoutedApplication>>,
    ) {
        let same = |old: &Arc<RoutedApplication>, new: &Arc<RoutedApplication>| {
            old.ports() == new.ports() && old.rights == new.rights
        };
        let services = |one: Option<&Arc<RoutedApplication>>| -> Vec<PortId> {
            one.into_iter().flat_map(|one| one.services.keys().copied()).collect()
        };
        if services(old) != services(new) {
            // A port that stays may be for something else from now on, which is another state.
            self.ports = Arc::new((*self.ports).clone());
        }
        if old.zip(new).is_some_and(|(old, new)| same(old, new)) {
            return;
        }
        let before = old.map(|old| old.ports()).unwrap_or_default();
        let after = new.map(|new| new.ports()).unwrap_or_default();
        for id in before.union(&after) {
            let wanting = all.values().filter(|one| one.ports().contains(id));
            let winner =
                wanting.min_by(|a, b| a.rights.to_port(&a.name).cmp(&b.rights.to_port(&b.name)));
            let known = self.ports.get(id);
            if known == winner.map(|winner| &winner.name) {
                continue;
            }
            let ports = Arc::make_mut(&mut self.ports);
            match winner {
                Some(winner) => drop(ports.insert(*id, winner.name.clone())),
                None => drop(ports.remove(id)),
            }
        }
    }
}

/// Returns the shard by FNV-1a: names are short, and as a shard is a tree, no adversary is worth a
/// keyed hash.
fn shard(host: &str) -> usize {
    let hash = host.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    usize::try_from(hash >> 32).unwrap_or(0) % SHARDS
}

#[cfg(test)]
mod tests;
