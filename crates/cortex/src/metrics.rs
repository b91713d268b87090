//! What the router's threads record of every completed request, rolled up per application and
//! instance. Recording never waits: a full ring drops and counts. Driven by the router (records),
//! by its own task (`run`) and by the API (`prometheus`).

mod rollup;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use model::{ApplicationName, Generation, InstanceId};

use self::rollup::Rollup;
use crate::faults::Faults;
use crate::router::endpoint::Endpoint;

/// The name of this part's fail point.
pub const FAIL_POINT: &str = "metrics";
/// A thread answers at most about 80,000 requests a second, and rings are emptied ten times.
const RING_RECORDS: usize = 8 * 1024;
const EMPTY_INTERVAL: Duration = Duration::from_millis(100);

/// One completed request.
#[derive(Debug)]
pub struct Record {
    pub application: ApplicationRef,
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

/// Names without a copy of them.
#[derive(Debug)]
pub enum ApplicationRef {
    Instance(Arc<Endpoint>),
    /// Answered by the router itself.
    Router(Arc<crate::router::table::Application>),
}

impl ApplicationRef {
    pub fn name(&self) -> &ApplicationName {
        match self {
            ApplicationRef::Instance(endpoint) => &endpoint.instance.application,
            ApplicationRef::Router(application) => &application.name,
        }
    }

    pub fn instance(&self) -> Option<(&InstanceId, Generation)> {
        match self {
            ApplicationRef::Instance(endpoint) => Some((&endpoint.instance, endpoint.generation)),
            ApplicationRef::Router(_) => None,
        }
    }
}

/// Clones share everything.
#[derive(Clone, Default)]
pub struct Metrics {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    rings: Mutex<Vec<Receiver<Record>>>,
    rollup: Mutex<Rollup>,
    dropped: AtomicU64,
    /// Connections of clients that had too many.
    refused: AtomicU64,
}

/// One thread's end of its ring.
pub struct Recorder {
    ring: SyncSender<Record>,
    shared: Arc<Shared>,
}

impl Recorder {
    pub fn record(&self, record: Record) {
        if self.ring.try_send(record).is_err() {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn connection_refused(&self) {
        self.shared.refused.fetch_add(1, Ordering::Relaxed);
    }
}

impl Metrics {
    pub fn recorder(&self) -> Recorder {
        let (ring, receiver) = sync_channel(RING_RECORDS);
        locked(&self.shared.rings).push(receiver);
        Recorder { ring, shared: self.shared.clone() }
    }

    /// Empties the rings until the node stops. Started again alone after a fault.
    pub async fn run(self, faults: Faults) -> anyhow::Result<()> {
        let mut interval = tokio::time::interval(EMPTY_INTERVAL);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            faults.check_async(FAIL_POINT).await?;
            self.collect();
        }
    }

    /// Empties the rings for somebody else than the sums here. Returns how many records were lost
    /// since the beginning.
    pub fn take(&self, each: &mut dyn FnMut(Record)) -> u64 {
        for ring in locked(&self.shared.rings).iter() {
            ring.try_iter().take(RING_RECORDS).for_each(&mut *each);
        }
        self.shared.dropped.load(Ordering::Relaxed)
    }

    fn collect(&self) {
        let rings = locked(&self.shared.rings);
        let mut rollup = locked(&self.shared.rollup);
        for ring in rings.iter() {
            // Bounded: a thread may fill its ring as fast as it is emptied.
            ring.try_iter().take(RING_RECORDS).for_each(|record| rollup.add(&record));
        }
    }

    /// In the text format of Prometheus.
    pub fn prometheus(&self) -> String {
        self.collect();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (dropped, refused) = (count(&self.shared.dropped), count(&self.shared.refused));
        locked(&self.shared.rollup).prometheus(dropped, refused)
    }

    /// Applications that are gone are forgotten.
    pub fn forget(&self, application: &ApplicationName) {
        locked(&self.shared.rollup).forget(application);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
