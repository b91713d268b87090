//! The fetch board, where readers of large values meet the schedule that fetches them: readers ask
//! here and are told of the progress; the schedule takes from here what is wanted first, and
//! reports.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use model::value::ContentHash;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::links::BulkLinks;
use super::schedule::{MissingValues, Schedule};
use super::serve::BulkServer;
use super::{BulkError, BulkPeers, ValueName};
use crate::StoreError;
use crate::values::ValueFiles;
use runtime::members::Stream;

/// The number of values that readers wait for at a time; each may cost a stream and a file.
const AWAITED_MAX: usize = 64;
/// The time that a reader waits for the next bytes, also while holders are looked for.
const PROGRESS_MAX: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchProgress {
    Waiting,
    /// This many bytes from the start can be read.
    Proven(u64),
    /// The file is complete and has its final name.
    Whole,
    /// Fetching failed for now, for this reason; asking again tries again.
    Failed(String),
}

pub struct FetchBoard {
    pub(super) values: Arc<ValueFiles>,
    server: BulkServer,
    /// `None` on a node without peers, and once the board has stopped.
    links: Mutex<Option<Arc<BulkLinks>>>,
    runtime: OnceLock<Handle>,
    jobs: Mutex<BTreeMap<ValueName, watch::Sender<FetchProgress>>>,
    pub(super) changed: Notify,
    stopped: AtomicBool,
}

impl fmt::Debug for FetchBoard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FetchBoard")
    }
}

impl FetchBoard {
    pub fn new(values: Arc<ValueFiles>) -> Arc<FetchBoard> {
        Arc::new(FetchBoard {
            server: BulkServer::new(values.clone()),
            values,
            links: Mutex::default(),
            runtime: OnceLock::new(),
            jobs: Mutex::default(),
            changed: Notify::new(),
            stopped: AtomicBool::new(false),
        })
    }

    /// Starts fetching, once, on a thread of its own: neither the log nor requests wait for it.
    pub fn start(
        self: &Arc<Self>,
        peers: Arc<dyn BulkPeers>,
        wants: Arc<dyn MissingValues>,
    ) -> std::io::Result<()> {
        let links = Arc::new(BulkLinks::new(peers));
        let mut held = self.links();
        if held.is_some() || self.is_stopped() {
            return Ok(());
        }
        let runtime = super::thread::runtime()?;
        let _ = self.runtime.set(runtime.handle().clone());
        *held = Some(links.clone());
        drop(held);
        let schedule = Schedule::new(Arc::downgrade(self), links, wants);
        super::thread::run(runtime, schedule.run())
    }

    /// Serves a peer's stream until it ends. The stream may belong to any runtime.
    pub async fn serve(self: &Arc<Self>, stream: impl Stream + 'static) -> Result<(), BulkError> {
        let fetch_board = self.clone();
        let served = async move { fetch_board.server.serve(stream).await };
        match self.runtime.get() {
            Some(runtime) => runtime.spawn(served).await.unwrap_or(Ok(())),
            None => served.await,
        }
    }

    /// Stops fetching; the part of a value that has come stays for the next start.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.changed.notify_one();
        *self.links() = None;
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Tells the schedule to look again: new commits refer to values, or new peers came.
    pub fn look_again(&self) {
        self.changed.notify_one();
    }

    fn links(&self) -> MutexGuard<'_, Option<Arc<BulkLinks>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn jobs(&self) -> MutexGuard<'_, BTreeMap<ValueName, watch::Sender<FetchProgress>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a value now, for a reader; it is fetched for as long as the receiver is kept.
    pub(super) fn ask(
        &self,
        value: ValueName,
    ) -> Result<watch::Receiver<FetchProgress>, StoreError> {
        if self.links().is_none() {
            return Err(away(&value, "this node has no peers"));
        }
        let mut jobs = self.jobs();
        if let Some(progress) = jobs.get(&value) {
            return Ok(progress.subscribe());
        }
        if jobs.len() >= AWAITED_MAX {
            return Err(StoreError::Refused(
                "too many values that are on other nodes are being read; try again later".into(),
            ));
        }
        let (progress, receiver) = watch::channel(FetchProgress::Waiting);
        jobs.insert(value, progress);
        self.changed.notify_one();
        Ok(receiver)
    }

    /// Returns the values that readers wait for.
    pub(super) fn awaited(&self) -> Vec<ValueName> {
        let mut jobs = self.jobs();
        jobs.retain(|_, progress| progress.receiver_count() > 0);
        jobs.keys().copied().collect()
    }

    pub(super) fn is_awaited(&self, value: &ValueName) -> bool {
        self.jobs().get(value).is_some_and(|progress| progress.receiver_count() > 0)
    }

    pub(super) fn report(&self, value: &ValueName, progress: FetchProgress) {
        let mut jobs = self.jobs();
        let ended = matches!(progress, FetchProgress::Whole | FetchProgress::Failed(_));
        if let Some(sender) = jobs.get(value) {
            sender.send_replace(progress);
        }
        if ended {
            jobs.remove(value);
        }
    }

    /// Waits until the whole value is here, and returns the path of its file.
    pub async fn whole(&self, value: ValueName) -> Result<PathBuf, StoreError> {
        let path = self.values.path(&value.hash);
        let values = self.values.clone();
        let here = move || values.holds(&value).map_err(|source| unreadable(&value, source));
        if crate::values::blocking(here).await? {
            return Ok(path);
        }
        let mut progress = self.ask(value)?;
        loop {
            if *progress.borrow_and_update() == FetchProgress::Whole {
                return Ok(path);
            }
            next(&mut progress, &value).await?;
        }
    }
}

/// Waits for progress of a value; fails if there will be none.
pub(super) async fn next(
    progress: &mut watch::Receiver<FetchProgress>,
    value: &ValueName,
) -> Result<FetchProgress, StoreError> {
    let changed = timeout(PROGRESS_MAX, progress.changed()).await;
    let now = progress.borrow_and_update().clone();
    match (changed, now) {
        (_, FetchProgress::Failed(why)) => Err(away(value, &why)),
        (_, FetchProgress::Whole) | (Ok(Ok(())), _) => Ok(progress.borrow().clone()),
        (Ok(Err(_)), _) => Err(away(value, "fetching has stopped")),
        (Err(_), _) => Err(away(value, "nothing of it came for a minute")),
    }
}

pub(super) fn away(value: &ValueName, why: &str) -> StoreError {
    StoreError::Away(format!("{} ({} bytes): {why}", ContentHash(value.hash), value.size))
}

pub(super) fn unreadable(value: &ValueName, source: std::io::Error) -> StoreError {
    StoreError::Io { what: format!("the value {} cannot be read", value.text()), source }
}
