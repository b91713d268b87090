//! The Redis interface of the store: listeners on loopback TCP, a UNIX socket and TLS, on threads
//! of their own. Owns connections and their limits; must not know how the store keeps anything.
//! Started by a node, or by `cortex store serve`.

mod access;
mod batch;
mod clients;
mod command_loop;
mod connection;
mod context;
mod gathering;
mod lane;
mod limits;
mod listener;
mod problem;
mod returning;
mod scans;
mod space;
mod table;
pub mod tls;
mod wire;
mod words;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::Context;
use model::NodeId;
use tokio::sync::{Semaphore, watch};

use self::access::Access;
pub use self::access::{FindApplication, LogInRefused, People};
use self::clients::ClientTable;
use self::connection::Thread;
use self::context::ServerContext;
use self::gathering::Bell;
use self::lane::Lane;
use self::listener::Listener;
use self::scans::Scans;
use self::tls::Certificate;
use os::shared_port::{Listeners, allow_descriptors};
use runtime::driver::Clock;
use store::SharedStore;
use store::bus::Bus;

/// The port of the Redis interface on loopback.
pub const PORT_DEFAULT: u16 = 8206;
/// The number of descriptors kept for the log's files, value files on their way, and connections to
/// other nodes.
const DESCRIPTORS_RESERVED: u64 = 64;
/// The additional part of the system's limit that is kept: one in this many.
const DESCRIPTORS_RESERVED_SHARE: u64 = 16;
/// The number of connections; each has some kilobytes.
const CONNECTIONS_MAX: u64 = 50_000;
/// The number of cores per thread: committing takes about as much as talking to clients, and on two
/// cores two threads took a fifth more processor time for a write, as their batches were smaller.
const THREADS_SHARE: usize = 2;
/// The number of threads: there is only one committer, and more than a few would only wait for it.
const THREADS_MAX: usize = 4;
/// The number of connections that are served before new bytes are looked for. All that had some by
/// then write one batch; the runtime's own 61 made batches half as large with 100 clients.
const TURNS_BETWEEN_LOOKS: u32 = 1024;
/// The number of connections from which on the lane is used. What a few connections need stays in
/// the caches anyway: with 10 clients that write all the time tasks were a tenth faster, with 100
/// and more the lane.
const LANE_FROM: usize = 48;
/// The number of commands above 64 KiB that are being received: at most 4 MiB each.
const LARGE_COMMANDS_MAX: usize = 8;

#[derive(Clone, Default)]
pub struct ServerConfig {
    pub tcp: Option<SocketAddr>,
    pub unix: Option<PathBuf>,
    pub tls: Option<(SocketAddr, Certificate)>,
    /// The address on loopback for the processes of applications, and who knows their tokens.
    pub applications: Option<(SocketAddr, FindApplication)>,
    /// The people of the platform whose store this is; a store of its own has none.
    pub people: Option<Arc<dyn People>>,
    pub listeners: Arc<Listeners>,
    /// The number of connections from which on those that ask ordinary things have no task of their
    /// own; `None` for the default.
    pub lane_from: Option<usize>,
}

pub struct ServerHandle {
    /// The address on which it listens, with the port that was chosen for port 0.
    pub tcp: Option<SocketAddr>,
    pub tls: Option<SocketAddr>,
    pub applications: Option<SocketAddr>,
    unix: Option<PathBuf>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl ServerHandle {
    /// Ends all connections.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.send(true).ok();
        self.threads.drain(..).for_each(|thread| _ = thread.join());
        if let Some(path) = self.unix.take() {
            std::fs::remove_file(path).ok();
        }
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.end();
    }
}

/// Binds every address, then serves on threads of its own. Call it once.
pub fn start(
    config: ServerConfig,
    store: SharedStore,
    bus: Arc<Bus>,
    node: NodeId,
    clock: Clock,
) -> anyhow::Result<ServerHandle> {
    let connections_max = connections_max();
    let applications = config.applications.as_ref().map(|(_, find)| find.clone());
    let context = Arc::new(ServerContext {
        store,
        bus,
        access: Access::new(applications, config.people.clone()),
        node,
        clock,
        started: clock.now(),
        clients: ClientTable::default(),
        scans: Mutex::new(Scans::new(clock.now())),
        counted: Mutex::default(),
        connections: Arc::new(Semaphore::new(connections_max)),
        connections_max,
        room: Arc::new(Semaphore::new(LARGE_COMMANDS_MAX)),
        lane_from: config.lane_from.unwrap_or(LANE_FROM),
        notifying: AtomicBool::new(false),
    });
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let count = (cores / THREADS_SHARE).clamp(1, THREADS_MAX);
    let mut listeners: Vec<Vec<Listener>> = (0..count).map(|_| Vec::new()).collect();
    let mut deal = |bound: Vec<Listener>| -> anyhow::Result<SocketAddr> {
        let address = bound[0].address();
        listeners.iter_mut().zip(bound).for_each(|(its, listener)| its.push(listener));
        address
    };
    let of = config.listeners.clone();
    let tcp = config.tcp.map(|address| deal(Listener::tcp(address, &of, count)?)).transpose()?;
    let tls = config.tls.as_ref().map(|(address, certificate)| {
        deal(Listener::tls(*address, &tls::acceptor(certificate)?, &of, count)?)
    });
    let tls = tls.transpose()?;
    let applications = config.applications.as_ref();
    let applications = applications
        .map(|(address, _)| deal(Listener::applications(*address, &of, count)?))
        .transpose()?;
    if let Some(path) = &config.unix {
        listeners[0].push(Listener::unix(path)?);
    }
    let (stop, stopping) = watch::channel(false);
    let unix = config.unix;
    let mut handle = ServerHandle { tcp, tls, applications, unix, stop, threads: Vec::new() };
    for (number, listeners) in listeners.into_iter().enumerate() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .event_interval(TURNS_BETWEEN_LOOKS)
            .enable_all()
            .build()?;
        let (context, stopping) = (context.clone(), stopping.clone());
        let serve = move || runtime.block_on(serve(context, number == 0, listeners, stopping));
        let thread = std::thread::Builder::new().name(format!("redis-{number}")).spawn(serve);
        handle.threads.push(thread.context("a thread of the Redis listener")?);
    }
    Ok(handle)
}

async fn serve(
    context: Arc<ServerContext>,
    follows: bool,
    listeners: Vec<Listener>,
    mut stopping: watch::Receiver<bool>,
) {
    // The users are read before the first connection comes, since it may have to log in.
    if let Err(error) = context.access.load_from(&context.store).await {
        tracing::error!(%error, "redis.users_unknown: nobody is served");
        return;
    }
    if follows {
        let following = context.clone();
        tokio::spawn(async move {
            if let Err(error) = following.access.follow(&following.store).await {
                tracing::error!(%error, "redis.users_not_followed");
            }
        });
    }
    let bell = Arc::new(Bell::new());
    let (hurrying, store) = (bell.clone(), context.store.clone());
    tokio::spawn(async move {
        loop {
            hurrying.written().await;
            while hurrying.returning().is_worth_waiting(Instant::now()) {
                tokio::task::yield_now().await;
            }
            let began = Instant::now();
            store.hurry();
            hurrying.returning().committed(began.elapsed());
        }
    });
    let ringing = bell.clone();
    tokio::spawn(async move { ringing.ring().await });
    let (lane, entrance) = match Lane::new(context.clone(), bell.clone()) {
        Ok(made) => made,
        Err(error) => return tracing::error!(%error, "redis.no_lane: nobody is served"),
    };
    tokio::spawn(lane.run());
    let thread = Thread { bell, entrance };
    for listener in listeners {
        tokio::spawn(listener.accept(context.clone(), thread.clone()));
    }
    // A dropped sender means the same.
    stopping.wait_for(|stop| *stop).await.ok();
}

/// Returns how many connections the descriptors suffice for, once all of them may be used.
fn connections_max() -> usize {
    let allowed = allow_descriptors();
    let reserved = DESCRIPTORS_RESERVED + allowed / DESCRIPTORS_RESERVED_SHARE;
    allowed.saturating_sub(reserved).clamp(1, CONNECTIONS_MAX) as usize
}

#[cfg(test)]
mod tests;
