//! The state that all connections share.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::{NodeId, Timestamp};
use runtime::driver::Clock;
use store::SharedStore;
use store::bus::Bus;
use tokio::sync::Semaphore;

use super::access::Access;
use super::clients::ClientTable;
use super::scans::Scans;
use super::space::AllCounted;

pub struct ServerContext {
    pub store: SharedStore,
    pub bus: Arc<Bus>,
    pub node: NodeId,
    pub clock: Clock,
    pub started: Timestamp,
    pub access: Access,
    pub clients: ClientTable,
    pub scans: Mutex<Scans>,
    pub counted: Mutex<AllCounted>,
    /// The permits for descriptors, one for each that a connection may take.
    pub connections: Arc<Semaphore>,
    pub connections_max: usize,
    /// The permits for large commands, one for each that is being received.
    pub room: Arc<Semaphore>,
    pub lane_from: usize,
    /// Whether changes of keys are being told to subscribers.
    pub notifying: AtomicBool,
}

impl ServerContext {
    pub fn scans(&self) -> MutexGuard<'_, Scans> {
        self.scans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
