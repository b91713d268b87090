//! HTTP/2 from a client: no bytes panic; however a connection cuts them, the same requests come of
//! them and the same frames go out; what is held is bounded; and a head that is passed on is one of
//! HTTP/1.1.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use router_core::h2::connection::{H2Connection, Scratch, Server, StreamKey};
use router_core::h2::frame::PREFACE;
use router_core::h2::request::RequestForm;

/// The length in bytes up to which each cut of an input is tried; for longer ones single bytes are.
const CUT_EVERYWHERE_MAX: usize = 128;
/// The most bytes that are held: windows of a connection, with the framing of what came as chunks.
const HELD_MAX: usize = 2 * 1024 * 1024;
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

#[derive(Default)]
struct Requests(Vec<(StreamKey, RequestForm, Vec<u8>)>);

impl Server for Requests {
    fn has_room(&self) -> bool {
        true
    }

    fn key(&mut self) -> [u8; 16] {
        [7; 16]
    }

    fn begin(&mut self, key: StreamKey, asked: RequestForm, head: &[u8]) {
        self.0.push((key, asked, head.to_vec()));
    }
}

pub fn check(bytes: &[u8]) {
    let whole = run(&[bytes]);
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(run(&single), whole, "byte by byte");
    if bytes.len() <= CUT_EVERYWHERE_MAX {
        for cut in 0..bytes.len() {
            assert_eq!(run(&[&bytes[..cut], &bytes[cut..]]), whole, "cut at {cut}");
        }
    }
}

/// Returns what went out, and what was asked.
fn run(pieces: &[&[u8]]) -> (Vec<u8>, Vec<Vec<u8>>) {
    let (mut scratch, mut requests) = (Scratch::default(), Requests::default());
    let mut h2 = H2Connection::default();
    for piece in [PREFACE, SETTINGS].iter().chain(pieces) {
        h2.receive(piece, Duration::ZERO, &mut scratch, &mut requests);
    }
    let mut out = std::mem::take(h2.out());
    h2.sent();
    let (mut held, mut asked) = (0, Vec::new());
    for (key, how, head) in requests.0 {
        let mut headers = [httparse::EMPTY_HEADER; 4096];
        let mut request = httparse::Request::new(&mut headers);
        if let Ok(status) = request.parse(&head) {
            assert_eq!(status.unwrap(), head.len(), "one head, and nothing behind it");
        }
        held += h2.ready_bytes(key);
        let mut room = [0; 1000];
        while h2.read_body(key, &mut room) > 0 {}
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        if let Ok(sent) = h2.send_head(key, text, how.is_head, how.is_tunnel)
            && !sent.is_whole
            && let Poll::Ready(Ok(5..)) = h2.poll_room(key, &Context::from_waker(Waker::noop()))
        {
            h2.send_body(key, &text[sent.used..], true).unwrap();
        }
        h2.end(key);
        asked.push(head);
    }
    assert!(held <= HELD_MAX && h2.open() == 0);
    out.append(h2.out());
    (out, asked)
}
