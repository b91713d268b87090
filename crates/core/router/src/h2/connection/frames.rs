//! What each kind of frame does (RFC 9113, sections 5 and 6).

use super::{Block, H2Connection, LEAVING, Leaving, Scratch, Server};
use crate::h2::frame::{self, FrameHead, FrameType, Reason, STREAM_MASK, setting, unpadded};
use crate::h2::hpack::decode::Fields;
use crate::h2::request::{self, RequestRefused};
use crate::h2::streams::{Cut, StreamEnd, StreamKey};
use crate::http::HEAD_BYTES_MAX;

/// Bytes of a head in its compressed form, which is hardly ever longer than what it means.
const BLOCK_BYTES_MAX: usize = 2 * HEAD_BYTES_MAX;
/// Bytes of a window (RFC 9113, section 6.9.1).
const WINDOW_MAX: i64 = 0x7fff_ffff;
const PRIORITY_BYTES: usize = 5;
const HEAD_TOO_LARGE: u16 = 431;

/// What ends with a frame that breaks the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum H2Error {
    Connection(Reason),
    Stream(u32, Reason),
}

const PROTOCOL: H2Error = H2Error::Connection(Reason::PROTOCOL_ERROR);
const SIZE: H2Error = H2Error::Connection(Reason::FRAME_SIZE_ERROR);

impl H2Connection {
    pub(super) fn frame(
        &mut self,
        head: &FrameHead,
        payload: &[u8],
        scratch: &mut Scratch,
        server: &mut impl Server,
    ) -> Result<(), H2Error> {
        let expected = self.block.as_ref().map(|block| block.stream);
        let continues = (head.kind == FrameType::CONTINUATION).then_some(head.stream);
        let begins = self.is_settled || (head.kind == FrameType::SETTINGS && !head.has(frame::ACK));
        if continues != expected || !begins {
            return Err(PROTOCOL);
        }
        let is_streams = matches!(
            head.kind,
            FrameType::DATA
                | FrameType::HEADERS
                | FrameType::PRIORITY
                | FrameType::RST_STREAM
                | FrameType::CONTINUATION
        );
        let is_connections =
            matches!(head.kind, FrameType::SETTINGS | FrameType::PING | FrameType::GOAWAY);
        if (is_streams && head.stream == 0) || (is_connections && head.stream != 0) {
            return Err(PROTOCOL);
        }
        match head.kind {
            FrameType::DATA => self.data(head, payload),
            FrameType::HEADERS => self.headers(head, payload, scratch, server),
            FrameType::PRIORITY if payload.len() != PRIORITY_BYTES => {
                Err(H2Error::Stream(head.stream, Reason::FRAME_SIZE_ERROR))
            }
            FrameType::PRIORITY => depends_on_another(head.stream, payload),
            FrameType::RST_STREAM if payload.len() != 4 => Err(SIZE),
            FrameType::RST_STREAM => self.reset(head.stream),
            FrameType::SETTINGS => self.settings(head, payload),
            FrameType::PUSH_PROMISE => Err(PROTOCOL),
            FrameType::PING => self.ping(head, payload),
            FrameType::GOAWAY if payload.len() < 8 => Err(SIZE),
            FrameType::WINDOW_UPDATE => self.window_update(head.stream, payload),
            FrameType::CONTINUATION => self.continuation(head, payload, scratch, server),
            // The client goes when it has its answers; unknown frames mean nothing.
            _ => Ok(()),
        }
    }

    fn data(&mut self, head: &FrameHead, payload: &[u8]) -> Result<(), H2Error> {
        let (id, length) = (head.stream, head.length as u32);
        if id > self.last {
            return Err(PROTOCOL);
        }
        let content = &payload[unpadded(head, payload).ok_or(PROTOCOL)?];
        self.window_in -= i64::from(length);
        if self.window_in < 0 {
            return Err(H2Error::Connection(Reason::FLOW_CONTROL_ERROR));
        }
        let result = self.content(id, content, length, head.has(frame::END_STREAM));
        self.give_back_all(*result.as_ref().unwrap_or(&length));
        result.map(drop)
    }

    /// Takes content in, and returns how many bytes of it nobody will read.
    fn content(
        &mut self,
        id: u32,
        content: &[u8],
        length: u32,
        ended: bool,
    ) -> Result<u32, H2Error> {
        let fault = |reason| Err(H2Error::Stream(id, reason));
        let Some(key) = self.streams.find(id) else {
            return too_late(id, self.streams.how_ended(id), length);
        };
        let Some(stream) = self.streams.get(key) else { return Ok(length) };
        if let Some(cut) = stream.cut {
            return too_late(id, StreamEnd::Cut(cut), length);
        }
        if stream.has_come {
            return match stream.is_sent {
                true => too_late(id, StreamEnd::Whole, length),
                false => fault(Reason::STREAM_CLOSED),
            };
        }
        stream.window_in -= i64::from(length);
        if stream.window_in < 0 {
            return fault(Reason::FLOW_CONTROL_ERROR);
        }
        if let Some(left) = &mut stream.left {
            match left.checked_sub(content.len() as u64) {
                Some(rest) if rest == 0 || !ended => *left = rest,
                _ => return fault(Reason::PROTOCOL_ERROR),
            }
        }
        stream.put(content);
        stream.has_come = ended;
        if ended && stream.chunked {
            stream.incoming.extend_from_slice(b"0\r\n\r\n");
        }
        stream.reader.wake();
        let padding = length - content.len() as u32;
        stream.owed += content.len() as u32;
        self.give_back(key, padding);
        self.streams.settle(key);
        Ok(0)
    }

    fn headers(
        &mut self,
        head: &FrameHead,
        payload: &[u8],
        scratch: &mut Scratch,
        server: &mut impl Server,
    ) -> Result<(), H2Error> {
        let id = head.stream;
        // The streams of servers are even, and none begins any here.
        if id.is_multiple_of(2) {
            return Err(PROTOCOL);
        }
        let mut block = &payload[unpadded(head, payload).ok_or(PROTOCOL)?];
        let mut priority = Ok(());
        if head.has(frame::PRIORITY) {
            let (fields, rest) = block.split_at_checked(PRIORITY_BYTES).ok_or(SIZE)?;
            priority = depends_on_another(id, fields);
            block = rest;
        }
        let ended = head.has(frame::END_STREAM);
        if !head.has(frame::END_HEADERS) {
            self.block = Some(Block { stream: id, ended, priority, bytes: block.to_vec() });
            return Ok(());
        }
        // All blocks are read, whatever becomes of them: they share a table.
        self.whole_head(id, ended, block, priority, scratch, server)
    }

    fn continuation(
        &mut self,
        head: &FrameHead,
        payload: &[u8],
        scratch: &mut Scratch,
        server: &mut impl Server,
    ) -> Result<(), H2Error> {
        let Some(block) = &mut self.block else { return Err(PROTOCOL) };
        block.bytes.extend_from_slice(payload);
        if block.bytes.len() > BLOCK_BYTES_MAX {
            return Err(H2Error::Connection(Reason::ENHANCE_YOUR_CALM));
        }
        if !head.has(frame::END_HEADERS) {
            return Ok(());
        }
        let Some(Block { stream, ended, priority, bytes }) = self.block.take() else {
            return Ok(());
        };
        self.whole_head(stream, ended, &bytes, priority, scratch, server)
    }

    fn whole_head(
        &mut self,
        id: u32,
        ended: bool,
        block: &[u8],
        priority: Result<(), H2Error>,
        scratch: &mut Scratch,
        server: &mut impl Server,
    ) -> Result<(), H2Error> {
        scratch.fields.begin(HEAD_BYTES_MAX);
        let unreadable = |_| H2Error::Connection(Reason::COMPRESSION_ERROR);
        self.decoder.decode(block, &mut scratch.fields).map_err(unreadable)?;
        if id > self.last {
            self.last = id;
            priority?;
            return self.request(id, ended, scratch, server);
        }
        priority?;
        if let Some(key) = self.streams.find(id) {
            return self.trailers(key, ended, &scratch.fields);
        }
        match self.streams.how_ended(id) {
            StreamEnd::Cut(Cut::ByUs) => Ok(()),
            StreamEnd::Cut(Cut::ByClient) | StreamEnd::Whole => {
                Err(H2Error::Connection(Reason::STREAM_CLOSED))
            }
            StreamEnd::Unknown => Err(PROTOCOL),
        }
    }

    fn request(
        &mut self,
        id: u32,
        ended: bool,
        scratch: &mut Scratch,
        server: &mut impl Server,
    ) -> Result<(), H2Error> {
        if self.leaving == Leaving::Known {
            self.streams.remember(id, StreamEnd::Cut(Cut::ByUs));
            return Ok(());
        }
        if !self.streams.has_room() || !server.has_room() {
            self.refuse(id, Reason::REFUSED_STREAM);
            return Ok(());
        }
        if scratch.fields.are_too_many() {
            self.answer_at_once(id, HEAD_TOO_LARGE, ended);
            return Ok(());
        }
        scratch.head.clear();
        match request::write(&scratch.fields, ended, || server.key(), &mut scratch.head) {
            Ok(asked) => {
                let key = self.streams.begin(id, &asked, ended, self.window_at_first);
                server.begin(key, asked, &scratch.head);
                Ok(())
            }
            Err(RequestRefused::Malformed) => Err(H2Error::Stream(id, Reason::PROTOCOL_ERROR)),
            Err(RequestRefused::Status(status)) => {
                self.answer_at_once(id, status, ended);
                Ok(())
            }
        }
    }

    fn trailers(&mut self, key: StreamKey, ended: bool, fields: &Fields) -> Result<(), H2Error> {
        let fault = |reason| Err(H2Error::Stream(key.id, reason));
        let Some(stream) = self.streams.get(key) else { return Ok(()) };
        match stream.cut {
            Some(Cut::ByUs) => return Ok(()),
            Some(Cut::ByClient) => return fault(Reason::STREAM_CLOSED),
            None => {}
        }
        if stream.has_come {
            return match stream.is_sent {
                true => Err(H2Error::Connection(Reason::STREAM_CLOSED)),
                false => fault(Reason::STREAM_CLOSED),
            };
        }
        let is_short = stream.left.is_some_and(|left| left > 0);
        if !ended || is_short || fields.are_too_many() {
            return fault(Reason::PROTOCOL_ERROR);
        }
        let start = stream.incoming.len();
        if request::write_trailers(fields, &mut stream.incoming).is_err() {
            stream.incoming.truncate(start);
            return fault(Reason::PROTOCOL_ERROR);
        }
        if !stream.chunked {
            // A body of known length has no place for trailers.
            stream.incoming.truncate(start);
        }
        stream.has_come = true;
        stream.reader.wake();
        self.streams.settle(key);
        Ok(())
    }

    fn reset(&mut self, id: u32) -> Result<(), H2Error> {
        if id > self.last {
            return Err(PROTOCOL);
        }
        if let Some(key) = self.streams.find(id) {
            self.streams.cut(key, Cut::ByClient);
            self.leave_queue(key);
        }
        Ok(())
    }

    fn settings(&mut self, head: &FrameHead, payload: &[u8]) -> Result<(), H2Error> {
        if head.has(frame::ACK) {
            return if payload.is_empty() { Ok(()) } else { Err(SIZE) };
        }
        let (settings, []) = payload.as_chunks::<6>() else { return Err(SIZE) };
        for [a, b, value @ ..] in settings {
            let value = u32::from_be_bytes(*value);
            match u16::from_be_bytes([*a, *b]) {
                setting::ENABLE_PUSH | setting::CONNECT_PROTOCOL if value > 1 => {
                    return Err(PROTOCOL);
                }
                setting::FRAME_BYTES_MAX if !(1 << 14..1 << 24).contains(&value) => {
                    return Err(PROTOCOL);
                }
                setting::INITIAL_WINDOW => self.first_window(i64::from(value))?,
                setting::TABLE_BYTES => {
                    self.encoder.resize(usize::try_from(value).unwrap_or(usize::MAX));
                }
                // No frame is sent that is longer than any client takes.
                _ => {}
            }
        }
        self.is_settled = true;
        frame::put(&mut self.out, FrameType::SETTINGS, frame::ACK, 0, &[]);
        Ok(())
    }

    /// Sets the window of new streams; it holds for streams that are under way, too.
    fn first_window(&mut self, bytes: i64) -> Result<(), H2Error> {
        let more = bytes - self.window_at_first;
        self.window_at_first = bytes;
        let mut is_sound = bytes <= WINDOW_MAX;
        for stream in self.streams.all() {
            stream.window_out += more;
            is_sound &= stream.window_out <= WINDOW_MAX;
            if stream.window_out > 0 {
                stream.writer.wake();
            }
        }
        if is_sound { Ok(()) } else { Err(H2Error::Connection(Reason::FLOW_CONTROL_ERROR)) }
    }

    fn ping(&mut self, head: &FrameHead, payload: &[u8]) -> Result<(), H2Error> {
        if payload.len() != 8 {
            return Err(SIZE);
        }
        if !head.has(frame::ACK) {
            frame::put(&mut self.out, FrameType::PING, frame::ACK, 0, payload);
        } else if payload == LEAVING {
            self.has_left();
        }
        Ok(())
    }

    fn window_update(&mut self, id: u32, payload: &[u8]) -> Result<(), H2Error> {
        let number = payload.first_chunk().filter(|_| payload.len() == 4).ok_or(SIZE)?;
        let more = i64::from(u32::from_be_bytes(*number) & STREAM_MASK);
        if id > self.last {
            return Err(PROTOCOL);
        }
        if id == 0 {
            self.window_out += more;
            if more == 0 {
                return Err(PROTOCOL);
            }
            if self.window_out > WINDOW_MAX {
                return Err(H2Error::Connection(Reason::FLOW_CONTROL_ERROR));
            }
            return Ok(());
        }
        if more == 0 {
            return Err(H2Error::Stream(id, Reason::PROTOCOL_ERROR));
        }
        let Some(key) = self.streams.find(id) else { return Ok(()) };
        let Some(stream) = self.streams.get(key).filter(|stream| stream.cut.is_none()) else {
            return Ok(());
        };
        stream.window_out += more;
        if stream.window_out > WINDOW_MAX {
            return Err(H2Error::Stream(id, Reason::FLOW_CONTROL_ERROR));
        }
        stream.writer.wake();
        Ok(())
    }

    /// Answers with a status, without anything that serves the stream.
    fn answer_at_once(&mut self, id: u32, status: u16, ended: bool) {
        self.put_status(id, status);
        if ended {
            self.streams.remember(id, StreamEnd::Whole);
        } else {
            self.refuse(id, Reason::NO_ERROR);
        }
    }

    /// Ends a stream, whether it is held or not.
    pub(super) fn refuse(&mut self, id: u32, reason: Reason) {
        frame::put_number(&mut self.out, FrameType::RST_STREAM, id, reason.0);
        match self.streams.find(id) {
            Some(key) => {
                self.streams.cut(key, Cut::ByUs);
                self.leave_queue(key);
            }
            None => self.streams.remember(id, StreamEnd::Cut(Cut::ByUs)),
        }
        self.driver.wake();
    }
}

/// Handles a part of a body for a stream that is over. What was under way when we cut that is
/// dropped.
fn too_late(id: u32, ended: StreamEnd, length: u32) -> Result<u32, H2Error> {
    match ended {
        StreamEnd::Cut(Cut::ByUs) => Ok(length),
        StreamEnd::Whole => Err(H2Error::Connection(Reason::STREAM_CLOSED)),
        StreamEnd::Cut(Cut::ByClient) | StreamEnd::Unknown => {
            Err(H2Error::Stream(id, Reason::STREAM_CLOSED))
        }
    }
}

/// Checks that a stream does not depend on itself, which is an error in it.
fn depends_on_another(id: u32, fields: &[u8]) -> Result<(), H2Error> {
    let on = fields.first_chunk().map(|on| u32::from_be_bytes(*on) & STREAM_MASK);
    match on == Some(id) {
        true => Err(H2Error::Stream(id, Reason::PROTOCOL_ERROR)),
        false => Ok(()),
    }
}
