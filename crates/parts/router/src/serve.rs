//! One thread of the router: its own runtime, listeners, buffers and connections to instances. It
//! reads the shared snapshot and never the store.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use model::{ApplicationName, NodeId, PortId, hash};
use router_core::breaker::{Failure, ejects};
use router_core::h2::connection::Scratch;
use router_core::proxy_protocol::Addresses;
use router_core::retry::Budget;
use router_core::routes;
use rustix::net::{SocketFlags, acceptfrom_with};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_rustls::rustls::ServerConfig;

use super::Shared;
use super::announced::{self, Unannounced};
use super::buffer::Buffer;
use super::clients::{Clients, Held};
use super::connection::{Connection, Start};
use super::datagrams::{FLOWS_MAX, Rooms};
use super::deferred;
use super::endpoint::Endpoint;
use super::far::host;
use super::files::recent::Recent;
use super::h2;
use super::h2::call::Lines;
use super::h2::workers::Workers;
use super::lane::{Entrance, Guest, Lane};
use super::pages;
use super::plain::Plain;
use super::pool::Pool;
use super::rarely::Rarely;
use super::services;
use super::stream::close_gently;
use super::streams::Means;
use super::table::{Application, Service};
use super::tls;
use super::wire::Wire;
use metrics::Recorder;
use runtime::members::RouterCall;

/// A descriptor and about 1 KiB each.
pub const CONNECTIONS_MAX: usize = 20_000;
/// Out of descriptors: some are free again in a moment.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
const SWEEP_INTERVAL: Duration = Duration::from_secs(2);
/// Each may hold 64 KiB while it waits: half a MiB.
const BUSY_FEW: usize = 8;
/// While the last requests end.
const STOP_CHECK: Duration = Duration::from_millis(5);

/// What decides which application a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    Host,
    /// The same, inside TLS.
    Secure,
    Port(u16),
    /// An application's own, of datagrams.
    Datagrams(u16),
}

pub enum Command {
    Listen(Scope, TcpListener),
    /// Datagrams to an application's port.
    Receive(u16, UdpSocket),
    Unlisten(Scope),
    /// The router of another member has requests for this one.
    Far(Box<RouterCall>),
    /// Accept no more, finish what is under way.
    Stop(Stop),
}

#[derive(Clone, Copy, Debug)]
pub struct Stop {
    /// Then whatever is left is cut.
    pub limit: Duration,
    pub awaits: Awaited,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// Requests that are under way.
    Answers,
    /// Also that clients with nothing under way ask once more, and hear that they are to connect
    /// again: closing on one that is just about to ask would lose its request.
    Connections,
}

pub struct Thread {
    pub shared: Arc<Shared>,
    pub pool: Pool,
    /// To instances that take many requests at once on each.
    pub lines: Lines,
    pub recent: Recent,
    pub budget: RefCell<Budget>,
    pub recorder: Recorder,
    /// Connections with a request under way.
    pub busy: Cell<usize>,
    connections: Cell<usize>,
    clients: Rc<Clients>,
    /// Clients that had too many connections.
    refused: Rarely,
    /// Proxies that did not say whose connection it is.
    unannounced: Rarely,
    /// Once it stops: what for.
    stopping: Cell<Option<Awaited>>,
    /// Requests of clients that speak HTTP/2.
    pub streams: Rc<Cell<usize>>,
    pub workers: Workers,
    /// For reading what they send.
    pub scratch_h2: RefCell<Scratch>,
    /// Wakes those that wait for other routers' requests, or read what nobody wants.
    pub leaving: Notify,
    /// For clients that ask for files.
    lane: Entrance,
    request_id: Cell<u64>,
    /// For connections that are passed on whole.
    pub means: Means,
    /// For flows of datagrams.
    pub rooms: Rooms,
}

impl Thread {
    /// So many clients wait that what each of them holds is more than the processor's cache.
    pub fn is_crowded(&self) -> bool {
        self.busy.get() > BUSY_FEW
    }

    /// What is there now, as `Wire::read_now`. In a crowd a buffer has no memory while it waits.
    pub fn read_now(&self, stream: &Wire, buffer: &mut Buffer) -> io::Result<usize> {
        self.pool.fill_out(buffer);
        let result = stream.read_now(buffer);
        if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            self.hollow(buffer);
        }
        result
    }

    /// Before a wait: whoever reads next has the memory, still in the cache.
    pub fn hollow(&self, buffer: &mut Buffer) {
        if self.is_crowded() && buffer.filled().is_empty() {
            self.pool.give_back(std::mem::take(buffer));
        }
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.get().is_some()
    }

    /// Another process goes on where this one ends.
    pub fn is_leaving(&self) -> bool {
        self.stopping.get() == Some(Awaited::Connections)
    }

    pub fn application(&self, scope: &Scope, host: &[u8]) -> Option<Arc<Application>> {
        if let Some(only) = &self.shared.only {
            return only.load_full();
        }
        let table = self.shared.table.load();
        match scope {
            Scope::Host | Scope::Secure => table.by_host(host).cloned(),
            Scope::Port(port) => table.by_port(*port).cloned(),
            Scope::Datagrams(_) => None,
        }
    }

    /// What comes to a port of its own, where that is not HTTP.
    fn service(&self, scope: Scope) -> Option<Arc<Service>> {
        match scope {
            Scope::Port(port) => self.shared.table.load().service(PortId::tcp(port)).cloned(),
            Scope::Host | Scope::Secure | Scope::Datagrams(_) => None,
        }
    }

    pub fn named(&self, name: &ApplicationName) -> Option<Arc<Application>> {
        let table = self.shared.table.load();
        table.by_host(routes::default_host(name).as_bytes()).cloned()
    }

    /// Unlike any other in the cluster, and nothing that must be kept secret.
    pub fn next_request_id(&self) -> u64 {
        let mut state = self.request_id.get();
        let drawn = hash::draw(&mut state);
        self.request_id.set(state);
        drawn
    }

    /// Takes the endpoint out for a moment, unless too few would be left, and tells the checker.
    /// Returns whether it is out.
    pub fn failed(
        &self,
        application: &Application,
        endpoint: &Arc<Endpoint>,
        failure: Failure,
        why: &'static str,
    ) -> bool {
        let now_ms = self.shared.clock.now().0;
        let others = application.others_admitting(endpoint, now_ms);
        let goes = others.is_none_or(|(admitting, all)| ejects(failure, admitting, all));
        if !goes {
            self.suspect(endpoint, why);
            return false;
        }
        if endpoint.failed(now_ms) {
            match endpoint.site() {
                Some(site) => {
                    let application = &endpoint.instance.application;
                    tracing::warn!(node = %site.peer.node, %application, why, "router.far_failed");
                }
                None => self.suspect(endpoint, why),
            }
        }
        true
    }

    /// None where this client has enough.
    fn hold(&self, client: IpAddr) -> Option<Held> {
        let held = self.clients.hold(client);
        if held.is_none() {
            self.recorder.connection_refused();
            self.refused.saw(client);
        }
        held
    }

    fn log_refused(&self) {
        if let Some((connections, client)) = self.refused.tell() {
            tracing::warn!(%client, connections, "router.connections_refused");
        }
        if let Some((connections, proxy)) = self.unannounced.tell() {
            tracing::warn!(%proxy, connections, "router.bad_proxy_header");
        }
    }

    fn is_full(&self) -> bool {
        self.connections.get() >= self.shared.connections_max
    }

    /// A full queue means that the checker is told of others already.
    pub fn suspect(&self, endpoint: &Arc<Endpoint>, why: &'static str) {
        // What other nodes run, their own checkers look after.
        if endpoint.site().is_none() {
            self.shared.suspects.try_send((endpoint.clone(), why)).ok();
        }
    }
}

/// Runs until it is told to stop.
pub fn run(
    shared: Arc<Shared>,
    recorder: Recorder,
    seed: u64,
    mut commands: mpsc::Receiver<Command>,
) -> anyhow::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
    let (lane, entrance) = runtime.block_on(async { Lane::new() })?;
    let clients = Rc::new(Clients::new(shared.connections_max));
    let rooms = Rooms::new(FLOWS_MAX / shared.threads.len().max(1));
    let thread = Rc::new(Thread {
        shared,
        pool: Pool::default(),
        lines: Lines::default(),
        recent: Recent::default(),
        budget: RefCell::default(),
        recorder,
        busy: Cell::new(0),
        connections: Cell::new(0),
        clients,
        refused: Rarely::default(),
        unannounced: Rarely::default(),
        stopping: Cell::new(None),
        streams: Rc::default(),
        workers: Workers::default(),
        scratch_h2: RefCell::default(),
        leaving: Notify::new(),
        lane: entrance,
        request_id: Cell::new(seed),
        means: Means::default(),
        rooms,
    });
    runtime.spawn_local(lane.run());
    runtime.block_on(async {
        let mut listeners: HashMap<Scope, AbortHandle> = HashMap::new();
        let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
        let stop = loop {
            tokio::select! {
                _ = sweep.tick() => {
                    thread.lines.sweep();
                    thread.pool.sweep();
                    thread.recent.sweep();
                    thread.workers.sweep();
                    thread.log_refused();
                }
                command = commands.recv() => match command {
                    Some(Command::Listen(scope, listener)) => {
                        let accepting = accept(thread.clone(), scope, listener);
                        let task = tokio::task::spawn_local(accepting);
                        if let Some(old) = listeners.insert(scope, task.abort_handle()) {
                            old.abort();
                        }
                    }
                    Some(Command::Receive(port, socket)) => {
                        let receiving = services::udp::serve(thread.clone(), port, socket);
                        let scope = Scope::Datagrams(port);
                        let task = tokio::task::spawn_local(receiving);
                        listeners.insert(scope, task.abort_handle());
                    }
                    Some(Command::Unlisten(scope)) => {
                        if let Some(task) = listeners.remove(&scope) {
                            task.abort();
                        }
                    }
                    Some(Command::Far(call)) => take_call(&thread, *call),
                    Some(Command::Stop(stop)) => break stop,
                    None => break Stop { limit: Duration::ZERO, awaits: Awaited::Answers },
                },
            }
        };
        thread.stopping.set(Some(stop.awaits));
        listeners.values().for_each(AbortHandle::abort);
        thread.leaving.notify_waiters();
        let deadline = Instant::now() + stop.limit;
        loop {
            // Those that were told to leave are busy with that at the next look.
            tokio::time::sleep(STOP_CHECK).await;
            while let Ok(command) = commands.try_recv() {
                if let Command::Far(call) = command {
                    take_call(&thread, *call);
                }
            }
            let left = match stop.awaits {
                Awaited::Answers => thread.busy.get(),
                Awaited::Connections => thread.connections.get(),
            };
            if left == 0 || Instant::now() >= deadline {
                break;
            }
        }
    });
    Ok(())
}

/// One connection less when it ends, however it ends.
struct Counted(Rc<Thread>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.set(self.0.connections.get() - 1);
    }
}

impl Counted {
    fn begin(thread: &Rc<Thread>) -> Counted {
        thread.connections.set(thread.connections.get() + 1);
        Counted(thread.clone())
    }
}

/// A task for a connection or a stream. Its future is several KiB, and the runtime moves what it is
/// given when a task begins and when it ends.
pub fn begin(work: impl Future<Output = ()> + 'static) {
    let work: Pin<Box<dyn Future<Output = ()>>> = Box::pin(work);
    tokio::task::spawn_local(work);
}

/// Counts a connection, and its client, for as long as it lives.
pub struct Presence {
    _counted: Counted,
    _held: Held,
}

fn serve(connection: Connection) {
    let thread = &connection.thread;
    if let Some(caller) = &connection.caller {
        let (counted, caller) = (Counted::begin(thread), caller.node().clone());
        return begin(async move {
            serve_member(connection, caller).await;
            drop(counted);
        });
    }
    let Some(held) = thread.hold(connection.peer.ip()) else { return turn_away(connection) };
    let presence = Presence { _counted: Counted::begin(thread), _held: held };
    go_on(connection, presence, Start::New);
}

/// Of a client: from here, or from what the lane does not do.
pub fn go_on(connection: Connection, presence: Presence, start: Start) {
    begin(async move {
        if let Some((connection, limits)) = connection.run(start).await {
            let thread = connection.thread.clone();
            // The lane ends no sooner than the thread.
            thread.lane.send(Guest { connection, presence, limits }).ok();
        }
    });
}

/// Says why once it can be heard, and no more.
fn turn_away(connection: Connection) {
    let thread = connection.thread.clone();
    let counted = Counted::begin(&thread);
    begin(async move {
        let mut out = thread.pool.scratch();
        if connection.page(pages::TOO_MANY_CONNECTIONS, &mut out, false, false).await.is_some() {
            let buffer = close_gently(connection.stream, thread.pool.buffer()).await;
            thread.pool.give_back(buffer);
        }
        thread.pool.give_back_scratch(out);
        drop(counted);
    });
}

/// A client, once it is known whose connection it is.
fn take(
    thread: Rc<Thread>,
    scope: Scope,
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<Arc<ServerConfig>>,
) {
    if let Some(service) = thread.service(scope) {
        return serve_whole(thread, service, stream, peer);
    }
    match tls {
        Some(tls) => serve_secure(thread, stream, peer, tls),
        None => {
            let stream = Plain::from(stream).into();
            serve(Connection { thread, stream, peer, scope, caller: None });
        }
    }
}

/// A proxy's, which says for whom it connects.
fn take_announced(
    thread: Rc<Thread>,
    scope: Scope,
    stream: TcpStream,
    proxy: SocketAddr,
    tls: Option<Arc<ServerConfig>>,
) {
    let counted = Counted::begin(&thread);
    begin(async move {
        let (announced, stream) = match announced(stream).await {
            Ok(heard) => heard,
            Err(error) => return tracing::debug!(%proxy, %error, "router.connection_lost"),
        };
        // From now on it is counted with its client.
        drop(counted);
        match announced {
            Ok(said) => take(thread, scope, stream, said.map_or(proxy, |said| said.client), tls),
            Err(Unannounced::Left) => {}
            Err(Unannounced::Bad(error)) => {
                tracing::debug!(%proxy, %error, "router.bad_proxy_header");
                thread.recorder.connection_refused();
                if let Some(service) = thread.service(scope) {
                    service.counters.refuse();
                }
                thread.unannounced.saw(proxy.ip());
                Wire::from(Plain::from(stream)).cut();
            }
        }
    });
}

async fn announced(
    stream: TcpStream,
) -> io::Result<(Result<Option<Addresses>, Unannounced>, TcpStream)> {
    let stream = tokio::net::TcpStream::from_std(stream)?;
    let announced = announced::read(&stream).await;
    Ok((announced, stream.into_std()?))
}

/// Nothing is understood of it, so nobody can be told why there is no room.
fn serve_whole(thread: Rc<Thread>, service: Arc<Service>, stream: TcpStream, peer: SocketAddr) {
    let Some(held) = thread.hold(peer.ip()) else {
        service.counters.refuse();
        return Wire::from(Plain::from(stream)).cut();
    };
    let counted = Counted::begin(&thread);
    begin(async move {
        match tokio::net::TcpStream::from_std(stream) {
            Ok(stream) => services::tcp::serve(&thread, &service, stream, peer).await,
            Err(error) => {
                service.counters.refuse();
                tracing::debug!(%peer, %error, "router.connection_lost");
            }
        }
        drop((counted, held));
    });
}

/// After the handshake.
fn serve_secure(thread: Rc<Thread>, stream: TcpStream, peer: SocketAddr, tls: Arc<ServerConfig>) {
    // A handshake only to say no would cost more than the connection: it is closed, and counted.
    let Some(held) = thread.hold(peer.ip()) else { return };
    let counted = Counted::begin(&thread);
    begin(async move {
        match tls::accept::accept(stream.into(), tls, &thread.pool).await {
            Ok(Some((stream, is_h2))) => {
                let scope = Scope::Secure;
                let connection = Connection { thread, stream, peer, scope, caller: None };
                match is_h2 {
                    true => h2::serve::serve(connection, None).await,
                    // None of these goes on in the lane.
                    false => drop(connection.run(Start::New).await),
                }
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(%peer, %error, "router.handshake_failed"),
        }
        drop((counted, held));
    });
}

/// For as long as it is one.
async fn serve_member(connection: Connection, caller: NodeId) {
    let thread = connection.thread.clone();
    tokio::select! {
        _ = connection.run(Start::New) => {}
        () = host::revoked(&thread, &caller) => {
            tracing::warn!(node = %caller, "router.caller_was_removed");
        }
    }
}

/// One for which there is no room is dropped, and the other router goes elsewhere.
fn take_call(thread: &Rc<Thread>, call: RouterCall) {
    if thread.is_full() {
        return;
    }
    match host::connection(thread.clone(), call) {
        Ok(connection) => serve(connection),
        Err(error) => tracing::warn!(%error, "router.call_lost"),
    }
}

async fn accept(thread: Rc<Thread>, scope: Scope, listener: TcpListener) {
    // Without it all goes on as well, only dearer. Where HTTP is not spoken, nobody knows who is to
    // speak first.
    let clients_speak_first = thread.service(scope).is_none();
    if let Err(error) = deferred::defer(&listener, clients_speak_first) {
        tracing::debug!(%error, "router.not_deferred");
    }
    #[expect(deprecated, reason = "what replaces it is unsafe, and the listener is owned")]
    let listener = match AsyncFd::with_interest(listener, Interest::READABLE) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, ?scope, "router.listen_failed"),
    };
    let secure = thread.shared.secure.as_ref().filter(|_| scope == Scope::Secure);
    let tls = secure.map(|secure| secure.tls.config());
    loop {
        if thread.is_full() {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        }
        match listener.async_io(Interest::READABLE, accept_one).await {
            Ok((stream, peer)) => {
                let announced_by = thread.shared.announced_by.as_ref();
                let take = match announced_by.is_some_and(|by| by.includes(peer.ip())) {
                    true => take_announced,
                    false => take,
                };
                take(thread.clone(), scope, stream, peer, tls.clone());
            }
            Err(error) => {
                tracing::warn!(%error, "router.accept_failed");
                thread.pool.make_room();
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Not watched yet: it may have brought its request along.
fn accept_one(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (socket, peer) = acceptfrom_with(listener, flags)?;
    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
    let peer = peer.ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionAborted))?;
    Ok((socket.into(), peer))
}
