//! The network of its own, made by a thread that stays in it: a socket belongs to the network of
//! the thread that made it, so this thread makes those for within and hands them over.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use anyhow::Context;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkFlags, LinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr as NetlinkAddress};
use rustix::net::SocketType;
use rustix::thread::UnshareFlags;

use super::sockets::{self, bound};
use crate::network::Network;
use crate::sandbox::{give_up_privileges, unshare};

/// The number of sockets that are made ahead, for connections that come at the same moment.
const AHEAD: usize = 16;
/// The stack of a thread that makes sockets; a new program's first page faults cost the same.
const STACK_BYTES: usize = 128 << 10;
/// The interface that each network begins with; it is always the first.
const LOOPBACK: u32 = 1;
/// The size of the kernel's answer to one request in bytes, with the request itself.
const ANSWER_BYTES: usize = 4096;

/// What the rest of the process has of the network.
pub struct Inside {
    pub namespace: OwnedFd,
    pub tables: Tables,
    /// The listening sockets of services, in their order.
    pub services: Vec<OwnedFd>,
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
    let work = move || {
        let (streams, kept_streams) = sync_channel(AHEAD);
        let (datagrams, kept_datagrams) = sync_channel(AHEAD);
        let inside = enter(&network, kept_streams, kept_datagrams);
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
    streams: Receiver<OwnedFd>,
    datagrams: Receiver<OwnedFd>,
) -> anyhow::Result<Inside> {
    unshare(UnshareFlags::NEWNET).context("no namespace of networks")?;
    bring_up(LOOPBACK).context("its loopback")?;
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
    let inside = Inside {
        namespace: File::open("/proc/thread-self/ns/net")?.into(),
        tables: Tables { tcp: table(["tcp", "tcp6"])?, udp: table(["udp", "udp6"])? },
        services: services.collect::<Result<_, _>>().context("the place of a service")?,
        streams,
        datagrams,
    };
    give_up_privileges()?;
    Ok(inside)
}

fn bring_up(interface: u32) -> anyhow::Result<()> {
    let mut link = LinkMessage::default();
    link.header.index = interface;
    link.header.flags = LinkFlags::Up;
    link.header.change_mask = LinkFlags::Up;
    ask(RouteNetlinkMessage::SetLink(link))
}

/// Asks the kernel to change this thread's network.
fn ask(request: RouteNetlinkMessage) -> anyhow::Result<()> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&NetlinkAddress::new(0, 0))?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_ACK;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    let mut answer = vec![0; ANSWER_BYTES];
    let length = socket.recv(&mut &mut answer[..], 0)?;
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer[..length])?;
    match answer.payload {
        NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io().into()),
        _ => Ok(()),
    }
}
