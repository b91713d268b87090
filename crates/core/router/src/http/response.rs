//! The head of an answer: how its body ends, and how it is written anew for the client.

pub mod fault;

use std::mem::MaybeUninit;

use thiserror::Error;

use super::body::Body;
use super::syntax::{content_length, ends_are_whole};
use super::{HEADERS_ADDED_MAX, HEADERS_MAX, is_hop_by_hop, is_named, lists, may_name, put_header};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    pub length: usize,
    pub status: u16,
    pub body: Body,
    /// Whether the instance keeps its connection open afterwards.
    pub keep_alive: bool,
    /// Whether the client is told that it may ask again on its connection.
    pub client_keeps_alive: bool,
}

/// The rule that an answer broke, and with what: for the application's owner.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{rule}{}", .shown.as_deref().unwrap_or_default())]
pub struct BadResponse {
    /// The rule, one of few.
    pub rule: &'static str,
    /// What goes on behind that: `: 'Foo bar'`.
    pub shown: Option<Box<str>>,
}

impl BadResponse {
    pub fn new(rule: &'static str) -> BadResponse {
        BadResponse { rule, shown: None }
    }
}

/// What the answer must know of its request.
#[derive(Clone, Copy, Debug)]
pub struct AnsweredRequest {
    pub head: bool,
    pub modern: bool,
    pub keep_alive: bool,
    /// Whether not a byte of the head is changed.
    pub transparent: bool,
    /// Whether it is of the router of another node, which adds a little to what its instance
    /// answers.
    pub of_router: bool,
}

const HEADERS_READ_MAX: usize = HEADERS_MAX + HEADERS_ADDED_MAX;

/// Parses a head; `None` while it is not complete. Writes the head for the client to `out`.
pub fn parse(
    buffer: &[u8],
    asked: AnsweredRequest,
    out: &mut Vec<u8>,
) -> Result<Option<ResponseHead>, BadResponse> {
    let mut headers = [const { MaybeUninit::<httparse::Header>::uninit() }; HEADERS_READ_MAX];
    let mut response = httparse::Response::new(&mut []);
    let parsed = httparse::ParserConfig::default().parse_response_with_uninit_headers(
        &mut response,
        buffer,
        &mut headers,
    );
    let length = match parsed {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if ends_are_whole(buffer) => return Ok(None),
        Ok(httparse::Status::Partial) => return Err(fault::of_head(buffer)),
        Err(httparse::Error::TooManyHeaders) => return Err(fault::too_many(buffer)),
        Err(_) => return Err(fault::of_head(buffer)),
    };
    if !ends_are_whole(&buffer[..length]) {
        return Err(fault::of_head(&buffer[..length]));
    }
    if response.headers.len() > HEADERS_MAX && !asked.of_router {
        return Err(fault::too_many(&buffer[..length]));
    }
    let status = response.code.unwrap_or(0);
    if status < 100 {
        return Err(fault::of_first_line("its status is below 100", buffer));
    }
    if status == 101 && !response.headers.iter().any(|one| is_upgrade(one.name)) {
        return Err(BadResponse::new("status 101 without an Upgrade header"));
    }
    let modern = response.version == Some(1);
    let (body, keep_alive) = framing(response.headers, status, asked.head, modern)?;
    let client_keeps_alive = client_keeps_alive(body, asked);
    if asked.transparent {
        out.clear();
        out.extend_from_slice(&buffer[..length]);
    } else {
        write(out, status, &response, body, asked, client_keeps_alive);
    }
    Ok(Some(ResponseHead { length, status, body, keep_alive, client_keeps_alive }))
}

fn is_upgrade(name: &str) -> bool {
    name.eq_ignore_ascii_case("upgrade")
}

fn framing(
    headers: &[httparse::Header<'_>],
    status: u16,
    head: bool,
    modern: bool,
) -> Result<(Body, bool), BadResponse> {
    let (mut length, mut chunked, mut keep_alive) = (None, false, modern);
    for header in headers {
        if header.name.eq_ignore_ascii_case("content-length") {
            let read = content_length(header.value)
                .ok_or_else(|| fault::of_field("its Content-Length is no number", header))?;
            if length.replace(read).is_some_and(|earlier| earlier != read) {
                return Err(fault::of_field("it has two different Content-Lengths", header));
            }
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            if chunked {
                return Err(fault::of_field("it has two Transfer-Encodings", header));
            }
            if !header.value.eq_ignore_ascii_case(b"chunked") {
                return Err(fault::of_field("its Transfer-Encoding is not chunked", header));
            }
            chunked = true;
        } else if header.name.eq_ignore_ascii_case("connection") {
            if lists(header.value, "close") {
                keep_alive = false;
            } else if !modern && lists(header.value, "keep-alive") {
                keep_alive = true;
            }
        }
    }
    let has_none = status < 200 || status == 204;
    // A body where there is none may come later, and be taken for the next answer; and a client
    // that speaks HTTP/1.0 may not know what chunks are.
    if chunked && !modern || has_none && (chunked || length.is_some_and(|length| length > 0)) {
        keep_alive = false;
    }
    let body = match (chunked, length) {
        _ if head || has_none || status == 304 => Body::Empty,
        (true, Some(_)) => {
            return Err(BadResponse::new("it has both Content-Length and Transfer-Encoding"));
        }
        (true, None) => Body::chunked(),
        (false, Some(length)) => Body::Length(length),
        (false, None) => Body::UntilClose,
    };
    Ok((body, keep_alive && body != Body::UntilClose))
}

/// Returns whether the client sees the body's end without the connection's end.
fn client_keeps_alive(body: Body, asked: AnsweredRequest) -> bool {
    asked.keep_alive
        && match body {
            Body::UntilClose => false,
            Body::Chunked(_) => asked.modern,
            Body::Empty | Body::Length(_) => true,
        }
}

fn write(
    out: &mut Vec<u8>,
    status: u16,
    response: &httparse::Response<'_, '_>,
    body: Body,
    asked: AnsweredRequest,
    client_keeps_alive: bool,
) {
    out.clear();
    let digits = [status / 100 % 10, status / 10 % 10, status % 10];
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend(digits.iter().map(|digit| b'0' + u8::try_from(*digit).unwrap_or(0)));
    out.push(b' ');
    out.extend_from_slice(response.reason.unwrap_or("").as_bytes());
    out.extend_from_slice(b"\r\n");
    let headers = &*response.headers;
    let named = headers
        .iter()
        .any(|one| one.name.eq_ignore_ascii_case("connection") && may_name(one.value));
    let mut has_length = false;
    for header in headers {
        let name = header.name;
        if is_hop_by_hop(name) {
            continue;
        }
        let is_length = name.eq_ignore_ascii_case("content-length");
        // Two equal ones become one.
        if is_length && (std::mem::replace(&mut has_length, true) || status < 200 || status == 204)
        {
            continue;
        }
        if !(named && is_named(headers, name)) {
            put_header(out, name, header.value);
        }
    }
    if status == 101 {
        let upgrade = headers.iter().find(|one| is_upgrade(one.name));
        put_header(out, "Upgrade", upgrade.map_or(b"", |one| one.value));
        out.extend_from_slice(b"Connection: Upgrade\r\n\r\n");
        return;
    }
    if status >= 200 {
        if matches!(body, Body::Chunked(_)) && asked.modern {
            out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        }
        if !client_keeps_alive {
            out.extend_from_slice(b"Connection: close\r\n");
        } else if !asked.modern {
            out.extend_from_slice(b"Connection: keep-alive\r\n");
        }
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODERN: AnsweredRequest = AnsweredRequest {
        head: false,
        modern: true,
        keep_alive: true,
        transparent: false,
        of_router: false,
    };

    fn read(text: &str, asked: AnsweredRequest) -> Result<(ResponseHead, String), BadResponse> {
        let mut out = Vec::new();
        let head = parse(text.as_bytes(), asked, &mut out)?.expect("it is complete");
        Ok((head, String::from_utf8(out).unwrap()))
    }

    #[test]
    fn an_answer_is_written_anew() {
        let text = "HTTP/1.1 200 OK\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nA: b\r\nContent-Length: 2\r\n\r\n";
        let (head, out) = read(text, MODERN).unwrap();
        assert_eq!((head.status, head.body, head.keep_alive), (200, Body::Length(2), true));
        assert_eq!(out, "HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 2\r\n\r\n");
    }

    #[test]
    fn a_transparent_router_changes_nothing() {
        let text = "HTTP/1.1 200  Fine\r\nconnection:Keep-Alive\r\nKeep-Alive: timeout=5\r\n\
            A:  b\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n";
        let (head, out) = read(text, AnsweredRequest { transparent: true, ..MODERN }).unwrap();
        assert_eq!((out.as_str(), head.body), (text, Body::Length(2)));
    }

    #[test]
    fn old_clients_get_no_chunks() {
        let text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let asked = AnsweredRequest { modern: false, ..MODERN };
        let (head, out) = read(text, asked).unwrap();
        assert!(matches!(head.body, Body::Chunked(_)));
        assert_eq!(out, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
    }

    #[test]
    fn bodies_end_as_the_standard_says() {
        let length = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n";
        assert_eq!(
            read(length, AnsweredRequest { head: true, ..MODERN }).unwrap().0.body,
            Body::Empty
        );
        let (head, out) = read("HTTP/1.0 200 OK\r\n\r\n", MODERN).unwrap();
        assert_eq!((head.body, head.keep_alive), (Body::UntilClose, false));
        assert!(out.contains("Connection: close"));
        for status in [100, 204, 304] {
            let text = format!("HTTP/1.1 {status} X\r\nContent-Length: 9\r\n\r\n");
            assert_eq!(read(&text, MODERN).unwrap().0.body, Body::Empty, "{status}");
        }
    }

    #[test]
    fn what_may_be_followed_by_stray_bytes_ends_the_connection() {
        for (text, keeps) in [
            ("HTTP/1.1 204 X\r\n\r\n", true),
            ("HTTP/1.1 204 X\r\nContent-Length: 0\r\n\r\n", true),
            ("HTTP/1.1 204 X\r\nContent-Length: 9\r\n\r\n", false),
            ("HTTP/1.1 204 X\r\nTransfer-Encoding: chunked\r\n\r\n", false),
            ("HTTP/1.1 304 X\r\nContent-Length: 9\r\n\r\n", true),
            ("HTTP/1.0 200 X\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\n", true),
            (
                "HTTP/1.0 200 X\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n",
                false,
            ),
        ] {
            assert_eq!(read(text, MODERN).unwrap().0.keep_alive, keeps, "{text}");
        }
    }

    #[test]
    fn contradictions_are_refused() {
        for bad in [
            "Content-Length: 1\r\nContent-Length: 2\r\n",
            "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: gzip\r\n",
            "Content-Length: x\r\n",
            "A: b\n",
            "A: b\r\n folded\r\n",
            "A : b\r\n",
            "A: b\rc\r\n",
        ] {
            read(&format!("HTTP/1.1 200 OK\r\n{bad}\r\n"), MODERN).unwrap_err();
        }
        read("HTTP/1.1 101 X\r\n\r\n", MODERN).unwrap_err();
        parse(b"HTTP/1.1 200 OK\n", MODERN, &mut Vec::new()).unwrap_err();
        let twice = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n";
        assert_eq!(read(twice, MODERN).unwrap().1.matches("Content-Length").count(), 1);
    }
}
