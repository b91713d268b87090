//! The HTTP API of one node, on a UNIX socket and for clients with tokens on the node port: the
//! only way in for the command line, the console and tests. It reads, writes and watches the store,
//! and reads logs; it calls no other part. `node.rs` gives it its context and drives it.

mod applications;
mod archive;
mod audit;
mod authority;
mod backups;
mod builds;
mod caller;
pub mod calls;
mod certificates;
mod clients;
mod cluster;
mod config;
mod doctor;
mod domains;
mod door;
mod isolation;
mod json_body;
mod kept;
mod keys;
mod login;
mod logs;
mod machine;
mod maintenance;
mod nodes;
mod openapi;
mod own_names;
mod password;
mod peer;
mod persist;
mod pin;
mod ports;
mod problem;
mod processes;
mod progress;
mod records;
mod refused;
mod releases;
mod rollback;
mod routes;
mod run;
mod secrets;
mod sessions;
mod socket;
mod sources;
mod status;
mod table;
mod team_limits;
mod teams;
mod tokens;
mod touch;
mod transfer;
mod undo;
mod unread;
mod upgrade;
mod upload;
mod users;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use access_core::Right;
use anyhow::Context;
use axum::Router;
use model::role::Roles;
use model::{ApplicationName, NodeId, PlatformAddress, ReleaseId, Timestamp};

use ::cluster::peers::Peers;
use ::secrets::Secrets;
use ::upgrade::Upgrading;
use agent::AgentContext;
use api_types::PortRow;
use door::Door;
pub use machine::user_name;
use os::layout::DataDirectory;
use peer::Peer;
use runtime::driver::Clock;
use runtime::faults::Faults;
use runtime::members::Members;
use socket::SocketListener;
use store::SharedStore;
use table::Table;
pub use upgrade::open_ports;

/// What the API needs of the running node besides the store.
pub trait NodeControl: Send + Sync + 'static {
    /// Begins to stop all applications and then the node; returns at once.
    fn shut_down(&self);
    /// Returns the router's public addresses and what is wrong with them.
    fn ports(&self) -> Vec<PortRow>;
    /// Returns whether requests that come from now on go to this release.
    fn serves(&self, name: &ApplicationName, release: &ReleaseId) -> bool;
    /// Returns the name under which clients find the platform, on all nodes the same.
    fn own_name(&self) -> Option<Arc<PlatformAddress>> {
        None
    }
    /// Returns whether this node shows a certificate that is good for a host.
    fn covers(&self, _host: &str) -> bool {
        false
    }
    /// Returns all metrics of this node in the text format of Prometheus.
    fn metrics(&self) -> String;
    /// Makes a named place fail from now on, or with `off` no longer. Returns the reason as an
    /// error if it cannot, also if fail points are not enabled.
    fn set_fail_point(&self, name: &str, action: &str) -> Result<(), String>;
    /// Returns the fail points, none of which is armed unless the node was started for it.
    fn faults(&self) -> Faults {
        Faults::default()
    }
}

#[derive(Clone)]
pub struct ApiContext {
    pub store: SharedStore,
    pub node: NodeId,
    /// The roles of this node.
    pub roles: Roles,
    pub layout: DataDirectory,
    pub clock: Clock,
    /// The address of public HTTP; applications' own ports are on the same IP address.
    pub http: SocketAddr,
    pub control: Arc<dyn NodeControl>,
    /// The node's transport to its peers; `None` if something else replicates the store.
    pub peers: Option<Arc<Peers>>,
    /// The node's agent; `None` on a node that runs no applications.
    pub agent: Option<Arc<AgentContext>>,
    /// What keeps the keys of secrets; `None` on a node that keeps no store of ours.
    pub secrets: Option<Arc<Secrets>>,
    /// The state of upgrades; `None` on a node that only keeps the store.
    pub upgrading: Option<Arc<Upgrading>>,
    /// Held while numbers and ports are given out, by commands and by the agent: read, choose and
    /// write must not interleave.
    pub changes: Arc<tokio::sync::Mutex<()>>,
}

struct Api {
    context: ApiContext,
    started_at: Timestamp,
}

type Shared = Arc<Api>;

impl std::ops::Deref for Api {
    type Target = ApiContext;
    fn deref(&self) -> &ApiContext {
        &self.context
    }
}

impl Api {
    /// Returns the host in URLs for people: where it listens on all addresses, the one at which
    /// others find this node, or loopback as long as nobody does.
    fn url_host(&self) -> String {
        let ip = self.http.ip();
        let known = self.peers.as_ref().and_then(|peers| peers.own_address());
        let known =
            known.map(|address| address.ip()).filter(|known| known.is_ipv4() == ip.is_ipv4());
        match (ip, known) {
            (ip, Some(IpAddr::V4(known))) if ip.is_unspecified() => known.to_string(),
            (ip, Some(IpAddr::V6(known))) if ip.is_unspecified() => format!("[{known}]"),
            (IpAddr::V4(ip), _) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.to_string(),
            (IpAddr::V6(ip), _) if ip.is_unspecified() => format!("[{}]", Ipv6Addr::LOCALHOST),
            (IpAddr::V4(ip), _) => ip.to_string(),
            (IpAddr::V6(ip), _) => format!("[{ip}]"),
        }
    }

    /// Returns whether that node has left or failed, or never was a member of the cluster.
    fn is_lost(&self, node: &NodeId) -> bool {
        let alive = self.peers.as_ref().map(|peers| peers.alive().borrow().contains(node));
        *node != self.node && alive == Some(false)
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

/// Serves the API until the socket fails or the future is dropped.
pub async fn serve(context: ApiContext) -> anyhow::Result<()> {
    let shared = shared(context);
    let door = door(&shared);
    let table = node_table(&shared, door.clone());
    serve_table(shared, door, table).await
}

/// Serves the API like `serve`, for a node that keeps the store and runs nothing.
pub async fn serve_store(context: ApiContext) -> anyhow::Result<()> {
    let shared = shared(context);
    let door = door(&shared);
    let table = store_table(&shared, door.clone());
    serve_table(shared, door, table).await
}

async fn serve_table(shared: Shared, door: Arc<Door>, table: Table<Shared>) -> anyhow::Result<()> {
    let routes = refused::what_is_left(table.into_router());
    let routes = reads_all(routes.with_state(shared.clone()));
    let listener = SocketListener::bind(&shared.layout)?;
    let service = routes.clone().into_make_service_with_connect_info::<Peer>();
    tokio::select! {
        ended = axum::serve(listener, service) => ended.context("the API's socket failed"),
        ended = touch::follow(&shared, &door) => ended,
        ended = kept::follow(&shared) => ended,
        ended = clients::serve(shared.clone(), routes) => ended,
    }
}

fn reads_all(routes: Router) -> Router {
    let routes = routes.layer(axum::middleware::from_fn(refused::as_problem));
    routes.layer(axum::middleware::from_fn(unread::take_all))
}

fn shared(context: ApiContext) -> Shared {
    let started_at = context.clock.now();
    Arc::new(Api { context, started_at })
}

fn door(api: &Api) -> Arc<Door> {
    let (store, node, control) = (api.store.clone(), api.node.clone(), api.control.clone());
    Arc::new(Door::new(store, node, api.clock, control))
}

fn key_table<S: Clone + Send + Sync + 'static>(
    store: SharedStore,
    door: Option<Arc<Door>>,
) -> Table<S> {
    Table::new(door)
        .get("/v1/store/value", Right::RawStore, keys::get)
        .put_and_delete("/v1/store/value", Right::RawStore, keys::set, keys::delete)
        .get("/v1/store/hash", Right::RawStore, keys::hash)
        .get("/v1/store/keys", Right::RawStore, keys::list)
        .get("/v1/store/history", Right::RawStore, keys::history)
        .get("/v1/store/watch", Right::RawStore, keys::watch)
        .get("/v1/store/head", Right::RawStore, keys::head)
        .get("/v1/store/export", Right::RawStore, transfer::export)
        .post("/v1/store/import", Right::RawStore, transfer::import)
        .with_state(store)
}

/// Serves the keys of any store, and nothing else of a node.
pub async fn serve_keys(layout: &DataDirectory, store: SharedStore) -> anyhow::Result<()> {
    let listener = SocketListener::bind(layout)?;
    let routes = refused::what_is_left(key_table(store, None).into_router());
    let service = reads_all(routes).into_make_service_with_connect_info::<Peer>();
    axum::serve(listener, service).await.context("the API's socket failed")
}

fn store_table(shared: &Shared, door: Arc<Door>) -> Table<Shared> {
    key_table(shared.store.clone(), Some(door))
        .post_unrecorded("/v1/shutdown", Right::ShutDown, status::shut_down)
        .post("/v1/store/squash", Right::RawStore, cluster::squash)
        .post("/v1/export", Right::MoveCluster, transfer::take_out)
        .get("/v1/backups", Right::SeePlatform, backups::show)
        .post("/v1/backups", Right::MoveCluster, backups::schedule)
        .delete("/v1/backups", Right::MoveCluster, backups::unschedule)
        .post("/v1/backups/capture", Right::MoveCluster, backups::capture)
        .get("/v1/import", Right::MoveCluster, transfer::readiness)
        .post("/v1/import", Right::MoveCluster, transfer::bring_in)
        .get("/v1/cluster", Right::SeePlatform, cluster::status)
        .post("/v1/cluster/invitations", Right::ManageNodes, cluster::invite)
        .post_unrecorded("/v1/cluster/sync", Right::ManageNodes, cluster::sync)
        .post("/v1/cluster/clock/trust", Right::ManageNodes, cluster::trust_clock)
        .get("/v1/nodes", Right::SeePlatform, nodes::list)
        .get("/v1/nodes/{node}", Right::SeePlatform, nodes::show)
        .post("/v1/nodes/{node}/drain", Right::ManageNodes, nodes::changes::drain)
        .post("/v1/nodes/{node}/activate", Right::ManageNodes, nodes::changes::activate)
        .post("/v1/nodes/{node}/remove", Right::ManageNodes, nodes::changes::remove)
        .get("/v1/secrets", Right::SeePlatform, secrets::show)
        .post("/v1/secrets/rotate", Right::ManageNodes, secrets::rotate)
        .get("/v1/authority", Right::SeePlatform, authority::show)
        .post("/v1/authority", Right::ManagePeople, authority::agree)
        .delete("/v1/authority", Right::ManagePeople, authority::withdraw)
        .post_unrecorded("/v1/authority/terms", Right::ManagePeople, authority::terms)
        .get("/v1/isolation", Right::SeePlatform, isolation::show)
        .post("/v1/isolation", Right::ManagePeople, isolation::change)
        .get("/v1/users", Right::ManagePeople, users::list)
        .post("/v1/users", Right::ManagePeople, users::add)
        .delete("/v1/users/{user}", Right::ManagePeople, users::remove)
        .post("/v1/users/{user}/grant", Right::ManagePeople, users::grant)
        .post("/v1/users/{user}/revoke", Right::ManagePeople, users::revoke)
        .get("/v1/teams", Right::ManagePeople, teams::list)
        .post("/v1/teams", Right::ManagePeople, teams::add)
        .post("/v1/teams/{team}", Right::ManagePeople, teams::change)
        .delete("/v1/teams/{team}", Right::ManagePeople, teams::remove)
        .get("/v1/tokens", Right::OwnTokens, tokens::list)
        .post("/v1/tokens", Right::OwnTokens, tokens::create)
        .delete("/v1/tokens/{user}/{name}", Right::OwnTokens, tokens::revoke)
        .post("/v1/users/{user}/invitations", Right::ManagePeople, login::invite)
        .post("/v1/login", Right::LogIn, login::log_in)
        .get("/v1/whoami", Right::OwnTokens, login::whoami)
        .get("/v1/openapi.json", Right::OwnTokens, openapi::show)
        .get("/v1/audit", Right::SeeAudit, audit::list)
}

fn node_table(shared: &Shared, door: Arc<Door>) -> Table<Shared> {
    store_table(shared, door)
        .get("/v1/apps", Right::ListApplications, applications::list)
        .get("/v1/destroyed", Right::ListApplications, kept::list)
        .post("/v1/apps", Right::CreateApplication, applications::create)
        .get("/v1/apps/{app}", Right::SeeApplication, applications::show)
        .delete("/v1/apps/{app}", Right::DestroyApplication, applications::destroy)
        .post("/v1/apps/{app}/restore", Right::RestoreApplication, kept::restore)
        .get("/v1/apps/{app}/ps", Right::SeeApplication, processes::list)
        .get("/v1/apps/{app}/scale", Right::SeeApplication, processes::scale_now)
        .post("/v1/apps/{app}/scale", Right::Scale, processes::scale)
        .get("/v1/apps/{app}/maintenance", Right::SeeApplication, maintenance::show)
        .post("/v1/apps/{app}/maintenance", Right::Maintain, maintenance::change)
        .get("/v1/apps/{app}/password", Right::SeeApplication, password::show)
        .post("/v1/apps/{app}/password", Right::Maintain, password::change)
        .post("/v1/apps/{app}/port", Right::ChooseAddresses, ports::change)
        .get("/v1/apps/{app}/domains", Right::SeeApplication, domains::list)
        .post("/v1/apps/{app}/domains", Right::ChooseAddresses, domains::change)
        .get("/v1/apps/{app}/domains/status", Right::SeeApplication, domains::status::status)
        .post("/v1/apps/{app}/domains/{name}/retry", Right::ChooseAddresses, authority::retry)
        .get("/v1/apps/{app}/certificates", Right::SeeApplication, certificates::list)
        .post("/v1/apps/{app}/certificates", Right::ChooseAddresses, certificates::add)
        .delete("/v1/apps/{app}/certificates/{name}", Right::ChooseAddresses, certificates::remove)
        .get("/v1/certificates", Right::SeePlatform, certificates::list_all)
        .post("/v1/certificates/{name}/retry", Right::ManageNodes, authority::retry_own)
        .get("/v1/apps/{app}/persist", Right::SeeApplication, persist::show)
        .post("/v1/apps/{app}/persist", Right::KeepFiles, persist::add)
        .get("/v1/apps/{app}/isolation", Right::SeeApplication, isolation::mark::show)
        .post("/v1/apps/{app}/isolation", Right::ManagePeople, isolation::mark::change)
        .get("/v1/apps/{app}/pin", Right::SeeApplication, pin::show)
        .post("/v1/apps/{app}/pin", Right::MoveApplication, pin::pin)
        .post("/v1/apps/{app}/restart", Right::Restart, processes::restart)
        .get("/v1/apps/{app}/releases", Right::SeeApplication, releases::list)
        .post("/v1/apps/{app}/releases", Right::Push, upload::push)
        .post_unrecorded("/v1/apps/{app}/sources/known", Right::Push, sources::known)
        .get("/v1/apps/{app}/releases/{id}/progress", Right::SeeApplication, progress::stream)
        .post("/v1/apps/{app}/rollback", Right::Push, rollback::rollback)
        .get("/v1/apps/{app}/changes", Right::SeeApplication, undo::list)
        .post("/v1/apps/{app}/undo", Right::Undo, undo::undo)
        .get("/v1/apps/{app}/config", Right::ReadVariables, config::list)
        .post("/v1/apps/{app}/config", Right::Configure, config::change)
        .get("/v1/apps/{app}/logs", Right::SeeApplication, logs::lines)
        .post("/v1/apps/{app}/run", Right::RunCommand, run::run)
        .post("/v1/apps/{app}/sessions/{id}/attach", Right::RunCommand, sessions::attach)
        .delete("/v1/apps/{app}/sessions/{id}", Right::RunCommand, sessions::stop)
        .get("/v1/ps", Right::ListApplications, processes::list_all)
        .get("/v1/routes", Right::ListApplications, routes::list)
        .get("/v1/status", Right::SeePlatform, status::status)
        .get("/v1/upgrade", Right::SeePlatform, upgrade::show)
        .post("/v1/upgrade", Right::Upgrade, upgrade::start)
        .delete("/v1/upgrade", Right::Upgrade, upgrade::cancel)
        .get("/v1/upgrade/vitals", Right::SeePlatform, upgrade::vitals)
        .get("/v1/doctor", Right::SeePlatform, doctor::doctor)
        .get("/v1/metrics", Right::SeePlatform, status::metrics)
        .post_unrecorded("/v1/fail-points/{name}", Right::FailPoints, status::set_fail_point)
}

#[cfg(test)]
mod tests;
