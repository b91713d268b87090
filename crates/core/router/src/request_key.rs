//! The key that tells one client from another, or one session from the next, in a request: read
//! from its head, as an instance gets it, and from the client's address. Driven by the router's
//! threads, only for strategies and queues that want it.

use std::net::IpAddr;

use model::application::{PREFIX_V4_MAX, PREFIX_V6_MAX, RequestKey};

use model::hash;

/// Returns the key; `None` if the request has no such header or cookie.
pub fn of(kind: &RequestKey, head: &[u8], client: IpAddr) -> Option<u64> {
    match kind {
        RequestKey::Address => Some(of_address(client)),
        RequestKey::Prefix { v4, v6 } => Some(of_prefix(client, *v4, *v6)),
        RequestKey::Header(name) => header(head, name).map(hash::bytes),
        RequestKey::Cookie(name) => cookie(head, name).map(hash::bytes),
    }
}

/// Returns the key of a cookie's or header's value.
pub fn of_value(value: &[u8]) -> u64 {
    hash::bytes(value)
}

/// Returns whether an answer with this head gives the client that cookie.
pub fn sets_cookie(head: &[u8], name: &str) -> bool {
    headers(head, "set-cookie").any(|value| {
        value.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.trim_ascii().starts_with(b"="))
    })
}

/// Returns exactly one key for each address; of IPv6, for each /64: a subscriber has as many
/// addresses as he likes there.
pub fn of_address(address: IpAddr) -> u64 {
    of_prefix(address, PREFIX_V4_MAX, PREFIX_V6_MAX)
}

/// Returns the key of an address's first bits: one for all addresses that begin with the same.
fn of_prefix(address: IpAddr, v4: u8, v6: u8) -> u64 {
    /// No IPv6 address that is in use begins with so many zeroes.
    const V4: u64 = 1 << 32;
    match address.to_canonical() {
        IpAddr::V4(address) => {
            let rest = u32::MAX.checked_shr(v4.into()).unwrap_or(0);
            V4 | u64::from(u32::from(address) & !rest)
        }
        IpAddr::V6(address) => {
            let rest = u64::MAX.checked_shr(v6.into()).unwrap_or(0);
            u64::try_from(u128::from(address) >> 64).unwrap_or(0) & !rest
        }
    }
}

/// Returns who asked first: the connection's other end, or what is in `X-Forwarded-For` if that is
/// another router of ours (`through_router`) or a proxy on this machine. The head's last address is
/// the other end's own, but for other routers, which wrote the header themselves.
pub fn client(head: &[u8], peer: IpAddr, through_router: bool) -> IpAddr {
    if !through_router && !peer.is_loopback() {
        return peer;
    }
    let Some(value) = header(head, "x-forwarded-for") else { return peer };
    let mut addresses = value.rsplit(|byte| *byte == b',');
    if !through_router {
        addresses.next();
    }
    let told = addresses.next().and_then(|text| std::str::from_utf8(text).ok());
    told.and_then(|text| text.trim().parse().ok()).unwrap_or(peer)
}

/// Returns the value of the first header with this name, without white space around it.
pub fn header<'a>(head: &'a [u8], name: &str) -> Option<&'a [u8]> {
    headers(head, name).next()
}

fn headers<'a>(head: &'a [u8], name: &str) -> impl Iterator<Item = &'a [u8]> {
    let lines = head.split(|byte| *byte == b'\n').skip(1);
    // What follows an empty line is no head.
    let lines = lines.take_while(|line| !line.trim_ascii().is_empty());
    lines.filter_map(move |line| {
        let (field, rest) = line.split_at_checked(name.len())?;
        let value = rest.strip_prefix(b":")?;
        field.eq_ignore_ascii_case(name.as_bytes()).then(|| value.trim_ascii())
    })
}

/// Returns the value of a cookie, as RFC 6265, section 5.4 sends it.
fn cookie<'a>(head: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let pairs = headers(head, "cookie").flat_map(|value| value.split(|byte| *byte == b';'));
    let mut values = pairs.filter_map(|pair| {
        let value = pair.trim_ascii().strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        (!value.is_empty()).then_some(value)
    });
    values.next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEAD: &[u8] = b"GET /x?session=no HTTP/1.1\r\nHost: shop\r\nCookie: a=1; session=abc; b=2\r\n\
        X-API-Key:  k1 \r\ncookie: late=yes\r\nX-Forwarded-For: 192.0.2.1, 192.0.2.2, 127.0.0.1\r\n";

    fn key(kind: &str) -> Option<u64> {
        of(&kind.parse().unwrap(), HEAD, IpAddr::from([10, 0, 0, 1]))
    }

    #[test]
    fn headers_and_cookies_are_found_by_name() {
        assert_eq!(key("header:x-api-key"), Some(hash::bytes(b"k1")));
        assert_eq!(key("cookie:session"), Some(hash::bytes(b"abc")));
        assert_eq!(key("cookie:late"), Some(hash::bytes(b"yes")));
        for absent in ["header:session", "cookie:sess", "cookie:c", "header:cook"] {
            assert_eq!(key(absent), None, "{absent}");
        }
    }

    #[test]
    fn cookies_that_an_answer_sets_are_found_by_name() {
        let head = b"HTTP/1.1 200 OK\r\nSet-Cookie: id=1; Path=/\r\nset-cookie:b =2\r\n\r\nSet-Cookie: c=3";
        for (name, found) in [("id", true), ("b", true), ("i", false), ("c", false), ("1", false)] {
            assert_eq!(sets_cookie(head, name), found, "{name}");
        }
    }

    #[test]
    fn addresses_are_told_apart_by_subscriber() {
        let of = |text: &str| of_address(text.parse().unwrap());
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(key("address"), Some(of("10.0.0.1")));
    }

    #[test]
    fn addresses_are_told_apart_by_a_prefix_of_choice() {
        let of = |kind: &str, text: &str| {
            of(&kind.parse().unwrap(), HEAD, text.parse().unwrap()).unwrap()
        };
        let same = |kind: &str, one: &str, other: &str| of(kind, one) == of(kind, other);
        assert!(same("address/24", "192.0.2.1", "192.0.2.255"));
        assert!(same("address/24", "192.0.2.1", "::ffff:192.0.2.9"));
        assert!(!same("address/24", "192.0.2.1", "192.0.3.1"));
        assert!(!same("address/25", "192.0.2.1", "192.0.2.129"));
        assert!(!same("address/24", "2001:db8::1", "2001:db8:0:1::1"));
        assert!(same("address/32/56", "2001:db8::1", "2001:db8:0:ff::1"));
        assert!(!same("address/32/56", "2001:db8::1", "2001:db8:0:100::1"));
        assert!(!same("address/32/56", "192.0.2.1", "192.0.2.2"));
        assert!(same("address/1/1", "1.2.3.4", "127.0.0.1"));
        assert!(!same("address/1/1", "1.2.3.4", "128.0.0.1"));
        assert_eq!(of("address/32/64", "192.0.2.1"), of_address("192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn prefixes_are_written_in_one_form() {
        for (text, written) in [
            ("address/24", "address/24"),
            ("address/24/64", "address/24"),
            ("address/32/56", "address/32/56"),
            ("address/32", "address"),
        ] {
            let key: RequestKey = text.parse().unwrap();
            assert_eq!(key.to_string(), written);
            assert_eq!(written.parse(), Ok(key));
        }
        let bad =
            ["", "0", "33", "+24", "024", "24/", "24/0", "24/65", "/56", "24/56/1", "x", "999"];
        for bits in bad {
            let error = format!("address/{bits}").parse::<RequestKey>().unwrap_err().to_string();
            assert!(error.contains("'address/24' (bits of IPv4, 1 to 32)"), "{bits}: {error}");
        }
    }

    #[test]
    fn forwarded_addresses_count_only_from_known_proxies() {
        let (near, far) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([198, 51, 100, 7]));
        assert_eq!(client(HEAD, far, false), far, "anybody may write such a header");
        assert_eq!(client(HEAD, near, false), IpAddr::from([192, 0, 2, 2]));
        let head = b"GET / HTTP/1.1\r\nX-Forwarded-For: 192.0.2.1, 192.0.2.2\r\n";
        assert_eq!(client(head, far, true), IpAddr::from([192, 0, 2, 2]));
        assert_eq!(client(b"GET / HTTP/1.1\r\nX-Forwarded-For: 127.0.0.1\r\n", near, false), near);
        assert_eq!(client(b"GET / HTTP/1.1\r\n", near, true), near);
    }

    #[test]
    fn headers_in_a_body_are_ignored() {
        let head = b"POST / HTTP/1.1\r\nA: 1\r\n\r\nX-User: me\r\n";
        assert_eq!(header(head, "x-user"), None);
        assert_eq!(header(head, "a"), Some(&b"1"[..]));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(head in proptest::collection::vec(any::<u8>(), 0..300)) {
            for kind in ["address", "address/20/48", "header:a", "cookie:a"] {
                of(&kind.parse().unwrap(), &head, IpAddr::from([127, 0, 0, 1]));
            }
            client(&head, IpAddr::from([127, 0, 0, 1]), true);
        }
    }
}
