//! A port that several threads listen on, each for itself: it is taken once without SO_REUSEPORT,
//! so that a port that somebody has is noticed, and then shared out to the threads.

use std::net::{SocketAddr, TcpListener};

use anyhow::Context;
use socket2::{Domain, Protocol, Socket, Type};

/// Connections that the kernel holds while all threads are busy; it may hold fewer.
const BACKLOG: i32 = 4096;

/// One listener per thread on the same address. The first one is bound and listens alone: the
/// kernel refuses that to all but one, even among processes of one user. Then it is opened to the
/// others. So nothing is ever free between the check and the use.
pub fn bind(address: SocketAddr, threads: usize) -> anyhow::Result<Vec<TcpListener>> {
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
}
