//! The task that keeps the snapshot equal to what the store says: it reads records, builds
//! applications and endpoints, publishes them, opens and closes ports, and tells the agent what is
//! drained. It decides from whole state, so that it can be started again at any moment.

mod closed_page;
mod own_name;
mod secure;
mod site;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use model::key::BoardKey;
use model::port::Transport;
use model::{
    ApplicationName, InstanceId, Key, NodeId, PlatformAddress, PortId, ProcessType, TypedKey,
};
use router_core::balance;
use router_core::book::far::FarDescription;
use router_core::book::{Book, Description, EndpointDescription, IncarnationKey, prefixes};
use tokio::sync::{mpsc, watch};

use super::command::Command;
use super::datagrams;
use super::endpoint::{Endpoint, SlowStart};
use super::far::peer::FarPeer;
use super::limits::Limits;
use super::queue::Queue;
use super::records::{CHANGES_MAX, RecordChange, SharedRecords};
use super::scope::Scope;
use super::shared::{EndpointKey, FarEndpoints, Live, Shared, Spoken};
use super::table::{RoutedApplication, Service, Table};
use metrics::Labels;
pub use own_name::is_own_name;
use site::{BUILD_LOOK, Site};
use tls::book::CertificateBook;

/// The name of this part's fail point.
pub const FAIL_POINT: &str = "router.control";
/// The time within which changes are gathered and published together.
const GATHER: Duration = Duration::from_millis(2);
/// The time between two looks for certificates that became valid or expired.
const VALIDITY_LOOK: Duration = Duration::from_secs(60);
/// The time after which a port that is taken is tried again: its owner may have ended.
const PORT_RETRY: Duration = Duration::from_secs(2);

/// Runs until the store stops.
pub async fn run(shared: Arc<Shared>, records: SharedRecords) -> anyhow::Result<()> {
    let (sender, mut changes) = mpsc::channel(CHANGES_MAX);
    let followed = records.clone();
    let watching = followed.follow(prefixes(), sender);
    let mut down = shared.peers().as_ref().map(|peers| peers.down());
    let mut control = Control {
        book: Book::new(shared.node.clone()),
        certificates: CertificateBook::default(),
        own_name: None,
        read: false,
        draining: BTreeMap::new(),
        told: BTreeSet::new(),
        awaits: BTreeMap::new(),
        listens: None,
        shared,
        records,
    };
    tokio::select! {
        result = watching => result,
        result = control.follow(&mut changes, &mut down) => result,
    }
}

/// The nodes that do not answer; `None` if this node knows no others.
type Down = Option<watch::Receiver<BTreeSet<NodeId>>>;

/// Resolves when other nodes came to be down or up.
async fn changed(down: &mut Down) {
    if let Some(down) = down
        && down.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// Resolves when certificates were read from files again.
async fn files_changed(shared: &Shared) {
    match &shared.secure {
        Some(secure) => secure.tls.files_changed().await,
        None => std::future::pending().await,
    }
}

struct Control {
    shared: Arc<Shared>,
    records: SharedRecords,
    book: Book,
    certificates: CertificateBook,
    own_name: Option<Arc<PlatformAddress>>,
    /// Whether the book has everything that is stored.
    read: bool,
    /// Incarnations that are to be emptied; kept up with each change, as a look at all of them
    /// takes long where there are a hundred thousand.
    draining: BTreeMap<ApplicationName, BTreeSet<IncarnationKey>>,
    /// Drained incarnations that the board already names.
    told: BTreeSet<IncarnationKey>,
    /// The marks of builds that are still to be made; until then older files of these sites are
    /// served, or none.
    awaits: BTreeMap<ApplicationName, PathBuf>,
    /// The table's ports that were last seen to; another map is another state.
    listens: Option<Arc<BTreeMap<PortId, ApplicationName>>>,
}

impl Control {
    async fn follow(
        &mut self,
        changes: &mut mpsc::Receiver<RecordChange>,
        down: &mut Down,
    ) -> anyhow::Result<()> {
        let mut batch = Vec::new();
        // It goes on while changes come, which would begin a mere sleep again and again.
        let mut validity = tokio::time::interval(VALIDITY_LOOK);
        loop {
            let mut renewed = false;
            tokio::select! {
                count = changes.recv_many(&mut batch, CHANGES_MAX) => {
                    if count == 0 {
                        return Ok(());
                    }
                    tokio::time::sleep(GATHER).await;
                    while batch.len() < CHANGES_MAX && let Ok(change) = changes.try_recv() {
                        batch.push(change);
                    }
                }
                () = self.shared.control.notified() => {}
                () = changed(down) => {}
                () = tokio::time::sleep(PORT_RETRY), if self.has_port_problems() => {}
                () = tokio::time::sleep(BUILD_LOOK), if !self.awaits.is_empty() => {}
                () = files_changed(&self.shared) => renewed = true,
                _ = validity.tick(), if self.shared.secure.is_some() => renewed = true,
            }
            self.shared.faults.check_async(FAIL_POINT).await?;
            let whole = self.awaits.iter().filter(|(_, mark)| mark.is_file());
            let mut affected: BTreeSet<_> = whole.map(|(name, _)| name.clone()).collect();
            for change in batch.drain(..) {
                match change {
                    RecordChange::One(key, value)
                        if self.certificates.apply(&key, value.as_deref())
                            || self.note_own_name(&key, value.as_deref()) =>
                    {
                        renewed = true;
                    }
                    RecordChange::One(key, value) => {
                        affected.extend(self.note(&key, value.as_deref()))
                    }
                    RecordChange::ReadAgain => {
                        affected.extend(self.read_all().await?);
                        (self.read, renewed) = (true, true);
                    }
                }
            }
            if let Some(down) = down {
                let now = down.borrow_and_update().clone();
                affected.extend(self.book.set_down(now));
            }
            self.know_peers();
            self.publish(&affected, renewed);
            if self.read {
                self.listen().await;
            }
            self.tell_drained().await?;
        }
    }

    fn note(&mut self, key: &Key, record: Option<&[u8]>) -> BTreeSet<ApplicationName> {
        let (affected, error) = match TypedKey::parse(key) {
            Some(TypedKey::Member(node) | TypedKey::Guest(node)) => {
                return self.book.set_member(&node, record.is_some());
            }
            Some(TypedKey::Team(team)) => match self.book.set_team(&team, record) {
                Ok(affected) => (affected, None),
                Err(error) => (BTreeSet::new(), Some(error)),
            },
            _ => {
                let (affected, error) = self.book.apply(key, record);
                (affected.into_iter().collect(), error)
            }
        };
        if let Some(error) = error {
            tracing::warn!(%key, %error, "router.record_unreadable");
        }
        affected
    }

    async fn read_all(&mut self) -> anyhow::Result<BTreeSet<ApplicationName>> {
        let mut affected: BTreeSet<_> = {
            let live = self.live();
            live.applications.keys().chain(live.endpoints.keys()).cloned().collect()
        };
        self.book = Book::new(self.shared.node.clone());
        self.certificates = CertificateBook::default();
        self.own_name = None;
        for prefix in prefixes() {
            for (key, record) in self.records.read(&prefix).await? {
                if self.certificates.apply(&key, Some(&record))
                    || self.note_own_name(&key, Some(&record))
                {
                    continue;
                }
                affected.extend(self.note(&key, Some(&record)));
            }
        }
        Ok(affected)
    }

    fn live(&self) -> std::sync::MutexGuard<'_, Live> {
        self.shared.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&mut self, affected: &BTreeSet<ApplicationName>, renewed: bool) {
        let shared = self.shared.clone();
        let mut guard = shared.live.lock().unwrap_or_else(PoisonError::into_inner);
        let live = &mut *guard;
        let mut table: Table = (**shared.table.load()).clone();
        let mut changed = Vec::new();
        for name in affected {
            let old = live.applications.get(name).cloned();
            self.awaits.remove(name);
            let new = self
                .book
                .describe(name)
                .map(|description| Arc::new(self.build(description, old.as_ref(), live)));
            match &new {
                Some(new) => drop(live.applications.insert(name.clone(), new.clone())),
                None => {
                    live.applications.remove(name);
                    let known = live.far.remove(name).unwrap_or_default();
                    known.into_values().for_each(|(_, endpoint)| endpoint.drain());
                    shared.metrics.forget(name);
                }
            }
            table.replace(old.as_ref(), new.as_ref(), &live.applications);
            changed.push((old, new));
        }
        table.own_name = self.own_name.clone();
        self.secure(&mut table, &changed, renewed);
        if !changed.is_empty() || renewed {
            shared.table.store(Arc::new(table));
        }
        for (old, new) in changed {
            match (old, new) {
                (old, Some(new)) => {
                    let services = new.services.values().map(|service| &service.application);
                    for one in services.chain([&new]) {
                        one.queue.current.store(Some(one.clone()));
                        one.queue.advance();
                    }
                    let before = old.iter().flat_map(|old| &old.services);
                    let gone = before.filter(|(id, _)| !new.services.contains_key(id));
                    gone.for_each(|(_, service)| service.application.queue.close());
                }
                (Some(old), None) => {
                    old.queue.close();
                    old.services.values().for_each(|one| one.application.queue.close());
                }
                (None, None) => {}
            }
        }
        for name in affected {
            self.sort_out(name, live);
        }
    }

    /// Empties endpoints of processes that drain, and forgets those that ended; requests that still
    /// hold one keep it.
    fn sort_out(&mut self, name: &ApplicationName, live: &mut Live) {
        let (draining, alive) = (self.book.draining(name), self.book.alive(name));
        if let Some(endpoints) = live.endpoints.get_mut(name) {
            endpoints.retain(|key, endpoint| {
                let keep = alive.contains(&key.0);
                if !keep || draining.contains(&key.0) {
                    endpoint.drain();
                }
                keep
            });
            if endpoints.is_empty() {
                live.endpoints.remove(name);
            }
        }
        if draining.is_empty() {
            self.draining.remove(name);
        } else {
            self.draining.insert(name.clone(), draining);
        }
    }

    /// Updates the members that this node may call, and that may call it.
    fn know_peers(&self) {
        let members = self.book.members();
        if **self.shared.members.borrow() != *members {
            self.shared.members.send_replace(Arc::new(members.clone()));
        }
        let mut live = self.live();
        live.peers.retain(|node, peer| {
            let keep = members.contains(node);
            peer.set_down(!keep || self.book.is_down(node));
            keep
        });
    }

    /// Returns the endpoints of one port on other nodes. An endpoint goes on for as long as the
    /// same instances are there; what is left in `known` is over.
    fn far(
        &self,
        instance: InstanceId,
        port: Option<PortId>,
        described: &[FarDescription],
        known: &mut FarEndpoints,
        live: &mut Live,
    ) -> Vec<Arc<Endpoint>> {
        let mut endpoints = Vec::with_capacity(described.len());
        for one in described {
            let key = (port, one.node.clone());
            let old = known.get(&key).is_some_and(|(described, _)| described == one);
            let old = old.then(|| known.remove(&key)).flatten().map(|(_, endpoint)| endpoint);
            let endpoint = old.unwrap_or_else(|| {
                let serial = || self.shared.serials.fetch_add(1, Ordering::Relaxed);
                let peer = live.peers.entry(one.node.clone());
                let peer =
                    peer.or_insert_with(|| Arc::new(FarPeer::new(serial(), one.node.clone())));
                Arc::new(Endpoint::far(serial(), instance.clone(), one, peer.clone()))
            });
            let next = live.far.entry(instance.application.clone()).or_default();
            next.insert(key, (one.clone(), endpoint.clone()));
            endpoints.push(endpoint);
        }
        endpoints
    }

    fn build(
        &mut self,
        description: Description,
        old: Option<&Arc<RoutedApplication>>,
        live: &mut Live,
    ) -> RoutedApplication {
        let mut before = live.far.remove(&description.name).unwrap_or_default();
        let of = |process: &ProcessType| {
            let (application, process) = (description.name.clone(), process.clone());
            InstanceId { application, process, slot: 0 }
        };
        let web = of(&ProcessType::web());
        let far = self.far(web, None, &description.far, &mut before, live);
        let far_services: Vec<_> = description
            .services
            .iter()
            .map(|one| {
                let (instance, id) = (of(&one.recipe.process), Some(one.recipe.id));
                self.far(instance, id, &one.far, &mut before, live)
            })
            .collect();
        // What is left is described no more, or otherwise.
        before.into_values().for_each(|(_, endpoint)| endpoint.drain());
        let settings = &description.settings;
        let slow_start =
            SlowStart { since_ms: self.shared.clock.now().0, window_ms: settings.slow_start_ms };
        let known = live.endpoints.entry(description.name.clone()).or_default();
        let endpoints = self.endpoints(&description.endpoints, None, slow_start, known);
        // A newer node may know more strategies.
        let balance =
            balance::strategy(&settings.balance).unwrap_or_else(balance::default_strategy);
        let Site { roots, statics, is_built, awaits } =
            Site::of(&description, &self.shared.layout, old.map(|old| &**old));
        self.awaits.extend(awaits.map(|mark| (description.name.clone(), mark)));
        let mut services = BTreeMap::new();
        for (one, far) in description.services.into_iter().zip(far_services) {
            let id = one.recipe.id;
            let endpoints = self.endpoints(&one.endpoints, Some(id), slow_start, known);
            let old = old.and_then(|old| old.services.get(&id));
            let queue = self.queue(old.map(|old| &*old.application));
            let name = description.name.clone();
            let bare = RoutedApplication::bare(name, balance, &queue, endpoints);
            let application = Arc::new(RoutedApplication { far, is_scarce: false, ..bare });
            let counters = self.shared.metrics.port(&description.name, id);
            services.insert(id, Arc::new(Service { recipe: one.recipe, application, counters }));
        }
        let queue = self.queue(old.map(|old| &**old));
        // Where nothing runs, nothing may have been prepared either; others have the files then.
        let elsewhere = endpoints.is_empty() && !far.is_empty();
        let has_files = !elsewhere || roots.as_ref().is_some_and(|roots| roots.build.is_dir());
        let is_closed = description.gate.is_closed;
        RoutedApplication {
            closed_page: is_closed.then(|| closed_page::read(roots.as_ref())).flatten(),
            gate: description.gate,
            serving: description.serving,
            roots,
            queue,
            is_scarce: endpoints.iter().chain(&far).all(|one| one.is_limited()),
            endpoints,
            far,
            has_files,
            unreachable: description.unreachable,
            limits: Limits::new(&settings.requests),
            balance,
            sticky: settings.sticky.clone().unwrap_or_default(),
            fair: settings.fair.clone(),
            team: description.team,
            https: settings.https,
            health_path: settings.health.path.as_deref().map(without_query),
            hedge_after: settings.hedge_after_ms.map(Duration::from_millis),
            labels: Arc::new(Labels::Router(description.name.clone())),
            name: description.name,
            hosts: description.hosts,
            port: description.port,
            rights: description.rights,
            processes: description.processes,
            statics,
            is_built,
            services,
        }
    }

    /// Returns the queue; those that wait in the old one go on waiting.
    fn queue(&self, old: Option<&RoutedApplication>) -> Arc<Queue> {
        old.map(|old| old.queue.clone()).unwrap_or_else(|| {
            let Shared { clock, control, queue_limits, .. } = &*self.shared;
            Arc::new(Queue::new(*clock, control.clone(), *queue_limits))
        })
    }

    /// Returns the endpoints of this node; that of a process that is there already goes on.
    fn endpoints(
        &self,
        described: &[EndpointDescription],
        port: Option<PortId>,
        slow_start: SlowStart,
        known: &mut BTreeMap<EndpointKey, Arc<Endpoint>>,
    ) -> Vec<Arc<Endpoint>> {
        let mut endpoints = Vec::with_capacity(described.len());
        for one in described {
            let key = ((one.instance.clone(), one.generation), port);
            let endpoint = match known.get(&key) {
                Some(endpoint) if !endpoint.is_draining() => endpoint.clone(),
                _ => {
                    let serial = self.shared.serials.fetch_add(1, Ordering::Relaxed);
                    let endpoint = Arc::new(Endpoint::new(serial, one, slow_start));
                    known.insert(key, endpoint.clone());
                    endpoint
                }
            };
            if let Some(since_ms) = one.healthy_since_ms {
                endpoint.healthy_since(since_ms);
            }
            endpoints.push(endpoint);
        }
        endpoints
    }

    fn has_port_problems(&self) -> bool {
        self.live().ports.values().any(Result::is_err)
    }

    /// Opens and closes applications' ports.
    async fn listen(&mut self) {
        let Some(public) = self.shared.public else { return };
        let table = self.shared.table.load_full();
        let wanted = table.ports().clone();
        let is_same = self.listens.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &wanted));
        if is_same && self.live().waiting.is_empty() && !self.has_port_problems() {
            return;
        }
        let mut commands = Vec::new();
        {
            let mut live = self.live();
            let waiting = std::mem::take(&mut live.waiting);
            for (scope, listeners) in waiting {
                let listeners = self.shared.threads.iter().zip(listeners);
                commands
                    .extend(listeners.map(|(thread, one)| (thread, Command::Listen(scope, one))));
            }
            live.ports.retain(|id, state| {
                let keep = wanted.contains_key(id);
                if !keep && state.is_ok() {
                    let scope = match id.transport {
                        Transport::Tcp => Scope::Port(id.port),
                        Transport::Udp => Scope::Datagrams(id.port),
                    };
                    if id.transport == Transport::Tcp {
                        self.shared.listeners.release(SocketAddr::new(public.ip(), id.port));
                    }
                    let threads = self.shared.threads.iter();
                    commands.extend(threads.map(|thread| (thread, Command::Unlisten(scope))));
                }
                keep
            });
            for (&id, application) in &*wanted {
                let spoken = match (id.transport, table.service(id)) {
                    (Transport::Tcp, None) => Spoken::Http,
                    (Transport::Tcp, Some(_)) | (Transport::Udp, _) => Spoken::Other,
                };
                let known = live.ports.get(&id).and_then(|state| state.as_ref().ok()).copied();
                if known == Some(spoken) {
                    continue;
                }
                let address = SocketAddr::new(public.ip(), id.port);
                let opening = match known {
                    None => self.open(address, id),
                    Some(_) => self.turn(address, id),
                };
                match opening {
                    Ok(opening) => {
                        commands.extend(self.shared.threads.iter().zip(opening));
                        live.ports.insert(id, Ok(spoken));
                        match known {
                            None => tracing::info!(%application, port = %id, "router.port_opened"),
                            Some(before) => tracing::info!(
                                %application, port = %id, ?before, ?spoken, "router.port_turned"
                            ),
                        }
                    }
                    // It goes on as it is, a little slower; the next change of ports tries again.
                    Err(error) if known.is_some() => {
                        let error = format!("{error:#}");
                        tracing::warn!(%application, port = %id, error, "router.port_not_turned");
                    }
                    Err(error) => {
                        let error = format!("{error:#}");
                        if !live.ports.contains_key(&id) {
                            tracing::error!(%application, port = %id, error, "router.port_refused");
                        }
                        live.ports.insert(id, Err(error));
                    }
                }
            }
        }
        self.shared.listeners.release_unclaimed();
        for (thread, command) in commands {
            thread.send(command).await.ok();
        }
        self.listens = Some(wanted);
    }

    /// Opens a port; returns one command for each thread.
    fn open(&self, address: SocketAddr, id: PortId) -> anyhow::Result<Vec<Command>> {
        let count = self.shared.threads.len();
        Ok(match id.transport {
            Transport::Tcp => {
                let listeners = self.shared.listeners.bind(address, count)?.into_iter();
                listeners.map(|one| Command::Listen(Scope::Port(id.port), one)).collect()
            }
            Transport::Udp => {
                let sockets = datagrams::bind(address, count)?.into_iter();
                sockets.map(|one| Command::Receive(id.port, one)).collect()
            }
        })
    }

    /// Lets every thread accept anew on a port that stays open and on which something else is
    /// spoken from now on. Connections wait in the same queue all the while.
    fn turn(&self, address: SocketAddr, id: PortId) -> anyhow::Result<Vec<Command>> {
        let again = self.shared.listeners.again(address)?.into_iter();
        Ok(again.map(|one| Command::Listen(Scope::Port(id.port), one)).collect())
    }

    /// Tells the agent which instances it may stop: they have nothing in flight, or were never
    /// known here.
    async fn tell_drained(&mut self) -> anyhow::Result<()> {
        let draining: BTreeSet<_> = self.draining.values().flatten().cloned().collect();
        for (instance, generation) in self.told.difference(&draining) {
            let board = BoardKey::Drained(instance.clone(), *generation);
            self.records.forget(board).await?;
        }
        self.told.retain(|key| draining.contains(key));
        for key in draining.difference(&self.told.clone()) {
            let drained = {
                let live = self.live();
                let all = live.endpoints.get(&key.0.application);
                let from = (key.clone(), None);
                let its = all.into_iter().flat_map(|all| all.range(from.clone()..));
                its.take_while(|(one, _)| one.0 == *key).all(|(_, one)| one.is_drained())
            };
            if drained {
                let board = BoardKey::Drained(key.0.clone(), key.1);
                self.records.note(board, "nothing in flight").await?;
                self.told.insert(key.clone());
            }
        }
        Ok(())
    }
}

fn without_query(path: &str) -> String {
    path.split('?').next().unwrap_or_default().to_owned()
}
