//! The running transport: the state that its tasks share, and what the rest of the node may ask of
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{bail, ensure};
use async_trait::async_trait;
use bytes::Bytes;
use model::hex::from_hex;
use model::{NodeId, Timestamp, TypedKey};
use rcgen::KeyPair;
use store_core::NodeTag;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;
use tokio_rustls::server::TlsStream;

use super::doors::{ClientDoor, Doors, RouterDoor};
use super::frame::Versions;
use super::identity::{Authority, KeyPin, Membership, Seed};
use super::invitation::InvitationBook;
use super::link::{self, LinkEnd};
use super::links::Links;
use super::listening;
use super::liveness::{self, Heard, Liveness};
use super::outbox::Outbox;
use super::reports::Reports;
use super::roster::{self, Addresses, Roster};
use super::store_role::StoreRole;
use super::tls::{ALPN_BULK, ClusterTls, stream_alpn};
use super::{dial, frame};
use crate::remote;
use crate::remote::GuestHandle;
use runtime::driver::Clock;
use runtime::lock::locked;
use runtime::members::{BoxedStream, RouterCall, StreamKind};
use runtime::revocable::Revocable;
use runtime::task;
use store::SharedStore;
use store::bulk::BulkPeers;
use store::bus::{Bus, BusError, Message, Names, Neighbours, SubscriptionKind};

/// The time for which a peer that was caught lying is left alone.
const SHUNNED: Duration = Duration::from_secs(10);
/// The time before a removed peer's stream is cut, in which it is told so.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// The number of streams of large values that are served at a time.
const BULK_STREAMS_MAX: usize = 256;
/// The number of streams of nodes without a store, each with one and one more for each large value.
const STORE_STREAMS_MAX: usize = 512;
/// The interval at which it is checked whether a peer holds what a client waits for.
const HOLDING_POLL: Duration = Duration::from_millis(5);

pub struct Parts {
    pub node: NodeId,
    pub versions: Versions,
    pub clock: Clock,
    pub store: SharedStore,
    pub store_role: StoreRole,
    pub bus: Arc<Bus>,
    pub authority: Authority,
    /// This node's own key.
    pub key: KeyPair,
    pub membership: Membership,
    /// The number of this process's life.
    pub life: u64,
    pub listen: SocketAddr,
    pub advertise: Option<SocketAddr>,
    /// Whether others say that this node was removed.
    pub removed: watch::Sender<bool>,
    pub down: watch::Sender<BTreeSet<NodeId>>,
    pub router: RouterDoor,
    pub doors: Doors,
    pub clients: ClientDoor,
    /// The members that are alive; updated with every change.
    pub alive: watch::Sender<BTreeSet<NodeId>>,
}

pub struct Net {
    pub node: NodeId,
    pub versions: Versions,
    pub store: SharedStore,
    pub store_role: StoreRole,
    pub bus: Arc<Bus>,
    pub authority: Authority,
    pub tls: ClusterTls,
    pub links: Arc<Links>,
    pub liveness: Liveness,
    pub roster_changed: Notify,
    clock: Clock,
    listen: SocketAddr,
    advertise: Option<SocketAddr>,
    seeds: Vec<Seed>,
    book: Mutex<InvitationBook>,
    reports: Mutex<Reports>,
    roster: Mutex<Roster>,
    /// A lock under which this node's entry is written, so that it is written once.
    entering: tokio::sync::Mutex<()>,
    shunned: Mutex<BTreeMap<NodeTag, (Instant, String)>>,
    bulk_streams: Arc<Semaphore>,
    store_streams: Arc<Semaphore>,
    router: RouterDoor,
    doors: Doors,
    clients: ClientDoor,
    /// The outbox of the store's messages; `None` if this node keeps no store.
    outbox: Option<Arc<Outbox>>,
    members: watch::Sender<BTreeSet<NodeTag>>,
    removed: watch::Sender<bool>,
    closing: watch::Sender<bool>,
}

impl Net {
    pub async fn start(parts: Parts) -> anyhow::Result<Arc<Net>> {
        let Parts { node, clock, store, store_role, bus, authority, .. } = parts;
        let membership = parts.membership;
        let tls = ClusterTls::new(&authority, membership.id(), &node, &parts.key)?;
        let links = Arc::new(Links::new(NodeTag::from(&node), store_role.clone()));
        let outbox = store_role.replication().map(|replication| {
            let outbox = Outbox::start(replication.clone(), links.clone())?;
            replication.connect(outbox.clone());
            io::Result::Ok(outbox)
        });
        let outbox = outbox.transpose()?;
        let (liveness, heard) = Liveness::new();
        let roster = match store_role {
            StoreRole::Keeper(_) => roster::read(&*store).await?,
            // A guest finds out meanwhile whom to ask.
            StoreRole::Guest(_) => Roster::default(),
        };
        let net = Arc::new(Net {
            node: node.clone(),
            versions: parts.versions,
            store,
            store_role,
            bus,
            authority,
            tls,
            links: links.clone(),
            liveness,
            roster_changed: Notify::new(),
            clock,
            listen: parts.listen,
            advertise: parts.advertise,
            seeds: membership.seeds,
            book: Mutex::default(),
            reports: Mutex::default(),
            roster: Mutex::default(),
            entering: tokio::sync::Mutex::default(),
            shunned: Mutex::default(),
            bulk_streams: Arc::new(Semaphore::new(BULK_STREAMS_MAX)),
            store_streams: Arc::new(Semaphore::new(STORE_STREAMS_MAX)),
            router: parts.router,
            doors: parts.doors,
            clients: parts.clients,
            outbox,
            members: watch::Sender::default(),
            removed: parts.removed,
            closing: watch::channel(false).0,
        });
        net.set_roster(roster);
        net.store_role.fetch_from(net.clone())?;
        net.bus.connect(Arc::new(Neighbourhood(net.clone())));
        let bus = net.bus.clone();
        net.doors.set(
            StreamKind::Listeners,
            Box::new(move |peer, stream| {
                let bus = bus.clone();
                runtime::task::spawn(async move {
                    if let Err(error) = listening::serve(&bus, stream).await {
                        tracing::debug!(%peer, %error, "peer.listeners_not_told");
                    }
                });
            }),
        );
        let (alive, down) = (parts.alive, parts.down);
        net.clone().spawn(liveness::run(node, parts.life, links, alive, heard, down));
        net.clone().spawn(dial::run(net.clone()));
        net.clone().spawn(net.tls.credential.clone().keep());
        Ok(net)
    }

    /// Runs work until it ends, or the transport does.
    pub fn spawn(self: Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        let (mut closing, work) = (self.closing.subscribe(), task::boxed(work));
        task::spawn(async move {
            tokio::select! {
                () = work => {}
                _ = closing.wait_for(|closing| *closing) => {}
            }
        });
    }

    pub fn close(&self) {
        self.links.cut_all("the node is stopping");
        self.closing.send_replace(true);
        if let Some(outbox) = &self.outbox {
            outbox.close();
        }
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub fn book(&self) -> MutexGuard<'_, InvitationBook> {
        locked(&self.book)
    }

    pub fn reports(&self) -> MutexGuard<'_, Reports> {
        locked(&self.reports)
    }

    pub fn roster(&self) -> Roster {
        locked(&self.roster).clone()
    }

    /// Returns the addresses of members; while this node joins, also those in its invitation's
    /// answer.
    pub fn addresses(&self) -> Addresses {
        let mut addresses = locked(&self.roster).addresses.clone();
        if self.store_role.is_joining() {
            for Seed { id, addresses: at, .. } in &self.seeds {
                addresses.entry(id.clone()).or_insert_with(|| at.clone());
            }
        }
        addresses
    }

    /// Returns the pin that a node has to show, if it is known.
    pub fn pin_of(&self, node: &NodeId) -> Option<KeyPin> {
        let seed = || self.seeds.iter().find(|seed| seed.id == *node)?.pin.as_deref();
        // A pin that came with the invitation is newer than one known from an earlier stay.
        let joining = self.store_role.is_joining();
        let told = joining.then(seed).flatten().and_then(from_hex);
        told.or_else(|| locked(&self.roster).pins.get(node).copied())
    }

    pub fn set_roster(self: &Arc<Self>, roster: Roster) {
        let addresses = &roster.addresses;
        let mut members: BTreeSet<NodeTag> = addresses.keys().map(NodeTag::from).collect();
        if self.store_role.is_joining() {
            members.extend(self.seeds.iter().map(|seed| NodeTag::from(&seed.id)));
        }
        let guests = roster.guests.iter().map(NodeTag::from).collect();
        *locked(&self.roster) = roster;
        let gone = self.links.set_members(members.clone(), guests);
        self.members.send_replace(members);
        self.roster_changed.notify_one();
        for peer in gone {
            self.clone().spawn(self.clone().part_from(peer));
        }
    }

    async fn part_from(self: Arc<Self>, peer: NodeTag) {
        tokio::time::sleep(LAST_WORDS).await;
        if !self.links.is_member(peer) {
            self.links.cut(peer, "it was removed from the cluster");
        }
    }

    /// Resolves when the node is no longer a member.
    fn removed(&self, peer: &NodeId) -> impl Future<Output = ()> + Send + 'static {
        let (mut members, peer) = (self.members.subscribe(), NodeTag::from(peer));
        async move {
            // If the sender is gone, so are the transport and all members.
            members.wait_for(|members| !members.contains(&peer)).await.ok();
        }
    }

    /// Marks this node as removed, since a member says so. Ignored while this node joins or is
    /// linked: that member may not have heard of the last invitation.
    pub fn was_refused(&self, by: NodeTag) {
        if !self.store_role.is_joining() && !self.links.is_any_linked() {
            tracing::warn!(?by, "peer.this_node_was_removed");
            self.removed.send_replace(true);
        }
    }

    /// Returns the address at which others find this node.
    pub fn own_address(&self) -> SocketAddr {
        if let Some(advertised) = self.advertise {
            return advertised;
        }
        let roster = locked(&self.roster);
        let others = roster.addresses.iter().filter(|(node, _)| **node != self.node);
        let towards = others.flat_map(|(_, at)| at).find_map(|at| at.parse::<SocketAddr>().ok());
        roster::reachable_at(self.listen, towards.map(|at| at.ip()))
    }

    /// Keeps this node's own entry right, but never restores it once it was removed.
    pub async fn enter_self(&self) -> anyhow::Result<()> {
        if self.store_role.is_joining() {
            return Ok(());
        }
        let _one_at_a_time = self.entering.lock().await;
        let own = vec![self.own_address().to_string()];
        let pin = Some(self.tls.pin);
        let (entered, pinned) = {
            let roster = locked(&self.roster);
            let pinned = roster.pins.get(&self.node).copied();
            (roster.addresses.get(&self.node).cloned(), pinned)
        };
        match entered {
            Some(entered) if entered == own && pinned == pin => return Ok(()),
            Some(_) => roster::tell_address(&*self.store, &self.node, own.clone(), pin).await?,
            None if self.store_role.guest().is_some() => return Ok(()),
            None if roster::was_ever_entered(&*self.store, &self.node).await? => return Ok(()),
            None => {
                let entry = TypedKey::Member(self.node.clone());
                roster::enter(&*self.store, entry, &self.node, own.clone(), pin, self.now())
                    .await?;
            }
        }
        let mut roster = locked(&self.roster);
        roster.addresses.insert(self.node.clone(), own);
        roster.pins.insert(self.node.clone(), self.tls.pin);
        Ok(())
    }

    /// Reads and writes a stream until it ends.
    pub async fn keep<S>(self: Arc<Self>, peer: NodeTag, dialed_by: NodeTag, stream: Box<S>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Some((link, outgoing)) = self.links.add(peer, dialed_by) else { return };
        tracing::info!(?peer, "peer.linked");
        if self.links.is_member(peer) {
            self.removed.send_if_modified(std::mem::take);
        }
        self.liveness.tell(Heard::Linked(peer));
        self.store_role.fetch_board().look_again();
        let ended = link::run(self.clone(), link.clone(), outgoing, stream).await;
        let present = self.links.remove(&link);
        match ended {
            LinkEnd::Lied(error) => self.shun(peer, format!("{error:#}")),
            LinkEnd::Lost(error) if present => {
                tracing::warn!(?peer, reason = format!("{error:#}"), "peer.lost");
            }
            LinkEnd::Lost(_) => {}
        }
    }

    fn shun(&self, peer: NodeTag, reason: String) {
        if self.reports().is_news(peer.as_str().into(), reason.clone()) {
            tracing::error!(?peer, reason, "peer.lied: nothing of it was taken in");
        }
        let mut shunned = locked(&self.shunned);
        shunned.insert(peer, (Instant::now() + SHUNNED, reason));
        // Only members and a few strangers are ever linked, so there are few entries.
        while shunned.len() > dial::LINKS_KEPT_MAX * 4 {
            shunned.pop_first();
        }
    }

    pub fn is_shunned(&self, peer: NodeTag) -> bool {
        locked(&self.shunned).get(&peer).is_some_and(|(until, _)| Instant::now() < *until)
    }

    /// Returns what a peer was last caught at.
    pub fn lie_of(&self, peer: NodeTag) -> Option<String> {
        locked(&self.shunned).get(&peer).map(|(_, reason)| reason.clone())
    }

    /// Takes a stream on which the router of a peer has requests for this one's.
    pub fn take_router(&self, peer: NodeId, stream: TlsStream<TcpStream>) -> anyhow::Result<()> {
        self.router.hand_over(RouterCall::of(peer, stream)?)
    }

    pub fn is_removed(&self) -> bool {
        *self.removed.borrow()
    }

    /// Takes the connection of a person's client.
    pub fn take_client(&self, from: IpAddr, stream: BoxedStream) -> anyhow::Result<()> {
        self.clients.hand_over(from, stream)
    }

    /// Takes a stream on which a part of a peer speaks with its counterpart here.
    pub fn take_stream(
        &self,
        kind: StreamKind,
        peer: NodeId,
        stream: BoxedStream,
    ) -> anyhow::Result<()> {
        let stream = Box::new(Revocable::new(stream, self.removed(&peer)));
        self.doors.hand_over(kind, peer, stream)
    }

    pub async fn open(&self, peer: &NodeId, kind: StreamKind) -> anyhow::Result<BoxedStream> {
        let (addresses, config) = (self.addresses(), self.tls.stream_client(kind));
        let stream = dial::connect(self, peer, &addresses, config, stream_alpn(kind)).await?;
        Ok(Box::new(Revocable::new(stream, self.removed(peer))))
    }

    /// Takes a stream on which a node without a store uses this one's.
    pub fn take_store(self: &Arc<Self>, peer: NodeId, stream: BoxedStream) -> anyhow::Result<()> {
        ensure!(self.store_role.replication().is_some(), "this node keeps no store either");
        let Ok(permit) = self.store_streams.clone().try_acquire_owned() else {
            bail!("too many nodes use the store of this one already");
        };
        let stream = Box::new(Revocable::new(stream, self.removed(&peer)));
        let store = self.store.clone();
        self.clone().spawn(async move {
            let served = remote::serve::serve(store, stream).await;
            drop(permit);
            if let Err(error) = served {
                tracing::debug!(%peer, error = format!("{error:#}"), "peer.store_ended");
            }
        });
        Ok(())
    }

    /// Takes a stream on which a peer asks for large values.
    pub fn take_bulk(self: &Arc<Self>, peer: NodeId, stream: BoxedStream) {
        let Ok(permit) = self.bulk_streams.clone().try_acquire_owned() else {
            tracing::warn!(%peer, "peer.bulk_refused: too many streams of large values");
            return;
        };
        let fetch_board = self.store_role.fetch_board();
        let stream = Box::new(Revocable::new(stream, self.removed(&peer)));
        self.clone().spawn(async move {
            let served = fetch_board.serve(stream).await;
            drop(permit);
            if let Err(error) = served {
                tracing::debug!(%peer, %error, "peer.bulk_ended");
            }
        });
    }
}

#[async_trait]
impl BulkPeers for Net {
    fn reachable(&self) -> Vec<NodeId> {
        let silent = self.links.silent();
        let linked = self.links.linked().into_iter();
        let members = linked.filter(|peer| self.links.is_member(*peer));
        members.filter(|peer| !silent.contains(peer)).map(|peer| peer.node()).collect()
    }

    async fn connect(&self, peer: &NodeId) -> io::Result<BoxedStream> {
        let (addresses, config) = (self.addresses(), self.tls.bulk_client());
        let stream = dial::connect(self, peer, &addresses, config, ALPN_BULK).await;
        match stream {
            Ok(stream) => Ok(Box::new(Revocable::new(stream, self.removed(peer)))),
            Err(error) => Err(io::Error::other(format!("{error:#}"))),
        }
    }
}

struct Neighbourhood(Arc<Net>);

#[async_trait]
impl Neighbours for Neighbourhood {
    fn forward(&self, message: &Message) {
        match frame::published(message) {
            Some(frame) => self.0.links.publish(&frame),
            None => {
                let what = format!("over {} bytes", frame::PUBLISHED_BYTES_MAX);
                if self.0.reports().is_news("published".into(), what) {
                    tracing::warn!(
                        bytes = message.payload.len(),
                        "peer.published_too_large: it is heard on this node alone"
                    );
                }
            }
        }
    }

    async fn listening(&self, channels: &[Bytes]) -> Vec<usize> {
        listening::count_all(&self.0, channels).await
    }

    async fn names(&self, kind: SubscriptionKind, pattern: &Bytes) -> Result<Names, BusError> {
        listening::name_all(&self.0, kind, pattern).await
    }

    async fn meet(&self) -> usize {
        let Some(replication) = self.0.store_role.replication() else {
            return usize::from(self.0.store_role.guest().and_then(GuestHandle::in_use).is_some());
        };
        match replication.sync().await {
            Ok(()) => self.0.reachable().len(),
            Err(_) => 0,
        }
    }

    async fn holding(&self, wanted: usize, limit: Duration) -> usize {
        // Writes of a guest are held by the node that acknowledged them.
        let Some(replication) = self.0.store_role.replication() else { return 1 };
        let (stamp, until) = (replication.durable(), Instant::now() + limit);
        loop {
            let holding = replication.replicas_with(stamp);
            if holding >= wanted || Instant::now() >= until {
                return holding;
            }
            tokio::time::sleep(HOLDING_POLL).await;
        }
    }
}
