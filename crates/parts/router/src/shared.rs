//! The state that all threads of the router share with the task that controls it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arc_swap::{ArcSwap, ArcSwapOption};
use model::{ApplicationName, NodeId, PortId};
use router_core::book::IncarnationKey;
use router_core::book::far::FarDescription;
use router_core::complaints::Complaints;
use router_core::http::request::ForwardedFields;
use router_core::proxy_protocol::Senders;
use tokio::sync::{Notify, mpsc, watch};

use super::command::Command;
use super::connection::wall::WallKeeper;
use super::endpoint::Endpoint;
use super::far::peer::FarPeer;
use super::files::cache::Files;
use super::handshake::PlatformClient;
use super::queue::QueueLimits;
use super::scope::Scope;
use super::table::{RoutedApplication, Table};
use metrics::Metrics;
use os::layout::DataDirectory;
use os::platform_log;
use os::shared_port::Listeners;
use runtime::driver::Clock;
use runtime::faults::Faults;
use runtime::members::RouterPeers;
use tls::Tls;
use tls::book::Certificates;

/// Suspicions that wait for the store; more of them say nothing new.
pub const SUSPECTS_MAX: usize = 64;

/// A suspected instance, and what it did.
pub type Suspicion = (Arc<Endpoint>, &'static str);

/// A public address where clients speak TLS and Host decides as well.
#[derive(Clone, Debug)]
pub struct Secure {
    pub address: SocketAddr,
    pub tls: Tls,
    /// The port at which clients find it, where that is not the port of the address.
    pub port: Option<u16>,
}

impl Secure {
    /// Returns the port that stands in the addresses of the redirect.
    pub fn public_port(&self) -> u16 {
        self.port.unwrap_or_else(|| self.address.port())
    }
}

/// A function that takes a client of the platform itself, before it was shown a certificate.
pub type TakePlatform = Box<dyn Fn(PlatformClient) + Send + Sync>;

/// The state that all threads and the control task share.
pub struct Shared {
    pub node: NodeId,
    pub layout: DataDirectory,
    pub clock: Clock,
    pub faults: Faults,
    pub metrics: Metrics,
    pub public: Option<SocketAddr>,
    /// The address inside TLS, as it was bound.
    pub secure: Option<Secure>,
    pub announced_by: Option<Senders>,
    pub listeners: Arc<Listeners>,
    pub queue_limits: QueueLimits,
    pub connections_max: usize,
    /// What instances are told of a client: heads are written anew if that is anything, else passed
    /// on.
    pub forwarded: ForwardedFields,
    pub table: ArcSwap<Table>,
    /// What the cluster's records hold of certificates and challenges.
    pub certificates: ArcSwap<Certificates>,
    /// The application that gets every request, whatever its Host; only set without a node.
    pub only: Option<ArcSwapOption<RoutedApplication>>,
    pub files: Arc<Files>,
    pub suspects: mpsc::Sender<Suspicion>,
    pub complaints: Mutex<Complaints>,
    /// What is known of the passwords that clients said.
    pub walls: WallKeeper,
    /// Wakes the control task when a draining endpoint is empty.
    pub control: Arc<Notify>,
    pub threads: Vec<mpsc::Sender<Command>>,
    pub serials: AtomicU64,
    pub live: Mutex<Live>,
    /// The routers of other nodes; `None` until `RouterHandle::connect`, and without them this node
    /// knows no others.
    pub peers: Mutex<Option<Arc<dyn RouterPeers>>>,
    /// The taker of clients of the platform; they are served like others until it is there.
    pub platform: OnceLock<TakePlatform>,
    /// The nodes that may call this router.
    pub members: watch::Sender<Arc<BTreeSet<NodeId>>>,
}

impl Shared {
    /// Returns whether the router changes not a byte of a head.
    pub fn is_transparent(&self) -> bool {
        self.forwarded == ForwardedFields::Nothing
    }

    pub fn peers(&self) -> MutexGuard<'_, Option<Arc<dyn RouterPeers>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets go of all that only further requests would need; those under way have what they need.
    pub fn let_go(&self) {
        self.table.store(Arc::default());
        *self.live.lock().unwrap_or_else(PoisonError::into_inner) = Live::default();
        *self.peers() = None;
    }

    /// Records a fault of this kind; if it is to be told, returns how many others there were.
    pub fn heard(&self, application: &ApplicationName, rule: &'static str) -> Option<u64> {
        let mut complaints = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        complaints.heard(self.clock.now().0, application, rule)
    }

    /// Says it to the application's owner, as soon as the disk takes it.
    pub fn log(&self, application: &ApplicationName, line: String) {
        tracing::warn!(%application, line, "router.bad_answer");
        if self.only.is_none() {
            let (path, now) = (self.layout.platform_log(application), self.clock.now());
            self.files.pool().spawn_blocking(move || {
                // The log of an application that was removed meanwhile must not come back.
                if path.parent().is_some_and(std::path::Path::is_dir) {
                    platform_log::append(&path, now, &line);
                }
            });
        }
    }
}

/// The key of an endpoint: a process and its port, `None` for that of HTTP.
pub type EndpointKey = (IncarnationKey, Option<PortId>);
/// The endpoints on other nodes by port and node; the port is `None` for that of HTTP.
pub type FarEndpoints = BTreeMap<(Option<PortId>, NodeId), (FarDescription, Arc<Endpoint>)>;

/// What an open port was opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoken {
    Http,
    /// Whatever an application's own port is for.
    Other,
}

/// The objects that the control task made; they outlive its restarts, as requests depend on them.
#[derive(Default)]
pub struct Live {
    pub applications: BTreeMap<ApplicationName, Arc<RoutedApplication>>,
    pub endpoints: BTreeMap<ApplicationName, BTreeMap<EndpointKey, Arc<Endpoint>>>,
    /// The endpoints of other nodes, as they were described.
    pub far: BTreeMap<ApplicationName, FarEndpoints>,
    pub peers: BTreeMap<NodeId, Arc<FarPeer>>,
    /// The public listeners that accept nothing yet: before the first snapshot there is no route.
    pub waiting: Vec<(Scope, Vec<TcpListener>)>,
    /// The applications' own ports; an error says why one is not open.
    pub ports: BTreeMap<PortId, Result<Spoken, String>>,
}
