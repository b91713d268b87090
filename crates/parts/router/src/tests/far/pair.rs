//! Two worlds, `near` and `far`, whose nodes are members of one cluster. The node ports between
//! them are stood in for; TLS is the cluster's own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use async_trait::async_trait;
use model::node::Member;
use model::{InstanceState, NodeId, Timestamp, TypedKey};
use rcgen::KeyPair;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::super::world::{World, app, node, wait};
use crate::queue::QueueLimits;
use cluster::identity::{Authority, Membership};
use cluster::tls::ClusterTls;
use runtime::members::{CalledRouter, RouterCall, RouterPeers, Take};

pub fn far_node() -> NodeId {
    "n2".parse().unwrap()
}

/// One node's port, and what it knows of the others'.
struct Port {
    tls: ClusterTls,
    ports: Arc<Mutex<BTreeMap<NodeId, SocketAddr>>>,
    take: Arc<OnceLock<Take>>,
    down: watch::Sender<BTreeSet<NodeId>>,
    calls: AtomicUsize,
    /// Whether callers are cut off after the handshake.
    loses: Arc<AtomicBool>,
}

#[async_trait]
impl RouterPeers for Port {
    fn set_router(&self, take: Take) {
        self.take.set(take).ok();
    }

    async fn call_router(&self, node: &NodeId) -> anyhow::Result<CalledRouter> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let address = self.ports.lock().unwrap()[node];
        let name = self.tls.server_name(node)?;
        let connector = TlsConnector::from(self.tls.router_client());
        Ok(connector.connect(name, TcpStream::connect(address).await?).await?)
    }

    fn down(&self) -> watch::Receiver<BTreeSet<NodeId>> {
        self.down.subscribe()
    }
}

pub struct Pair {
    pub near: World,
    pub far: World,
    near_port: Arc<Port>,
    far_port: Arc<Port>,
}

impl Pair {
    pub async fn new() -> Pair {
        Pair::with(QueueLimits::default()).await
    }

    pub async fn with(queue: QueueLimits) -> Pair {
        let directory = tempfile::tempdir().unwrap();
        let cluster = Membership::load_or_found(directory.path()).unwrap().id();
        let authority = Authority::load_or_make(directory.path(), cluster).unwrap();
        let ports = Arc::new(Mutex::new(BTreeMap::new()));
        let mut made = Vec::new();
        for (own, other) in [(node(), far_node()), (far_node(), node())] {
            let port = Arc::new(Port {
                tls: ClusterTls::new(&authority, cluster, &own, &KeyPair::generate().unwrap())
                    .unwrap(),
                ports: ports.clone(),
                take: Arc::default(),
                down: watch::Sender::default(),
                calls: AtomicUsize::new(0),
                loses: Arc::default(),
            });
            let address = listen(&port, other).await;
            ports.lock().unwrap().insert(own.clone(), address);
            let world = World::of(own, 1, queue, |router| router.connect(port.clone()));
            made.push((world, port));
        }
        let (far, far_port) = made.pop().unwrap();
        let (near, near_port) = made.pop().unwrap();
        let pair = Pair { near, far, near_port, far_port };
        for world in [&pair.near, &pair.far] {
            for id in [node(), far_node()] {
                let member = Member {
                    v: 1,
                    id: id.clone(),
                    joined_at: Timestamp(0),
                    addresses: Vec::new(),
                    pin: None,
                    unknown: Default::default(),
                };
                world.put(TypedKey::Member(id), &member);
            }
            world.application(|_| (), Vec::new());
        }
        pair
    }

    pub fn near_claim(
        &self,
        slot: u32,
        concurrency: Option<u32>,
        processes: &[(u64, InstanceState, u16)],
    ) {
        for world in [&self.near, &self.far] {
            world.claim_on(node(), slot, concurrency, processes);
        }
    }

    pub fn far_claim(
        &self,
        slot: u32,
        concurrency: Option<u32>,
        processes: &[(u64, InstanceState, u16)],
    ) {
        for world in [&self.far, &self.near] {
            world.claim_on(far_node(), slot, concurrency, processes);
        }
    }

    fn application(&self) -> Option<Arc<crate::table::RoutedApplication>> {
        self.near.router.shared.table.load().by_host(b"shop.localhost").cloned()
    }

    /// Waits until both know their own instances, and `near` the other's.
    pub async fn routed(&self) {
        let far = self.far.router.shared.clone();
        let own = || {
            let table = far.table.load();
            let known = table.by_host(b"shop.localhost");
            known.is_some_and(|one| !one.endpoints.is_empty()) && far.members.borrow().len() == 2
        };
        wait(|| self.application().is_some_and(|one| !one.far.is_empty()) && own()).await;
    }

    pub async fn near_has(&self, instances: usize) {
        wait(|| self.application().is_some_and(|one| one.endpoints.len() == instances)).await;
    }

    pub fn is_busy_near(&self) -> bool {
        let now_ms = self.near.router.shared.clock.now().0;
        let busy = |one: Arc<crate::table::RoutedApplication>| {
            one.endpoints.iter().all(|endpoint| !endpoint.candidate(now_ms).has_room())
        };
        self.application().is_some_and(busy)
    }

    pub fn is_unreachable(&self) -> bool {
        self.application().is_some_and(|one| one.unreachable && one.far.is_empty())
    }

    /// Returns the number of connections that `near` made to `far`.
    pub fn calls(&self) -> usize {
        self.near_port.calls.load(Ordering::SeqCst)
    }

    pub fn lose_calls(&self, loses: bool) {
        self.far_port.loses.store(loses, Ordering::SeqCst);
    }

    /// Tells `near` which nodes are down.
    pub fn down(&self, nodes: &[NodeId]) {
        self.near_port.down.send_replace(nodes.iter().cloned().collect());
    }

    pub async fn remove_near_from_roster_of_far(&self) {
        self.far.records.delete(&TypedKey::Member(node()));
        let shared = self.far.router.shared.clone();
        wait(|| !shared.members.borrow().contains(&node())).await;
        assert!(shared.table.load().by_host(format!("{}.localhost", app()).as_bytes()).is_some());
    }
}

async fn listen(port: &Arc<Port>, caller: NodeId) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (take, loses) = (port.take.clone(), port.loses.clone());
    let acceptor = TlsAcceptor::from(port.tls.member_server.clone());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            if !loses.load(Ordering::SeqCst)
                && let Some(take) = take.get()
            {
                take(RouterCall::of(caller.clone(), stream).unwrap());
            }
        }
    });
    address
}
