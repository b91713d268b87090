//! The router's threads without a node and without a store: whoever started them publishes what
//! they serve, one application on one port. Driven by `cortex proxy`.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use arc_swap::ArcSwap;
use model::NodeId;
use tokio::sync::{Notify, mpsc, watch};

use super::queue::QueueLimits;
use super::serve::{Awaited, Command, Scope, Stop};
use super::table::{Application, Table};
use super::{COMMANDS_MAX, Live, SUSPECTS_MAX, Shared, files, start_threads};
use crate::driver::Clock;
use crate::faults::Faults;
use crate::layout::DataDirectory;
use crate::metrics::Metrics;

/// What a thread says to its own before it is told otherwise; no record of a store names it.
const NODE: &str = "alone";

pub struct Alone {
    shared: Arc<Shared>,
    published: Mutex<Option<Arc<Application>>>,
    joins: Mutex<Vec<JoinHandle<()>>>,
}

impl Alone {
    /// Must be called on a runtime. Nothing is accepted before `listen`.
    pub fn start(
        threads: usize,
        transparent: bool,
        clock: Clock,
        metrics: Metrics,
    ) -> anyhow::Result<Alone> {
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
            secure: None,
            listeners: Arc::default(),
            queue_limits: QueueLimits::default(),
            transparent,
            table: ArcSwap::default(),
            files: Arc::new(files::Files::new(tokio::runtime::Handle::current())),
            suspects,
            control: Arc::new(Notify::new()),
            threads: senders,
            serials: AtomicU64::new(1),
            live: Mutex::new(Live::default()),
            peers: OnceLock::new(),
            members: watch::Sender::default(),
        });
        let joins = Mutex::new(start_threads(&shared, receivers)?);
        Ok(Alone { shared, published: Mutex::default(), joins })
    }

    /// From now on requests go to the endpoints of `next`.
    pub fn publish(&self, next: &Arc<Application>) {
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        let before = published.replace(next.clone());
        let mut table: Table = (**self.shared.table.load()).clone();
        table.replace(before.as_ref(), Some(next), &BTreeMap::new());
        self.shared.table.store(Arc::new(table));
    }

    /// Whatever comes to these listeners is for the application on `port`.
    pub async fn listen(&self, port: u16, listeners: Vec<TcpListener>) {
        for (thread, listener) in self.shared.threads.iter().cycle().zip(listeners) {
            thread.send(Command::Listen(Scope::Port(port), listener)).await.ok();
        }
    }

    /// Accepts no more and ends what is under way within `limit`.
    pub fn stop(&self, limit: Duration) {
        self.tell(Stop { limit, awaits: Awaited::Answers });
    }

    /// Accepts no more and serves its clients until they are gone, `limit` at the longest.
    pub fn leave(&self, limit: Duration) {
        self.tell(Stop { limit, awaits: Awaited::Connections });
    }

    fn tell(&self, stop: Stop) {
        for thread in &self.shared.threads {
            thread.try_send(Command::Stop(stop)).ok();
        }
    }

    /// Blocks until all threads have ended.
    pub fn join(&self) {
        let joins = std::mem::take(&mut *self.joins.lock().unwrap_or_else(PoisonError::into_inner));
        for join in joins {
            join.join().ok();
        }
    }
}
