//! One thread of the router: its own runtime and listeners, and what becomes of each connection
//! that is made to them. It reads the shared snapshot and never the store.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use model::NodeId;
use router_core::proxy_protocol::Addresses;
use rustix::net::{SocketFlags, acceptfrom_with};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc;
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_rustls::rustls::ServerConfig;

use super::announced::{self, Unannounced};
use super::closing::close_gently;
use super::command::{Command, DrainScope, Stop};
use super::connection::Connection;
use super::connection::asker::Asker;
use super::connection::run::ConnectionStart;
use super::deferred;
use super::far::host;
use super::h2;
use super::h2::client::Job;
use super::h2::workers::Workers;
use super::handshake::{self, Greeted};
use super::lane::entrant::LaneEntrant;
use super::lane::{Entrance, Lane};
use super::plain::Plain;
use super::presence::{CountedConnection, Presence};
use super::scope::Scope;
use super::services;
use super::shared::Shared;
use super::table::Service;
use super::task::begin;
use super::thread::Thread;
use super::wire::Wire;
use metrics::Recorder;
use router_core::pages;
use runtime::members::RouterCall;

/// Connections of one thread; each takes a descriptor and about 1 KiB.
pub const CONNECTIONS_MAX: usize = 20_000;
/// The pause when descriptors are short: some are free again in a moment.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
const SWEEP_INTERVAL: Duration = Duration::from_secs(2);
/// The time between two looks while the last requests end.
const STOP_CHECK: Duration = Duration::from_millis(5);
/// The same when only what takes long is left, possibly for an hour.
const LATE_CHECK: Duration = Duration::from_millis(250);

/// The stop of a thread whose router is gone.
const STOP_AT_ONCE: Stop =
    Stop { limit: Duration::ZERO, asks: Duration::ZERO, awaits: DrainScope::Answers };

/// The acceptor of connections, and the parts that serve them.
struct Acceptor {
    thread: Rc<Thread>,
    /// The workers for streams of HTTP/2.
    workers: Rc<Workers<Job>>,
    /// The entrance of the lane, for clients whose requests need no task.
    lane: Entrance,
}

/// Runs until it is told to stop.
pub fn run(
    shared: Arc<Shared>,
    recorder: Recorder,
    seed: u64,
    mut commands: mpsc::Receiver<Command>,
) -> anyhow::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
    let thread = Rc::new(Thread::new(shared, recorder, seed));
    let (lane, entrance) = unbounded_channel();
    let acceptor = Rc::new(Acceptor { thread: thread.clone(), workers: Rc::default(), lane });
    let goes_on = acceptor.clone();
    let hand_back = move |connection, presence, start| {
        go_on(goes_on.clone(), connection, presence, start);
    };
    let of = thread.clone();
    let lane = runtime.block_on(async { Lane::new(of, entrance, Box::new(hand_back)) })?;
    runtime.spawn_local(lane.run());
    runtime.block_on(async {
        let mut listeners: HashMap<Scope, AbortHandle> = HashMap::new();
        let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
        let stop = loop {
            tokio::select! {
                _ = sweep.tick() => {
                    thread.sweep();
                    acceptor.workers.sweep();
                    thread.log_refused();
                }
                command = commands.recv() => match command {
                    Some(Command::Listen(scope, listener)) => {
                        let accepting = accept(acceptor.clone(), scope, listener);
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
                    Some(Command::Far(call)) => take_call(&acceptor, *call),
                    Some(Command::Stop(stop)) => break stop,
                    None => break STOP_AT_ONCE,
                },
            }
        };
        thread.begin_to_stop(stop.awaits);
        listeners.values().for_each(AbortHandle::abort);
        thread.leaving.notify_waiters();
        finish(&acceptor, &mut commands, stop).await;
    });
    Ok(())
}

/// Serves those who are here until nothing is left of what is awaited, or the time is up.
async fn finish(acceptor: &Rc<Acceptor>, commands: &mut mpsc::Receiver<Command>, mut stop: Stop) {
    let (thread, mut began) = (&acceptor.thread, Instant::now());
    let mut sweep_at = began + SWEEP_INTERVAL;
    loop {
        let is_late = thread.idlers.are_over();
        // Connections that were told to leave are busy with that at the next look.
        tokio::time::sleep(if is_late { LATE_CHECK } else { STOP_CHECK }).await;
        while let Ok(command) = commands.try_recv() {
            match command {
                Command::Far(call) => take_call(acceptor, *call),
                // There is less time than it seemed.
                Command::Stop(sooner) => (stop, began) = (sooner, Instant::now()),
                Command::Listen(..) | Command::Receive(..) | Command::Unlisten(_) => {}
            }
        }
        let left = match stop.awaits {
            DrainScope::Answers => thread.busy.get(),
            DrainScope::Connections => thread.connections.get(),
        };
        if left == 0 || began.elapsed() >= stop.limit {
            return;
        }
        if began.elapsed() >= stop.asks && !is_late {
            thread.idlers.end();
            thread.shared.let_go();
            tracing::info!(left, "router.thread_finishes");
        }
        if Instant::now() >= sweep_at {
            sweep_at = Instant::now() + SWEEP_INTERVAL;
            thread.sweep();
            acceptor.workers.sweep();
        }
    }
}

fn serve(acceptor: &Rc<Acceptor>, connection: Connection) {
    let thread = &connection.thread;
    if let Some(caller) = connection.asker.router() {
        let (counted, caller) = (CountedConnection::begin(thread), caller.node().clone());
        let workers = acceptor.workers.clone();
        return begin(async move {
            serve_member(connection, caller, workers).await;
            drop(counted);
        });
    }
    let Some(held) = thread.hold(connection.peer.ip()) else { return turn_away(connection) };
    let presence = Presence::new(thread, held);
    go_on(acceptor.clone(), connection, presence, ConnectionStart::New);
}

/// Serves a client from its beginning, or from where the lane gives it back.
fn go_on(
    acceptor: Rc<Acceptor>,
    connection: Connection,
    presence: Presence,
    start: ConnectionStart,
) {
    begin(async move {
        let workers = acceptor.workers.clone();
        if let Some((connection, limits)) = connection.run(start, workers).await {
            // The lane ends no sooner than the thread.
            acceptor.lane.send(LaneEntrant { connection, presence, limits }).ok();
        }
    });
}

/// Says why once it can be heard, and no more.
fn turn_away(connection: Connection) {
    let thread = connection.thread.clone();
    let counted = CountedConnection::begin(&thread);
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

/// Takes a client, once it is known whose connection it is.
fn take(
    acceptor: Rc<Acceptor>,
    scope: Scope,
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<Arc<ServerConfig>>,
) {
    let thread = acceptor.thread.clone();
    if let Some(service) = thread.service(scope) {
        return serve_whole(thread, service, stream, peer);
    }
    match tls {
        Some(tls) => serve_secure(acceptor, stream, peer, tls),
        None => {
            let stream = Plain::from(stream).into();
            serve(&acceptor, Connection::new(thread, stream, peer, scope, Asker::Client));
        }
    }
}

/// Takes the connection of a proxy, which says for whom it connects.
fn take_announced(
    acceptor: Rc<Acceptor>,
    scope: Scope,
    stream: TcpStream,
    proxy: SocketAddr,
    tls: Option<Arc<ServerConfig>>,
) {
    let thread = acceptor.thread.clone();
    let counted = CountedConnection::begin(&thread);
    begin(async move {
        let (announced, stream) = match announced(stream).await {
            Ok(heard) => heard,
            Err(error) => return tracing::debug!(%proxy, %error, "router.connection_lost"),
        };
        // From now on it is counted with its client.
        drop(counted);
        match announced {
            Ok(said) => take(acceptor, scope, stream, said.map_or(proxy, |said| said.client), tls),
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

/// Passes a connection on whole. Nothing of it is understood, so nobody can be told why there is no
/// room.
fn serve_whole(thread: Rc<Thread>, service: Arc<Service>, stream: TcpStream, peer: SocketAddr) {
    let Some(held) = thread.hold(peer.ip()) else {
        service.counters.refuse();
        return Wire::from(Plain::from(stream)).cut();
    };
    let counted = CountedConnection::begin(&thread);
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

/// Serves a client after the handshake.
fn serve_secure(
    acceptor: Rc<Acceptor>,
    stream: TcpStream,
    peer: SocketAddr,
    tls: Arc<ServerConfig>,
) {
    let thread = acceptor.thread.clone();
    // A handshake only to say no would cost more than the connection: it is closed, and counted.
    let Some(held) = thread.hold(peer.ip()) else { return };
    let counted = CountedConnection::begin(&thread);
    begin(async move {
        let Some(secure) = thread.shared.secure.clone() else { return };
        // Without somebody who takes its clients, the platform is a host like others.
        let shared = thread.shared.clone();
        let own_name = shared.platform.get().and_then(|_| shared.table.load().own_name.clone());
        let own_name = own_name.as_deref();
        let greeting =
            handshake::accept(stream.into(), peer, tls, &secure.tls, own_name, &thread.pool);
        match greeting.await {
            Ok(Greeted::Client(client)) => {
                let (scope, asker) = (Scope::Secure, Asker::Client);
                let connection = Connection::new(thread, client.wire, peer, scope, asker);
                let connection = connection.with_shown(Some(Rc::new(client.shown)));
                let workers = acceptor.workers.clone();
                match client.is_h2 {
                    true => h2::serve::serve(connection, workers, None).await,
                    // None of these goes on in the lane.
                    false => drop(connection.run(ConnectionStart::New, workers).await),
                }
            }
            Ok(Greeted::Platform(client)) => {
                if let Some(take) = shared.platform.get() {
                    take(client);
                }
            }
            Ok(Greeted::Nobody) => {}
            Err(error) => tracing::debug!(%peer, %error, "router.handshake_failed"),
        }
        drop((counted, held));
    });
}

/// Serves a member's router for as long as it is a member.
async fn serve_member(connection: Connection, caller: NodeId, workers: Rc<Workers<Job>>) {
    let thread = connection.thread.clone();
    tokio::select! {
        _ = connection.run(ConnectionStart::New, workers) => {}
        () = host::revoked(&thread, &caller) => {
            tracing::warn!(node = %caller, "router.caller_was_removed");
        }
    }
}

/// Serves a call; one for which there is no room is dropped, and the other router goes elsewhere.
fn take_call(acceptor: &Rc<Acceptor>, call: RouterCall) {
    let thread = &acceptor.thread;
    if thread.is_full() {
        return;
    }
    match host::connection(thread.clone(), call) {
        Ok(connection) => serve(acceptor, connection),
        Err(error) => tracing::warn!(%error, "router.call_lost"),
    }
}

async fn accept(acceptor: Rc<Acceptor>, scope: Scope, listener: TcpListener) {
    let thread = &acceptor.thread;
    // If this fails, all goes on as well, only dearer. Where HTTP is not spoken, nobody knows who
    // is to speak first.
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
                take(acceptor.clone(), scope, stream, peer, tls.clone());
            }
            Err(error) => {
                tracing::warn!(%error, "router.accept_failed");
                thread.pool.make_room();
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Accepts a connection that is not watched yet: it may have brought its request along.
fn accept_one(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (socket, peer) = acceptfrom_with(listener, flags)?;
    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
    let peer = peer.ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionAborted))?;
    Ok((socket.into(), peer))
}
