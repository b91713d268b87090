//! The cluster as one node sees it: its port and its streams to the others, from the first
//! invitation on, and what it knows of who is alive.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use model::hex::to_hex;
use model::{NodeId, Timestamp};
use store_core::Stamp;
use tokio::sync::watch;

use super::doors::{ClientDoor, Doors, RouterDoor, TakeClient};
use super::frame::Versions;
use super::identity::{Authority, KeyPin, Membership};
use super::invitation::{Secret, Token};
use super::net::{Net, Parts};
use super::prepare::Prepared;
use super::remote::GuestHandle;
use super::roster::Roster;
use super::status::ClusterStatus;
use super::store_role::StoreRole;
use super::{apart, identity, listen, liveness, roster, status};
use os::layout::DataDirectory;
use os::shared_port::Listeners;
use runtime::driver::Clock;
use runtime::lock::locked;
use runtime::members::BoxedStream;
use store::SharedStore;
use store::bus::Bus;

pub struct Peers {
    pub(super) layout: DataDirectory,
    pub(super) node: NodeId,
    pub(super) clock: Clock,
    pub(super) store: SharedStore,
    pub(super) store_role: StoreRole,
    pub(super) bus: Arc<Bus>,
    listen: SocketAddr,
    advertise: Option<SocketAddr>,
    versions: Versions,
    listeners: Arc<Listeners>,
    listener: Mutex<Option<TcpListener>>,
    pub(super) net: OnceLock<Arc<Net>>,
    pub(super) down: watch::Sender<BTreeSet<NodeId>>,
    pub(super) router: RouterDoor,
    pub(super) doors: Doors,
    clients: ClientDoor,
    pub(super) alive: watch::Sender<BTreeSet<NodeId>>,
    pub(super) in_touch: watch::Sender<BTreeSet<NodeId>>,
    pub(super) apart: watch::Sender<BTreeSet<NodeId>>,
    activating: tokio::sync::Mutex<()>,
    /// The times at which members that are not alive now were last alive, since this node started.
    seen: Mutex<BTreeMap<NodeId, Timestamp>>,
    pub(super) removed: watch::Sender<bool>,
}

impl Peers {
    /// Opens the peers; `None` for a store that something else replicates. `guest` is set if the
    /// store is another node's. Called before anything is written, since a store that is to join
    /// must be told first.
    pub async fn open(
        prepared: Prepared,
        layout: DataDirectory,
        node: NodeId,
        clock: Clock,
        store: SharedStore,
        guest: Option<GuestHandle>,
        bus: Arc<Bus>,
    ) -> anyhow::Result<Option<Arc<Peers>>> {
        let store_role = match (store.replication(), guest) {
            (Some(replication), _) => StoreRole::Keeper(replication),
            (None, Some(guest)) => StoreRole::Guest(guest),
            (None, None) => return Ok(None),
        };
        let mut membership = Membership::load_or_found(&layout.cluster())?;
        if membership.joining {
            store_role.keeper()?.join(membership.id(), Stamp(membership.listed)).await?;
            membership.joining = false;
            membership.save(&layout.cluster())?;
        }
        Ok(Some(Arc::new(Peers {
            layout,
            node,
            clock,
            store,
            store_role,
            bus,
            listen: prepared.listen,
            advertise: prepared.advertise,
            versions: prepared.versions,
            listeners: prepared.listeners,
            listener: Mutex::new(prepared.listener),
            net: OnceLock::new(),
            down: watch::Sender::default(),
            router: RouterDoor::default(),
            doors: Doors::default(),
            clients: ClientDoor::default(),
            alive: watch::channel(BTreeSet::new()).0,
            in_touch: watch::Sender::default(),
            apart: watch::Sender::default(),
            activating: tokio::sync::Mutex::default(),
            seen: Mutex::default(),
            removed: watch::channel(false).0,
        })))
    }

    /// Returns the members that are alive but with which nothing can be exchanged.
    pub fn apart(&self) -> BTreeSet<NodeId> {
        self.apart.borrow().clone()
    }

    /// Returns when members that are not alive now were last alive, as far as this node has seen
    /// it.
    pub fn seen(&self) -> BTreeMap<NodeId, Timestamp> {
        locked(&self.seen).clone()
    }

    /// Lets go of the parts that took calls here. They hold these peers in turn, so that neither
    /// would ever be let go of by itself.
    pub fn close(&self) {
        self.doors.close();
        self.clients.close();
    }

    /// Runs for as long as the node does. Dropping the future ends the streams.
    pub async fn run(self: Arc<Self>) -> anyhow::Result<()> {
        let mut at_end = AtEnd { peers: self.clone(), closes: true };
        let ended = tokio::select! {
            ended = self.work() => ended,
            () = apart::follow(&self) => Ok(()),
        };
        // What failed here is tried again; the streams need not suffer for it.
        at_end.closes = false;
        ended
    }

    async fn work(&self) -> anyhow::Result<()> {
        let listens = locked(&self.listener).is_some();
        let membership = Membership::load_or_found(&self.layout.cluster())?;
        let mut changes = self.store.watch(roster::prefix(), None).await?;
        let mut moved = self.store.watch(roster::addresses_prefix(), None).await?;
        if listens || membership.redeemed.is_some() {
            self.activate().await?;
        }
        let mut alive = self.alive.subscribe();
        let mut lived = alive.borrow_and_update().clone();
        loop {
            let roster = roster::read(&*self.store).await?;
            let addresses = &roster.addresses;
            if addresses.keys().any(|member| *member != self.node) {
                self.activate().await?;
            }
            self.down.send_if_modified(|down| {
                let before = down.len();
                down.retain(|node| addresses.contains_key(node));
                down.len() < before
            });
            locked(&self.seen).retain(|node, _| addresses.contains_key(node));
            if let Some(net) = self.net.get() {
                net.set_roster(roster);
                net.enter_self().await?;
            }
            tokio::select! {
                Ok(()) = alive.changed() => {
                    let now = alive.borrow_and_update().clone();
                    let mut seen = locked(&self.seen);
                    let lost = lived.difference(&now).cloned();
                    seen.extend(lost.map(|node| (node, self.clock.now())));
                    lived = now;
                }
                change = changes.next() => if change.is_none() {
                    return Ok(());
                },
                known = roster::next_address(&mut moved) => if !known {
                    return Ok(());
                },
            }
            while changes.events.try_recv().is_ok() {}
        }
    }

    /// Opens the port and begins to call others; once.
    async fn activate(&self) -> anyhow::Result<Arc<Net>> {
        let _one_at_a_time = self.activating.lock().await;
        if let Some(net) = self.net.get() {
            return Ok(net.clone());
        }
        let given = locked(&self.listener).take();
        let listener = given.map_or_else(|| listen::have(self.listen, &self.listeners), Ok)?;
        let listen = listener.local_addr()?;
        let dir = self.layout.cluster();
        let mut membership = Membership::load_or_found(&dir)?;
        if membership.listen != Some(listen) {
            membership.listen = Some(listen);
            membership.save(&dir)?;
        }
        let (cluster, at) = (membership.id(), dir.clone());
        let now = self.clock.now();
        let making = runtime::task::spawn_blocking(move || {
            let authority = Authority::load_or_make(&at, cluster)?;
            anyhow::Ok((authority, identity::node_key(&at)?, liveness::number(&at, now)))
        });
        let (authority, key, life) = making.await??;
        let net = Net::start(Parts {
            node: self.node.clone(),
            versions: self.versions,
            clock: self.clock,
            store: self.store.clone(),
            store_role: self.store_role.clone(),
            bus: self.bus.clone(),
            authority,
            key,
            membership,
            life,
            listen,
            advertise: self.advertise,
            down: self.down.clone(),
            router: self.router.clone(),
            doors: self.doors.clone(),
            clients: self.clients.clone(),
            removed: self.removed.clone(),
            alive: self.alive.clone(),
        })
        .await?;
        let accepting = net.clone();
        net.clone().spawn(async move {
            if let Err(error) = listen::run(accepting, listener).await {
                tracing::error!(error = format!("{error:#}"), "peer.listening_failed");
            }
        });
        let _ = self.net.set(net.clone());
        tracing::info!(%listen, cluster = ?cluster, "peer.listening");
        Ok(net)
    }

    /// Returns a token that lets one node in, within the hour at most. `address` is where that node
    /// finds this one.
    pub async fn invite(
        &self,
        address: Option<String>,
        age_max: Duration,
    ) -> anyhow::Result<Token> {
        self.store_role.keeper()?;
        ensure!(
            !self.store_role.is_joining(),
            "this node is still joining itself; try again when it has caught up"
        );
        let net = self.activate().await?;
        net.enter_self().await?;
        let secret = Secret(identity::random()?);
        net.book().issue(self.clock.now(), &secret, age_max)?;
        let address = address.unwrap_or_else(|| net.own_address().to_string());
        let token = Token {
            issuer: self.node.clone(),
            cluster: net.tls.cluster,
            fingerprint: identity::fingerprint(&net.authority.certificate, &net.tls.pin),
            secret,
            address,
        };
        if token.to_string().parse() != Ok(token.clone()) {
            bail!("'{}' is no address: write HOST:PORT, for example 10.0.0.5:8205", token.address);
        }
        Ok(token)
    }

    /// Passes people's clients to `take` from now on.
    pub fn take_clients(&self, take: TakeClient) {
        self.clients.set(take);
    }

    /// Gives a client to who takes people's clients, whatever the way by which it came.
    pub fn hand_over_client(&self, from: IpAddr, stream: BoxedStream) -> anyhow::Result<()> {
        self.clients.hand_over(from, stream)
    }

    /// Opens the node port if it is not open yet, so that clients find this node; returns where,
    /// and the pin of the key that it shows there.
    pub async fn open_port(&self) -> anyhow::Result<(SocketAddr, KeyPin)> {
        let net = self.activate().await?;
        net.enter_self().await?;
        Ok((net.own_address(), net.tls.pin))
    }

    /// Returns where others find this node; `None` as long as its port is not open.
    pub fn own_address(&self) -> Option<SocketAddr> {
        Some(self.net.get()?.own_address())
    }

    /// Returns the id of the cluster, in hexadecimal digits.
    pub fn cluster(&self) -> anyhow::Result<String> {
        let id = match self.net.get() {
            Some(net) => net.tls.cluster,
            None => Membership::load_or_found(&self.layout.cluster())?.id(),
        };
        Ok(to_hex(&id.0))
    }

    /// Returns the roster as the transport knows it; `None` as long as this node's port is not
    /// open, and so nobody else can be on it.
    pub fn roster(&self) -> Option<Roster> {
        Some(self.net.get()?.roster())
    }

    pub async fn status(&self) -> anyhow::Result<ClusterStatus> {
        let addresses = roster::read(&*self.store).await?.addresses;
        let mut status = status::read(&self.store_role, &self.node, self.net.get(), &addresses);
        if *self.removed.borrow() {
            status.state = "removed".into();
        }
        Ok(status)
    }

    /// Returns the node whose store this one uses; `None` if it keeps one itself, or can reach no
    /// node that does.
    pub fn store_in_use(&self) -> Option<NodeId> {
        self.store_role.guest()?.in_use()
    }

    /// Synchronises with a peer now.
    pub async fn sync(&self) -> anyhow::Result<()> {
        self.store_role.keeper()?.sync().await.context("the store")
    }

    /// Trusts this machine's clock, after somebody has looked at it and it is right.
    pub async fn trust_clock(&self) -> anyhow::Result<()> {
        self.store_role.keeper()?.trust_clock().await.context("the store")
    }
}

struct AtEnd {
    peers: Arc<Peers>,
    closes: bool,
}

impl Drop for AtEnd {
    fn drop(&mut self) {
        let closes = self.closes && !std::thread::panicking();
        if let Some(net) = self.peers.net.get().filter(|_| closes) {
            net.close();
        }
    }
}
