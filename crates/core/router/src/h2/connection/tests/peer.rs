//! A client for tests: writes frames, and reads those that the connection has for it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::h2::connection::{H2Connection, Scratch, Server, StreamKey};
use crate::h2::frame::{self, FrameHead, FrameType, HEAD_BYTES, PREFACE, Reason};
use crate::h2::hpack::decode::{Decoder, Fields};
use crate::h2::hpack::encode::Encoder;
use crate::h2::request::RequestForm;

/// A server that takes all requests, in the order in which they came.
#[derive(Default)]
pub struct Requests {
    pub begun: Vec<(StreamKey, RequestForm, String)>,
    pub is_full: bool,
}

impl Server for Requests {
    fn has_room(&self) -> bool {
        !self.is_full
    }

    fn key(&mut self) -> [u8; 16] {
        [0; 16]
    }

    fn begin(&mut self, key: StreamKey, asked: RequestForm, head: &[u8]) {
        self.begun.push((key, asked, String::from_utf8(head.to_vec()).unwrap()));
    }
}

/// A frame that the connection sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: FrameType,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    pub fn ends(&self) -> bool {
        self.flags & frame::END_STREAM != 0
    }

    pub fn number(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }
}

pub struct Peer {
    pub h2: H2Connection,
    pub requests: Requests,
    pub decoder: Decoder,
    /// The number of pieces in which the client sent something.
    pub came: usize,
    scratch: Scratch,
    unread: Vec<u8>,
}

impl Peer {
    /// Returns a client that has not sent its preface.
    pub fn silent() -> Peer {
        Peer {
            h2: H2Connection::default(),
            requests: Requests::default(),
            decoder: Decoder::default(),
            came: 0,
            scratch: Scratch::default(),
            unread: Vec::new(),
        }
    }

    /// Returns a client that was greeted, with these settings.
    pub fn with(settings: &[(u16, u32)]) -> Peer {
        let mut peer = Peer::silent();
        peer.bytes(PREFACE);
        peer.settings(settings);
        let seen = peer.seen();
        let kinds: Vec<FrameType> = seen.iter().map(|frame| frame.kind).collect();
        assert_eq!(kinds, [FrameType::SETTINGS, FrameType::WINDOW_UPDATE, FrameType::SETTINGS]);
        peer
    }

    pub fn new() -> Peer {
        Peer::with(&[])
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.came += 1;
        self.h2.receive(bytes, Duration::ZERO, &mut self.scratch, &mut self.requests);
    }

    pub fn frame(&mut self, kind: FrameType, flags: u8, stream: u32, payload: &[u8]) {
        let mut bytes = Vec::new();
        frame::put(&mut bytes, kind, flags, stream, payload);
        self.bytes(&bytes);
    }

    pub fn settings(&mut self, settings: &[(u16, u32)]) {
        let mut payload = Vec::new();
        for (name, value) in settings {
            payload.extend(name.to_be_bytes());
            payload.extend(value.to_be_bytes());
        }
        self.frame(FrameType::SETTINGS, 0, 0, &payload);
    }

    pub fn update(&mut self, stream: u32, more: u32) {
        self.frame(FrameType::WINDOW_UPDATE, 0, stream, &more.to_be_bytes());
    }

    pub fn data(&mut self, stream: u32, content: &[u8], ended: bool) {
        let flags = if ended { frame::END_STREAM } else { 0 };
        self.frame(FrameType::DATA, flags, stream, content);
    }

    /// Sends a request of these fields beside those that any has.
    pub fn ask(&mut self, stream: u32, method: &str, fields: &[(&str, &str)], ended: bool) {
        let flags = frame::END_HEADERS | if ended { frame::END_STREAM } else { 0 };
        self.frame(FrameType::HEADERS, flags, stream, &block(method, fields));
    }

    /// Begins a request and returns its key, by its number.
    pub fn get(&mut self, stream: u32) -> StreamKey {
        self.ask(stream, "GET", &[], true);
        self.key(stream)
    }

    pub fn post(&mut self, stream: u32) -> StreamKey {
        self.ask(stream, "POST", &[], false);
        self.key(stream)
    }

    pub fn key(&self, stream: u32) -> StreamKey {
        let begun = self.requests.begun.iter().find(|(key, ..)| key.id == stream);
        begun.unwrap_or_else(|| panic!("no request {stream}")).0
    }

    /// Returns the frames that were sent since.
    pub fn seen(&mut self) -> Vec<Frame> {
        self.unread.append(self.h2.out());
        self.h2.sent();
        let mut seen = Vec::new();
        while let Some(head) = FrameHead::read(&self.unread) {
            assert!(head.length <= frame::PAYLOAD_BYTES_MAX);
            let payload = self.unread[HEAD_BYTES..HEAD_BYTES + head.length].to_vec();
            self.unread.drain(..HEAD_BYTES + head.length);
            let FrameHead { kind, flags, stream, .. } = head;
            seen.push(Frame { kind, flags, stream, payload });
        }
        assert!(self.unread.is_empty(), "frames are sent whole");
        seen
    }

    /// Returns why the connection was ended, if it was.
    pub fn went_away(&mut self) -> Option<Reason> {
        let seen = self.seen();
        let away = seen.iter().rfind(|frame| frame.kind == FrameType::GOAWAY)?;
        Some(Reason(away.number(4)))
    }

    /// Returns the streams that were ended, and why.
    pub fn resets(&mut self) -> Vec<(u32, Reason)> {
        let seen = self.seen();
        assert!(seen.iter().all(|frame| frame.kind != FrameType::GOAWAY), "{seen:?}");
        let resets = seen.iter().filter(|frame| frame.kind == FrameType::RST_STREAM);
        resets.map(|frame| (frame.stream, Reason(frame.number(0)))).collect()
    }

    /// Returns the fields of a frame with a whole head.
    pub fn fields(&mut self, frame: &Frame) -> BTreeMap<String, String> {
        assert_eq!(frame.kind, FrameType::HEADERS);
        let mut fields = Fields::default();
        fields.begin(100_000);
        self.decoder.decode(&frame.payload, &mut fields).unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        fields.iter().map(|(name, value)| (text(name), text(value))).collect()
    }
}

/// Returns the block of a request.
pub fn block(method: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    // `:scheme` and `:path` are written as both sides know them, the others as they are.
    let (mut block, mut encoder) = (vec![0x86, 0x84], Encoder::default());
    for (name, value) in [(":method", method), (":authority", "a.example")].iter().chain(fields) {
        encoder.put(&mut block, name.as_bytes(), value.as_bytes());
    }
    block
}
