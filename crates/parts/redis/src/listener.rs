//! Accepts connections, as many as there are descriptors for. The others wait in the kernel's
//! queue: they are neither refused nor tried again and again.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::access::Door;
use super::connection::{Connection, Thread};
use super::context::ServerContext;
use super::wire::Wire;
use os::shared_port::Listeners;

/// Connections that the kernel queues before they are accepted.
const BACKLOG: i32 = 4096;
/// The time limit of a handshake: a client that does not finish it holds a descriptor.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// The pause when the system has no descriptors left although there should be some.
const PAUSE: Duration = Duration::from_millis(100);

pub struct Listener {
    socket: Socket,
    kind: ListenerKind,
}

enum ListenerKind {
    Tcp(Door),
    Unix,
    Tls(TlsAcceptor),
}

impl Listener {
    /// Binds a TCP address, with one listener for each thread.
    pub fn tcp(
        address: SocketAddr,
        listeners: &Listeners,
        threads: usize,
    ) -> anyhow::Result<Vec<Listener>> {
        if !address.ip().is_loopback() {
            bail!(
                "{address} is not on loopback, and without TLS everybody there could read along: \
                 use --tls for addresses that others can reach"
            );
        }
        let bound = listeners.bind(address, threads)?.into_iter();
        Ok(bound
            .map(|socket| Listener { socket: socket.into(), kind: ListenerKind::Tcp(Door::Local) })
            .collect())
    }

    /// Binds a TCP address for the processes of applications.
    pub fn applications(
        address: SocketAddr,
        listeners: &Listeners,
        threads: usize,
    ) -> anyhow::Result<Vec<Listener>> {
        let mut bound = Listener::tcp(address, listeners, threads)?;
        for listener in &mut bound {
            listener.kind = ListenerKind::Tcp(Door::Applications);
        }
        Ok(bound)
    }

    pub fn tls(
        address: SocketAddr,
        acceptor: &TlsAcceptor,
        listeners: &Listeners,
        threads: usize,
    ) -> anyhow::Result<Vec<Listener>> {
        let bound = listeners.bind(address, threads)?.into_iter();
        let tls = || ListenerKind::Tls(acceptor.clone());
        Ok(bound.map(|socket| Listener { socket: socket.into(), kind: tls() }).collect())
    }

    /// Binds a UNIX socket that only the owner may use. A socket that an earlier run left is
    /// replaced, a served one is not.
    pub fn unix(path: &Path) -> anyhow::Result<Listener> {
        let what = || format!("the UNIX socket {}", path.display());
        let address = SockAddr::unix(path).with_context(what)?;
        let leftover = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
        if leftover {
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                bail!("{} is served by another process; choose another path", what());
            }
            std::fs::remove_file(path).with_context(what)?;
        }
        let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
        socket.bind(&address).with_context(what)?;
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(path, private).with_context(what)?;
        socket.listen(BACKLOG).with_context(what)?;
        Ok(Listener { socket, kind: ListenerKind::Unix })
    }

    pub fn address(&self) -> anyhow::Result<SocketAddr> {
        self.socket.local_addr()?.as_socket().context("an address of the internet")
    }

    pub async fn accept(self, context: Arc<ServerContext>, thread: Thread) {
        let ended = match self.kind {
            ListenerKind::Unix => accept_unix(self.socket, context, thread).await,
            ListenerKind::Tcp(door) => accept_tcp(self.socket, door, None, context, thread).await,
            ListenerKind::Tls(tls) => {
                accept_tcp(self.socket, Door::Tls, Some(tls), context, thread).await
            }
        };
        if let Err(error) = ended {
            tracing::error!(%error, "redis.listener_failed");
        }
    }
}

async fn permit(context: &ServerContext) -> OwnedSemaphorePermit {
    let permit = context.connections.clone().acquire_owned().await;
    permit.expect("this semaphore is never closed")
}

async fn accept_tcp(
    socket: Socket,
    door: Door,
    tls: Option<TlsAcceptor>,
    context: Arc<ServerContext>,
    thread: Thread,
) -> io::Result<()> {
    let listener = TcpListener::from_std(socket.into())?;
    loop {
        let permit = permit(&context).await;
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                pause(&error).await;
                continue;
            }
        };
        let (context, thread) = (context.clone(), thread.clone());
        let Some(tls) = tls.clone() else {
            let (wire, peer) = (Wire::Tcp(stream), peer.to_string());
            tokio::spawn(Connection::new(context, &thread, wire, door, peer, permit).serve());
            continue;
        };
        tokio::spawn(async move {
            match timeout(HANDSHAKE_MAX, tls.accept(stream)).await {
                Ok(Ok(stream)) => {
                    let wire = Wire::Tls(Box::new(stream));
                    let peer = peer.to_string();
                    Connection::new(context, &thread, wire, door, peer, permit).serve().await;
                }
                Ok(Err(error)) => tracing::debug!(%peer, %error, "redis.handshake_failed"),
                Err(_) => tracing::debug!(%peer, "redis.handshake_timed_out"),
            }
        });
    }
}

async fn accept_unix(
    socket: Socket,
    context: Arc<ServerContext>,
    thread: Thread,
) -> io::Result<()> {
    let listener = UnixListener::from_std(socket.into())?;
    loop {
        let permit = permit(&context).await;
        match listener.accept().await {
            Ok((stream, _)) => {
                let (context, thread) = (context.clone(), thread.clone());
                let (wire, peer) = (Wire::Unix(stream), "unix:0".to_string());
                let door = Door::Local;
                tokio::spawn(Connection::new(context, &thread, wire, door, peer, permit).serve());
            }
            Err(error) => pause(&error).await,
        }
    }
}

/// Pauses after a failed accept; a connection that was gone before it was accepted is no reason to
/// wait.
async fn pause(error: &io::Error) {
    if error.kind() != io::ErrorKind::ConnectionAborted {
        tracing::warn!(%error, "redis.accept_failed");
        tokio::time::sleep(PAUSE).await;
    }
}
