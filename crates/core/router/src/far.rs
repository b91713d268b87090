//! Requests for instances of other nodes: what two routers say to each other around each request
//! (`cortex-router/1`), and when a request goes far. Knows no socket; driven by the router's
//! threads.
//!
//! An ask is `wait` (2 bytes, milliseconds), then the application and the process, each one byte of
//! length and the name; the request follows as HTTP/1.1. With the highest bit of `wait` the names
//! are followed by a port instead: `t` or `u`, its number (2), who asks and whom, each as `4` or
//! `6`, the address and its port (2).
//!
//! A reply is 6 bytes: what becomes of it, whether the connection can be used again, requests in
//! flight (2), room for more (2). After `Taken` comes the answer as HTTP/1.1, or what a connection
//! to that port brings, both ways, datagrams each after its length (2); otherwise not a byte has
//! been passed on.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use model::port::Transport;
use model::{ApplicationName, PortId, ProcessType};
use thiserror::Error;

use crate::proxy_protocol::Addresses;

/// Bytes of an ask: both names and addresses at their longest, and the rest.
pub const ASK_BYTES_MAX: usize = 2 + 2 * 256 + 3 + 2 * ADDRESS_BYTES_MAX;
const ADDRESS_BYTES_MAX: usize = 1 + 16 + 2;
/// The bit in `wait` that says that a port follows.
const THROUGH: u16 = 0x8000;
pub const REPLY_BYTES: usize = 6;
/// Requests on the least busy near instance below which no other node is looked at: a step through
/// another machine costs more than it could save.
pub const NEAR_ENOUGH: u32 = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FarRequest {
    /// The milliseconds for which the hosting router may let it stand in its queue.
    pub wait_ms: u16,
    pub application: ApplicationName,
    pub process: ProcessType,
    /// The port that it goes through; `None` for a request.
    pub through: Option<Through>,
}

/// A whole connection, or a flow of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Through {
    pub id: PortId,
    pub addresses: Addresses,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FarOutcome {
    /// An instance has it, and its answer follows.
    Taken,
    /// No instance had room in time.
    Busy,
    /// No instance is here, whatever the records say.
    Absent,
}

/// The load of the instances of one process on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    pub in_flight: u16,
    /// The number of further requests that they take; `u16::MAX` for no limit.
    pub free: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FarReply {
    pub outcome: FarOutcome,
    /// Whether another request may follow on this connection.
    pub keep: bool,
    pub room: Room,
}

#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("another router said what no router says: {0}")]
pub struct BadWords(&'static str);

impl FarRequest {
    pub fn write(&self, out: &mut Vec<u8>) {
        let through = if self.through.is_some() { THROUGH } else { 0 };
        let wait = self.wait_ms.min(THROUGH - 1) | through;
        out.extend_from_slice(&wait.to_be_bytes());
        for name in [self.application.as_str(), self.process.as_str()] {
            // Names are far shorter; a longer one would be refused by the router that reads it.
            let name = &name.as_bytes()[..name.len().min(usize::from(u8::MAX))];
            out.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
            out.extend_from_slice(name);
        }
        if let Some(Through { id, addresses }) = &self.through {
            out.push(match id.transport {
                Transport::Tcp => b't',
                Transport::Udp => b'u',
            });
            out.extend_from_slice(&id.port.to_be_bytes());
            write_address(addresses.client, out);
            write_address(addresses.destination, out);
        }
    }

    /// Parses an ask and returns it with its length; `None` while it is not complete.
    pub fn parse(bytes: &[u8]) -> Result<Option<(FarRequest, usize)>, BadWords> {
        let Some((wait, rest)) = bytes.split_first_chunk::<2>() else { return Ok(None) };
        let Some((application, rest)) = name(rest)? else { return Ok(None) };
        let Some((process, rest)) = name(rest)? else { return Ok(None) };
        let wait = u16::from_be_bytes(*wait);
        let (through, rest) = match wait & THROUGH {
            0 => (None, rest),
            _ => match port(rest)? {
                Some((through, rest)) => (Some(through), rest),
                None => return Ok(None),
            },
        };
        let ask = FarRequest {
            wait_ms: wait & !THROUGH,
            application: application.parse().map_err(|_| BadWords("no application's name"))?,
            process: process.parse().map_err(|_| BadWords("no process type"))?,
            through,
        };
        Ok(Some((ask, bytes.len() - rest.len())))
    }
}

fn name(bytes: &[u8]) -> Result<Option<(&str, &[u8])>, BadWords> {
    let Some((length, rest)) = bytes.split_first() else { return Ok(None) };
    let Some((name, rest)) = rest.split_at_checked(usize::from(*length)) else { return Ok(None) };
    let name = std::str::from_utf8(name).map_err(|_| BadWords("a name that is no text"))?;
    Ok(Some((name, rest)))
}

fn port(bytes: &[u8]) -> Result<Option<(Through, &[u8])>, BadWords> {
    let Some((&[transport, a, b], rest)) = bytes.split_first_chunk::<3>() else { return Ok(None) };
    let port = u16::from_be_bytes([a, b]);
    let id = match transport {
        b't' => PortId::tcp(port),
        b'u' => PortId::udp(port),
        _ => return Err(BadWords("no transport")),
    };
    let Some((client, rest)) = address(rest)? else { return Ok(None) };
    let Some((destination, rest)) = address(rest)? else { return Ok(None) };
    Ok(Some((Through { id, addresses: Addresses { client, destination } }, rest)))
}

fn write_address(address: SocketAddr, out: &mut Vec<u8>) {
    match address.ip() {
        IpAddr::V4(ip) => {
            out.push(b'4');
            out.extend_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(b'6');
            out.extend_from_slice(&ip.octets());
        }
    }
    out.extend_from_slice(&address.port().to_be_bytes());
}

fn address(bytes: &[u8]) -> Result<Option<(SocketAddr, &[u8])>, BadWords> {
    let Some((family, rest)) = bytes.split_first() else { return Ok(None) };
    let (ip, rest): (IpAddr, &[u8]) = match family {
        b'4' => match rest.split_first_chunk::<4>() {
            Some((octets, rest)) => (Ipv4Addr::from(*octets).into(), rest),
            None => return Ok(None),
        },
        b'6' => match rest.split_first_chunk::<16>() {
            Some((octets, rest)) => (Ipv6Addr::from(*octets).into(), rest),
            None => return Ok(None),
        },
        _ => return Err(BadWords("no family of addresses")),
    };
    let Some((port, rest)) = rest.split_first_chunk::<2>() else { return Ok(None) };
    Ok(Some((SocketAddr::new(ip, u16::from_be_bytes(*port)), rest)))
}

impl FarReply {
    pub fn to_bytes(self) -> [u8; REPLY_BYTES] {
        let outcome = match self.outcome {
            FarOutcome::Taken => b'T',
            FarOutcome::Busy => b'B',
            FarOutcome::Absent => b'A',
        };
        let ([a, b], [c, d]) = (self.room.in_flight.to_be_bytes(), self.room.free.to_be_bytes());
        [outcome, u8::from(self.keep), a, b, c, d]
    }

    /// Parses a reply; `None` while it is not complete.
    pub fn parse(bytes: &[u8]) -> Result<Option<FarReply>, BadWords> {
        let Some(&[outcome, keep, a, b, c, d]) = bytes.first_chunk::<REPLY_BYTES>() else {
            return Ok(None);
        };
        let outcome = match outcome {
            b'T' => FarOutcome::Taken,
            b'B' => FarOutcome::Busy,
            b'A' => FarOutcome::Absent,
            _ => return Err(BadWords("no outcome")),
        };
        let keep = match keep {
            0 => false,
            1 => true,
            _ => return Err(BadWords("neither keep nor close")),
        };
        let room = Room { in_flight: u16::from_be_bytes([a, b]), free: u16::from_be_bytes([c, d]) };
        Ok(Some(FarReply { outcome, keep, room }))
    }
}

/// Writes a datagram; one longer than any there is would be cut.
pub fn write_datagram(datagram: &[u8], out: &mut Vec<u8>) {
    let length = u16::try_from(datagram.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&datagram[..usize::from(length)]);
}

/// Returns the first datagram, and what follows it; `None` while it is not complete.
pub fn datagram(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))
}

/// What is known here of the instances on another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FarCandidate {
    /// The requests on them, as far as this node knows.
    pub in_flight: u32,
    pub instances: u32,
    /// Whether they may take a request now.
    pub has_room: bool,
}

impl FarCandidate {
    /// Returns the load in 64ths of a request per instance.
    fn load(&self) -> u64 {
        u64::from(self.in_flight) * 64 / u64::from(self.instances.max(1))
    }
}

/// Returns the node with the fewest requests per instance; in turn among equals.
pub fn pick(turn: usize, count: usize, at: &dyn Fn(usize) -> FarCandidate) -> Option<usize> {
    let first = turn.checked_rem(count)?;
    let around = (first..count).chain(0..first).map(|index| (index, at(index)));
    let free = around.filter(|(_, candidate)| candidate.has_room);
    // Of equal ones the first is kept.
    free.min_by_key(|(_, candidate)| candidate.load()).map(|(index, _)| index)
}

/// Returns whether a request goes far although a near instance with so many requests has room: only
/// if that one is busy and the others are less than half as busy.
pub fn is_better(near_in_flight: u32, far: FarCandidate) -> bool {
    near_in_flight >= NEAR_ENOUGH && far.has_room && 2 * far.load() < 64 * u64::from(near_in_flight)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ask() -> FarRequest {
        let (application, process) = ("shop".parse().unwrap(), ProcessType::web());
        FarRequest { wait_ms: 500, application, process, through: None }
    }

    fn through(id: PortId) -> FarRequest {
        let addresses = Addresses {
            client: "192.0.2.7:4711".parse().unwrap(),
            destination: "[2001:db8::1]:53".parse().unwrap(),
        };
        FarRequest { through: Some(Through { id, addresses }), ..ask() }
    }

    #[test]
    fn an_ask_is_read_back_once_it_is_whole() {
        for ask in [ask(), through(PortId::tcp(1883)), through(PortId::udp(53))] {
            let mut bytes = Vec::new();
            ask.write(&mut bytes);
            for end in 0..bytes.len() {
                assert_eq!(FarRequest::parse(&bytes[..end]), Ok(None));
            }
            let length = bytes.len();
            bytes.extend_from_slice(b"GET /");
            assert_eq!(FarRequest::parse(&bytes), Ok(Some((ask, length))));
        }
    }

    #[test]
    fn datagrams_are_told_apart() {
        let mut bytes = Vec::new();
        for one in [&b"one"[..], b"", &[7; 65_535]] {
            write_datagram(one, &mut bytes);
        }
        let (one, rest) = datagram(&bytes).unwrap();
        let (none, rest) = datagram(rest).unwrap();
        assert_eq!((one, none), (&b"one"[..], &b""[..]));
        assert_eq!(datagram(&rest[..rest.len() - 1]), None);
        assert_eq!(datagram(rest), Some((&[7; 65_535][..], &b""[..])));
        assert_eq!(datagram(b"\0"), None);
    }

    #[test]
    fn a_reply_is_read_back_and_nonsense_refused() {
        for outcome in [FarOutcome::Taken, FarOutcome::Busy, FarOutcome::Absent] {
            let reply =
                FarReply { outcome, keep: true, room: Room { in_flight: 3, free: u16::MAX } };
            assert_eq!(FarReply::parse(&reply.to_bytes()), Ok(Some(reply)));
            assert_eq!(FarReply::parse(&reply.to_bytes()[..5]), Ok(None));
        }
        assert!(FarReply::parse(b"HTTP/1.1 200").is_err());
        assert!(FarReply::parse(b"T\x02\0\0\0\0").is_err());
    }

    #[test]
    fn the_least_busy_node_per_instance_is_picked() {
        let all = [(4, 1, true), (6, 3, true), (0, 9, false), (2, 1, true)];
        let at = |index: usize| {
            let (in_flight, instances, has_room) = all[index];
            FarCandidate { in_flight, instances, has_room }
        };
        assert_eq!(pick(0, 4, &at), Some(1));
        assert_eq!(pick(3, 4, &at), Some(3), "equals take turns");
        assert_eq!(pick(0, 0, &at), None);
        assert_eq!(pick(0, 1, &|_| at(2)), None);
    }

    #[test]
    fn near_is_left_only_for_what_is_much_better() {
        let far = |in_flight| FarCandidate { in_flight, instances: 1, has_room: true };
        assert!(!is_better(NEAR_ENOUGH - 1, far(0)));
        assert!(is_better(NEAR_ENOUGH, far(NEAR_ENOUGH / 2 - 1)));
        assert!(!is_better(NEAR_ENOUGH, far(NEAR_ENOUGH / 2)));
        assert!(!is_better(100, FarCandidate { has_room: false, ..far(0) }));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            if let Ok(Some((ask, length))) = FarRequest::parse(&bytes) {
                let mut again = Vec::new();
                ask.write(&mut again);
                prop_assert_eq!(&again[..], &bytes[..length]);
                prop_assert!(length <= ASK_BYTES_MAX);
            }
            FarReply::parse(&bytes).ok();
        }
    }
}
