//! A port that several threads listen on, each for itself: it is taken once without SO_REUSEPORT,
//! so that a port that somebody has is noticed, and then shared out to the threads. `Listeners` are
//! all of a process: an upgrade hands them to the next one, so that no connection is refused.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Protocol, Socket, Type};

use crate::loopback;

/// The number of connections that the kernel holds while all threads are busy; it may hold fewer.
const BACKLOG: i32 = 4096;

/// The maximum number of descriptors: what this process starts inherits the limit, and some
/// programs count up to it.
const DESCRIPTORS_MAX: u64 = 65_536;

/// Raises the limit on descriptors as far as allowed; returns how many there may be.
pub fn allow_descriptors() -> u64 {
    allow_descriptors_up_to(DESCRIPTORS_MAX)
}

/// Raises the limit up to `most`, for a process that starts no others. It goes on with what it is
/// given.
pub fn allow_descriptors_up_to(most: u64) -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(most).min(most);
    if limit.current.is_some_and(|current| current < wanted) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit }).ok();
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Whether no connection could be made for want of descriptors or memory: nothing that the other
/// side did.
pub fn is_short(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

/// Listening sockets by the address that was asked for.
pub type BoundListeners = BTreeMap<SocketAddr, Vec<TcpListener>>;

/// The listening sockets of a process. A duplicate of each is kept: a listener that a part drops
/// goes on taking connections into the kernel's queue until it is released here, too.
#[derive(Debug, Default)]
pub struct Listeners {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    open: BoundListeners,
    /// The sockets inherited from the process before, until the part that needs one asks for it.
    inherited: BoundListeners,
}

impl Listeners {
    pub fn inheriting(inherited: BoundListeners) -> Listeners {
        Listeners { inner: Mutex::new(Inner { open: BoundListeners::new(), inherited }) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns at least one listener per thread. There are more where the process before had more
    /// threads: each of them may hold connections that wait.
    pub fn bind(&self, address: SocketAddr, threads: usize) -> anyhow::Result<Vec<TcpListener>> {
        let inherited = self.inner().inherited.remove(&address).filter(|all| !all.is_empty());
        let listeners = match inherited {
            Some(mut listeners) => {
                let at = listeners[0].local_addr()?;
                while listeners.len() < threads {
                    // One that something else bound for this process is shared: another one may not
                    // be allowed.
                    let further = match socket(at, true) {
                        Ok(further) => further.into(),
                        Err(_) => listeners[0].try_clone()?,
                    };
                    listeners.push(further);
                }
                listeners
            }
            None => bind(address, threads)?,
        };
        self.keep(address, &listeners)?;
        Ok(listeners)
    }

    /// Returns an inherited listener that listens alone.
    pub fn inherited(&self, address: SocketAddr) -> Option<TcpListener> {
        self.inner().inherited.remove(&address)?.into_iter().next()
    }

    /// Takes an address for the part that binds it next, unless another program has it; returns
    /// whether it could be taken.
    pub fn reserve(&self, address: SocketAddr) -> bool {
        if self.inner().inherited.contains_key(&address) {
            return true;
        }
        let bound = bind(address, 1);
        bound.map(|bound| self.inner().inherited.insert(address, bound)).is_ok()
    }

    /// Returns the sockets that are open on an address once more.
    pub fn again(&self, address: SocketAddr) -> anyhow::Result<Vec<TcpListener>> {
        let inner = self.inner();
        let open = inner.open.get(&address).into_iter().flatten();
        open.map(TcpListener::try_clone).collect::<Result<_, _>>().context("a listener's duplicate")
    }

    pub fn keep(&self, address: SocketAddr, listeners: &[TcpListener]) -> anyhow::Result<()> {
        let duplicates: Result<_, _> = listeners.iter().map(TcpListener::try_clone).collect();
        self.inner().open.insert(address, duplicates.context("a listener's duplicate")?);
        Ok(())
    }

    pub fn release(&self, address: SocketAddr) {
        self.inner().open.remove(&address);
    }

    /// Closes the inherited sockets that no part asked for.
    pub fn release_unclaimed(&self) {
        for (address, _) in std::mem::take(&mut self.inner().inherited) {
            tracing::info!(%address, "port.not_needed_any_more");
        }
    }

    pub fn release_all(&self) {
        *self.inner() = Inner::default();
    }

    /// Returns all sockets, for the process after this one.
    pub fn hand_over(&self) -> BoundListeners {
        let Inner { open, inherited } = std::mem::take(&mut *self.inner());
        inherited.into_iter().chain(open).collect()
    }
}

/// Binds one listener per thread on the same address. The first one is bound and listens alone: the
/// kernel refuses that to all but one, even among processes of one user. Then it is opened to the
/// others. So nothing is ever free between the check and the use.
fn bind(address: SocketAddr, threads: usize) -> anyhow::Result<Vec<TcpListener>> {
    let first = socket(address, false).with_context(|| {
        format!(
            "port {} on {} cannot be used: another program listens there, or it needs root; \
                 stop that program or choose another port",
            address.port(),
            address.ip()
        )
    })?;
    first.set_reuse_port(true)?;
    let bound = first.local_addr()?.as_socket().context("a socket of another family")?;
    let mut listeners = vec![TcpListener::from(first)];
    for _ in 1..threads {
        listeners.push(socket(bound, true)?.into());
    }
    Ok(listeners)
}

fn socket(address: SocketAddr, shared: bool) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Connections of an earlier process that are still being buried do not count.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    socket.set_nonblocking(true)?;
    // Accepted connections inherit it, which saves them a system call.
    socket.set_tcp_nodelay(true)?;
    loopback::ease(&socket, address.ip());
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_taken_by_one_router_alone() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mine = bind(any, 3).unwrap();
        let address = mine[0].local_addr().unwrap();
        assert!(mine.iter().all(|one| one.local_addr().unwrap() == address));
        let error = bind(address, 3).unwrap_err().to_string();
        assert!(error.contains("another program listens there"), "{error}");
        let _client = std::net::TcpStream::connect(address).unwrap();
        let accepted = || mine.iter().find_map(|one| one.accept().ok());
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let stream = loop {
            if let Some((stream, _)) = accepted() {
                break stream;
            }
            assert!(std::time::Instant::now() < deadline, "nothing to accept");
            std::thread::yield_now();
        };
        assert!(stream.nodelay().unwrap());
        drop((stream, mine));
        bind(address, 2).unwrap();
    }

    #[test]
    fn a_connection_waits_from_one_process_to_the_next() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let first = Listeners::default();
        let address = first.bind(any, 1).unwrap()[0].local_addr().unwrap();
        // The part that had the socket is gone, and nobody has accepted this connection.
        let _client = std::net::TcpStream::connect(address).unwrap();
        let second = Listeners::inheriting(first.hand_over());
        let listeners = second.bind(any, 2).unwrap();
        assert_eq!(listeners.len(), 2);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !listeners.iter().any(|one| one.accept().is_ok()) {
            assert!(std::time::Instant::now() < deadline, "nothing to accept");
            std::thread::yield_now();
        }
        second.release(any);
        drop(listeners);
        assert!(std::net::TcpStream::connect(address).is_err(), "nobody listens any more");
    }

    #[test]
    fn what_no_part_asks_for_is_closed() {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let first = Listeners::default();
        let at = first.bind(address, 1).unwrap()[0].local_addr().unwrap();
        let second = Listeners::inheriting(first.hand_over());
        std::net::TcpStream::connect(at).unwrap();
        second.release_unclaimed();
        assert!(std::net::TcpStream::connect(at).is_err());
        assert!(second.inherited(address).is_none());
    }
}
