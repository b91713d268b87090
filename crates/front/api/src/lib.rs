//! The HTTP API of one node, on a UNIX socket: the only way in for the command line, the console
//! and tests. It reads, writes and watches the store, and reads logs; it calls no other part.
//! `node.rs` gives it its context and drives it.

mod applications;
mod archive;
mod builds;
pub mod calls;
mod cluster;
mod config;
mod doctor;
mod domains;
mod keys;
mod logs;
mod machine;
mod nodes;
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
mod status;
mod transfer;
mod unread;
mod upgrade;
mod upload;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::extract::connect_info::Connected;
use axum::routing::{get, post};
use axum::serve::{IncomingStream, Listener};
use model::role::Roles;
use model::{ApplicationName, NodeId, ReleaseId, Timestamp};
use serde::de::DeserializeOwned;
use tokio::net::{UnixListener, UnixStream};

use ::cluster::peers::Peers;
use ::upgrade::Upgrading;
use agent::AgentContext;
use api_types::PortRow;
pub use machine::user_name;
use os::layout::DataDirectory;
use problem::Problem;
use runtime::driver::Clock;
use runtime::members::Members;
use store::SharedStore;
pub use upgrade::open_ports;

/// The pause after a failed accept; running out of descriptors is over in a moment or will be
/// reported again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the API needs of the running node besides the store.
pub trait NodeControl: Send + Sync + 'static {
    /// Begins to stop all applications and then the node; returns at once.
    fn shut_down(&self);
    /// Returns the router's public addresses and what is wrong with them.
    fn ports(&self) -> Vec<PortRow>;
    /// Returns whether requests that come from now on go to this release.
    fn serves(&self, name: &ApplicationName, release: &ReleaseId) -> bool;
    /// Returns all metrics of this node in the text format of Prometheus.
    fn metrics(&self) -> String;
    /// Makes a named place fail from now on, or with `off` no longer. Returns the reason as an
    /// error if it cannot, also if fail points are not enabled.
    fn set_fail_point(&self, name: &str, action: &str) -> Result<(), String>;
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
    /// Returns the host in URLs for people on this machine.
    fn url_host(&self) -> String {
        match self.http.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.to_string(),
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) if ip.is_unspecified() => format!("[{}]", Ipv6Addr::LOCALHOST),
            IpAddr::V6(ip) => format!("[{ip}]"),
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
    let listener = PeerListener::bind(&context.layout)?;
    let service = reads_all(router(context)).into_make_service_with_connect_info::<Peer>();
    axum::serve(listener, service).await.context("the API's socket failed")
}

/// Serves the API like `serve`, for a node that keeps the store and runs nothing.
pub async fn serve_store(context: ApiContext) -> anyhow::Result<()> {
    let listener = PeerListener::bind(&context.layout)?;
    let shared = shared(context);
    let routes = refused::what_is_left(store_routes(&shared));
    let service = reads_all(routes.with_state(shared));
    let service = service.into_make_service_with_connect_info::<Peer>();
    axum::serve(listener, service).await.context("the API's socket failed")
}

fn reads_all(routes: Router) -> Router {
    let routes = routes.layer(axum::middleware::from_fn(refused::as_problem));
    routes.layer(axum::middleware::from_fn(unread::take_all))
}

fn shared(context: ApiContext) -> Shared {
    let started_at = context.clock.now();
    Arc::new(Api { context, started_at })
}

fn key_routes<S: Clone + Send + Sync + 'static>(store: SharedStore) -> Router<S> {
    Router::new()
        .route("/v1/store/value", get(keys::get).put(keys::set).delete(keys::delete))
        .route("/v1/store/hash", get(keys::hash))
        .route("/v1/store/keys", get(keys::list))
        .route("/v1/store/history", get(keys::history))
        .route("/v1/store/watch", get(keys::watch))
        .route("/v1/store/head", get(keys::head))
        .route("/v1/store/export", get(transfer::export))
        .route("/v1/store/import", post(transfer::import))
        .with_state(store)
}

/// Serves the keys of any store, and nothing else of a node.
pub async fn serve_keys(layout: &DataDirectory, store: SharedStore) -> anyhow::Result<()> {
    let listener = PeerListener::bind(layout)?;
    let routes = refused::what_is_left(key_routes(store));
    let service = reads_all(routes).into_make_service_with_connect_info::<Peer>();
    axum::serve(listener, service).await.context("the API's socket failed")
}

fn store_routes(shared: &Shared) -> Router<Shared> {
    key_routes(shared.context.store.clone())
        .route("/v1/shutdown", post(status::shut_down))
        .route("/v1/store/squash", post(cluster::squash))
        .route("/v1/cluster", get(cluster::status))
        .route("/v1/cluster/invitations", post(cluster::invite))
        .route("/v1/cluster/sync", post(cluster::sync))
        .route("/v1/cluster/clock/trust", post(cluster::trust_clock))
        .route("/v1/nodes", get(nodes::list))
        .route("/v1/nodes/{node}", get(nodes::show))
        .route("/v1/nodes/{node}/drain", post(nodes::changes::drain))
        .route("/v1/nodes/{node}/activate", post(nodes::changes::activate))
        .route("/v1/nodes/{node}/remove", post(nodes::changes::remove))
}

fn router(context: ApiContext) -> Router {
    let shared = shared(context);
    let routes = store_routes(&shared)
        .route("/v1/apps", get(applications::list).post(applications::create))
        .route("/v1/apps/{app}", get(applications::show).delete(applications::destroy))
        .route("/v1/apps/{app}/ps", get(processes::list))
        .route("/v1/apps/{app}/scale", get(processes::scale_now).post(processes::scale))
        .route("/v1/apps/{app}/port", post(ports::change))
        .route("/v1/apps/{app}/domains", get(domains::list).post(domains::change))
        .route("/v1/apps/{app}/persist", get(persist::show).post(persist::add))
        .route("/v1/apps/{app}/pin", get(pin::show).post(pin::pin))
        .route("/v1/apps/{app}/restart", post(processes::restart))
        .route("/v1/apps/{app}/releases", get(releases::list).post(upload::push))
        .route("/v1/apps/{app}/releases/{id}/progress", get(progress::stream))
        .route("/v1/apps/{app}/rollback", post(rollback::rollback))
        .route("/v1/apps/{app}/config", get(config::list).post(config::change))
        .route("/v1/apps/{app}/logs", get(logs::lines))
        .route("/v1/apps/{app}/run", post(run::run))
        .route("/v1/ps", get(processes::list_all))
        .route("/v1/routes", get(routes::list))
        .route("/v1/status", get(status::status))
        .route("/v1/upgrade", get(upgrade::show).post(upgrade::start).delete(upgrade::cancel))
        .route("/v1/upgrade/vitals", get(upgrade::vitals))
        .route("/v1/doctor", get(doctor::doctor))
        .route("/v1/metrics", get(status::metrics))
        .route("/v1/fail-points/{name}", post(status::set_fail_point));
    refused::what_is_left(routes).with_state(shared)
}

/// Parses a request's JSON; the caller is told what is wrong with it.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(bytes).map_err(|error| {
        Problem::invalid(
            "invalid_request",
            format!("the request's JSON is not understood: {error}"),
        )
    })
}

/// The user on the other side, as the socket knows it and not as a request says.
#[derive(Clone, Debug)]
struct Peer {
    uid: u32,
}

impl Connected<IncomingStream<'_, PeerListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, PeerListener>) -> Peer {
        stream.remote_addr().clone()
    }
}

/// A listener that accepts the user that the node runs as, and root.
struct PeerListener {
    socket: UnixListener,
    uid: u32,
}

impl PeerListener {
    fn bind(layout: &DataDirectory) -> anyhow::Result<PeerListener> {
        os::directory::socket_directory(layout)?;
        let path = layout.api_socket();
        // The lock on the data directory is held, so a socket that lies here belongs to nobody.
        std::fs::remove_file(&path).ok();
        let socket = UnixListener::bind(&path)
            .with_context(|| format!("the API's socket {} cannot be made", path.display()))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        Ok(PeerListener { socket, uid: rustix::process::getuid().as_raw() })
    }
}

impl Listener for PeerListener {
    type Io = UnixStream;
    type Addr = Peer;

    async fn accept(&mut self) -> (UnixStream, Peer) {
        loop {
            let accepted = self.socket.accept().await;
            match accepted.and_then(|(stream, _)| Ok((stream.peer_cred()?.uid(), stream))) {
                Ok((uid, stream)) if uid == self.uid || uid == 0 => return (stream, Peer { uid }),
                Ok((uid, _)) => tracing::warn!(uid, "api.stranger_refused"),
                Err(error) => {
                    tracing::warn!(%error, "api.accept_failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Peer> {
        Ok(Peer { uid: self.uid })
    }
}

#[cfg(test)]
mod tests;
