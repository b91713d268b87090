//! One connection of a client: the frames that it sends become requests and their bodies, and what
//! is written to their streams becomes frames. Tasks that wait for a stream are woken.

mod frames;
mod sending;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::task::{Context, Poll};
use std::time::Duration;

pub use super::streams::StreamKey;
pub use sending::{StreamGone, Unsent};

use self::frames::H2Error;
use super::frame::{self, FrameHead, FrameType, PREFACE, Reason, setting};
use super::guard::Guard;
use super::hpack::decode::{Decoder, Fields};
use super::hpack::encode::Encoder;
use super::request::RequestForm;
use super::streams::{STREAMS_MAX, StreamState, Streams, WINDOW_BYTES, WaitingTask};
use crate::http::HEAD_BYTES_MAX;

/// Bytes that a client may send in all its streams before it is read.
const WINDOW_BYTES_ALL: u32 = 1024 * 1024;
/// Bytes of a window before either side says anything else (RFC 9113, section 6.9.2).
const WINDOW_AT_FIRST: u32 = 65_535;
/// Bytes that may wait to be sent, two records of TLS; bodies wait for room beyond that.
const OUT_BYTES: usize = 32 * 1024;
/// Bytes that a client makes us answer and does not read; then it is not read either.
const BACKLOG_BYTES_MAX: usize = 256 * 1024;
/// The ping that comes back when the client has heard that it is to leave.
const LEAVING: [u8; 8] = *b"leaving!";

/// What takes requests.
pub trait Server {
    /// Returns whether one more request may be begun.
    fn has_room(&self) -> bool;
    /// Returns a key unlike any other.
    fn key(&mut self) -> [u8; 16];
    /// Begins a request; `head` is as HTTP/1.1 has it.
    fn begin(&mut self, key: StreamKey, asked: RequestForm, head: &[u8]);
}

/// What is needed while frames are read: one for many connections.
#[derive(Debug, Default)]
pub struct Scratch {
    fields: Fields,
    head: Vec<u8>,
}

#[derive(Debug)]
pub struct H2Connection {
    /// The frames for the client.
    out: Vec<u8>,
    /// The number of bytes of the preface that have come.
    greeted: usize,
    /// Whether the client's settings came, as they must at first.
    is_settled: bool,
    /// A frame that has not come whole.
    partial: Vec<u8>,
    /// A head that has not come whole.
    block: Option<Block>,
    decoder: Decoder,
    encoder: Encoder,
    guard: Guard,
    streams: Streams,
    /// The newest stream that the client began.
    last: u32,
    window_in: i64,
    /// The bytes that were read and of which the client was not told.
    unsaid: u32,
    window_out: i64,
    /// The window of a new stream.
    window_at_first: i64,
    /// The streams that have something to send and lack only the room that all share.
    queue: VecDeque<StreamKey>,
    leaving: Leaving,
    failure: Option<Reason>,
    /// Whether nothing is read any more.
    is_over: bool,
    driver: WaitingTask,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    Not,
    /// The client was told, and may not know yet.
    Told,
    /// The client knows: what it began after this is not served.
    Known,
}

#[derive(Debug)]
struct Block {
    stream: u32,
    ended: bool,
    /// Whether what it depends on is sound: reported once the block is read.
    priority: Result<(), H2Error>,
    bytes: Vec<u8>,
}

impl Default for H2Connection {
    fn default() -> H2Connection {
        let mut connection = H2Connection {
            out: Vec::new(),
            greeted: 0,
            is_settled: false,
            partial: Vec::new(),
            block: None,
            decoder: Decoder::default(),
            encoder: Encoder::default(),
            guard: Guard::default(),
            streams: Streams::default(),
            last: 0,
            window_in: i64::from(WINDOW_BYTES_ALL),
            unsaid: 0,
            window_out: i64::from(WINDOW_AT_FIRST),
            window_at_first: i64::from(WINDOW_AT_FIRST),
            queue: VecDeque::new(),
            leaving: Leaving::Not,
            failure: None,
            is_over: false,
            driver: WaitingTask::default(),
        };
        connection.greet();
        connection
    }
}

impl H2Connection {
    fn greet(&mut self) {
        let head_max = u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX);
        let mut payload = Vec::new();
        for (name, value) in [
            (setting::STREAMS_MAX, STREAMS_MAX as u32),
            (setting::INITIAL_WINDOW, WINDOW_BYTES),
            (setting::HEAD_BYTES_MAX, head_max),
            (setting::CONNECT_PROTOCOL, 1),
        ] {
            payload.extend_from_slice(&name.to_be_bytes());
            payload.extend_from_slice(&value.to_be_bytes());
        }
        frame::put(&mut self.out, FrameType::SETTINGS, 0, 0, &payload);
        let more = WINDOW_BYTES_ALL - WINDOW_AT_FIRST;
        frame::put_number(&mut self.out, FrameType::WINDOW_UPDATE, 0, more);
    }

    /// Receives what the client sent next. `age` is how long the connection has been open.
    pub fn receive(
        &mut self,
        input: &[u8],
        age: Duration,
        scratch: &mut Scratch,
        server: &mut impl Server,
    ) {
        self.guard.refill(age);
        if let Err(reason) = self.read(input, scratch, server) {
            self.fail(reason);
        }
    }

    fn read(
        &mut self,
        mut input: &[u8],
        scratch: &mut Scratch,
        server: &mut impl Server,
    ) -> Result<(), Reason> {
        let expected = &PREFACE[self.greeted..];
        let (begun, rest) = input.split_at(expected.len().min(input.len()));
        if begun != &expected[..begun.len()] {
            return Err(Reason::PROTOCOL_ERROR);
        }
        self.greeted += begun.len();
        input = rest;
        while !self.partial.is_empty() && !self.is_over {
            let head = FrameHead::read(&self.partial);
            let whole = frame::HEAD_BYTES + head.map_or(Ok(0), |head| length(&head))?;
            if self.partial.len() == whole
                && let Some(head) = head
            {
                let partial = std::mem::take(&mut self.partial);
                self.take(&head, &partial[frame::HEAD_BYTES..], scratch, server)?;
                break;
            }
            let (more, rest) = input.split_at((whole - self.partial.len()).min(input.len()));
            if more.is_empty() {
                return Ok(());
            }
            self.partial.extend_from_slice(more);
            input = rest;
        }
        while let Some(head) = FrameHead::read(input).filter(|_| !self.is_over) {
            let end = frame::HEAD_BYTES + length(&head)?;
            let Some(payload) = input.get(frame::HEAD_BYTES..end) else { break };
            input = &input[end..];
            self.take(&head, payload, scratch, server)?;
        }
        if !self.is_over {
            self.partial.extend_from_slice(input);
        }
        Ok(())
    }

    fn take(
        &mut self,
        head: &FrameHead,
        payload: &[u8],
        scratch: &mut Scratch,
        server: &mut impl Server,
    ) -> Result<(), Reason> {
        if !self.guard.admits(head) {
            return Err(Reason::ENHANCE_YOUR_CALM);
        }
        match self.frame(head, payload, scratch, server) {
            Ok(()) => Ok(()),
            Err(H2Error::Connection(reason)) => Err(reason),
            // A stream that was never begun cannot be reset (RFC 9113, section 5.1).
            Err(H2Error::Stream(id, reason)) if id > self.last => Err(reason),
            Err(H2Error::Stream(id, reason)) => {
                if !self.guard.admits_error() {
                    return Err(Reason::ENHANCE_YOUR_CALM);
                }
                self.refuse(id, reason);
                Ok(())
            }
        }
    }

    /// Returns whether the client's settings have come.
    pub fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// Returns why the connection ends, if that is the client's doing.
    pub fn failure(&self) -> Option<Reason> {
        self.failure
    }

    /// Returns the frames to be sent. A caller that takes some says so by `sent`.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Notes that all of it is sent, so there may be room again. To be called after anything that
    /// makes room: after what came from the client, too.
    pub fn sent(&mut self) {
        self.wake_next();
    }

    /// Returns whether the client does not read what it asked for.
    pub fn is_backed_up(&self) -> bool {
        self.out.len() > BACKLOG_BYTES_MAX
    }

    /// Has the task woken when there is something to be sent.
    pub fn watch(&mut self, cx: &Context<'_>) {
        self.driver.wait(cx);
    }

    /// Returns the number of streams under way.
    pub fn open(&self) -> usize {
        self.streams.open()
    }

    /// Tells the client to ask elsewhere. What it has asked is answered.
    pub fn leave(&mut self) {
        if self.leaving == Leaving::Not && !self.is_over {
            self.leaving = Leaving::Told;
            self.go_away(frame::STREAM_MASK, Reason::NO_ERROR);
            frame::put(&mut self.out, FrameType::PING, 0, 0, &LEAVING);
        }
    }

    fn has_left(&mut self) {
        if self.leaving == Leaving::Told {
            self.leaving = Leaving::Known;
            self.go_away(self.last, Reason::NO_ERROR);
        }
    }

    fn go_away(&mut self, last: u32, reason: Reason) {
        let mut payload = last.to_be_bytes().to_vec();
        payload.extend_from_slice(&reason.0.to_be_bytes());
        frame::put(&mut self.out, FrameType::GOAWAY, 0, 0, &payload);
    }

    /// Returns whether the connection can be closed once all is sent.
    pub fn is_finished(&self) -> bool {
        self.is_over || (self.leaving == Leaving::Known && self.streams.open() == 0)
    }

    fn fail(&mut self, reason: Reason) {
        if !self.is_over {
            self.go_away(self.last, reason);
            self.failure = Some(reason);
            self.close();
        }
    }

    /// Notes that nothing more comes.
    pub fn close(&mut self) {
        self.is_over = true;
        (self.partial, self.block) = (Vec::new(), None);
        self.streams.cut_all();
        self.queue.clear();
    }

    /// Returns how many bytes came in a stream and were not read.
    pub fn ready_bytes(&mut self, key: StreamKey) -> usize {
        self.streams.get(key).map_or(0, |stream| stream.ready().len())
    }

    /// Reads what came in a stream, as far as there is room.
    pub fn read_body(&mut self, key: StreamKey, room: &mut [u8]) -> usize {
        let Some(stream) = self.streams.get(key) else { return 0 };
        let count = stream.ready().len().min(room.len());
        if count == 0 {
            return 0;
        }
        room[..count].copy_from_slice(&stream.ready()[..count]);
        stream.taken += count;
        if stream.taken == stream.incoming.len() {
            stream.incoming.clear();
            stream.taken = 0;
            let owed = std::mem::take(&mut stream.owed);
            self.give_back(key, owed);
        }
        count
    }

    /// Resolves when something can be read, with false at the end.
    pub fn poll_more(
        &mut self,
        key: StreamKey,
        cx: &Context<'_>,
    ) -> Poll<Result<bool, StreamGone>> {
        let Some(stream) = self.streams.get(key) else { return Poll::Ready(Err(StreamGone)) };
        if !stream.ready().is_empty() {
            return Poll::Ready(Ok(true));
        }
        if stream.cut.is_some() {
            return Poll::Ready(Err(StreamGone));
        }
        if stream.has_come {
            return Poll::Ready(Ok(false));
        }
        stream.reader.wait(cx);
        Poll::Pending
    }

    /// Resolves when the client wants nothing more.
    pub fn poll_cut(&mut self, key: StreamKey, cx: &Context<'_>) -> Poll<()> {
        match self.streams.get(key) {
            Some(stream) if stream.cut.is_none() => {
                stream.reader.wait(cx);
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    /// Gives bytes of the windows back that were read. This happens in large pieces, as each costs
    /// a frame.
    fn give_back(&mut self, key: StreamKey, count: u32) {
        let expects = |stream: &&mut StreamState| !stream.has_come && stream.cut.is_none();
        if let Some(stream) = self.streams.get(key).filter(expects) {
            stream.unsaid += count;
            if stream.unsaid >= WINDOW_BYTES / 2 {
                let unsaid = std::mem::take(&mut stream.unsaid);
                stream.window_in += i64::from(unsaid);
                frame::put_number(&mut self.out, FrameType::WINDOW_UPDATE, key.id, unsaid);
                self.driver.wake();
            }
        }
        self.give_back_all(count);
    }

    fn give_back_all(&mut self, count: u32) {
        self.unsaid += count;
        if self.unsaid >= WINDOW_BYTES_ALL / 2 && !self.is_over {
            let unsaid = std::mem::take(&mut self.unsaid);
            self.window_in += i64::from(unsaid);
            frame::put_number(&mut self.out, FrameType::WINDOW_UPDATE, 0, unsaid);
            self.driver.wake();
        }
    }

    /// Notes that a request was answered: that pays for one that is given up.
    pub fn answered(&mut self) {
        self.guard.answered();
    }
}

/// Returns the length of a frame; none is longer than was agreed.
fn length(head: &FrameHead) -> Result<usize, Reason> {
    match head.length {
        ..=frame::PAYLOAD_BYTES_MAX => Ok(head.length),
        _ => Err(Reason::FRAME_SIZE_ERROR),
    }
}
