//! The connections of the load to every store, in its own protocol and as cheaply as that allows,
//! as the load shares the two cores with the server it measures. Driven by `load`; knows nothing of
//! rows or tables.

pub mod etcd;
pub mod postgres;
pub mod resp;
pub mod sqlite;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::net::SendFlags;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// An action; one turn is these three, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Set,
    Lookup,
    Delete,
}

pub const TURN: [Action; 3] = [Action::Set, Action::Lookup, Action::Delete];

pub fn key(turn: u64) -> String {
    format!("test::{turn}")
}

/// A connection to one store. After an error, also a wrong answer, the load repeats the action.
pub trait Connection: Sized + 'static {
    /// Opens a connection; with `kept` it is for many actions, so that preparing statements is
    /// worth it.
    async fn open(address: SocketAddr, kept: bool) -> anyhow::Result<Self>;
    /// Whether the protocol carries many requests at once, and the server does better so.
    const SHARES: bool = false;
    /// Returns the same connection for another worker.
    fn shared(&self) -> Option<Self> {
        None
    }
    async fn perform(&mut self, action: Action, turn: u64) -> anyhow::Result<()>;
    /// Closes it, with a good-bye if the protocol has one.
    async fn close(self);
}

/// The number of addresses that the load connects from, as a closed connection keeps its port for a
/// while. One address has 28,232 ports, which was fewer than these servers close meanwhile: they
/// all took 14,000 new connections a second.
const SOURCES: u32 = 64;

/// Returns each of the addresses in turn.
fn source() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    Ipv4Addr::from(u32::from(Ipv4Addr::LOCALHOST) + NEXT.fetch_add(1, Ordering::Relaxed) % SOURCES)
}

/// Connects without waiting: connecting on loopback ends inside the call, so the first bytes can
/// follow at once.
pub fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    if let SocketAddr::V4(address) = address
        && address.ip().is_loopback()
    {
        socket.bind(&SocketAddr::from((source(), 0)).into())?;
    }
    match socket.connect(&address.into()) {
        Err(error)
            if error.raw_os_error() != Some(rustix::io::Errno::INPROGRESS.raw_os_error()) =>
        {
            return Err(error);
        }
        _ => {}
    }
    socket.set_tcp_nodelay(true)?;
    TcpStream::from_std(socket.into())
}

/// The time limit for a socket to become writable. A server with a full backlog answers nobody who
/// connects, and the kernel would ask again after ever longer pauses, up to minutes. A worker that
/// repeats what failed is served sooner.
const SEND_TIME_MAX: Duration = Duration::from_secs(1);

/// Sends all of it; waits only when the socket is full, or not connected yet.
pub async fn send(stream: &TcpStream, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match rustix::net::send(stream, bytes, SendFlags::NOSIGNAL) {
            Ok(count) => bytes = &bytes[count..],
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                timeout(SEND_TIME_MAX, stream.writable()).await??;
                // This clears the readiness when the socket is still full.
                match stream.try_write(bytes) {
                    Ok(count) => bytes = &bytes[count..],
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Adds the bytes that have come to `buffer`; the end of the stream is an error.
pub async fn receive(stream: &TcpStream, buffer: &mut Vec<u8>) -> std::io::Result<()> {
    loop {
        stream.readable().await?;
        match stream.try_read_buf(buffer) {
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
