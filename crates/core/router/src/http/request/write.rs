//! The head of a request as an instance gets it: without what concerned the connection it came on,
//! without what a client only pretends, and with who asks, and what for.

use std::io::Write;
use std::net::IpAddr;

use super::super::syntax::is_token_byte;
use super::super::{is_hop_by_hop, is_named, put_header};
use super::{Facts, ForwardedFields, RequestOrigin};
use crate::http::body::Body;

pub(super) struct RequestLine<'a> {
    pub method: &'a str,
    pub target: &'a str,
    pub host: &'a str,
}

/// The forwarded fields that a proxy in front has written already.
#[derive(Default)]
struct ForwardedBefore {
    proto: bool,
    host: bool,
}

impl RequestLine<'_> {
    /// Writes the head except for its last line. Returns true if the request is to go no further.
    pub fn write(
        &self,
        headers: &[httparse::Header<'_>],
        facts: &Facts<'_>,
        origin: &RequestOrigin,
        out: &mut Vec<u8>,
    ) -> bool {
        out.clear();
        for part in [self.method, " ", self.target, " HTTP/1.1\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
        put_header(out, "Host", self.host.as_bytes());
        // What comes from this machine may be a proxy of the user's own, in front of Cortex.
        let trusted = origin.peer.is_loopback();
        let mut said = ForwardedBefore::default();
        for header in headers {
            let name = header.name;
            if origin.is_router && is_of_first_router(name) {
                put_header(out, name, header.value);
                continue;
            }
            if is_hop_by_hop(name) || (facts.names_headers && is_named(headers, name)) {
                continue;
            }
            if is_pretence(name) || (!trusted && !origin.is_router && is_for_proxies(name)) {
                continue;
            }
            let repeated = match name.len() {
                4 if name.eq_ignore_ascii_case("host") => true,
                6 if name.eq_ignore_ascii_case("expect") => true,
                12 if name.eq_ignore_ascii_case("x-request-id") => true,
                12 if name.eq_ignore_ascii_case("max-forwards") => self.method == "OPTIONS",
                15 if name.eq_ignore_ascii_case("x-forwarded-for") => true,
                17 if name.eq_ignore_ascii_case("x-forwarded-proto") => {
                    std::mem::replace(&mut said.proto, true)
                }
                16 if name.eq_ignore_ascii_case("x-forwarded-host") => {
                    std::mem::replace(&mut said.host, true)
                }
                _ => false,
            };
            if !repeated {
                put_header(out, name, header.value);
            }
        }
        if !origin.is_router {
            self.write_origin(headers, facts, origin, &said, out);
        }
        if matches!(facts.body, Body::Chunked(_)) {
            out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        }
        if let Some(protocol) = facts.upgrade {
            put_header(out, "Upgrade", protocol);
        }
        self.method == "OPTIONS" && write_max_forwards(facts, out)
    }

    /// Writes who asks, and what for.
    fn write_origin(
        &self,
        headers: &[httparse::Header<'_>],
        facts: &Facts<'_>,
        origin: &RequestOrigin,
        said: &ForwardedBefore,
        out: &mut Vec<u8>,
    ) {
        out.extend_from_slice(b"X-Forwarded-For: ");
        for header in headers.iter().filter(|one| one.name.eq_ignore_ascii_case("x-forwarded-for"))
        {
            out.extend_from_slice(header.value);
            out.extend_from_slice(b", ");
        }
        put_address(origin.peer, out);
        out.extend_from_slice(b"\r\n");
        if !said.proto {
            let proto: &[u8] = if origin.is_secure { b"https" } else { b"http" };
            put_header(out, "X-Forwarded-Proto", proto);
        }
        if !said.host {
            put_header(out, "X-Forwarded-Host", self.host.as_bytes());
        }
        match facts.request_id {
            Some(id) => put_header(out, "X-Request-Id", id),
            None => put_header(out, "X-Request-Id", &hexadecimal(origin.request_id)),
        }
        if origin.forwarded == ForwardedFields::Standard {
            self.write_forwarded(origin, out);
        }
    }

    /// Writes `Forwarded` (RFC 7239): one element for each proxy on the way. What those before us
    /// said comes first.
    fn write_forwarded(&self, origin: &RequestOrigin, out: &mut Vec<u8>) {
        out.extend_from_slice(b"Forwarded: for=");
        match origin.peer {
            IpAddr::V4(_) => put_address(origin.peer, out),
            IpAddr::V6(_) => {
                out.extend_from_slice(b"\"[");
                put_address(origin.peer, out);
                out.extend_from_slice(b"]\"");
            }
        }
        if !self.host.is_empty() {
            out.extend_from_slice(b";host=");
            put_value(self.host.as_bytes(), out);
        }
        let proto: &[u8] = if origin.is_secure { b";proto=https\r\n" } else { b";proto=http\r\n" };
        out.extend_from_slice(proto);
    }
}

/// Writes a value as RFC 9110, section 5.6 has it: a token as it is, anything else quoted.
fn put_value(value: &[u8], out: &mut Vec<u8>) {
    if value.iter().copied().all(is_token_byte) {
        return out.extend_from_slice(value);
    }
    out.push(b'"');
    for byte in value {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(*byte);
    }
    out.push(b'"');
}

/// Writes an address. This is done for each request, and so without the machinery of formats.
fn put_address(address: IpAddr, out: &mut Vec<u8>) {
    let IpAddr::V4(address) = address else {
        // Writing to memory cannot fail.
        let _ = write!(out, "{address}");
        return;
    };
    for (index, part) in address.octets().into_iter().enumerate() {
        if index > 0 {
            out.push(b'.');
        }
        if part >= 100 {
            out.push(b'0' + part / 100);
        }
        if part >= 10 {
            out.push(b'0' + part / 10 % 10);
        }
        out.push(b'0' + part % 10);
    }
}

fn hexadecimal(number: u64) -> [u8; 16] {
    let digit = |at: usize| b"0123456789abcdef"[(number >> (60 - 4 * at)) as usize & 15];
    std::array::from_fn(digit)
}

/// Writes Max-Forwards (RFC 9110, section 7.6.2): each server on the way counts down, and one that
/// reads 0 answers. Returns true then.
fn write_max_forwards(facts: &Facts<'_>, out: &mut Vec<u8>) -> bool {
    let text = facts.max_forwards.and_then(|value| std::str::from_utf8(value).ok());
    let Some(left) = text.and_then(|text| text.parse::<u32>().ok()) else { return false };
    let _ = write!(out, "Max-Forwards: {}\r\n", left.saturating_sub(1));
    left == 0
}

/// Returns whether a header is said once, by the router that the client spoke to.
fn is_of_first_router(name: &str) -> bool {
    const NAMES: [&str; 4] =
        ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-request-id"];
    NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Returns whether an application's server may take the name for another: in the environment of CGI
/// and its heirs `_` and `-` are one, and `Proxy` becomes the variable `HTTP_PROXY`.
pub fn is_pretence(name: &str) -> bool {
    name.eq_ignore_ascii_case("proxy") || name.as_bytes().contains(&b'_')
}

/// Returns whether applications believe the header, so that a client must not say it; a proxy in
/// front may.
pub fn is_for_proxies(name: &str) -> bool {
    let starts = |prefix: &str| {
        name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    match name.as_bytes().first() {
        Some(b'x' | b'X') => starts("x-forwarded-") || name.eq_ignore_ascii_case("x-real-ip"),
        Some(b'f' | b'F') => name.eq_ignore_ascii_case("forwarded"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::super::parse;
    use super::{ForwardedFields, RequestOrigin, hexadecimal, put_address};

    #[test]
    fn addresses_and_numbers_are_written_as_formats_write_them() {
        for part in 0..=u8::MAX {
            let address = IpAddr::from([part, 0, 255 - part, 10]);
            let mut out = Vec::new();
            put_address(address, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), address.to_string());
        }
        let mut out = Vec::new();
        put_address("2001:db8::7".parse().unwrap(), &mut out);
        assert_eq!(out, b"2001:db8::7");
        for number in [0, 5, 0x0123_4567_89ab_cdef, u64::MAX] {
            assert_eq!(hexadecimal(number), *format!("{number:016x}").as_bytes());
        }
    }

    fn written(peer: [u8; 4], head: &str) -> String {
        let origin = RequestOrigin {
            peer: IpAddr::from(peer),
            request_id: 5,
            is_router: false,
            is_secure: true,
            forwarded: ForwardedFields::Usual,
        };
        written_of(&origin, &format!("Host: a\r\n{head}"))
    }

    fn written_of(origin: &RequestOrigin, head: &str) -> String {
        let text = format!("GET / HTTP/1.1\r\n{head}\r\n");
        let mut out = Vec::new();
        parse(text.as_bytes(), origin, &mut out).unwrap().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_standard_forwarded_header_is_written_if_asked_for() {
        let peer = |text: &str| text.parse::<IpAddr>().unwrap();
        for (peer, host, is_secure, expected) in [
            (peer("192.0.2.7"), "a.org", true, "for=192.0.2.7;host=a.org;proto=https"),
            (peer("192.0.2.7"), "a:8080", false, "for=192.0.2.7;host=\"a:8080\";proto=http"),
            (peer("2001:db8::7"), "a", true, "for=\"[2001:db8::7]\";host=a;proto=https"),
        ] {
            let forwarded = ForwardedFields::Standard;
            let mut origin =
                RequestOrigin { peer, request_id: 5, is_router: false, is_secure, forwarded };
            let head = format!("Host: {host}\r\nForwarded: for=1.2.3.4\r\n");
            let line = format!("Forwarded: {expected}\r\n");
            let out = written_of(&origin, &head);
            assert!(out.contains(&line) && !out.contains("1.2.3.4"), "{out}");
            origin.is_router = true;
            let out = written_of(&origin, &format!("Host: {host}\r\n{line}"));
            assert_eq!(out.matches("Forwarded: ").count(), 1, "said by the first router: {out}");
        }
        let (peer, forwarded) = (peer("127.0.0.1"), ForwardedFields::Standard);
        let origin =
            RequestOrigin { peer, request_id: 5, is_router: false, is_secure: false, forwarded };
        let out = written_of(&origin, "Host: a\r\nForwarded: for=1.2.3.4;proto=https\r\n");
        let (before, ours) = (out.find("for=1.2.3.4"), out.find("for=127.0.0.1"));
        assert!(before.is_some() && before < ours, "in the order of the way: {out}");
    }

    #[test]
    fn only_a_proxy_in_front_says_where_a_request_is_from() {
        let head = "Forwarded: for=1.2.3.4\r\nX-Forwarded-Port: 1\r\nX-Forwarded-Proto: gopher\r\n\
            X-Forwarded-Host: evil\r\nX-Real-IP: 1.2.3.4\r\nX-Forwarded-Ssl: on\r\n";
        let out = written([192, 0, 2, 7], head);
        assert!(!out.contains("1.2.3.4") && !out.contains("evil") && !out.contains("Ssl"), "{out}");
        assert!(out.contains("X-Forwarded-Proto: https\r\nX-Forwarded-Host: a\r\n"), "{out}");
        let out = written([127, 0, 0, 1], head);
        assert!(out.contains(head) && !out.contains("https"), "{out}");
    }

    #[test]
    fn header_names_that_servers_confuse_with_others_are_dropped() {
        let out = written([127, 0, 0, 1], "X_Forwarded_For: 1\r\nProxy: http://evil\r\nA: b\r\n");
        assert!(!out.contains('_') && !out.contains("evil") && out.contains("A: b\r\n"), "{out}");
    }

    #[test]
    fn only_a_plain_upgrade_to_websocket_is_passed_on() {
        for (head, passes) in [
            ("Connection: Upgrade\r\nUpgrade: websocket\r\n", true),
            ("Upgrade: websocket\r\n", false),
            ("Connection: Upgrade\r\nUpgrade: h2c\r\n", false),
            ("Connection: Upgrade\r\nUpgrade: websocket, h2c\r\n", false),
            ("Connection: Upgrade\r\nUpgrade: a\r\nUpgrade: b\r\n", false),
            ("Connection: Upgrade\r\nUpgrade: a\r\nContent-Length: 1\r\n", false),
        ] {
            assert_eq!(written([192, 0, 2, 7], head).contains("Upgrade"), passes, "{head}");
        }
    }

    #[test]
    fn forwards_are_counted_down() {
        let origin = RequestOrigin {
            peer: IpAddr::from([192, 0, 2, 7]),
            request_id: 5,
            is_router: false,
            is_secure: false,
            forwarded: ForwardedFields::Usual,
        };
        for (count, left) in [("2", Some("1")), ("0", None), ("x", Some(""))] {
            let text = format!("OPTIONS * HTTP/1.1\r\nHost: a\r\nMax-Forwards: {count}\r\n\r\n");
            let mut out = Vec::new();
            let head = parse(text.as_bytes(), &origin, &mut out).unwrap().unwrap();
            assert_eq!(head.is_for_router, left.is_none());
            let out = String::from_utf8(out).unwrap();
            let line = format!("Max-Forwards: {}\r\n", left.unwrap_or_default());
            assert_eq!(out.contains(&line), left.is_some_and(|left| !left.is_empty()), "{out}");
        }
    }
}
