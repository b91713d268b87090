//! The head of a client's request, from the fields of HTTP/2 to the text of HTTP/1.1 (RFC 9113,
//! sections 8.2 and 8.3).

use super::hpack::decode::Fields;
use super::is_of_connection;
use crate::http::syntax::{Class, content_length};

/// The reason why a request goes nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestRefused {
    /// The request is against the rules of HTTP/2.
    Malformed,
    Status(u16),
}

/// The form of a request whose head was written as HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestForm {
    /// Whether its body is of unknown length, and comes in chunks.
    pub chunked: bool,
    pub is_head: bool,
    /// Whether it asks for a WebSocket: bytes both ways once that is granted.
    pub is_tunnel: bool,
    /// The length of its body, as the client says.
    pub length: Option<u64>,
}

/// The characters of names: only small letters, as a capital one is an error.
const IN_NAMES: Class = Class::of(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz");
const IN_METHODS: Class = Class::alphanumeric_and(b"!#$%&'*+-.^_`|~");

#[derive(Default)]
struct Pseudo<'a> {
    method: Option<&'a [u8]>,
    scheme: Option<&'a [u8]>,
    authority: Option<&'a [u8]>,
    path: Option<&'a [u8]>,
    protocol: Option<&'a [u8]>,
}

/// Writes the head to `out`. `ended` says that no body follows; `key` gives one unlike any other.
pub fn write(
    fields: &Fields,
    ended: bool,
    key: impl FnOnce() -> [u8; 16],
    out: &mut Vec<u8>,
) -> Result<RequestForm, RequestRefused> {
    let (pseudo, rest) = Pseudo::read(fields)?;
    let method = pseudo.method.ok_or(RequestRefused::Malformed)?;
    let is_tunnel = pseudo.protocol.is_some();
    let target = pseudo.target(method)?;
    let regular = Regular::read(fields, rest)?;
    if let (Some(authority), Some(host)) = (pseudo.authority, regular.host)
        && !authority.eq_ignore_ascii_case(host)
    {
        return Err(RequestRefused::Malformed);
    }
    if ended && !matches!(regular.length, None | Some(0)) {
        return Err(RequestRefused::Malformed);
    }
    if pseudo.protocol.is_some_and(|protocol| !protocol.eq_ignore_ascii_case(b"websocket")) {
        return Err(RequestRefused::Status(501));
    }
    put(out, &[if is_tunnel { b"GET" } else { method }, b" ", target, b" HTTP/1.1\r\n"]);
    // A request that names no host is refused for that by whatever reads this.
    if let Some(host) = pseudo.authority.or(regular.host) {
        put(out, &[b"Host: ", host, b"\r\n"]);
    }
    let mut has_cookies = false;
    for (name, value) in fields.iter().skip(rest) {
        match name {
            b"cookie" => has_cookies = true,
            b"host" | b"content-length" | b"te" => {}
            _ => put(out, &[name, b": ", value, b"\r\n"]),
        }
    }
    if has_cookies {
        put_cookies(fields, out);
    }
    let length = regular.length.filter(|_| !is_tunnel);
    let chunked = !ended && !is_tunnel && length.is_none();
    if let Some(length) = length {
        put(out, &[b"Content-Length: ", length.to_string().as_bytes(), b"\r\n"]);
    }
    if chunked {
        put(out, &[b"Transfer-Encoding: chunked\r\n"]);
    }
    if is_tunnel {
        let key = base64(&key());
        put(out, &[b"Connection: Upgrade\r\nUpgrade: websocket\r\n"]);
        put(out, &[b"Sec-WebSocket-Key: ", key.as_bytes(), b"\r\n"]);
    }
    put(out, &[b"\r\n"]);
    Ok(RequestForm { chunked, is_head: method == b"HEAD", is_tunnel, length })
}

/// Writes trailers behind the last chunk of a body.
pub fn write_trailers(fields: &Fields, out: &mut Vec<u8>) -> Result<(), RequestRefused> {
    put(out, &[b"0\r\n"]);
    for (name, value) in fields.iter() {
        if !(is_name(name) && is_value(value)) {
            return Err(RequestRefused::Malformed);
        }
        // The name is text already.
        if !std::str::from_utf8(name).is_ok_and(is_of_connection) {
            put(out, &[name, b": ", value, b"\r\n"]);
        }
    }
    put(out, &[b"\r\n"]);
    Ok(())
}

impl<'a> Pseudo<'a> {
    /// Reads the pseudo-header fields, which come first, and returns how many there were.
    fn read(fields: &'a Fields) -> Result<(Pseudo<'a>, usize), RequestRefused> {
        let (mut pseudo, mut count) = (Pseudo::default(), 0);
        for (name, value) in fields.iter().take_while(|(name, _)| name.first() == Some(&b':')) {
            let place = match name {
                b":method" => &mut pseudo.method,
                b":scheme" => &mut pseudo.scheme,
                b":authority" => &mut pseudo.authority,
                b":path" => &mut pseudo.path,
                b":protocol" => &mut pseudo.protocol,
                _ => return Err(RequestRefused::Malformed),
            };
            // Neither spaces nor ends of lines are allowed: all of them are in one line there.
            let is_sound = value.iter().all(|byte| *byte > b' ' && *byte != 0x7f);
            if place.replace(value).is_some() || !is_sound {
                return Err(RequestRefused::Malformed);
            }
            count += 1;
        }
        Ok((pseudo, count))
    }

    fn target(&self, method: &[u8]) -> Result<&'a [u8], RequestRefused> {
        if method.is_empty() || !IN_METHODS.has_all(method) {
            return Err(RequestRefused::Malformed);
        }
        if method == b"CONNECT" && self.protocol.is_none() {
            return match (self.authority, self.scheme, self.path) {
                (Some(authority), None, None) => Ok(authority),
                _ => Err(RequestRefused::Malformed),
            };
        }
        let is_whole = self.scheme.is_some_and(|scheme| !scheme.is_empty())
            && (self.protocol.is_none() || (method == b"CONNECT" && self.authority.is_some()));
        let is_path = |path: &&[u8]| path.first() == Some(&b'/') || *path == b"*";
        self.path.filter(is_path).filter(|_| is_whole).ok_or(RequestRefused::Malformed)
    }
}

#[derive(Default)]
struct Regular<'a> {
    host: Option<&'a [u8]>,
    length: Option<u64>,
}

impl<'a> Regular<'a> {
    /// Reads the fields behind the first `skip`, each of which must be a regular one.
    fn read(fields: &'a Fields, skip: usize) -> Result<Regular<'a>, RequestRefused> {
        let mut regular = Regular::default();
        for (name, value) in fields.iter().skip(skip) {
            let is_allowed = is_name(name)
                && is_value(value)
                && match name {
                    b"host" => regular.host.replace(value).is_none(),
                    b"content-length" => {
                        let length = content_length(value);
                        length.is_some() && std::mem::replace(&mut regular.length, length).is_none()
                    }
                    b"te" => value.eq_ignore_ascii_case(b"trailers"),
                    b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding"
                    | b"upgrade" => false,
                    _ => true,
                };
            if !is_allowed {
                return Err(RequestRefused::Malformed);
            }
        }
        Ok(regular)
    }
}

fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && IN_NAMES.has_all(name)
}

/// Returns whether the value has no end of a line, and no space at either end.
fn is_value(value: &[u8]) -> bool {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let control = value
        .iter()
        .fold(false, |found, byte| found | ((*byte < b' ') & (*byte != b'\t')) | (*byte == 0x7f));
    !control && !is_space(value.first()) && !is_space(value.last())
}

/// Writes the cookies, which may come in crumbs, and are one header (RFC 9113, section 8.2.3).
fn put_cookies(fields: &Fields, out: &mut Vec<u8>) {
    let crumbs = fields.iter().filter(|(name, _)| *name == b"cookie");
    for (number, (_, crumb)) in crumbs.enumerate() {
        put(out, &[if number == 0 { b"Cookie: " } else { b"; " }, crumb]);
    }
    put(out, &[b"\r\n"]);
}

fn put(out: &mut Vec<u8>, parts: &[&[u8]]) {
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

fn base64(bytes: &[u8; 16]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(24);
    for group in bytes.chunks(3) {
        let mut bits = 0;
        for at in 0..3 {
            bits = (bits << 8) | usize::from(group.get(at).copied().unwrap_or(0));
        }
        for at in 0..4 {
            let digit = char::from(DIGITS[(bits >> (18 - 6 * at)) & 63]);
            text.push(if at <= group.len() { digit } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::hpack::decode::Decoder;
    use super::super::hpack::encode::Encoder;
    use super::*;

    const GET: [(&str, &str); 4] =
        [(":method", "GET"), (":scheme", "https"), (":authority", "a.example"), (":path", "/")];

    fn fields(list: &[(&str, &str)]) -> Fields {
        let mut block = Vec::new();
        for (name, value) in list {
            // Names that may not be there are written as they are.
            block.extend([0, name.len() as u8]);
            block.extend_from_slice(name.as_bytes());
            let mut rest = Vec::new();
            Encoder::default().put(&mut rest, b"x", value.as_bytes());
            block.extend_from_slice(&rest[3..]);
        }
        let mut fields = Fields::default();
        fields.begin(10_000);
        Decoder::default().decode(&block, &mut fields).unwrap();
        fields
    }

    fn read(list: &[(&str, &str)], ended: bool) -> Result<(RequestForm, String), RequestRefused> {
        let mut out = Vec::new();
        let asked = write(&fields(list), ended, || *b"the sample nonce", &mut out)?;
        Ok((asked, String::from_utf8(out).unwrap()))
    }

    fn with(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
        GET.iter().chain(more).copied().collect()
    }

    #[test]
    fn a_request_is_written_with_its_cookies_joined() {
        let (asked, text) = read(
            &[
                (":path", "/a?b=c"),
                (":scheme", "https"),
                (":method", "POST"),
                (":authority", "shop.example:8443"),
                ("cookie", "a=1"),
                ("x", "1"),
                ("cookie", "b=2"),
                ("te", "trailers"),
            ],
            false,
        )
        .unwrap();
        assert_eq!(
            text,
            "POST /a?b=c HTTP/1.1\r\nHost: shop.example:8443\r\nx: 1\r\nCookie: a=1; b=2\r\n\
             Transfer-Encoding: chunked\r\n\r\n"
        );
        assert!(asked.chunked && !asked.is_head && !asked.is_tunnel && asked.length.is_none());
        let (fixed, text) = read(&with(&[("content-length", "3")]), false).unwrap();
        assert!(!fixed.chunked && text.ends_with("\r\nContent-Length: 3\r\n\r\n"));
        assert_eq!(fixed.length, Some(3));
        assert!(read(&with(&[("host", "A.example")]), true).is_ok());
        let nobody = [(":method", "GET"), (":scheme", "http"), (":path", "/")];
        assert_eq!(read(&nobody, true).unwrap().1, "GET / HTTP/1.1\r\n\r\n");
        let connect = [(":method", "CONNECT"), (":authority", "a.example:443")];
        assert!(read(&connect, false).unwrap().1.starts_with("CONNECT a.example:443 HTTP/1.1\r\n"));
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let without =
            |name: &str| GET.iter().filter(|(one, _)| *one != name).copied().collect::<Vec<_>>();
        let mut bad = vec![without(":method"), without(":scheme"), without(":path")];
        for (name, value) in [
            ("X", "capital"),
            ("a b", ""),
            ("", "nameless"),
            ("a:", ""),
            ("x", "a\r\nb: c"),
            ("x", "\0"),
            ("x", " a"),
            ("x", "a\t"),
            (":path", "/twice"),
            (":late", ""),
            (":status", "200"),
            ("connection", "close"),
            ("keep-alive", "1"),
            ("proxy-connection", "x"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("te", "gzip"),
            ("host", "b.example"),
            ("content-length", "3"),
            ("content-length", "+0"),
            ("content-length", ""),
        ] {
            bad.push(with(&[(name, value)]));
        }
        bad.push(with(&[("content-length", "0"), ("content-length", "0")]));
        bad.push(with(&[("host", "a.example"), ("host", "a.example")]));
        bad.push(with(&[("x", ""), (":protocol", "websocket")]));
        for (name, value) in [
            (":path", ""),
            (":path", "a"),
            (":path", "/ b"),
            (":path", "/\r\nx: y"),
            (":method", "G ET"),
            (":method", ""),
            (":method", "CONNECT"),
            (":scheme", ""),
            (":authority", "a b"),
        ] {
            let mut list = without(name);
            list.push((name, value));
            bad.push(list);
        }
        for list in bad {
            assert_eq!(read(&list, true).unwrap_err(), RequestRefused::Malformed, "{list:?}");
        }
    }

    #[test]
    fn a_websocket_becomes_an_upgrade() {
        let asking = |protocol| {
            [
                (":method", "CONNECT"),
                (":scheme", "https"),
                (":authority", "a.example"),
                (":path", "/chat"),
                (":protocol", protocol),
                ("sec-websocket-version", "13"),
            ]
        };
        let (asked, text) = read(&asking("websocket"), false).unwrap();
        assert_eq!(
            text,
            "GET /chat HTTP/1.1\r\nHost: a.example\r\nsec-websocket-version: 13\r\n\
             Connection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        assert!(asked.is_tunnel && !asked.chunked);
        assert_eq!(read(&asking("connect-udp"), false).unwrap_err(), RequestRefused::Status(501));
    }

    #[test]
    fn trailers_follow_the_last_chunk() {
        let mut out = Vec::new();
        write_trailers(&fields(&[("a", "b"), ("te", "x")]), &mut out).unwrap();
        assert_eq!(out, b"0\r\na: b\r\n\r\n");
        for bad in [(":path", "/"), ("X", "y"), ("x", "\n")] {
            assert_eq!(write_trailers(&fields(&[bad]), &mut out), Err(RequestRefused::Malformed));
        }
    }
}
