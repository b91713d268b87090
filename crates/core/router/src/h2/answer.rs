//! The head of an answer, from the text of HTTP/1.1 to the fields of HTTP/2.

use std::mem::MaybeUninit;

use super::hpack::encode::Encoder;
use super::is_of_connection;
use crate::http::HEADERS_MAX;
use crate::http::syntax::content_length;

/// Headers that the router itself adds to a head.
pub const OWN_HEADERS: usize = 8;

/// The way in which a body of HTTP/1.1 ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is no body.
    Empty,
    /// The bytes that are still to come.
    Length(u64),
    Chunked,
    UntilClose,
}

impl Framing {
    /// Returns whether the head is the message's end, which it is if there is no body at all, or
    /// one that is empty and whole; and how much of the text that is, of which the head is `used`.
    pub fn end(self, text: &[u8], used: usize) -> (usize, bool) {
        /// A body of no chunks.
        const NOTHING: &[u8] = b"0\r\n\r\n";
        match self {
            Framing::Empty | Framing::Length(0) => (used, true),
            Framing::Chunked if &text[used..] == NOTHING => (text.len(), true),
            Framing::Length(_) | Framing::Chunked | Framing::UntilClose => (used, false),
        }
    }
}

/// The head of an answer that was read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerHead {
    pub framing: Framing,
    /// The length of its text.
    pub length: usize,
    /// Whether another head follows.
    pub is_interim: bool,
}

/// The text is no head of HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

/// Writes the block for the head to `out` once all of it is there; else nothing.
pub fn write(
    text: &[u8],
    is_head: bool,
    is_tunnel: bool,
    encoder: &mut Encoder,
    out: &mut Vec<u8>,
) -> Result<Option<AnswerHead>, Unreadable> {
    let mut headers = [const { MaybeUninit::uninit() }; HEADERS_MAX + OWN_HEADERS];
    let mut parsed = httparse::Response::new(&mut []);
    let read = httparse::ParserConfig::default().parse_response_with_uninit_headers(
        &mut parsed,
        text,
        &mut headers,
    );
    let length = match read {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(Unreadable),
    };
    let status = parsed.code.unwrap_or(0);
    if status < 100 {
        return Err(Unreadable);
    }
    let is_granted = is_tunnel && status == 101;
    let said = match status {
        _ if is_granted => 200,
        // A success would say that the WebSocket is open.
        200..300 if is_tunnel => 502,
        // A 101 is no part of HTTP/2: nobody asked for it.
        101 => 502,
        status => status,
    };
    encoder.begin(out);
    encoder.put_status(out, said);
    let mut length_said = None;
    let mut is_chunked = false;
    for header in &*parsed.headers {
        let name = header.name;
        if !is_of_connection(name) {
            let is_accept = is_granted && name.eq_ignore_ascii_case("sec-websocket-accept");
            if !is_accept {
                encoder.put(out, name.as_bytes(), header.value);
            }
        } else if name.eq_ignore_ascii_case("content-length") {
            length_said = content_length(header.value);
            if !is_granted {
                encoder.put(out, name.as_bytes(), header.value);
            }
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            is_chunked = true;
        }
    }
    let framing = match status {
        _ if is_granted => Framing::UntilClose,
        100..200 | 204 | 304 => Framing::Empty,
        _ if is_head => Framing::Empty,
        _ if is_chunked => Framing::Chunked,
        _ => length_said.map_or(Framing::UntilClose, Framing::Length),
    };
    Ok(Some(AnswerHead { framing, length, is_interim: said < 200 }))
}

#[cfg(test)]
mod tests {
    use super::super::hpack::decode::{Decoder, Fields};
    use super::*;

    fn read(text: &str, is_head: bool, is_tunnel: bool) -> (AnswerHead, String) {
        let mut block = Vec::new();
        let head = write(text.as_bytes(), is_head, is_tunnel, &mut Encoder::default(), &mut block);
        let head = head.unwrap().unwrap();
        let mut fields = Fields::default();
        fields.begin(10_000);
        Decoder::default().decode(&block, &mut fields).unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let list: Vec<String> =
            fields.iter().map(|(name, value)| text(name) + "=" + &text(value)).collect();
        (head, list.join(" "))
    }

    #[test]
    fn an_answer_is_written() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\nA: B\r\n\r\nhello";
        let (head, fields) = read(text, false, false);
        assert_eq!(fields, ":status=200 content-length=5 a=B");
        assert_eq!(head, AnswerHead { framing: Framing::Length(5), length: 63, is_interim: false });
        let framing = |text: &str, is_head| read(text, is_head, false).0.framing;
        assert_eq!(framing(text, true), Framing::Empty);
        assert_eq!(framing("HTTP/1.1 204 OK\r\n\r\n", false), Framing::Empty);
        assert_eq!(framing("HTTP/1.1 200 OK\r\n\r\n", false), Framing::UntilClose);
        let chunked = "HTTP/1.1 418 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(framing(chunked, false), Framing::Chunked);
        assert_eq!(read(chunked, false, false).1, ":status=418");
        let interim = read("HTTP/1.1 103 Early\r\nLink: x\r\n\r\n", false, false);
        assert!(interim.0.is_interim && interim.1 == ":status=103 link=x");
        let mut out = Vec::new();
        let encoder = &mut Encoder::default();
        let part = &chunked.as_bytes()[..30];
        assert_eq!(write(part, false, false, encoder, &mut out), Ok(None));
        let nonsense = b"nonsense\r\n\r\n";
        assert_eq!(write(nonsense, false, false, encoder, &mut out), Err(Unreadable));
        assert!(out.is_empty());
    }

    #[test]
    fn a_websocket_is_granted_or_not() {
        let granted = "HTTP/1.1 101 X\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: y\r\n\
            Sec-WebSocket-Protocol: chat\r\nConnection: Upgrade\r\n\r\n";
        let (head, fields) = read(granted, false, true);
        assert_eq!(fields, ":status=200 sec-websocket-protocol=chat");
        assert_eq!((head.framing, head.is_interim), (Framing::UntilClose, false));
        let page = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n";
        assert_eq!(read(page, false, true).1, ":status=502 content-length=2");
        assert_eq!(
            read(granted, false, false).1,
            ":status=502 sec-websocket-accept=y \
            sec-websocket-protocol=chat"
        );
    }
}
