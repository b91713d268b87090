//! The routes of a network of its own, over the kernel's own protocol (rtnetlink(7)). What is
//! closed has a route that leads nowhere, from before the first process is in the network; no
//! process there may change one.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::ensure;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkFlags, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr as NetlinkAddress};

/// The interface that each network begins with; it is always the first.
const LOOPBACK: u32 = 1;
/// The maximum size of one part of the kernel's answer in bytes (`netlink_recvmsg`).
const ANSWER_BYTES: usize = 32 << 10;
/// The bits of a whole address.
const WHOLE: u8 = 32;
/// What is not the internet (RFC 6890): other machines of the same networks, and the addresses at
/// which providers answer with a machine's secrets.
const PRIVATE: &[(Ipv4Addr, u8)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// Returns what is closed to an application that may reach the internet. IPv6 has no way out at
/// all.
pub fn closed(also: &[IpAddr], local: &[IpAddr]) -> Vec<(Ipv4Addr, u8)> {
    let mut closed = PRIVATE.to_vec();
    for address in also.iter().chain(local) {
        if let IpAddr::V4(address) = address.to_canonical()
            && !closed.iter().any(|(network, length)| contains(*network, *length, address))
        {
            closed.push((address, WHOLE));
        }
    }
    closed
}

fn contains(network: Ipv4Addr, length: u8, address: Ipv4Addr) -> bool {
    // Loopback never leaves a network.
    let mask = u32::MAX << (WHOLE - length);
    address.is_loopback() || network.to_bits() & mask == address.to_bits() & mask
}

/// Returns the addresses of the calling thread's network.
pub fn addresses() -> anyhow::Result<Vec<IpAddr>> {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet;
    let mut addresses = Vec::new();
    ask(RouteNetlinkMessage::GetAddress(message), NLM_F_DUMP, |answer| {
        let RouteNetlinkMessage::NewAddress(message) = answer else { return };
        addresses.extend(message.attributes.iter().filter_map(|attribute| match attribute {
            AddressAttribute::Local(address) | AddressAttribute::Address(address) => Some(*address),
            _ => None,
        }));
    })?;
    Ok(addresses)
}

pub fn bring_up_loopback() -> anyhow::Result<()> {
    let mut link = LinkMessage::default();
    link.header.index = LOOPBACK;
    link.header.flags = LinkFlags::Up;
    link.header.change_mask = LinkFlags::Up;
    ask(RouteNetlinkMessage::SetLink(link), NLM_F_ACK, |_| ())
}

/// Closes a network to the calling thread's own.
pub fn close(network: Ipv4Addr, length: u8) -> anyhow::Result<()> {
    let mut route = RouteMessage::default();
    route.header.address_family = AddressFamily::Inet;
    route.header.destination_prefix_length = length;
    route.header.table = RouteHeader::RT_TABLE_MAIN;
    route.header.protocol = RouteProtocol::Static;
    route.header.scope = RouteScope::Universe;
    route.header.kind = RouteType::Unreachable;
    route.attributes.push(RouteAttribute::Destination(RouteAddress::Inet(network)));
    ask(RouteNetlinkMessage::NewRoute(route), NLM_F_ACK | NLM_F_CREATE, |_| ())
}

/// Asks the kernel about the calling thread's network, and hands on what it answers.
fn ask(
    request: RouteNetlinkMessage,
    flags: u16,
    mut each: impl FnMut(&RouteNetlinkMessage),
) -> anyhow::Result<()> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&NetlinkAddress::new(0, 0))?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    let mut buffer = vec![0; ANSWER_BYTES];
    loop {
        let length = socket.recv(&mut &mut buffer[..], 0)?;
        ensure!(length > 0, "the kernel gave no answer");
        let mut rest = &buffer[..length];
        while !rest.is_empty() {
            let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)?;
            match &answer.payload {
                NetlinkPayload::InnerMessage(message) => each(message),
                NetlinkPayload::Error(error) if error.code.is_some() => {
                    return Err(error.to_io().into());
                }
                NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(()),
                _ => {}
            }
            // Messages begin at multiples of four bytes.
            let next = (answer.header.length as usize).next_multiple_of(4).max(4);
            rest = rest.get(next..).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_closed_already_has_no_route_of_its_own() {
        let parsed = |text: &[&str]| -> Vec<IpAddr> {
            text.iter().map(|text| text.parse().unwrap()).collect()
        };
        let also = parsed(&["203.0.113.9", "10.1.2.3", "2001:db8::1", "::ffff:203.0.113.10"]);
        let local = parsed(&["127.0.0.1", "203.0.113.9", "100.127.255.255", "100.128.0.0"]);
        let closed = closed(&also, &local);
        let own: Vec<String> =
            closed[PRIVATE.len()..].iter().map(|(address, _)| address.to_string()).collect();
        assert_eq!(own, ["203.0.113.9", "203.0.113.10", "100.128.0.0"]);
        let metadata = Ipv4Addr::new(169, 254, 169, 254);
        assert!(closed.iter().any(|(network, length)| contains(*network, *length, metadata)));
        let outside = Ipv4Addr::new(1, 1, 1, 1);
        assert!(!closed.iter().any(|(network, length)| contains(*network, *length, outside)));
    }

    #[test]
    fn the_addresses_of_a_machine_have_loopback_among_them() {
        let addresses = addresses().unwrap();
        assert!(addresses.contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)), "{addresses:?}");
    }
}
