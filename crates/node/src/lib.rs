//! One node: the only file that knows every part. It opens the store, starts the parts, watches
//! over them and stops them in order.

mod agreement;
mod announcing;
pub mod backend;
mod bus;
mod control;
pub mod development;
mod gauges;
pub mod identity;
pub mod platform;
mod platform_clients;
pub mod records;
mod redis_people;
pub mod roles;
pub mod started;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, ensure};
use model::NodeId;
use model::role::{Role, Roles};
use router_core::http::request::ForwardedFields;
use router_core::proxy_protocol::Senders;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

pub use self::agreement::{AuthorityOptions, PlatformName};
use self::control::Control;
use self::development::DevelopmentAuthority;
use self::records::StoredRecords;
use self::started::Started;
use crate::backend::Backend;
use ::cluster;
use agent::AgentContext;
use agent::moving::Moving;
use agent::placing::Placing;
use agent::plain::PlainLauncher;
use agent::ports::Ports;
use agent::prepare::{NetworkSettings, Preparer};
use agent::registry::Registry;
use api::calls::Calls;
use api::{ApiContext, NodeControl};
use backup::BackupContext;
use certificates::CertificatesContext;
use cluster::options::PeerOptions;
use cluster::peers::Peers;
use cluster::prepare;
use cluster::remote;
use metrics::Metrics;
use os::directory;
use os::layout::DataDirectory;
use os::shared_port::Listeners;
use redis::{ServerConfig, ServerHandle};
use router::queue::QueueLimits;
use router::{RouterConfig, RouterHandle, Secure};
use runtime::driver::Clock;
use runtime::faults::Faults;
use runtime::members::Members;
use runtime::supervise::supervise;
use secrets::Secrets;
use store::SharedStore;
use store::bus::Bus;
use store::options::Options;
use tls::{CertificateFiles, Tls};
use upgrade::succession::{Handover, Testament, UnderWay};
use upgrade::{OpenPorts, ProcessOrigin, Upgrading};

/// The configuration of a node. It is validated where the command line is read.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    pub layout: DataDirectory,
    /// The address at which other nodes reach this one, and the cluster it joins.
    pub peers: PeerOptions,
    /// The address of public HTTP, where requests are told apart by their Host.
    pub http: SocketAddr,
    /// The address and certificates of public HTTPS; `None` if it is not served.
    pub https: Option<HttpsOptions>,
    /// Proxies in front of this node that announce whose each connection is.
    pub announced_by: Option<Senders>,
    pub forwarded: ForwardedFields,
    /// The authority that a person agreed to when the node was started.
    pub authority: Option<AuthorityOptions>,
    /// The name under which the platform's API is to be found; `None` for what was said before.
    pub platform: Option<PlatformName>,
    /// The addresses at which strangers reach this node, for which it wants certificates.
    pub public: Vec<IpAddr>,
    pub store: Backend,
    /// The roles of the node; `None` for those it had before, and at first all.
    pub roles: Option<Roles>,
    /// The address at which clients of Redis find the store; `None` if it is not served.
    pub redis: Option<SocketAddr>,
    /// The number of router threads; `None` for one per core.
    pub threads: Option<usize>,
    /// The load that this node reports; `None` for what is measured.
    pub load: Option<u32>,
    /// Whether tests may arm fail points through the API.
    pub fail_points: bool,
    /// The time in which what is under way may go on here when another process has taken over.
    pub drain: Duration,
    /// Seconds by which this node's clock is wrong, in tests.
    pub clock_off: i64,
    /// The search path of applications: this process's own `PATH`.
    pub search_path: String,
    /// The home of this process's user, where version managers keep interpreters.
    pub home: Option<std::path::PathBuf>,
    pub listeners: Arc<Listeners>,
}

#[derive(Clone, Debug)]
pub struct HttpsOptions {
    pub address: SocketAddr,
    /// Those of files, which count before those that the cluster's records hold.
    pub certificates: Vec<CertificateFiles>,
    /// The port at which clients find it, where something in front passes another one on.
    pub port: Option<u16>,
}

/// The reason why a node's run is over.
pub enum RunEnd {
    Stopped,
    /// Another process goes on with the node.
    HandedOver(Box<Handover>),
}

/// The time in which requests under way are answered when the node ends.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// The time in which a client of this process may ask once more if another one has taken over: who
/// is to be asked is known here as it was at that moment.
const ASK_LIMIT: Duration = Duration::from_secs(30);
/// The time in which what is under way then may go on, unless the command line says otherwise:
/// tunnels of WebSockets, connections to applications' own ports, long answers. HAProxy
/// (`hard-stop-after`) and nginx (`worker_shutdown_timeout`) have no limit unless told; most
/// clients that stay as long connect again by themselves.
pub const DRAIN_DEFAULT: Duration = Duration::from_secs(3600);

/// Runs the node until it is told to stop, by a signal or by `cortex down`, or until another
/// process is to run it.
pub async fn run(
    config: NodeConfig,
    started: &Started,
    origin: ProcessOrigin,
) -> anyhow::Result<RunEnd> {
    let layout = config.layout.clone();
    let _lock = identity::lock(&layout)?;
    os::secret_file::leave_no_core().context("core dumps cannot be turned off")?;
    directory::socket_directory(&layout)?;
    let id = identity::node_id(&layout)?;
    let roles = roles::settle(&layout, config.roles.as_ref(), &config.store, config.peers.joins())?;
    let (clock, faults) = (Clock::start_off(config.clock_off), Faults::default());
    let options =
        Options { unkept: model::key::note_unkept, ..Options::with_faults(faults.clone()) };
    let is_guest = config.store == Backend::Local && !roles.has(Role::Store);
    let listeners = config.listeners.clone();
    let asked =
        PeerOptions { guest: is_guest, listeners: listeners.clone(), ..config.peers.clone() };
    let asked = PeerOptions { clock_off: config.clock_off, ..asked };
    let prepared = prepare::prepare(&layout, &id, &asked).await?;
    roles::keep(&layout, &roles)?;
    let (store, guest) = if is_guest {
        let (store, guest) = remote::open(&layout, id.clone(), clock, options).await?;
        (store, Some(guest))
    } else {
        (config.store.open(&layout, id.clone(), clock, options).await?, None)
    };
    let faults_too = faults.clone();
    let (store, secrets) = backend::seal(&layout, &id, &config.store, store, faults_too).await?;
    let bus = Arc::new(Bus::default());
    let of = (layout.clone(), id.clone());
    let peers = Peers::open(prepared, of.0, of.1, clock, store.clone(), guest, bus.clone()).await?;
    let asked = config.peers.listen.is_some() || config.peers.joins();
    ensure!(
        !asked || peers.is_some(),
        "nodes with a store in etcd meet there: leave --listen and --join out"
    );
    let joining = peers.as_ref().is_some_and(|peers| peers.is_joining());
    let said = {
        let (store, config, id) = (store.clone(), config.clone(), id.clone());
        let roles = roles.clone();
        move || {
            let (store, config) = (store.clone(), config.clone());
            let (id, roles) = (id.clone(), roles.clone());
            // A node that joins is entered by the node that lets it in, and one that was removed is
            // entered by nobody.
            let enters = !joining && !is_guest;
            async move { announcing::announce(store, &config, &id, roles, clock, enters).await }
        }
    };
    let doubts_clock = match &peers {
        Some(peers) => peers.status().await?.clock_doubt.is_some(),
        None => false,
    };
    if let (Some(secrets), Some(peers)) = (&secrets, &peers) {
        secrets.connect(peers.clone());
    }
    if joining || is_guest || doubts_clock {
        // Writes wait until this node has what its cluster has, has found whose store it uses, or
        // was told that its clock is right.
        runtime::task::spawn(supervise("announce", said));
    } else {
        said().await?;
        if let Some(secrets) = &secrets {
            secrets.begin().await;
        }
    }
    let bus_address =
        roles.has(Role::Agent).then(|| bus::address(&layout, &listeners)).transpose()?;
    let people = match config.redis {
        Some(_) => Some(redis_people::follow(store.clone(), id.clone(), clock).await?),
        None => None,
    };
    let redis_server = (config.redis.is_some() || bus_address.is_some()).then(|| {
        let find = || bus::find_application(layout.clone());
        let redis_server = ServerConfig {
            tcp: config.redis,
            applications: bus_address.map(|address| (address, find())),
            people,
            listeners,
            ..ServerConfig::default()
        };
        let beneath = store.beneath().unwrap_or(&store).clone();
        redis::start(redis_server, beneath, bus, id.clone(), clock)
    });
    let redis_server = redis_server.transpose()?;
    let adopted = Arc::new(AtomicBool::new(!roles.has(Role::Agent)));
    let members = peers.clone().map(|peers| peers as Arc<dyn Members>);
    let of = (layout.clone(), id.clone(), store.clone(), members);
    let upgrading = Arc::new(Upgrading::new(of.0, of.1, of.2, of.3, adopted, origin));
    let bus = bus_address;
    let node = Node { config, roles, id, clock, faults, store, secrets, peers, upgrading, bus };
    let (stop_applications, stopping) = watch::channel(false);
    let (mut parts, control) = node.start(stopping)?;
    started.save(&layout)?;
    tracing::info!(node = %node.id, data = %layout.root().display(), "node.started");
    let testament = tokio::select! {
        // The agent ends when all applications have stopped; no other part ends by itself.
        _ = parts.join_next() => None,
        () = told_to_stop(&control, &stop_applications) => None,
        testament = node.upgrading.handed_over() => Some(testament),
    };
    let ended = node.end(&control, testament, parts, redis_server).await?;
    tracing::info!(node = %node.id, "node.stopped");
    Ok(ended)
}

struct Node {
    config: NodeConfig,
    roles: Roles,
    id: NodeId,
    clock: Clock,
    faults: Faults,
    store: SharedStore,
    /// The keys that seal secrets; `None` on a node that keeps no store of ours.
    secrets: Option<Arc<Secrets>>,
    /// The transport to the peers; `None` if something else replicates the store.
    peers: Option<Arc<Peers>>,
    upgrading: Arc<Upgrading>,
    /// The address at which applications find the bus.
    bus: Option<SocketAddr>,
}

impl Node {
    /// Stops everything; requests that were accepted are answered. With a testament, clients that
    /// wait for an answer go on waiting, for the next process.
    async fn end(
        &self,
        control: &Control,
        testament: Option<Testament>,
        mut parts: JoinSet<()>,
        redis_server: Option<ServerHandle>,
    ) -> anyhow::Result<RunEnd> {
        std::fs::remove_file(self.config.layout.api_socket()).ok();
        let router = control.router.clone();
        match (&testament, router.clone()) {
            (Some(_), Some(router)) => {
                let drain = self.config.drain;
                router.leave(ASK_LIMIT.min(drain), drain);
            }
            (Some(_), None) => {}
            (None, router) => {
                self.upgrading.says_farewell();
                self.config.listeners.release_all();
                if let Some(router) = router {
                    runtime::task::spawn_blocking(move || router.stop(ANSWER_LIMIT)).await?;
                }
            }
        }
        parts.shutdown().await;
        if let Some(peers) = &self.peers {
            peers.close();
        }
        drop(redis_server);
        self.store.close().await?;
        let Some(testament) = testament else { return Ok(RunEnd::Stopped) };
        Ok(RunEnd::HandedOver(Box::new(Handover {
            testament,
            listeners: self.config.listeners.hand_over(),
            public: router.as_ref().and_then(|router| router.public()),
            under_way: router.map(under_way),
        })))
    }

    /// Starts each part in a task of its own, under supervision.
    fn start(
        &self,
        stopping: watch::Receiver<bool>,
    ) -> anyhow::Result<(JoinSet<()>, Arc<Control>)> {
        let Node { config, roles, id, clock, faults, store, peers, upgrading, .. } = self;
        let (clock, metrics) = (*clock, Metrics::default());
        let router = self.router(&metrics)?;
        let control = Arc::new(Control {
            faults: config.fail_points.then_some(faults.clone()),
            stop: Notify::new(),
            metrics: metrics.clone(),
            router: router.clone(),
        });
        let agent = roles.has(Role::Agent).then(|| self.agent_context());
        let api = ApiContext {
            store: store.clone(),
            node: id.clone(),
            roles: roles.clone(),
            layout: config.layout.clone(),
            clock,
            http: router.as_ref().and_then(|router| router.public()).unwrap_or(config.http),
            control: control.clone(),
            peers: peers.clone(),
            agent: agent.clone(),
            secrets: self.secrets.clone(),
            upgrading: Some(upgrading.clone()),
            changes: agent.as_ref().map(|agent| agent.changes.clone()).unwrap_or_default(),
        };
        if let Some(peers) = peers {
            Calls::new(api.clone()).take(&**peers);
        }
        let mut parts = JoinSet::new();
        if let Some(peers) = peers.clone() {
            parts.spawn(supervise("peers", move || peers.clone().run()));
        }
        if let Some(secrets) = self.secrets.clone() {
            parts.spawn(supervise("secrets", move || secrets.clone().run()));
        }
        if let Some(router) = router {
            parts.spawn(router.suspicions());
            parts.spawn(supervise("router.control", move || router.control()));
        }
        match agent {
            Some(agent) => self.start_agent(&mut parts, agent, stopping),
            None => drop(parts.spawn(until_stopping(stopping))),
        }
        let (next, serving) = (upgrading.clone(), control.clone());
        let ports: OpenPorts = Arc::new(move || api::open_ports(&serving.ports()));
        parts.spawn(supervise("upgrade", move || {
            upgrade::rolling::run(next.clone(), ports.clone(), clock)
        }));
        parts.spawn(supervise("api", move || api::serve(api.clone())));
        self.start_certificates(&mut parts);
        self.start_backups(&mut parts);
        self.start_checker(&mut parts);
        let failing = faults.clone();
        parts.spawn(supervise("metrics", move || metrics.clone().run(failing.clone())));
        self.start_gauges(&mut parts);
        tokio::spawn(runtime::settle::settle());
        Ok((parts, control))
    }

    /// Returns the peers as those parts see them that do not care how they are reached.
    fn members(&self) -> Option<Arc<dyn Members>> {
        self.peers.clone().map(|peers| peers as Arc<dyn Members>)
    }

    /// Starts what orders certificates. Any node does, whatever it serves itself.
    fn start_certificates(&self, parts: &mut JoinSet<()>) {
        let Node { config, id, clock, store, .. } = self;
        let context = CertificatesContext {
            store: store.clone(),
            node: id.clone(),
            clock: *clock,
            members: self.members(),
            https: config.https.is_some(),
        };
        context.answer();
        parts.spawn(supervise("certificates", move || certificates::run(context.clone())));
    }

    /// Starts what makes copies of the cluster by itself, on nodes that keep the store.
    fn start_backups(&self, parts: &mut JoinSet<()>) {
        let Node { config, roles, id, clock, store, .. } = self;
        if !roles.has(Role::Store) {
            return;
        }
        let context = BackupContext {
            store: store.clone(),
            node: id.clone(),
            layout: config.layout.clone(),
            clock: *clock,
            members: self.members(),
        };
        parts.spawn(supervise("backups", move || backup::schedule::run(context.clone())));
    }

    /// Starts the checker; a node without one listens to those of other nodes.
    fn start_checker(&self, parts: &mut JoinSet<()>) {
        let Node { roles, id, clock, faults, store, peers, .. } = self;
        let (store, node, clock) = (store.clone(), id.clone(), *clock);
        if roles.has(Role::Agent)
            && let Some(peers) = peers
        {
            checker::answers::give(&**peers, store.clone(), node.clone());
        }
        if !roles.has(Role::Checker) {
            if let Some(peers) = peers.clone().filter(|_| roles.has(Role::Agent)) {
                parts.spawn(supervise("jury", move || {
                    checker::jury::run(store.clone(), node.clone(), peers.alive(), clock)
                }));
            }
            return;
        }
        let watched = checker::hanging::WatchedChecker {
            store: store.clone(),
            node: node.clone(),
            clock,
            faults: faults.clone(),
            peers: self.members(),
        };
        parts.spawn(supervise("checker", move || watched.clone().run()));
        if let Some(peers) = peers.clone() {
            parts.spawn(supervise("witness", move || {
                checker::witness::run(store.clone(), node.clone(), peers.clone(), clock)
            }));
        }
    }

    /// Starts the router. It also runs on a node that has instances but takes nothing from the
    /// public: routers of other nodes bring requests for them.
    fn router(&self, metrics: &Metrics) -> anyhow::Result<Option<Arc<RouterHandle>>> {
        let Node { config, roles, id, clock, faults, store, peers, .. } = self;
        let is_public = roles.has(Role::Router);
        if !is_public && !roles.has(Role::Agent) {
            return Ok(None);
        }
        let secure = config.https.as_ref().filter(|_| is_public).map(|https| {
            // A certificate that cannot be loaded must not stop what runs here.
            let tls = Tls::load_good(https.certificates.clone())?;
            match DevelopmentAuthority::of(&config.layout, clock.now()) {
                Ok(authority) => tls.ask_locally(Arc::new(authority)),
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::warn!(error, "node.no_development_authority");
                }
            }
            anyhow::Ok(Secure { address: https.address, tls, port: https.port })
        });
        let router = Arc::new(router::start(
            &RouterConfig {
                public: is_public.then_some(config.http),
                secure: secure.transpose()?,
                announced_by: config.announced_by.clone(),
                forwarded: config.forwarded,
                threads: config.threads,
                queue: QueueLimits::default(),
                connections_max: router::CONNECTIONS_MAX,
                listeners: config.listeners.clone(),
            },
            Arc::new(StoredRecords(store.clone())),
            id.clone(),
            config.layout.clone(),
            *clock,
            faults.clone(),
            metrics.clone(),
        )?);
        if let Some(peers) = peers {
            router.connect(peers.clone());
            platform_clients::take(&router, peers);
        }
        Ok(Some(router))
    }

    fn agent_context(&self) -> Arc<AgentContext> {
        let Node { config, id, clock, faults, store, .. } = self;
        agent_context(config, id, *clock, store, faults, &self.upgrading.adopted, self.bus)
    }

    fn start_agent(
        &self,
        parts: &mut JoinSet<()>,
        agent: Arc<AgentContext>,
        stopping: watch::Receiver<bool>,
    ) {
        let Node { config, peers, .. } = self;
        if let Some(peers) = peers.clone() {
            let moving = Moving::new(agent.clone(), config.layout.clone(), peers);
            parts.spawn(supervise("moving", move || moving.clone().run()));
        }
        let (placed, near, ending) = (agent.clone(), self.members(), stopping.clone());
        parts.spawn(supervise("placement", move || {
            agent::placing::run(placed.clone(), near.clone(), ending.clone())
        }));
        let (scheduled, ending) = (agent.clone(), stopping.clone());
        parts.spawn(supervise("cron", move || {
            agent::scheduled::run(scheduled.clone(), ending.clone())
        }));
        parts.spawn(supervise("agent", move || agent::run(agent.clone(), stopping.clone())));
    }
}

/// Waits for the stop, on a node without an agent that has anything to stop first.
async fn until_stopping(mut stopping: watch::Receiver<bool>) {
    // An error means that the sender is gone, and the node has ended.
    stopping.wait_for(|stopping| *stopping).await.ok();
}

fn agent_context(
    config: &NodeConfig,
    node: &NodeId,
    clock: Clock,
    store: &SharedStore,
    faults: &Faults,
    adopted: &Arc<AtomicBool>,
    bus: Option<SocketAddr>,
) -> Arc<AgentContext> {
    let launcher = Arc::new(PlainLauncher::new(config.layout.clone()));
    let preparer = Preparer::new(
        config.layout.clone(),
        node.clone(),
        clock,
        store.clone(),
        launcher.clone(),
        config.search_path.clone(),
    )
    .with_home(config.home.clone())
    .with_bus(bus)
    .with_network(NetworkSettings::of_this_node());
    Arc::new(AgentContext {
        store: store.clone(),
        node: node.clone(),
        platform: platform::of_this_machine().into(),
        clock,
        faults: faults.clone(),
        launcher,
        preparer,
        ports: Ports::default(),
        registry: Registry::default(),
        placing: Some(Placing::default()),
        scheduled: Default::default(),
        one_offs: Default::default(),
        adopted: adopted.clone(),
        shutting_down: AtomicBool::new(false),
        changes: Arc::default(),
    })
}

/// Returns when the node is to end. `cortex down` and Ctrl-C stop the applications; then the agent
/// ends, and with it the node. SIGTERM, and a second Ctrl-C, end the node alone: the next
/// `cortex up` adopts what runs.
async fn told_to_stop(control: &Control, stop_applications: &watch::Sender<bool>) {
    let leave = async {
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => drop(terminate.recv().await),
            Err(error) => tracing::error!(%error, "node.no_sigterm"),
        }
    };
    let stop = async {
        tokio::select! {
            () = control.stop.notified() => {}
            _ = tokio::signal::ctrl_c() => {
                eprintln!("Stopping all applications; Ctrl-C again leaves them running.");
            }
        }
        stop_applications.send(true).ok();
        tokio::signal::ctrl_c().await.ok();
    };
    tokio::select! {
        () = leave => {}
        () = stop => {}
    }
}

/// Returns what is under way in a router that leaves, and nothing else of it: not the store either.
fn under_way(router: Arc<RouterHandle>) -> UnderWay {
    let threads = router.leaving();
    UnderWay { stop: Box::new(threads.stop()), finish: Box::new(move || threads.join()) }
}
