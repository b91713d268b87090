//! The head of a request: what it asks for, and how it is written anew for an instance.

use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::ops::Range;

use super::body::Body;
use super::{HEADERS_MAX, content_length, ends_are_whole, is_hop_by_hop, lists, put_header};

#[derive(Clone, Debug)]
pub struct RequestHead {
    /// Bytes of the head in the buffer.
    pub length: usize,
    /// One of the known methods, else `OTHER`.
    pub method: &'static str,
    pub idempotent: bool,
    /// Path and query, as a range of the buffer.
    pub target: Range<usize>,
    pub host: Range<usize>,
    /// The client speaks HTTP/1.1, not 1.0.
    pub modern: bool,
    pub body: Body,
    pub keep_alive: bool,
    pub upgrade: bool,
    pub expects_continue: bool,
}

impl RequestHead {
    pub fn is_head(&self) -> bool {
        self.method == "HEAD"
    }
}

/// Why a request is refused: status, and one sentence for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal(pub u16, pub &'static str);

const METHODS: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"];
/// One that another system made up is passed on if it is not larger.
const REQUEST_ID_LENGTH_MAX: usize = 128;

/// Who asks, for the headers that say so.
pub struct Origin {
    pub peer: IpAddr,
    pub request_id: u64,
    /// The router of another member, which has written all of these headers.
    pub is_router: bool,
    /// Asked inside TLS.
    pub is_secure: bool,
    /// Not a byte of the head is changed.
    pub transparent: bool,
}

/// None while the head is not complete. Writes the head for an instance to `out`, except for its
/// last line.
pub fn parse(
    buffer: &[u8],
    origin: &Origin,
    out: &mut Vec<u8>,
) -> Result<Option<RequestHead>, Refusal> {
    let mut headers = [const { MaybeUninit::<httparse::Header>::uninit() }; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut []);
    let length = match request.parse_with_uninit_headers(buffer, &mut headers) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(Refusal(431, "The request has too many headers."));
        }
        Err(httparse::Error::Version) => {
            return Err(Refusal(505, "Only HTTP/1.0 and HTTP/1.1 are spoken here."));
        }
        Err(_) => return Err(Refusal(400, "The request is no valid HTTP/1.1.")),
    };
    if !ends_are_whole(&buffer[..length]) {
        return Err(Refusal(400, "A line of the request does not end with CR and LF."));
    }
    let (method, modern) = (request.method.unwrap_or(""), request.version == Some(1));
    if method == "CONNECT" {
        return Err(Refusal(405, "This is no forward proxy."));
    }
    let facts = Facts::collect(request.headers, modern)?;
    let (target, authority) = split_target(method, request.path.unwrap_or(""))?;
    let host = authority.or(facts.host.map(|host| std::str::from_utf8(host).unwrap_or("")));
    if modern && facts.host.is_none() {
        return Err(Refusal(400, "The request has no Host."));
    }
    if origin.transparent {
        out.clear();
        out.extend_from_slice(&buffer[..length - b"\r\n".len()]);
    } else {
        write(out, method, target, host.unwrap_or(""), request.headers, &facts, origin);
    }
    let within = |part: &str| {
        let start = part.as_ptr() as usize;
        let start = start.saturating_sub(buffer.as_ptr() as usize);
        if start + part.len() <= length { start..start + part.len() } else { 0..0 }
    };
    let known = METHODS.iter().find(|known| **known == method);
    Ok(Some(RequestHead {
        length,
        method: known.copied().unwrap_or("OTHER"),
        idempotent: router::retry::is_idempotent(method.as_bytes()),
        target: within(target),
        host: host.map_or(0..0, within),
        modern,
        body: facts.body,
        keep_alive: facts.keep_alive,
        upgrade: facts.upgrade.is_some(),
        expects_continue: facts.expects_continue,
    }))
}

struct Facts<'a> {
    host: Option<&'a [u8]>,
    body: Body,
    keep_alive: bool,
    upgrade: Option<&'a [u8]>,
    expects_continue: bool,
    request_id: Option<&'a [u8]>,
    /// Whether `Connection` names further headers.
    names_headers: bool,
}

impl<'a> Facts<'a> {
    fn collect(headers: &[httparse::Header<'a>], modern: bool) -> Result<Facts<'a>, Refusal> {
        let mut facts = Facts {
            host: None,
            body: Body::Empty,
            keep_alive: modern,
            upgrade: None,
            expects_continue: false,
            request_id: None,
            names_headers: false,
        };
        let (mut length, mut chunked, mut wants_upgrade) = (None, false, false);
        for header in headers {
            let value = header.value;
            match header.name.len() {
                4 if header.name.eq_ignore_ascii_case("host") => {
                    let earlier = facts.host.replace(value);
                    if earlier.is_some() {
                        return Err(Refusal(400, "The request has more than one Host."));
                    }
                }
                14 if header.name.eq_ignore_ascii_case("content-length") => {
                    let read = content_length(value)
                        .ok_or(Refusal(400, "The Content-Length is no number."))?;
                    if length.replace(read).is_some() {
                        return Err(Refusal(400, "The request has more than one Content-Length."));
                    }
                }
                17 if header.name.eq_ignore_ascii_case("transfer-encoding") => {
                    if chunked || !modern || !value.eq_ignore_ascii_case(b"chunked") {
                        return Err(Refusal(400, "The only Transfer-Encoding taken is chunked."));
                    }
                    chunked = true;
                }
                10 if header.name.eq_ignore_ascii_case("connection") => {
                    facts.names_headers = true;
                    if lists(value, "close") {
                        facts.keep_alive = false;
                    } else if !modern && lists(value, "keep-alive") {
                        facts.keep_alive = true;
                    }
                    wants_upgrade |= lists(value, "upgrade");
                }
                7 if header.name.eq_ignore_ascii_case("upgrade") => facts.upgrade = Some(value),
                6 if header.name.eq_ignore_ascii_case("expect") => {
                    facts.expects_continue = modern && value.eq_ignore_ascii_case(b"100-continue");
                }
                12 if header.name.eq_ignore_ascii_case("x-request-id") => {
                    let sound = (1..=REQUEST_ID_LENGTH_MAX).contains(&value.len())
                        && value.iter().all(u8::is_ascii_graphic);
                    facts.request_id = sound.then_some(value);
                }
                _ => {}
            }
        }
        facts.body = match (chunked, length) {
            (true, Some(_)) => {
                return Err(Refusal(400, "Content-Length and Transfer-Encoding contradict."));
            }
            (true, None) => Body::chunked(),
            (false, Some(length)) => Body::Length(length),
            (false, None) => Body::Empty,
        };
        if !wants_upgrade || !modern {
            facts.upgrade = None;
        }
        Ok(facts)
    }
}

/// Path and query; and the host where the target is a whole URI.
fn split_target<'a>(method: &str, target: &'a str) -> Result<(&'a str, Option<&'a str>), Refusal> {
    if target.starts_with('/') || (target == "*" && method == "OPTIONS") {
        return Ok((target, None));
    }
    let scheme = target.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("http://"));
    let Some(rest) = scheme.map(|_| &target[7..]) else {
        return Err(Refusal(400, "The request's target is no path."));
    };
    let path = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, target) = rest.split_at(path);
    if authority.contains('@') || target.starts_with('?') {
        return Err(Refusal(400, "The request's target is no path."));
    }
    Ok((if target.is_empty() { "/" } else { target }, Some(authority)))
}

fn write(
    out: &mut Vec<u8>,
    method: &str,
    target: &str,
    host: &str,
    headers: &[httparse::Header<'_>],
    facts: &Facts<'_>,
    origin: &Origin,
) {
    out.clear();
    for part in [method, " ", target, " HTTP/1.1\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    put_header(out, "Host", host.as_bytes());
    // What comes from this machine may be a proxy of the user's own, in front of Cortex.
    let trusted = origin.peer.is_loopback();
    let (mut proto, mut forwarded_host) = (false, false);
    for header in headers {
        let name = header.name;
        if origin.is_router && is_of_first_router(name) {
            put_header(out, name, header.value);
            continue;
        }
        if is_hop_by_hop(name) || (facts.names_headers && is_named(headers, name)) {
            continue;
        }
        match name.len() {
            4 if name.eq_ignore_ascii_case("host") => continue,
            6 if name.eq_ignore_ascii_case("expect") => continue,
            12 if name.eq_ignore_ascii_case("x-request-id") => continue,
            15 if name.eq_ignore_ascii_case("x-forwarded-for") => continue,
            17 if name.eq_ignore_ascii_case("x-forwarded-proto") => {
                let repeated = std::mem::replace(&mut proto, true);
                if !trusted || repeated {
                    continue;
                }
            }
            16 if name.eq_ignore_ascii_case("x-forwarded-host") => {
                let repeated = std::mem::replace(&mut forwarded_host, true);
                if !trusted || repeated {
                    continue;
                }
            }
            _ => {}
        }
        put_header(out, name, header.value);
    }
    if !origin.is_router {
        write_origin(
            out,
            host,
            headers,
            facts,
            origin,
            (trusted && proto, trusted && forwarded_host),
        );
    }
    if matches!(facts.body, Body::Chunked(_)) {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    if let Some(protocol) = facts.upgrade {
        put_header(out, "Upgrade", protocol);
    }
}

/// Said once, by the router that the client spoke to.
fn is_of_first_router(name: &str) -> bool {
    const NAMES: [&str; 4] =
        ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-request-id"];
    NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Who asks, and what for; `kept` are protocol and host that a trusted proxy has said already.
fn write_origin(
    out: &mut Vec<u8>,
    host: &str,
    headers: &[httparse::Header<'_>],
    facts: &Facts<'_>,
    origin: &Origin,
    kept: (bool, bool),
) {
    use std::io::Write;
    out.extend_from_slice(b"X-Forwarded-For: ");
    for header in headers.iter().filter(|one| one.name.eq_ignore_ascii_case("x-forwarded-for")) {
        out.extend_from_slice(header.value);
        out.extend_from_slice(b", ");
    }
    // Writing to memory cannot fail.
    let _ = write!(out, "{}\r\n", origin.peer);
    if !kept.0 {
        let proto: &[u8] = if origin.is_secure { b"https" } else { b"http" };
        put_header(out, "X-Forwarded-Proto", proto);
    }
    if !kept.1 {
        put_header(out, "X-Forwarded-Host", host.as_bytes());
    }
    match facts.request_id {
        Some(id) => put_header(out, "X-Request-Id", id),
        None => {
            let _ = write!(out, "X-Request-Id: {:016x}\r\n", origin.request_id);
        }
    }
}

/// Content-Length frames the body and is never dropped, whatever `Connection` says.
fn is_named(headers: &[httparse::Header<'_>], name: &str) -> bool {
    !name.eq_ignore_ascii_case("content-length")
        && headers
            .iter()
            .any(|one| one.name.eq_ignore_ascii_case("connection") && lists(one.value, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &[u8]) -> Result<Option<(RequestHead, String)>, Refusal> {
        read_from(text, false)
    }

    fn origin(is_router: bool, transparent: bool) -> Origin {
        let peer = IpAddr::from([192, 0, 2, 7]);
        Origin { peer, request_id: 5, is_router, is_secure: false, transparent }
    }

    fn read_from(text: &[u8], is_router: bool) -> Result<Option<(RequestHead, String)>, Refusal> {
        let origin = origin(is_router, false);
        let mut out = Vec::new();
        let head = parse(text, &origin, &mut out)?;
        Ok(head.map(|head| (head, String::from_utf8_lossy(&out).into_owned())))
    }

    #[test]
    fn a_request_is_written_anew() {
        let text = b"GET /a?b HTTP/1.1\r\nhost: Shop:80\r\nConnection: X-Secret, keep-alive\r\n\
            X-Secret: 1\r\nX-Forwarded-For: 10.0.0.1\r\nX-Forwarded-Proto: https\r\nA: b\r\n\r\nrest";
        let (head, out) = read(text).unwrap().unwrap();
        assert_eq!(&text[head.target.clone()], b"/a?b");
        assert_eq!(&text[head.host.clone()], b"Shop:80");
        assert_eq!(&text[head.length..], b"rest");
        assert!(head.keep_alive && head.idempotent && head.body == Body::Empty);
        assert_eq!(
            out,
            "GET /a?b HTTP/1.1\r\nHost: Shop:80\r\nA: b\r\nX-Forwarded-For: 10.0.0.1, 192.0.2.7\r\n\
             X-Forwarded-Proto: http\r\nX-Forwarded-Host: Shop:80\r\nX-Request-Id: 0000000000000005\r\n"
        );
    }

    #[test]
    fn what_a_first_router_wrote_passes_a_second_unchanged() {
        let text = b"POST /a HTTP/1.1\r\nHost: Shop:80\r\nX-Forwarded-For: 10.0.0.1, 192.0.2.7\r\n\
            X-Request-Id: abc\r\nTransfer-Encoding: chunked\r\nConnection: x-forwarded-for\r\n\r\n";
        let (_, first) = read(text).unwrap().unwrap();
        let first = format!("{first}\r\n");
        let (head, second) = read_from(first.as_bytes(), true).unwrap().unwrap();
        assert_eq!(format!("{second}\r\n"), first);
        assert_eq!(head.body, Body::chunked());
    }

    #[test]
    fn a_transparent_router_changes_nothing() {
        let text = b"POST http://a.b/x?y HTTP/1.1\r\nhOST:c\r\nConnection: close, x\r\nX:  1\r\n\
            Expect: 100-continue\r\nTransfer-Encoding: chunked\r\nX-Forwarded-For: me\r\n\r\n";
        let origin = origin(false, true);
        let mut out = b"of the last request".to_vec();
        let head = parse(text, &origin, &mut out).unwrap().unwrap();
        assert_eq!([&out[..], b"\r\n"].concat(), text);
        assert_eq!((head.body, head.keep_alive), (Body::chunked(), false));
        let bad = b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\n";
        assert_eq!(parse(bad, &origin, &mut out).unwrap_err().0, 400);
    }

    #[test]
    fn a_whole_uri_is_split() {
        let text = b"GET http://a.b/x HTTP/1.1\r\nHost: c\r\n\r\n";
        let (head, out) = read(text).unwrap().unwrap();
        assert_eq!((&text[head.host], &text[head.target]), (&b"a.b"[..], &b"/x"[..]));
        assert!(out.starts_with("GET /x HTTP/1.1\r\nHost: a.b\r\n"));
    }

    #[test]
    fn what_two_servers_may_read_differently_is_refused() {
        for bad in [
            "Content-Length: 1\r\nContent-Length: 1\r\n",
            "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
            "Content-Length: +1\r\n",
            "Content-Length: 1, 1\r\n",
            "Content-Length: \r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: xchunked\r\n",
            "Transfer-Encoding : chunked\r\n",
            "A: b\n",
            "A: b\rc\r\n",
            "A: b\r\n folded\r\n",
            "Host: b\r\n",
        ] {
            let text = format!("POST / HTTP/1.1\r\nHost: a\r\n{bad}\r\n");
            assert_eq!(read(text.as_bytes()).unwrap_err().0, 400, "{bad:?}");
        }
        for bad in [
            "GET / HTTP/1.1\r\n\r\n",
            "GET x HTTP/1.1\r\nHost: a\r\n\r\n",
            "\n\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        ] {
            assert_eq!(read(bad.as_bytes()).unwrap_err().0, 400, "{bad:?}");
        }
        assert_eq!(
            read(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap_err().0,
            400
        );
        assert_eq!(read(b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n").unwrap_err().0, 405);
        let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "A: b\r\n".repeat(HEADERS_MAX));
        assert_eq!(read(many.as_bytes()).unwrap_err().0, 431);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            read(&bytes).ok();
            let mut text = b"POST / HTTP/1.1\r\nHost: a\r\n".to_vec();
            text.extend(&bytes);
            text.extend(b"\r\n\r\n");
            if let Ok(Some((head, _))) = read(&text) {
                prop_assert!(head.length <= text.len() && head.target.end <= head.length);
            }
        }
    }
}
