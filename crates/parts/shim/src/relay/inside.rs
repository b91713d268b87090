//! The network of its own, made by a thread that stays in it: a socket belongs to the network of
//! the thread that made it, so this thread makes those for within and hands them over.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use anyhow::Context;
use rustix::net::SocketType;
use rustix::thread::UnshareFlags;

use super::sockets::{self, bound};
use super::way_out::WayOutProcess;
use super::{follow, routes};
use crate::network::Network;
use crate::sandbox::{give_up_privileges, unshare};

/// The number of sockets that are made ahead, for connections that come at the same moment.
const AHEAD: usize = 16;
/// The stack of a thread that makes sockets; a new program's first page faults cost the same.
pub const STACK_BYTES: usize = 128 << 10;
/// The place at which the resolver is within.
const RESOLVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 53);

/// What the rest of the process has of the network.
pub struct Inside {
    pub namespace: OwnedFd,
    pub tables: Tables,
    /// The listening sockets of services, in their order.
    pub services: Vec<OwnedFd>,
    /// The sockets at which the resolver is asked, where there is a way out: for connections, and
    /// for datagrams.
    pub resolver: Option<[OwnedFd; 2]>,
    pub way_out: Option<WayOutProcess>,
    streams: Receiver<OwnedFd>,
    datagrams: Receiver<OwnedFd>,
}

/// The kernel's tables of the sockets of one network. They stay those of the thread that opened
/// them. The second ones are missing where the machine has no IPv6.
pub struct Tables {
    pub tcp: Vec<File>,
    pub udp: Vec<File>,
}

impl Inside {
    /// Returns a new socket within; `None` once the thread is gone.
    pub fn socket(&self, kind: SocketType) -> Option<OwnedFd> {
        let ahead = if kind == SocketType::DGRAM { &self.datagrams } else { &self.streams };
        ahead.recv().ok()
    }
}

/// Makes the network. The process may do so in its namespace of users.
pub fn make(network: &Network) -> anyhow::Result<Inside> {
    let (made, outcome) = sync_channel(1);
    let network = network.clone();
    let local = match network.egress {
        Some(_) => routes::addresses().context("the addresses of this machine")?,
        None => Vec::new(),
    };
    let work = move || {
        let (streams, kept_streams) = sync_channel(AHEAD);
        let (datagrams, kept_datagrams) = sync_channel(AHEAD);
        let inside = enter(&network, &local, kept_streams, kept_datagrams);
        let failed = inside.is_err();
        if made.send(inside).is_err() || failed {
            return;
        }
        if network.udp.is_empty() {
            keep_making(SocketType::STREAM, &streams);
            return;
        }
        std::thread::scope(|scope| {
            let builder = || std::thread::Builder::new().stack_size(STACK_BYTES);
            let more = builder().spawn_scoped(scope, || keep_making(SocketType::DGRAM, &datagrams));
            if more.is_ok() {
                keep_making(SocketType::STREAM, &streams);
            }
        });
    };
    std::thread::Builder::new().stack_size(STACK_BYTES).spawn(work)?;
    outcome.recv().context("the thread within has ended")?
}

/// Makes sockets for as long as somebody takes them.
fn keep_making(kind: SocketType, taken: &SyncSender<OwnedFd>) {
    while let Ok(socket) = sockets::new(kind)
        && taken.send(socket).is_ok()
    {}
}

fn enter(
    network: &Network,
    local: &[IpAddr],
    streams: Receiver<OwnedFd>,
    datagrams: Receiver<OwnedFd>,
) -> anyhow::Result<Inside> {
    unshare(UnshareFlags::NEWNET).context("no namespace of networks")?;
    routes::bring_up_loopback().context("its loopback")?;
    if let Some(way) = &network.egress {
        for (address, length) in routes::closed(&way.closed, local) {
            routes::close(address, length).context("a route of it")?;
        }
        if let Some(file) = &way.follow {
            let closed = way.closed.iter().chain(local).copied().collect();
            follow::start(file.clone(), closed).context("the members that come later")?;
        }
    }
    let open = |name: &str| File::open(format!("/proc/thread-self/net/{name}"));
    let table = |names: [&str; 2]| -> anyhow::Result<Vec<File>> {
        let first = open(names[0]).context("its table of sockets")?;
        Ok([Some(first), open(names[1]).ok()].into_iter().flatten().collect())
    };
    let services = network.services.iter().map(|service| {
        let socket = bound(SocketType::STREAM, service.within)?;
        sockets::listen(&socket)?;
        anyhow::Ok(socket)
    });
    let resolver = || {
        let streams = bound(SocketType::STREAM, RESOLVER)?;
        sockets::listen(&streams)?;
        anyhow::Ok([streams, bound(SocketType::DGRAM, RESOLVER)?])
    };
    let resolver = network.egress.as_ref().map(|_| resolver()).transpose();
    let inside = Inside {
        resolver: resolver.context("the place of the resolver")?,
        way_out: None,
        namespace: File::open("/proc/thread-self/ns/net")?.into(),
        tables: Tables { tcp: table(["tcp", "tcp6"])?, udp: table(["udp", "udp6"])? },
        services: services.collect::<Result<_, _>>().context("the place of a service")?,
        streams,
        datagrams,
    };
    give_up_privileges()?;
    Ok(inside)
}
