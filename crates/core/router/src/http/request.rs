//! The head of a request: what it asks for, and whether it can be read in one way only. `write` has
//! how it is written anew for an instance.

mod write;

pub(super) use self::write::{is_for_proxies, is_pretence};

use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;

use super::body::Body;
use super::syntax::{content_length, ends_are_whole, is_host, is_target};
use super::{HEADERS_ADDED_MAX, HEADERS_MAX, lists, may_name};

#[derive(Clone, Debug)]
pub struct RequestHead {
    /// The bytes of the head in the buffer.
    pub length: usize,
    /// One of the known methods, else `OTHER`.
    pub method: &'static str,
    pub idempotent: bool,
    /// Path and query, as a range of the buffer.
    pub target: Range<usize>,
    pub host: Range<usize>,
    /// Whether the client speaks HTTP/1.1, not 1.0.
    pub modern: bool,
    pub body: Body,
    pub keep_alive: bool,
    pub upgrade: bool,
    pub expects_continue: bool,
    /// Whether it names parts or versions of what it wants.
    pub has_conditions: bool,
    /// Whether it asks the router that reads it, and was not to go any further.
    pub is_for_router: bool,
}

impl RequestHead {
    pub fn is_head(&self) -> bool {
        self.method == "HEAD"
    }

    /// Returns whether it has a body that means nothing: a server that overlooks it takes it for
    /// the next request.
    pub fn has_odd_body(&self) -> bool {
        self.body != Body::Empty && matches!(self.method, "GET" | "HEAD" | "DELETE" | "OPTIONS")
    }
}

/// The reason why a request is refused: status, and one sentence for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal(pub u16, pub &'static str);

const HEADERS_READ_MAX: usize = HEADERS_MAX + HEADERS_ADDED_MAX;
const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"];
/// Bytes of a request id that another system made up and that is passed on.
const REQUEST_ID_LENGTH_MAX: usize = 128;

/// The sender of a request, for the headers that name it.
pub struct RequestOrigin {
    pub peer: IpAddr,
    pub request_id: u64,
    /// Whether it is the router of another member, which has written all of these headers.
    pub is_router: bool,
    /// Whether it asked inside TLS.
    pub is_secure: bool,
    pub forwarded: ForwardedFields,
}

/// The fields that tell an instance of the sender, beyond what the client said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardedFields {
    /// Not a byte of the head is changed.
    Nothing,
    /// `X-Forwarded-For`, `-Proto`, `-Host` and `X-Request-Id`.
    Usual,
    /// `Forwarded`, too (RFC 7239).
    Standard,
}

/// Parses a head; `None` while it is not complete. Writes the head for an instance to `out`, except
/// for its last line.
pub fn parse(
    buffer: &[u8],
    origin: &RequestOrigin,
    out: &mut Vec<u8>,
) -> Result<Option<RequestHead>, Refusal> {
    let mut headers = [const { MaybeUninit::uninit() }; HEADERS_READ_MAX];
    let Some(read) = Read::of(buffer, origin, &mut headers)? else { return Ok(None) };
    let spent = if origin.forwarded == ForwardedFields::Nothing {
        out.clear();
        out.extend_from_slice(&buffer[..read.length - b"\r\n".len()]);
        false
    } else {
        read.line.write(read.headers, &read.facts, origin, out)
    };
    Ok(Some(read.head(buffer, spent)))
}

/// Parses a client's head that goes to no instance, and is therefore not written. Returns `None`
/// also if it is refused: to be parsed again by the code that says why.
pub fn look(buffer: &[u8]) -> Option<RequestHead> {
    const NOBODY: RequestOrigin = RequestOrigin {
        peer: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        request_id: 0,
        is_router: false,
        is_secure: false,
        forwarded: ForwardedFields::Nothing,
    };
    let mut headers = [const { MaybeUninit::uninit() }; HEADERS_READ_MAX];
    let read = Read::of(buffer, &NOBODY, &mut headers).ok()??;
    Some(read.head(buffer, false))
}

/// A whole head that can be read in one way only.
struct Read<'h, 'b> {
    length: usize,
    modern: bool,
    headers: &'h [httparse::Header<'b>],
    facts: Facts<'b>,
    line: write::RequestLine<'b>,
    host: Option<&'b str>,
}

impl<'h, 'b> Read<'h, 'b> {
    fn of(
        buffer: &'b [u8],
        origin: &RequestOrigin,
        headers: &'h mut [MaybeUninit<httparse::Header<'b>>],
    ) -> Result<Option<Read<'h, 'b>>, Refusal> {
        let mut request = httparse::Request::new(&mut []);
        let length = match request.parse_with_uninit_headers(buffer, headers) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) if ends_are_whole(buffer) => return Ok(None),
            Ok(httparse::Status::Partial) => return Err(BARE_LF),
            Err(error) => return Err(refusal(error, buffer)),
        };
        if !ends_are_whole(&buffer[..length]) {
            return Err(BARE_LF);
        }
        if !origin.is_router && request.headers.len() > HEADERS_MAX {
            return Err(TOO_MANY);
        }
        let (method, modern) = (request.method.unwrap_or(""), request.version == Some(1));
        match method {
            "CONNECT" => return Err(Refusal(405, "This is no forward proxy.")),
            // The answer would hold what the client does not know: cookies, and what is added here.
            "TRACE" => return Err(Refusal(405, "Requests are not traced here.")),
            _ => {}
        }
        let (path, headers) = (request.path.unwrap_or(""), &*request.headers);
        let facts = Facts::collect(headers, modern)?;
        let (target, authority) = split_target(method, path, origin)?;
        if modern && facts.host.is_none() {
            return Err(Refusal(400, "The request has no Host."));
        }
        // Another router may know no host of a client of HTTP/1.0.
        let is_sound = |host: &[u8]| is_host(host) || (origin.is_router && host.is_empty());
        if facts.host.is_some_and(|host| !is_sound(host)) {
            return Err(Refusal(400, "The Host of the request is no name."));
        }
        let host = authority.or(facts.host.map(|host| std::str::from_utf8(host).unwrap_or("")));
        let line = write::RequestLine { method, target, host: host.unwrap_or("") };
        Ok(Some(Read { length, modern, headers, facts, line, host }))
    }

    fn head(&self, buffer: &[u8], spent: bool) -> RequestHead {
        let Read { length, modern, ref facts, ref line, host, .. } = *self;
        let within = |part: &str| {
            // What was not there, such as `*`, is no part of it.
            let start = (part.as_ptr() as usize).checked_sub(buffer.as_ptr() as usize);
            let end = start.map(|start| start + part.len()).filter(|end| *end <= length);
            start.zip(end).map_or(0..0, |(start, end)| start..end)
        };
        let known = METHODS.iter().find(|known| **known == line.method);
        RequestHead {
            length,
            method: known.copied().unwrap_or("OTHER"),
            idempotent: crate::retry::is_idempotent(line.method.as_bytes()),
            target: within(line.target),
            host: host.map_or(0..0, within),
            modern,
            body: facts.body,
            keep_alive: facts.keep_alive,
            upgrade: facts.upgrade.is_some(),
            expects_continue: facts.expects_continue,
            has_conditions: facts.has_conditions,
            is_for_router: spent,
        }
    }
}

const TOO_MANY: Refusal = Refusal(431, "The request has too many headers.");
const BARE_LF: Refusal = Refusal(400, "A line of the request does not end with CR and LF.");

fn refusal(error: httparse::Error, buffer: &[u8]) -> Refusal {
    match error {
        httparse::Error::TooManyHeaders => TOO_MANY,
        httparse::Error::Version if names_version(buffer) => {
            Refusal(505, "Only HTTP/1.0 and HTTP/1.1 are spoken here.")
        }
        _ => Refusal(400, "The request is no valid HTTP/1.1."),
    }
}

/// Returns whether the first line has a method, a target and what would be a version of HTTP.
fn names_version(buffer: &[u8]) -> bool {
    let mut lines = buffer.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end);
    let line = lines.find(|line| !line.is_empty()).unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let (_, _) = (words.next(), words.next());
    let version = words.next().filter(|_| words.next().is_none()).unwrap_or_default();
    matches!(version, [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
        if major.is_ascii_digit() && minor.is_ascii_digit())
}

struct Facts<'a> {
    host: Option<&'a [u8]>,
    body: Body,
    keep_alive: bool,
    upgrade: Option<&'a [u8]>,
    expects_continue: bool,
    has_conditions: bool,
    max_forwards: Option<&'a [u8]>,
    request_id: Option<&'a [u8]>,
    /// Whether `Connection` names further headers.
    names_headers: bool,
}

/// Returns whether a header decides which form or part of a file a client gets, or whether it gets
/// one.
fn is_condition(name: &str) -> bool {
    name.get(..3).is_some_and(|start| start.eq_ignore_ascii_case("if-"))
        || name.eq_ignore_ascii_case("range")
}

impl<'a> Facts<'a> {
    fn collect(headers: &[httparse::Header<'a>], modern: bool) -> Result<Facts<'a>, Refusal> {
        let mut facts = Facts {
            host: None,
            body: Body::Empty,
            keep_alive: modern,
            upgrade: None,
            expects_continue: false,
            has_conditions: false,
            max_forwards: None,
            request_id: None,
            names_headers: false,
        };
        let (mut length, mut chunked) = (None, false);
        let (mut wants_upgrade, mut upgrades) = (false, 0);
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
                    facts.names_headers |= may_name(value);
                    if lists(value, "close") {
                        facts.keep_alive = false;
                    } else if !modern && lists(value, "keep-alive") {
                        facts.keep_alive = true;
                    }
                    wants_upgrade |= lists(value, "upgrade");
                }
                7 if header.name.eq_ignore_ascii_case("upgrade") => {
                    facts.upgrade = Some(value);
                    upgrades += 1;
                }
                6 if header.name.eq_ignore_ascii_case("expect") && modern => {
                    if !value.eq_ignore_ascii_case(b"100-continue") {
                        return Err(Refusal(417, "Nothing but 100-continue can be expected."));
                    }
                    facts.expects_continue = true;
                }
                12 if header.name.eq_ignore_ascii_case("max-forwards") => {
                    facts.max_forwards = Some(value);
                }
                12 if header.name.eq_ignore_ascii_case("x-request-id") => {
                    let sound = (1..=REQUEST_ID_LENGTH_MAX).contains(&value.len())
                        && value.iter().all(u8::is_ascii_graphic);
                    facts.request_id = sound.then_some(value);
                }
                _ => facts.has_conditions |= is_condition(header.name),
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
        // Behind a body another protocol could begin too early; and in h2c requests would pass that
        // nobody has looked at. RFC 9110, section 7.8: a server may ignore the field.
        let sound = |value: &&[u8]| upgrades == 1 && !lists(value, "h2c");
        let may = wants_upgrade && modern && facts.body == Body::Empty;
        facts.upgrade = facts.upgrade.filter(|value| may && sound(value));
        Ok(facts)
    }
}

/// Returns path and query; and the host if the target is a whole URI.
fn split_target<'a>(
    method: &str,
    target: &'a str,
    origin: &RequestOrigin,
) -> Result<(&'a str, Option<&'a str>), Refusal> {
    const NO_PATH: Refusal = Refusal(400, "The request's target is no path.");
    if !is_target(target) {
        return Err(NO_PATH);
    }
    if target.starts_with('/') || (target == "*" && method == "OPTIONS") {
        return Ok((target, None));
    }
    let scheme = if origin.is_secure { "https://" } else { "http://" };
    let is_scheme = |start: &&str| start.eq_ignore_ascii_case(scheme);
    let start = target.get(..scheme.len()).filter(is_scheme).ok_or(NO_PATH)?;
    let rest = &target[start.len()..];
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    if !is_host(authority.as_bytes()) || path.starts_with('?') {
        return Err(NO_PATH);
    }
    let path = match path {
        "" if method == "OPTIONS" => "*",
        // This slash is a part of the target, as any path is.
        "" => &start[start.len() - 1..],
        path => path,
    };
    Ok((path, Some(authority)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &[u8]) -> Result<Option<(RequestHead, String)>, Refusal> {
        read_from(text, false)
    }

    fn origin(is_router: bool, forwarded: ForwardedFields) -> RequestOrigin {
        let peer = IpAddr::from([192, 0, 2, 7]);
        RequestOrigin { peer, request_id: 5, is_router, is_secure: false, forwarded }
    }

    fn read_from(text: &[u8], is_router: bool) -> Result<Option<(RequestHead, String)>, Refusal> {
        let origin = origin(is_router, ForwardedFields::Usual);
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
        let many = "A: b\r\n".repeat(HEADERS_MAX - 1);
        let (_, first) =
            read(format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n").as_bytes()).unwrap().unwrap();
        assert!(read_from(format!("{first}\r\n").as_bytes(), true).unwrap().is_some());
    }

    #[test]
    fn a_transparent_router_changes_nothing() {
        let text = b"POST http://a.b/x?y HTTP/1.1\r\nhOST:c\r\nConnection: close, x\r\nX:  1\r\n\
            Expect: 100-continue\r\nTransfer-Encoding: chunked\r\nX-Forwarded-For: me\r\n\r\n";
        let origin = origin(false, ForwardedFields::Nothing);
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
