//! The PROXY protocol, versions 1 and 2: what one proxy tells the next of the client, before the
//! client's first byte. Knows bytes and no socket; driven by the router and by `cortex proxy`. The
//! specification is `proxy-protocol.txt` of HAProxy.

mod senders;

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use thiserror::Error;

pub use self::senders::Senders;

/// Bytes of a line, with CR and LF, as the specification of version 1 says.
const LINE_BYTES_MAX: usize = 107;
/// Bytes of a header with extensions; a certificate or two of the client fit, and a buffer holds
/// it.
pub const HEADER_BYTES_MAX: usize = 8 * 1024;
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
const START: &[u8] = b"PROXY ";
/// Bytes of signature, version and command, family, length.
const FIXED_BYTES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderVersion {
    V1,
    V2,
}

/// The address that connected, and the one that it connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    pub client: SocketAddr,
    pub destination: SocketAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The number of bytes until the client's first one.
    pub length: usize,
    /// The addresses; `None` if the connection is the other proxy's own, or it does not know.
    pub addresses: Option<Addresses>,
}

#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("no header of the PROXY protocol: {0}")]
pub struct BadHeader(&'static str);

/// Parses a header; `None` while it is not complete.
pub fn parse(bytes: &[u8]) -> Result<Option<Header>, BadHeader> {
    if starts(bytes, SIGNATURE) {
        return if bytes.len() < SIGNATURE.len() { Ok(None) } else { parse_binary(bytes) };
    }
    if starts(bytes, START) {
        return if bytes.len() < START.len() { Ok(None) } else { parse_line(bytes) };
    }
    Err(BadHeader("it begins otherwise"))
}

/// Returns whether one starts with the other, as far as both reach.
fn starts(bytes: &[u8], with: &[u8]) -> bool {
    bytes.iter().zip(with).all(|(one, other)| one == other)
}

fn parse_line(bytes: &[u8]) -> Result<Option<Header>, BadHeader> {
    let window = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
    let Some(end) = window.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else {
        return match window.len() {
            LINE_BYTES_MAX => Err(BadHeader("its line does not end")),
            _ => Ok(None),
        };
    };
    match (window[end], window.get(end + 1)) {
        (b'\r', Some(b'\n')) => {}
        (b'\r', None) if window.len() < LINE_BYTES_MAX => return Ok(None),
        _ => return Err(BadHeader("its line does not end with CR and LF")),
    }
    let text = std::str::from_utf8(&window[START.len()..end]);
    let text = text.map_err(|_| BadHeader("its line is no text"))?;
    let addresses = match text.split_once(' ').unwrap_or((text, "")) {
        ("UNKNOWN", _) => None,
        ("TCP4", rest) => {
            Some(read_addresses(rest, |text| text.parse::<Ipv4Addr>().ok().map(IpAddr::V4))?)
        }
        ("TCP6", rest) => {
            Some(read_addresses(rest, |text| text.parse::<Ipv6Addr>().ok().map(IpAddr::V6))?)
        }
        _ => return Err(BadHeader("its protocol is none of TCP4, TCP6 and UNKNOWN")),
    };
    Ok(Some(Header { length: end + 2, addresses }))
}

fn read_addresses(
    text: &str,
    address: impl Fn(&str) -> Option<IpAddr>,
) -> Result<Addresses, BadHeader> {
    let mut parts = text.split(' ');
    let mut next = || parts.next().unwrap_or("");
    let (client, destination) = (address(next()), address(next()));
    let (from, to) = (port(next()), port(next()));
    match (client, destination, from, to, parts.next()) {
        (Some(client), Some(destination), Some(from), Some(to), None) => Ok(Addresses {
            client: SocketAddr::new(client, from),
            destination: SocketAddr::new(destination, to),
        }),
        _ => Err(BadHeader("its addresses cannot be read")),
    }
}

/// Returns a port, written in digits alone, without zeros in front.
fn port(text: &str) -> Option<u16> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let padded = text.len() > 1 && text.starts_with('0');
    if plain && !padded { text.parse().ok() } else { None }
}

fn parse_binary(bytes: &[u8]) -> Result<Option<Header>, BadHeader> {
    let Some(&[.., command, family, high, low]) = bytes.first_chunk::<FIXED_BYTES>() else {
        // What is there already must be right.
        return match bytes.get(SIGNATURE.len()) {
            Some(command) if !matches!(command, 0x20 | 0x21) => Err(BadHeader("its version")),
            _ => Ok(None),
        };
    };
    if !matches!(command, 0x20 | 0x21) {
        return Err(BadHeader("its version or command is unknown"));
    }
    if family >> 4 > 3 || family & 0xf > 2 {
        return Err(BadHeader("its family or protocol is unknown"));
    }
    let length = FIXED_BYTES + usize::from(u16::from_be_bytes([high, low]));
    if length > HEADER_BYTES_MAX {
        return Err(BadHeader("it is too long"));
    }
    let Some(block) = bytes.get(FIXED_BYTES..length) else { return Ok(None) };
    let addresses = match (command, family) {
        (0x21, 0x11 | 0x12) => Some(addresses::<4>(block)?),
        (0x21, 0x21 | 0x22) => Some(addresses::<16>(block)?),
        // It is the proxy's own connection, or one of a kind that has no address here.
        _ => None,
    };
    Ok(Some(Header { length, addresses }))
}

fn addresses<const N: usize>(block: &[u8]) -> Result<Addresses, BadHeader>
where
    IpAddr: From<[u8; N]>,
{
    let short = BadHeader("it is too short for its addresses");
    let (client, rest) = block.split_first_chunk::<N>().ok_or(short)?;
    let (destination, rest) = rest.split_first_chunk::<N>().ok_or(short)?;
    let &[a, b, c, d] = rest.first_chunk::<4>().ok_or(short)?;
    Ok(Addresses {
        client: SocketAddr::new(IpAddr::from(*client), u16::from_be_bytes([a, b])),
        destination: SocketAddr::new(IpAddr::from(*destination), u16::from_be_bytes([c, d])),
    })
}

/// Writes what a back end is to read first. Addresses of two families are said to be unknown.
pub fn write(version: HeaderVersion, addresses: Addresses, out: &mut Vec<u8>) {
    // A listener of both families names IPv4 clients by their mapped address.
    let client = addresses.client.ip().to_canonical();
    let destination = addresses.destination.ip().to_canonical();
    let (from, to) = (addresses.client.port(), addresses.destination.port());
    match version {
        HeaderVersion::V1 => {
            let family = match (client, destination) {
                (IpAddr::V4(_), IpAddr::V4(_)) => "TCP4",
                (IpAddr::V6(_), IpAddr::V6(_)) => "TCP6",
                _ => return out.extend_from_slice(b"PROXY UNKNOWN\r\n"),
            };
            // Writing to memory cannot fail.
            let _ = write!(out, "PROXY {family} {client} {destination} {from} {to}\r\n");
        }
        HeaderVersion::V2 => {
            out.extend_from_slice(SIGNATURE);
            match (client, destination) {
                (IpAddr::V4(client), IpAddr::V4(destination)) => {
                    out.extend_from_slice(&[0x21, 0x11, 0, 12]);
                    out.extend_from_slice(&client.octets());
                    out.extend_from_slice(&destination.octets());
                }
                (IpAddr::V6(client), IpAddr::V6(destination)) => {
                    out.extend_from_slice(&[0x21, 0x21, 0, 36]);
                    out.extend_from_slice(&client.octets());
                    out.extend_from_slice(&destination.octets());
                }
                _ => return out.extend_from_slice(&[0x20, 0, 0, 0]),
            }
            out.extend_from_slice(&from.to_be_bytes());
            out.extend_from_slice(&to.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn known(client: &str, destination: &str) -> Addresses {
        Addresses { client: client.parse().unwrap(), destination: destination.parse().unwrap() }
    }

    #[test]
    fn lines_are_read_once_they_are_whole() {
        let line = b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\nGET / HTTP/1.1\r\n";
        let end = line.len() - 16;
        for cut in 0..end {
            assert_eq!(parse(&line[..cut]), Ok(None), "{cut}");
        }
        let addresses = known("192.168.0.1:56324", "192.168.0.11:443");
        assert_eq!(parse(line), Ok(Some(Header { length: end, addresses: Some(addresses) })));
        let six = b"PROXY TCP6 ::1 2001:db8::2 1 65535\r\n";
        let addresses = known("[::1]:1", "[2001:db8::2]:65535");
        let header = Header { length: six.len(), addresses: Some(addresses) };
        assert_eq!(parse(six), Ok(Some(header)));
        for unknown in ["PROXY UNKNOWN\r\n", "PROXY UNKNOWN ffff::1 x y z\r\n"] {
            let header = Header { length: unknown.len(), addresses: None };
            assert_eq!(parse(unknown.as_bytes()), Ok(Some(header)));
        }
    }

    #[test]
    fn other_lines_are_refused() {
        for bad in [
            "GET / HTTP/1.1\r\n",
            "PROXY  TCP4 1.1.1.1 2.2.2.2 1 2\r\n",
            "PROXY TCP5 1.1.1.1 2.2.2.2 1 2\r\n",
            "PROXY TCP4 1.1.1.1 2.2.2.2 1\r\n",
            "PROXY TCP4 1.1.1.1 2.2.2.2 1 2 3\r\n",
            "PROXY TCP4 1.1.1.1 2.2.2.2 1 65536\r\n",
            "PROXY TCP4 1.1.1.1 2.2.2.2 01 2\r\n",
            "PROXY TCP4 1.1.1.1 2.2.2.2 +1 2\r\n",
            "PROXY TCP4 01.1.1.1 2.2.2.2 1 2\r\n",
            "PROXY TCP4 ::1 ::2 1 2\r\n",
            "PROXY TCP6 1.1.1.1 2.2.2.2 1 2\r\n",
            "PROXY TCP4 1.1.1.1 2.2.2.2 1 2\n",
            "PROXY TCP4 1.1.1.1 2.2.2.2 1 2\rx",
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad:?}");
        }
        let endless = format!("PROXY UNKNOWN {}", "f".repeat(200));
        assert!(parse(endless.as_bytes()).is_err());
        assert_eq!(parse(&endless.as_bytes()[..106]), Ok(None));
    }

    #[test]
    fn binary_headers_are_read_with_extensions() {
        let mut bytes = SIGNATURE.to_vec();
        bytes.extend([0x21, 0x11, 0, 17, 10, 0, 0, 1, 10, 0, 0, 2, 0x1f, 0x90, 0, 80]);
        // There is one extension, which nobody needs.
        bytes.extend([4, 0, 2, 9, 9]);
        let length = bytes.len();
        let header = Header { length, addresses: Some(known("10.0.0.1:8080", "10.0.0.2:80")) };
        for cut in 0..length {
            assert_eq!(parse(&bytes[..cut]), Ok(None), "{cut}");
        }
        bytes.extend(b"hello");
        assert_eq!(parse(&bytes), Ok(Some(header)));
    }

    #[test]
    fn other_binary_headers_are_refused_or_say_nothing() {
        let header = |tail: &[u8]| parse(&[SIGNATURE, tail].concat());
        for silent in [[0x20, 0, 0, 0], [0x20, 0x11, 0, 0], [0x21, 0, 0, 0]] {
            assert_eq!(header(&silent), Ok(Some(Header { length: 16, addresses: None })));
        }
        for bad in [
            &[0x11, 0x11, 0, 0][..],
            &[0x22, 0x11, 0, 0],
            &[0x21, 0x41, 0, 0],
            &[0x21, 0x13, 0, 0],
            &[0x21, 0x11, 0, 3, 1, 2, 3],
            &[0x21, 0x11, 0xff, 0xff],
            &[0x31],
        ] {
            assert!(header(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn two_families_are_unknown_and_mapped_addresses_are_version_four() {
        let mut out = Vec::new();
        write(HeaderVersion::V1, known("[::ffff:10.0.0.1]:5", "10.0.0.2:80"), &mut out);
        assert_eq!(out, b"PROXY TCP4 10.0.0.1 10.0.0.2 5 80\r\n");
        for version in [HeaderVersion::V1, HeaderVersion::V2] {
            let mut out = Vec::new();
            write(version, known("[2001:db8::1]:5", "10.0.0.2:80"), &mut out);
            assert_eq!(parse(&out), Ok(Some(Header { length: out.len(), addresses: None })));
        }
    }

    fn address() -> impl Strategy<Value = (Addresses, HeaderVersion)> {
        let four =
            any::<([u8; 4], [u8; 4])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b)));
        let six =
            any::<([u8; 16], [u8; 16])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b)));
        let version = prop_oneof![Just(HeaderVersion::V1), Just(HeaderVersion::V2)];
        (prop_oneof![four, six], any::<(u16, u16)>(), version).prop_map(
            |((client, destination), (from, to), version)| {
                let client = SocketAddr::new(client, from);
                (Addresses { client, destination: SocketAddr::new(destination, to) }, version)
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(written in address(), tail in any::<[u8; 3]>()) {
            let (addresses, version) = written;
            let mut out = Vec::new();
            write(version, addresses, &mut out);
            let length = out.len();
            for cut in 0..length {
                prop_assert_eq!(parse(&out[..cut]), Ok(None));
            }
            out.extend(tail);
            let canonical = |one: SocketAddr| SocketAddr::new(one.ip().to_canonical(), one.port());
            let (client, destination) =
                (canonical(addresses.client), canonical(addresses.destination));
            let known = client.is_ipv4() == destination.is_ipv4();
            let addresses = known.then_some(Addresses { client, destination });
            prop_assert_eq!(parse(&out), Ok(Some(Header { length, addresses })));
        }

        #[test]
        fn any_bytes_are_read(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for start in [&b""[..], START, SIGNATURE] {
                bytes.splice(0..0, start.iter().copied());
                if let Ok(Some(header)) = parse(&bytes) {
                    prop_assert!(header.length <= bytes.len());
                    // The same bytes, one by one, come to the same end.
                    let whole = parse(&bytes[..header.length]);
                    prop_assert_eq!(whole, Ok(Some(header)));
                    prop_assert_eq!(parse(&bytes[..header.length - 1]), Ok(None));
                }
            }
        }
    }
}
