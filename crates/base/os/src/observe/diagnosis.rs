//! The kernel's socket diagnosis (sock_diag(7)): listening sockets alone, where `/proc/net/tcp6`
//! walks through every connection of the machine, which takes tens of milliseconds on a busy one.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use model::port::Transport;
use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP, IPPROTO_UDP};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr as NetlinkAddress};

/// The maximum size of one part of the kernel's answer in bytes (`netlink_recvmsg`).
const ANSWER_BYTES: usize = 32 * 1024;
/// The maximum number of sockets; a machine with more is read in part.
const SOCKETS_MAX: usize = 100_000;

/// Returns the sockets by inode. Fails where the kernel has no such diagnosis, or keeps it from us.
pub(super) fn listening(transport: Transport) -> io::Result<BTreeMap<u64, SocketAddr>> {
    let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.connect(&NetlinkAddress::new(0, 0))?;
    let mut sockets = BTreeMap::new();
    for (family, socket_id) in [(AF_INET, SocketId::new_v4()), (AF_INET6, SocketId::new_v6())] {
        let (protocol, states) = match transport {
            Transport::Tcp => (IPPROTO_TCP, StateFlags::LISTEN),
            Transport::Udp => (IPPROTO_UDP, StateFlags::CLOSE),
        };
        let extensions = ExtensionFlags::empty();
        ask(&socket, InetRequest { family, protocol, extensions, states, socket_id })?;
        collect(&socket, &mut sockets)?;
    }
    Ok(sockets)
}

fn ask(socket: &Socket, request: InetRequest) -> io::Result<()> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let mut message = NetlinkMessage::new(header, SockDiagMessage::InetRequest(request).into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0).map(drop)
}

/// Reads parts of the answer until the kernel says that this was all.
fn collect(socket: &Socket, sockets: &mut BTreeMap<u64, SocketAddr>) -> io::Result<()> {
    let mut buffer = vec![0; ANSWER_BYTES];
    loop {
        let length = socket.recv(&mut &mut buffer[..], 0)?;
        let mut rest = &buffer[..length];
        while !rest.is_empty() {
            let message = NetlinkMessage::<SockDiagMessage>::deserialize(rest)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
            // Messages begin at multiples of four bytes.
            let next = (message.header.length as usize).next_multiple_of(4).max(4);
            match message.payload {
                NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(response)) => {
                    let (id, inode) = (&response.header.socket_id, response.header.inode);
                    let address = SocketAddr::new(id.source_address.to_canonical(), id.source_port);
                    if sockets.len() < SOCKETS_MAX {
                        sockets.insert(inode.into(), address);
                    }
                }
                NetlinkPayload::Done(_) => return Ok(()),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                _ => {}
            }
            rest = rest.get(next..).unwrap_or_default();
        }
    }
}
