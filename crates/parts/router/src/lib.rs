//! The router's shell: one thread per core that serves from an immutable snapshot, and a control
//! task that keeps the snapshot up with the store. It knows no agent and no checker; `node.rs`
//! starts and stops it.

pub mod alone;
pub mod announced;
mod buffer;
pub mod choice;
mod clients;
mod closing;
mod command;
mod connection;
mod control;
pub mod datagrams;
mod deferred;
pub mod endpoint;
pub mod entry;
pub mod far;
mod field;
mod files;
mod forward;
mod h2;
mod handshake;
mod idlers;
mod lane;
mod lazy_timer;
pub mod limits;
pub mod moved;
mod pace;
pub mod permit;
mod plain;
mod pool;
mod presence;
pub mod queue;
mod rarely;
pub mod records;
mod registration;
mod scope;
mod serve;
mod services;
mod shared;
mod splice;
mod stream;
pub mod streams;
pub mod table;
mod task;
mod thread;
mod time_limit;
mod tunnel;
mod wire;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use arc_swap::ArcSwap;
use model::key::BoardKey;
use model::port::Transport;
use model::{ApplicationName, NodeId, PlatformAddress, ReleaseId};
use router_core::far::{FarOutcome, FarReply, Room};
use router_core::http::request::ForwardedFields;
use router_core::proxy_protocol::Senders;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc, watch};

use self::command::{COMMANDS_MAX, Command, DrainScope, Stop};
use self::connection::wall::WallKeeper;
use self::files::cache::Files;
use self::queue::QueueLimits;
use self::records::SharedRecords;
use self::scope::Scope;
use self::shared::{Live, SUSPECTS_MAX, Shared, Suspicion, TakePlatform};
use metrics::Metrics;
use metrics::ports::Traffic;
use os::layout::DataDirectory;
use os::shared_port::{Listeners, allow_descriptors};
use runtime::driver::Clock;
use runtime::faults::Faults;
use runtime::members::{RouterCall, RouterPeers};

pub use control::{FAIL_POINT, is_own_name};
pub use handshake::PlatformClient;
pub use serve::CONNECTIONS_MAX;
pub use shared::Secure;

#[derive(Clone, Debug)]
pub struct RouterConfig {
    /// The public address where Host decides; applications' own ports are on the same address.
    /// `None` if nothing is taken from the public, only what routers of other nodes bring.
    pub public: Option<SocketAddr>,
    /// The address where clients speak TLS; only set beside a public address.
    pub secure: Option<Secure>,
    /// The proxies that say whose each connection is; `None` if all clients connect directly.
    pub announced_by: Option<Senders>,
    pub forwarded: ForwardedFields,
    /// The number of threads; `None` for one per core.
    pub threads: Option<usize>,
    pub queue: QueueLimits,
    /// The most connections that one thread holds.
    pub connections_max: usize,
    pub listeners: Arc<Listeners>,
}

pub struct RouterHandle {
    shared: Arc<Shared>,
    records: SharedRecords,
    suspects: Mutex<Option<mpsc::Receiver<Suspicion>>>,
    joins: Mutex<Vec<JoinHandle<()>>>,
}

/// One public port, as people are told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicPort {
    pub address: SocketAddr,
    /// The application that owns the port; `None` where Host decides.
    pub application: Option<ApplicationName>,
    /// The transport of the port; `None` where HTTP is spoken.
    pub transport: Option<Transport>,
    pub error: Option<String>,
    /// The traffic that came there; `None` where HTTP is spoken.
    pub traffic: Option<Traffic>,
}

/// Binds the public address and starts the threads. It must be called on the control runtime, whose
/// pool reads static files. Routing begins with `RouterHandle::control`.
pub fn start(
    config: &RouterConfig,
    records: SharedRecords,
    node: NodeId,
    layout: DataDirectory,
    clock: Clock,
    faults: Faults,
    metrics: Metrics,
) -> anyhow::Result<RouterHandle> {
    allow_descriptors();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let count = config.threads.unwrap_or(cores).max(1);
    let bind = |public| config.listeners.bind(public, count);
    let listeners = config.public.map(bind).transpose()?.unwrap_or_default();
    let control = Arc::new(Notify::new());
    let mut secure = config.secure.clone().filter(|_| config.public.is_some());
    let sealed = secure.as_ref().map(|secure| bind(secure.address)).transpose()?;
    let sealed = sealed.unwrap_or_default();
    let count = count.max(listeners.len()).max(sealed.len());
    let public = listeners.first().map(|first| first.local_addr()).transpose()?;
    if let (Some(secure), Some(first)) = (&mut secure, sealed.first()) {
        secure.address = first.local_addr()?;
        tokio::spawn(secure.tls.follow());
    }
    let waiting = vec![(Scope::Host, listeners), (Scope::Secure, sealed)];
    let (senders, receivers): (Vec<_>, Vec<_>) =
        (0..count).map(|_| mpsc::channel(COMMANDS_MAX)).unzip();
    let (suspects, suspected) = mpsc::channel(SUSPECTS_MAX);
    let shared = Arc::new(Shared {
        node,
        layout,
        clock,
        faults,
        metrics,
        public,
        secure,
        announced_by: config.announced_by.clone(),
        listeners: config.listeners.clone(),
        queue_limits: config.queue,
        connections_max: config.connections_max,
        forwarded: config.forwarded,
        table: ArcSwap::default(),
        certificates: ArcSwap::default(),
        only: None,
        files: Arc::new(Files::new(tokio::runtime::Handle::current())),
        suspects,
        complaints: Mutex::default(),
        walls: WallKeeper::new()?,
        control,
        threads: senders,
        serials: AtomicU64::new(1),
        live: Mutex::new(Live { waiting, ..Live::default() }),
        peers: Mutex::default(),
        platform: OnceLock::new(),
        members: watch::Sender::default(),
    });
    let joins = Mutex::new(start_threads(&shared, receivers)?);
    Ok(RouterHandle { shared, records, suspects: Mutex::new(Some(suspected)), joins })
}

fn start_threads(
    shared: &Arc<Shared>,
    receivers: Vec<mpsc::Receiver<Command>>,
) -> anyhow::Result<Vec<JoinHandle<()>>> {
    let start = |(index, commands)| {
        let recorder = shared.metrics.recorder();
        let mut seed = [0; 8];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
        let shared = shared.clone();
        let body = move || {
            let seed = u64::from_le_bytes(seed);
            if let Err(error) = serve::run(shared, recorder, seed, commands) {
                tracing::error!(index, error = format!("{error:#}"), "router.thread_failed");
            }
        };
        let builder = std::thread::Builder::new().name(format!("router-{index}"));
        builder.spawn(body).context("a thread of the router cannot be started")
    };
    receivers.into_iter().enumerate().map(start).collect()
}

impl RouterHandle {
    /// Lets requests go to other nodes and come from them; to be called before `control`.
    pub fn connect(&self, peers: Arc<dyn RouterPeers>) {
        let router = Arc::downgrade(&self.shared);
        peers.set_router(Box::new(move |call| {
            if let Some(shared) = router.upgrade() {
                take_call(&shared, call);
            }
        }));
        *self.shared.peers() = Some(peers);
    }

    /// Passes clients that ask for the platform itself to `take` from now on.
    pub fn take_platform(&self, take: TakePlatform) {
        self.shared.platform.set(take).ok();
    }

    /// Returns the name under which the platform's API is found inside TLS.
    pub fn own_name(&self) -> Option<Arc<PlatformAddress>> {
        self.shared.table.load().own_name.clone()
    }

    /// Returns whether clients that ask this node for a host are shown a certificate that is good
    /// for it.
    pub fn covers(&self, host: &str) -> bool {
        let secure = self.shared.secure.as_ref();
        secure.is_some_and(|secure| secure.tls.covers(host, self.shared.clock.now()))
    }

    /// Returns the control task, to be run under supervision and again after a fault. It ends with
    /// the store.
    pub fn control(&self) -> impl Future<Output = anyhow::Result<()>> + Send + use<> {
        control::run(self.shared.clone(), self.records.clone())
    }

    /// Returns the task that tells the checker which instances refused; best effort, off the path
    /// of requests.
    pub fn suspicions(&self) -> impl Future<Output = ()> + Send + use<> {
        let receiver = self.suspects.lock().unwrap_or_else(PoisonError::into_inner).take();
        let records = self.records.clone();
        async move {
            let Some(mut receiver) = receiver else { return };
            while let Some((endpoint, why)) = receiver.recv().await {
                tracing::info!(instance = %endpoint.instance, why, "router.suspect");
                let board = BoardKey::Suspect(endpoint.instance.clone(), endpoint.generation);
                if let Err(error) = records.note(board, why).await {
                    tracing::warn!(%error, "router.suspect_lost");
                }
            }
        }
    }

    /// Returns the address where Host decides, as it was bound.
    pub fn public(&self) -> Option<SocketAddr> {
        self.shared.public
    }

    /// Returns the address where clients speak TLS, as it was bound.
    pub fn secure(&self) -> Option<SocketAddr> {
        self.shared.secure.as_ref().map(|secure| secure.address)
    }

    /// Returns whether requests that come from now on go to this release.
    pub fn serves(&self, name: &ApplicationName, release: &ReleaseId) -> bool {
        let table = self.shared.table.load();
        let Some(application) = table.by_host(format!("{name}.localhost").as_bytes()) else {
            return false;
        };
        let switched = application.serving.as_ref() == Some(release);
        let live = self.shared.live.lock().unwrap_or_else(PoisonError::into_inner);
        let opens = self.shared.public.is_some();
        let mut ports = application.ports().into_iter();
        switched && ports.all(|id| !opens || live.ports.contains_key(&id))
    }

    pub fn ports(&self) -> Vec<PublicPort> {
        let table = self.shared.table.load();
        let owners = table.ports();
        let live = self.shared.live.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(address) = self.shared.public else { return Vec::new() };
        let (transport, error, traffic) = (None, None, None);
        let public = PublicPort { address, application: None, transport, error, traffic };
        let own = live.ports.iter().map(|(id, state)| {
            let service = table.service(*id);
            PublicPort {
                address: SocketAddr::new(address.ip(), id.port),
                application: owners.get(id).cloned(),
                transport: service.map(|_| id.transport),
                error: state.as_ref().err().cloned(),
                traffic: service.map(|service| service.counters.traffic()),
            }
        });
        let secure = self.secure().map(|address| PublicPort { address, ..public.clone() });
        std::iter::once(public).chain(secure).chain(own).collect()
    }

    /// Accepts no more, ends what is under way within `limit`, and waits for that. It blocks.
    pub fn stop(&self, limit: Duration) {
        self.tell_to_stop(Stop { limit, asks: limit, awaits: DrainScope::Answers });
        self.join();
    }

    /// Accepts no more and lets every client ask once more within `asks`: its next answer tells it
    /// to connect again. What is under way then goes on until it ends by itself, for `limit` at
    /// most. The store is no longer needed. It returns at once; see `has_left`.
    pub fn leave(&self, asks: Duration, limit: Duration) {
        self.tell_to_stop(Stop { limit, asks, awaits: DrainScope::Connections });
    }

    /// Returns whether nothing is under way any more.
    pub fn has_left(&self) -> bool {
        self.joins().iter().all(JoinHandle::is_finished)
    }

    /// Waits for the threads. It blocks.
    pub fn join(&self) {
        for thread in std::mem::take(&mut *self.joins()) {
            thread.join().ok();
        }
    }

    /// Returns the threads after `leave`, without the rest of the router: they need it no longer.
    pub fn leaving(&self) -> LeavingThreads {
        LeavingThreads {
            joins: std::mem::take(&mut *self.joins()),
            threads: self.shared.threads.clone(),
        }
    }

    fn joins(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.joins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell_to_stop(&self, stop: Stop) {
        self.shared.live.lock().unwrap_or_else(PoisonError::into_inner).waiting.clear();
        tell(&self.shared.threads, stop);
    }
}

fn tell(threads: &[mpsc::Sender<Command>], stop: Stop) {
    for thread in threads {
        thread.try_send(Command::Stop(stop)).ok();
    }
}

/// The threads of a router that leaves.
pub struct LeavingThreads {
    joins: Vec<JoinHandle<()>>,
    threads: Vec<mpsc::Sender<Command>>,
}

impl LeavingThreads {
    /// Returns a function that ends what is under way within a limit, after all.
    pub fn stop(&self) -> impl Fn(Duration) + Send + use<> {
        let threads = self.threads.clone();
        move |limit| tell(&threads, Stop { limit, asks: limit, awaits: DrainScope::Answers })
    }

    /// Waits for the threads. It blocks.
    pub fn join(self) {
        for thread in self.joins {
            thread.join().ok();
        }
    }
}

/// Hands a call of another node's router to the next thread in turn. If there is no room, or this
/// router has stopped, the caller is refused and goes elsewhere.
fn take_call(shared: &Shared, call: RouterCall) {
    let turn = shared.serials.fetch_add(1, Ordering::Relaxed);
    let count = shared.threads.len().max(1);
    let index = usize::try_from(turn).unwrap_or(0) % count;
    let refused = shared.threads[index].try_send(Command::Far(Box::new(call)));
    if let Err(TrySendError::Full(Command::Far(call)) | TrySendError::Closed(Command::Far(call))) =
        refused
    {
        let absent = FarReply { outcome: FarOutcome::Absent, keep: false, room: Room::default() };
        call.refuse(&absent.to_bytes());
    }
}
