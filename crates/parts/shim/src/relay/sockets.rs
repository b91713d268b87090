//! Sockets that do not block and are not handed on to what is started.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// The number of connections that wait to be taken; the kernel's own limit for most machines.
const BACKLOG: i32 = 4096;

/// Makes a socket for IPv4, which is all that instances listen at.
pub fn new(kind: SocketType) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::INET, kind, flags, None)?;
    if kind == SocketType::STREAM {
        // Who writes small pieces on one side means them to arrive on the other.
        sockopt::set_tcp_nodelay(&socket, true)?;
    }
    Ok(socket)
}

/// Makes a socket that has its address.
pub fn bound(kind: SocketType, address: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let socket = new(kind)?;
    if kind == SocketType::STREAM {
        // Connections of the instance before may not have been forgotten yet.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}

pub fn listen(socket: impl AsFd) -> rustix::io::Result<()> {
    rustix::net::listen(socket, BACKLOG)
}
