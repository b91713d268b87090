//! Heads of messages, from the form that HTTP/2 has for them to that of HTTP/1.1, and back.

use std::io::{Error, ErrorKind, Result};
use std::mem::MaybeUninit;

use bytes::Bytes;
use h2::ext::Protocol;
use hyper::header::{CONTENT_LENGTH, COOKIE, HOST, HeaderName, HeaderValue, TE};
use hyper::http::{request, response};
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri};

use router::http::HEADERS_MAX;

/// How a body of HTTP/1.1 ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is none.
    Empty,
    /// Bytes that are still to come.
    Length(u64),
    Chunked,
    UntilClose,
}

/// Why a client's request goes nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Against the rules of HTTP/2.
    Malformed,
    Status(StatusCode),
}

/// A request whose head was written as HTTP/1.1.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub chunked: bool,
    pub is_head: bool,
    /// It asks for a WebSocket: bytes both ways once that is granted.
    pub is_tunnel: bool,
}

/// A head of HTTP/1.1 that was read.
#[derive(Debug)]
pub struct Read<T> {
    pub message: T,
    pub framing: Framing,
    pub length: usize,
    /// What came of a body of known length, in one piece with the head's values.
    pub content: Bytes,
}

/// Says something about a connection of HTTP/1.1, and means nothing here.
pub fn is_of_connection(name: &str) -> bool {
    let known: &[&str] = match name.len() {
        2 => &["te"],
        7 => &["upgrade"],
        10 => &["connection", "keep-alive"],
        14 => &["content-length", "http2-settings"],
        16 => &["proxy-connection"],
        17 => &["transfer-encoding"],
        _ => &[],
    };
    known.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Writes the head to `out`. `ended` where no body follows; `key` is unlike any other.
pub fn asked(
    parts: &request::Parts,
    ended: bool,
    key: [u8; 16],
    out: &mut Vec<u8>,
) -> std::result::Result<Asked, Refused> {
    let protocol = parts.extensions.get::<Protocol>().map(Protocol::as_str);
    let is_tunnel = protocol.is_some();
    if protocol.is_some_and(|protocol| !protocol.eq_ignore_ascii_case("websocket")) {
        return Err(Refused::Status(StatusCode::NOT_IMPLEMENTED));
    }
    let is_connect = parts.method == Method::CONNECT && !is_tunnel;
    let authority = parts.uri.authority().map(|authority| authority.as_str());
    let host = parts.headers.get(HOST).map(HeaderValue::as_bytes);
    if let (Some(authority), Some(host)) = (authority, host)
        && !authority.as_bytes().eq_ignore_ascii_case(host)
    {
        return Err(Refused::Malformed);
    }
    let length = parts.headers.get(CONTENT_LENGTH).map(|length| content_length(length.as_bytes()));
    // The library holds bodies to their length, but not where there is none.
    if ended && length.is_some_and(|length| length != Some(0)) {
        return Err(Refused::Malformed);
    }
    let target = match parts.uri.path_and_query() {
        _ if is_connect => authority.unwrap_or_default(),
        Some(target) => target.as_str(),
        None => return Err(Refused::Malformed),
    };
    let method = if is_tunnel { "GET" } else { parts.method.as_str() };
    for part in [method, " ", target, " HTTP/1.1\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    // One that names no host is refused for that by whoever reads this.
    if let Some(host) = authority.map(str::as_bytes).or(host) {
        put_header(out, "Host", host);
    }
    put_fields(out, &parts.headers);
    let chunked = !ended && !is_tunnel && length.is_none();
    if let Some(Some(length)) = length.filter(|_| !is_tunnel) {
        put_header(out, "Content-Length", length.to_string().as_bytes());
    }
    if chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    if is_tunnel {
        out.extend_from_slice(b"Connection: Upgrade\r\nUpgrade: websocket\r\n");
        put_header(out, "Sec-WebSocket-Key", base64(&key).as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    let is_head = parts.method == Method::HEAD;
    Ok(Asked { chunked, is_head, is_tunnel })
}

/// All but those that concern framing and place; cookies, which may come in crumbs, as one.
fn put_fields(out: &mut Vec<u8>, fields: &HeaderMap) {
    for (name, value) in fields {
        if !(is_of_connection(name.as_str()) || *name == HOST || *name == COOKIE) {
            put_header(out, name.as_str(), value.as_bytes());
        }
    }
    let mut crumbs = fields.get_all(COOKIE).iter();
    if let Some(first) = crumbs.next() {
        out.extend_from_slice(b"Cookie: ");
        out.extend_from_slice(first.as_bytes());
        for crumb in crumbs {
            out.extend_from_slice(b"; ");
            out.extend_from_slice(crumb.as_bytes());
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// An answer to a client's stream, once all of its head is there.
pub fn answer(bytes: &[u8], is_head: bool, is_tunnel: bool) -> Result<Option<Read<Response<()>>>> {
    let mut headers = [const { MaybeUninit::uninit() }; HEADERS_MAX + OWN_HEADERS];
    let mut parsed = httparse::Response::new(&mut []);
    let read = httparse::ParserConfig::default().parse_response_with_uninit_headers(
        &mut parsed,
        bytes,
        &mut headers,
    );
    let length = match read.map_err(invalid)? {
        httparse::Status::Complete(length) => length,
        httparse::Status::Partial => return Ok(None),
    };
    let status = parsed.code.unwrap_or(0);
    let (granted, denied) = (status == 101, is_tunnel && (200..300).contains(&status));
    let mut response = Response::new(());
    response.headers_mut().reserve(parsed.headers.len());
    *response.status_mut() = match status {
        101 if is_tunnel => StatusCode::OK,
        // A success would say that the WebSocket is open.
        _ if denied => StatusCode::BAD_GATEWAY,
        status => StatusCode::from_u16(status).map_err(invalid)?,
    };
    let framing = match framing(parsed.headers, is_head || matches!(status, 100..=199 | 204 | 304))
    {
        _ if granted => Framing::UntilClose,
        framing => framing,
    };
    let (copy, content) = copy(bytes, length, framing);
    for header in &*parsed.headers {
        let is_length = header.name.eq_ignore_ascii_case("content-length") && !granted;
        let is_accept = granted && header.name.eq_ignore_ascii_case("sec-websocket-accept");
        if (is_length || !is_of_connection(header.name)) && !is_accept {
            put(response.headers_mut(), header, &copy, bytes);
        }
    }
    Ok(Some(Read { message: response, framing, length, content }))
}

/// Those that the router itself adds to a head.
const OWN_HEADERS: usize = 8;

fn framing(headers: &[httparse::Header<'_>], empty: bool) -> Framing {
    let find = |name: &str| headers.iter().find(|one| one.name.eq_ignore_ascii_case(name));
    if empty {
        Framing::Empty
    } else if find("transfer-encoding").is_some() {
        Framing::Chunked
    } else {
        let length = find("content-length").and_then(|one| content_length(one.value));
        length.map_or(Framing::UntilClose, Framing::Length)
    }
}

/// Of the head and of what came of its body, and the latter alone.
fn copy(bytes: &[u8], head: usize, framing: Framing) -> (Bytes, Bytes) {
    let content = match framing {
        Framing::Length(length) => usize::try_from(length).unwrap_or(usize::MAX),
        Framing::Empty | Framing::Chunked | Framing::UntilClose => 0,
    };
    let end = head.saturating_add(content).min(bytes.len());
    let copy = Bytes::copy_from_slice(&bytes[..end]);
    let content = copy.slice(head..);
    (copy, content)
}

/// One of `bytes`, whose `copy` all values share.
fn put(fields: &mut HeaderMap, header: &httparse::Header<'_>, copy: &Bytes, bytes: &[u8]) {
    // An empty one may lie elsewhere.
    let at = header.value.as_ptr().addr().wrapping_sub(bytes.as_ptr().addr());
    let value = match header.value.len() {
        0 => Bytes::new(),
        length => copy.slice(at..at + length),
    };
    let name = HeaderName::from_bytes(header.name.as_bytes());
    if let (Ok(name), Ok(value)) = (name, HeaderValue::from_maybe_shared(value)) {
        fields.append(name, value);
    }
}

/// A request to an instance, once all of its head is there.
pub fn call(bytes: &[u8]) -> Result<Option<Read<Request<()>>>> {
    let mut headers = [const { MaybeUninit::uninit() }; HEADERS_MAX + OWN_HEADERS];
    let mut parsed = httparse::Request::new(&mut []);
    let read = parsed.parse_with_uninit_headers(bytes, &mut headers);
    let length = match read.map_err(invalid)? {
        httparse::Status::Complete(length) => length,
        httparse::Status::Partial => return Ok(None),
    };
    let host = parsed.headers.iter().find(|one| one.name.eq_ignore_ascii_case("host"));
    let host = host.map_or(&b""[..], |host| host.value);
    let uri = Uri::builder()
        .scheme("http")
        .authority(host)
        .path_and_query(parsed.path.unwrap_or("/"))
        .build()
        .map_err(invalid)?;
    let mut request = Request::new(());
    request.headers_mut().reserve(parsed.headers.len());
    *request.uri_mut() = uri;
    *request.method_mut() = parsed.method.unwrap_or("").parse().map_err(invalid)?;
    let framing = match framing(parsed.headers, false) {
        Framing::UntilClose => Framing::Empty,
        framing => framing,
    };
    let (copy, content) = copy(bytes, length, framing);
    for header in &*parsed.headers {
        let is_length = header.name.eq_ignore_ascii_case("content-length");
        if (is_length || !is_of_connection(header.name))
            && !header.name.eq_ignore_ascii_case("host")
        {
            put(request.headers_mut(), header, &copy, bytes);
        }
    }
    // They are passed on to whoever asked in a form that has them.
    request.headers_mut().insert(TE, HeaderValue::from_static("trailers"));
    Ok(Some(Read { message: request, framing, length, content }))
}

/// An instance's answer as HTTP/1.1, and whether its body is to be put into chunks.
pub fn called(parts: &response::Parts, ended: bool, is_head: bool) -> (Bytes, bool) {
    let mut out = Vec::with_capacity(512);
    let status = parts.status;
    for part in ["HTTP/1.1 ", status.as_str(), " "] {
        out.extend_from_slice(part.as_bytes());
    }
    out.extend_from_slice(status.canonical_reason().unwrap_or("").as_bytes());
    out.extend_from_slice(b"\r\n");
    for (name, value) in &parts.headers {
        if !is_of_connection(name.as_str()) {
            put_header(&mut out, name.as_str(), value.as_bytes());
        }
    }
    let empty = is_head || matches!(status.as_u16(), 100..=199 | 204 | 304);
    let length = parts.headers.get(CONTENT_LENGTH);
    let chunked = !empty && (length.is_none() || ended);
    if chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    } else if let Some(length) = length {
        put_header(&mut out, "Content-Length", length.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    (out.into(), chunked)
}

/// The last chunk, and the trailers if there are any.
pub fn last_chunk(trailers: Option<HeaderMap>) -> Bytes {
    let Some(trailers) = trailers else { return Bytes::from_static(b"0\r\n\r\n") };
    let mut out = b"0\r\n".to_vec();
    for (name, value) in &trailers {
        if !is_of_connection(name.as_str()) {
            put_header(&mut out, name.as_str(), value.as_bytes());
        }
    }
    out.extend_from_slice(b"\r\n");
    out.into()
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

/// Digits alone; a sign, a list or an empty value is none.
fn content_length(value: &[u8]) -> Option<u64> {
    let digits = !value.is_empty() && value.len() <= 18 && value.iter().all(u8::is_ascii_digit);
    digits.then(|| value.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}

fn put_header(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(request: request::Builder) -> request::Parts {
        request.body(()).unwrap().into_parts().0
    }

    fn read(
        request: request::Builder,
        ended: bool,
        key: [u8; 16],
    ) -> std::result::Result<(Asked, String), Refused> {
        let mut out = Vec::new();
        let asked = asked(&parts(request), ended, key, &mut out)?;
        Ok((asked, String::from_utf8(out).unwrap()))
    }

    #[test]
    fn a_request_is_written_with_its_cookies_joined() {
        let request = Request::builder()
            .method("POST")
            .uri("https://shop.example:8443/a?b=c")
            .header("cookie", "a=1")
            .header("x", "1")
            .header("cookie", "b=2")
            .header("te", "trailers");
        let (asked, text) = read(request, false, [0; 16]).unwrap();
        assert_eq!(
            text,
            "POST /a?b=c HTTP/1.1\r\nHost: shop.example:8443\r\nx: 1\r\nCookie: a=1; b=2\r\n\
             Transfer-Encoding: chunked\r\n\r\n"
        );
        assert!(asked.chunked && !asked.is_head && !asked.is_tunnel);
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let get = || Request::builder().uri("http://a.example/");
        let of = |request, ended| read(request, ended, [0; 16]);
        assert_eq!(of(get().header("host", "b"), true).unwrap_err(), Refused::Malformed);
        assert_eq!(of(get().header("content-length", "3"), true).unwrap_err(), Refused::Malformed);
        assert!(of(get().header("host", "A.example"), true).is_ok());
        let (fixed, text) = of(get().header("content-length", "3"), false).unwrap();
        assert!(!fixed.chunked && text.ends_with("\r\nContent-Length: 3\r\n\r\n"));
        let other = get().method("CONNECT").extension(Protocol::from_static("connect-udp"));
        assert_eq!(of(other, false).unwrap_err(), Refused::Status(StatusCode::NOT_IMPLEMENTED));
    }

    #[test]
    fn a_websocket_becomes_an_upgrade_and_back() {
        let request = Request::builder()
            .method("CONNECT")
            .uri("https://a.example/chat")
            .header("sec-websocket-version", "13")
            .extension(Protocol::from_static("websocket"));
        let (_, text) = read(request, false, *b"the sample nonce").unwrap();
        assert_eq!(
            text,
            "GET /chat HTTP/1.1\r\nHost: a.example\r\nsec-websocket-version: 13\r\n\
             Connection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        let granted = b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: y\r\n\
            Sec-WebSocket-Protocol: chat\r\nConnection: Upgrade\r\n\r\n";
        let read = answer(granted, false, true).unwrap().unwrap();
        assert_eq!((read.message.status().as_u16(), read.framing), (200, Framing::UntilClose));
        assert_eq!(read.message.headers().len(), 1);
        let page = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n";
        assert_eq!(answer(page, false, true).unwrap().unwrap().message.status(), 502);
    }

    #[test]
    fn an_answer_is_read() {
        let of = |text: &str, is_head| answer(text.as_bytes(), is_head, false).unwrap().unwrap();
        let read = of(
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\nA: b\r\n\r\nhello",
            false,
        );
        assert_eq!((read.message.status().as_u16(), read.framing), (200, Framing::Length(5)));
        assert_eq!((read.message.headers().len(), read.length), (2, 63));
        assert_eq!(read.message.headers()["a"], "b");
        assert_eq!(read.content, "hello");
        assert_eq!(
            of("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", true).framing,
            Framing::Empty
        );
        assert_eq!(of("HTTP/1.1 204 OK\r\n\r\n", false).framing, Framing::Empty);
        assert_eq!(of("HTTP/1.1 200 OK\r\n\r\n", false).framing, Framing::UntilClose);
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(of(chunked, false).framing, Framing::Chunked);
        assert!(answer(&chunked.as_bytes()[..30], false, false).unwrap().is_none());
        answer(b"nonsense\r\n\r\n", false, false).unwrap_err();
    }

    #[test]
    fn a_call_is_read_and_its_answer_written() {
        let text = b"POST /a HTTP/1.1\r\nHost: a.b:80\r\nX: y\r\nTransfer-Encoding: chunked\r\n\
            Connection: close\r\n\r\n";
        let read = call(text).unwrap().unwrap();
        assert_eq!((read.framing, read.length), (Framing::Chunked, text.len()));
        let request = read.message;
        assert_eq!(request.uri(), "http://a.b:80/a");
        assert_eq!(
            (request.headers().len(), &request.headers()[TE]),
            (2, &HeaderValue::from_static("trailers"))
        );
        let get = call(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap().unwrap();
        assert_eq!((get.message.method(), get.framing), (&Method::GET, Framing::Empty));
        let answer = Response::builder().status(200).header("a", "b").body(()).unwrap();
        let (parts, ()) = answer.into_parts();
        let (head, chunked) = called(&parts, false, false);
        assert!(chunked);
        assert_eq!(&head[..], b"HTTP/1.1 200 OK\r\na: b\r\nTransfer-Encoding: chunked\r\n\r\n");
        assert!(!called(&parts, true, true).1);
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        assert_eq!(&last_chunk(Some(trailers))[..], b"0\r\ngrpc-status: 0\r\n\r\n");
    }
}
