//! The traffic figures: every completed request that the router's threads record, rolled up per
//! application and instance, and counters for everything else. Recording never waits: what is full
//! drops and counts. Driven by the router (records), by its own task (`run`) and by the API
//! (`prometheus`).

pub mod ports;
mod rollup;
mod text;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use model::{ApplicationName, InstanceId, PortId};
use tokio::sync::Notify;

use self::ports::{PortCounterTable, PortCounters};
use self::rollup::Rollup;
use runtime::faults::Faults;
use runtime::lock::locked;

/// The name of this part's fail point.
pub const FAIL_POINT: &str = "metrics";
/// The maximum number of records that wait in one thread: a thread answers up to some 120,000
/// requests a second, and this is 60 ms of them. About 700 KB.
const RECORDS_MAX: usize = 8 * 1024;
/// The number of records that are collected without delay: collected seldom and all together, they
/// would keep requests waiting where a core does both.
const ROUSE_RECORDS: usize = 1024;
const COLLECT_INTERVAL: Duration = Duration::from_millis(100);

/// The status of a request whose client went away, as nginx has it. It is no status of HTTP: nobody
/// was there to be told one.
pub const CLIENT_GONE: u16 = 499;

/// One completed request.
#[derive(Debug)]
pub struct RequestRecord {
    pub labels: Arc<Labels>,
    pub client: SocketAddr,
    pub started: Instant,
    pub method: &'static str,
    pub status: u16,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub queue_us: u32,
    pub service_us: u32,
    pub total_us: u32,
}

impl RequestRecord {
    /// Records that all of the answer was sent by then.
    pub fn ended(&mut self, at: Instant) {
        self.total_us = micros(at.saturating_duration_since(self.started));
        if let Labels::Instance { .. } = *self.labels {
            self.service_us = self.total_us.saturating_sub(self.queue_us);
        }
    }

    /// Records that the client went away before the end of its answer.
    pub fn abandoned(&mut self) {
        self.bytes_out = 0;
        if let Labels::Instance { .. } = *self.labels {
            self.status = CLIENT_GONE;
        }
    }
}

pub fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

/// The application or instance that a request is counted for. Shared by all its records.
#[derive(Debug)]
pub enum Labels {
    Instance {
        instance: InstanceId,
        /// The instance's address; `None` if another node's router reaches it.
        address: Option<SocketAddr>,
    },
    /// The router itself answered, for this application.
    Router(ApplicationName),
}

impl Labels {
    pub fn application(&self) -> &ApplicationName {
        match self {
            Labels::Instance { instance, .. } => &instance.application,
            Labels::Router(application) => application,
        }
    }
}

/// The handle to all figures; clones share everything.
#[derive(Clone, Default)]
pub struct Metrics {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    threads: Mutex<Threads>,
    rollup: Mutex<Rollup>,
    ports: Mutex<PortCounterTable>,
    dropped: AtomicU64,
    /// Connections of clients that had too many, or of proxies that did not say whose they are.
    refused: AtomicU64,
    /// Notified when there is much to collect: wakes the task here, unless a thread takes the
    /// records instead.
    much: Notify,
    taker: OnceLock<Thread>,
}

/// The records of one thread; the lock is held only to add a record or to exchange all for none.
type ThreadRecords = Arc<Mutex<Vec<RequestRecord>>>;

#[derive(Default)]
struct Threads {
    records: Vec<ThreadRecords>,
    /// An empty vector that is exchanged for a thread's records, so that neither allocates.
    spare: Vec<RequestRecord>,
}

/// One thread's end of the metrics.
pub struct Recorder {
    records: ThreadRecords,
    shared: Arc<Shared>,
}

impl Recorder {
    pub fn record(&self, record: RequestRecord) {
        let mut records = locked(&self.records);
        if records.len() >= RECORDS_MAX {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        records.push(record);
        if records.len() == ROUSE_RECORDS {
            drop(records);
            self.shared.rouse();
        }
    }

    pub fn connection_refused(&self) {
        self.shared.refused.fetch_add(1, Ordering::Relaxed);
    }
}

impl Shared {
    #[cold]
    fn rouse(&self) {
        match self.taker.get() {
            Some(taker) => taker.unpark(),
            None => self.much.notify_one(),
        }
    }

    fn empty(&self, each: &mut dyn FnMut(RequestRecord)) {
        let mut threads = locked(&self.threads);
        let Threads { records, spare } = &mut *threads;
        for records in records {
            std::mem::swap(&mut *locked(records), spare);
            spare.drain(..).for_each(&mut *each);
            spare.shrink_to(2 * ROUSE_RECORDS);
        }
    }
}

impl Metrics {
    pub fn recorder(&self) -> Recorder {
        let records = ThreadRecords::default();
        locked(&self.shared.threads).records.push(records.clone());
        Recorder { records, shared: self.shared.clone() }
    }

    /// Collects until the node stops. Started again alone after a fault.
    pub async fn run(self, faults: Faults) -> anyhow::Result<()> {
        loop {
            tokio::time::timeout(COLLECT_INTERVAL, self.shared.much.notified()).await.ok();
            faults.check_async(FAIL_POINT).await?;
            self.collect();
        }
    }

    /// Sets the thread that takes the records; it is unparked when there are many.
    pub fn taken_by(&self, taker: Thread) {
        self.shared.taker.set(taker).ok();
    }

    /// Passes all records to a caller that takes them in place of the sums here. Returns how many
    /// were lost since the beginning.
    pub fn take(&self, each: &mut dyn FnMut(RequestRecord)) -> u64 {
        self.shared.empty(each);
        self.shared.dropped.load(Ordering::Relaxed)
    }

    fn collect(&self) {
        let mut rollup = locked(&self.shared.rollup);
        self.shared.empty(&mut |record| rollup.add(&record));
    }

    /// Returns all figures in the text format of Prometheus.
    pub fn prometheus(&self) -> String {
        self.collect();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (dropped, refused) = (count(&self.shared.dropped), count(&self.shared.refused));
        let requests = locked(&self.shared.rollup).prometheus(dropped, refused);
        requests + &locked(&self.shared.ports).prometheus()
    }

    /// Returns the counters for whatever comes to an application's own port; they live for as long
    /// as somebody holds them.
    pub fn port(&self, application: &ApplicationName, id: PortId) -> Arc<PortCounters> {
        locked(&self.shared.ports).counters(application, id)
    }

    /// Forgets an application that is gone.
    pub fn forget(&self, application: &ApplicationName) {
        locked(&self.shared.rollup).forget(application);
    }
}
