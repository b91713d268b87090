//! The router's threads without a node and without a store: their starter publishes what they
//! serve, one application whatever is asked for. `cortex proxy` drives them.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use arc_swap::{ArcSwap, ArcSwapOption};
use model::NodeId;
use router_core::http::request::ForwardedFields;
use router_core::proxy_protocol::Senders;
use tokio::sync::{Notify, mpsc, watch};

use super::command::{COMMANDS_MAX, Command, DrainScope, Stop};
use super::connection::wall::WallKeeper;
use super::files::cache::Files;
use super::queue::QueueLimits;
use super::scope::Scope;
use super::serve::CONNECTIONS_MAX;
use super::shared::{Live, SUSPECTS_MAX, Secure, Shared};
use super::start_threads;
use super::table::RoutedApplication;
use metrics::Metrics;
use os::layout::DataDirectory;
use runtime::driver::Clock;
use runtime::faults::Faults;
use tls::Tls;

/// The node's id where there is no node; no record of a store names it.
const NODE: &str = "alone";

pub struct Alone {
    shared: Arc<Shared>,
    joins: Mutex<Vec<JoinHandle<()>>>,
}

pub struct AloneSettings {
    pub at: SocketAddr,
    pub threads: usize,
    pub forwarded: ForwardedFields,
    pub tls: Option<Tls>,
    pub announced_by: Option<Senders>,
}

impl Alone {
    /// Starts the threads; must be called on a runtime. Nothing is accepted before `listen`.
    pub fn start(settings: AloneSettings, clock: Clock, metrics: Metrics) -> anyhow::Result<Alone> {
        let AloneSettings { at, threads, forwarded, tls, announced_by } = settings;
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..threads.max(1)).map(|_| mpsc::channel(COMMANDS_MAX)).unzip();
        // Nobody is told which back end is suspected: probes find out.
        let (suspects, _) = mpsc::channel(SUSPECTS_MAX);
        let node: NodeId = NODE.parse().context("a node's id")?;
        let shared = Arc::new(Shared {
            node,
            layout: DataDirectory::new("/nonexistent".into(), Path::new("/nonexistent")),
            clock,
            faults: Faults::default(),
            metrics,
            public: None,
            secure: tls.map(|tls| Secure { address: at, tls, port: None }),
            announced_by,
            listeners: Arc::default(),
            queue_limits: QueueLimits::default(),
            connections_max: CONNECTIONS_MAX,
            forwarded,
            table: ArcSwap::default(),
            certificates: ArcSwap::default(),
            only: Some(ArcSwapOption::empty()),
            files: Arc::new(Files::new(tokio::runtime::Handle::current())),
            suspects,
            complaints: Mutex::default(),
            walls: WallKeeper::new()?,
            control: Arc::new(Notify::new()),
            threads: senders,
            serials: AtomicU64::new(1),
            live: Mutex::new(Live::default()),
            peers: Mutex::default(),
            platform: OnceLock::new(),
            members: watch::Sender::default(),
        });
        let joins = Mutex::new(start_threads(&shared, receivers)?);
        Ok(Alone { shared, joins })
    }

    /// Sends requests to the endpoints of `next` from now on.
    pub fn publish(&self, next: &Arc<RoutedApplication>) {
        if let Some(only) = &self.shared.only {
            only.store(Some(next.clone()));
        }
    }

    /// Takes one listener for each thread.
    pub async fn listen(&self, listeners: Vec<TcpListener>) {
        let scope = if self.shared.secure.is_some() { Scope::Secure } else { Scope::Host };
        for (thread, listener) in self.shared.threads.iter().zip(listeners) {
            thread.send(Command::Listen(scope, listener)).await.ok();
        }
    }

    /// Accepts no more and ends what is under way within `limit`.
    pub fn stop(&self, limit: Duration) {
        self.tell(Stop { limit, asks: limit, awaits: DrainScope::Answers });
    }

    /// Accepts no more and serves its clients until they are gone, `limit` at the longest.
    pub fn leave(&self, limit: Duration) {
        self.tell(Stop { limit, asks: limit, awaits: DrainScope::Connections });
    }

    fn tell(&self, stop: Stop) {
        super::tell(&self.shared.threads, stop);
    }

    /// Blocks until all threads have ended.
    pub fn join(&self) {
        let joins = std::mem::take(&mut *self.joins.lock().unwrap_or_else(PoisonError::into_inner));
        for join in joins {
            join.join().ok();
        }
    }
}
