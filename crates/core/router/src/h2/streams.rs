//! The streams of a connection: what came in each and was not read, what each may still send, and
//! which tasks wait for either.

use std::collections::VecDeque;
use std::io::Write;
use std::task::{Context, Waker};

use super::request::RequestForm;

/// Streams that a client may have at a time; browsers ask for about 100 at once at the most.
pub const STREAMS_MAX: usize = 128;
/// Streams that are held, with those that are over for the client while they are still served here.
pub const HELD_MAX: usize = 2 * STREAMS_MAX;
/// Bytes that a client may send in each stream before it is read. With the connection's window,
/// which all of them share, that bounds what a connection holds.
pub const WINDOW_BYTES: u32 = 64 * 1024;
/// Streams that are remembered when they are over, as frames for them may still be under way.
const REMEMBERED_MAX: usize = 64;
/// Streams that a connection keeps room for while nothing is asked.
const KEPT_MAX: usize = 8;

/// The name of a stream for what serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamKey {
    slot: usize,
    pub id: u32,
}

#[derive(Debug, Default)]
pub struct StreamState {
    /// The bytes to be read next, as HTTP/1.1.
    pub incoming: Vec<u8>,
    /// The number of these that were read.
    pub taken: usize,
    /// The bytes of the client's window that come back to it once all is read.
    pub owed: u32,
    /// The bytes that were read and of which the client was not told.
    pub unsaid: u32,
    /// What is left of the body's length, if that was said.
    pub left: Option<u64>,
    /// Whether the body is put into chunks.
    pub chunked: bool,
    /// The bytes that the client may still send.
    pub window_in: i64,
    /// The bytes that the client still takes.
    pub window_out: i64,
    /// Whether the request is whole.
    pub has_come: bool,
    /// Whether the answer is whole.
    pub is_sent: bool,
    pub cut: Option<Cut>,
    /// Whether it is counted as one that is over.
    is_over: bool,
    pub reader: WaitingTask,
    pub writer: WaitingTask,
}

/// The side that ended it before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    ByClient,
    ByUs,
}

/// The way in which a stream ended that is no longer here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    Whole,
    Cut(Cut),
    /// It is too long ago, or it never was.
    Unknown,
}

/// The task that is to be woken.
#[derive(Debug, Default)]
pub struct WaitingTask(Option<Waker>);

impl WaitingTask {
    /// Registers a task. One that only looks, with a waker that does nothing, takes nobody's place.
    pub fn wait(&mut self, cx: &Context<'_>) {
        if looks_only(cx) {
            return;
        }
        if !self.0.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            self.0 = Some(cx.waker().clone());
        }
    }

    pub fn wake(&mut self) {
        if let Some(waker) = self.0.take() {
            waker.wake();
        }
    }
}

/// Returns whether the task does not wait.
pub fn looks_only(cx: &Context<'_>) -> bool {
    cx.waker().will_wake(Waker::noop())
}

impl StreamState {
    pub fn ready(&self) -> &[u8] {
        &self.incoming[self.taken..]
    }

    /// Adds a part of the body, for the task that reads it.
    pub fn put(&mut self, content: &[u8]) {
        if self.chunked && !content.is_empty() {
            // Writing to memory cannot fail.
            write!(self.incoming, "{:x}\r\n", content.len()).ok();
        }
        self.incoming.extend_from_slice(content);
        if self.chunked && !content.is_empty() {
            self.incoming.extend_from_slice(b"\r\n");
        }
    }

    fn wake(&mut self) {
        self.reader.wake();
        self.writer.wake();
    }
}

#[derive(Debug, Default)]
pub struct Streams {
    /// The streams by slots; 0 if one is free.
    ids: Vec<u32>,
    slots: Vec<StreamState>,
    held: usize,
    open: usize,
    /// The streams that are over, the newest last.
    ended: VecDeque<(u32, StreamEnd)>,
}

impl Streams {
    /// Returns the number of those that are not over for the client.
    pub fn open(&self) -> usize {
        self.open
    }

    pub fn has_room(&self) -> bool {
        self.open < STREAMS_MAX && self.held < HELD_MAX
    }

    pub fn begin(
        &mut self,
        id: u32,
        asked: &RequestForm,
        has_come: bool,
        window_out: i64,
    ) -> StreamKey {
        let slot = self.ids.iter().position(|id| *id == 0).unwrap_or_else(|| {
            self.ids.push(0);
            self.slots.push(StreamState::default());
            self.ids.len() - 1
        });
        self.ids[slot] = id;
        self.slots[slot] = StreamState {
            left: asked.length,
            chunked: asked.chunked,
            window_in: i64::from(WINDOW_BYTES),
            window_out,
            has_come,
            ..StreamState::default()
        };
        self.held += 1;
        self.open += 1;
        StreamKey { slot, id }
    }

    pub fn find(&self, id: u32) -> Option<StreamKey> {
        let slot = self.ids.iter().position(|held| *held == id)?;
        Some(StreamKey { slot, id })
    }

    pub fn get(&mut self, key: StreamKey) -> Option<&mut StreamState> {
        (self.ids.get(key.slot) == Some(&key.id)).then(|| &mut self.slots[key.slot])
    }

    pub fn all(&mut self) -> impl Iterator<Item = &mut StreamState> {
        let held = self.ids.iter().zip(&mut self.slots);
        held.filter(|(id, _)| **id != 0).map(|(_, stream)| stream)
    }

    /// Counts a stream that was changed as over if it is now.
    pub fn settle(&mut self, key: StreamKey) {
        let Some(stream) = self.get(key) else { return };
        let is_over = stream.cut.is_some() || (stream.has_come && stream.is_sent);
        if is_over && !stream.is_over {
            stream.is_over = true;
            self.open -= 1;
        }
    }

    /// Cuts a stream: nothing more is read or sent in it.
    pub fn cut(&mut self, key: StreamKey, by: Cut) {
        if let Some(stream) = self.get(key) {
            stream.cut.get_or_insert(by);
            stream.wake();
        }
        self.settle(key);
    }

    pub fn cut_all(&mut self) {
        let keys = self.ids.iter().enumerate().filter(|(_, id)| **id != 0);
        let keys: Vec<StreamKey> = keys.map(|(slot, id)| StreamKey { slot, id: *id }).collect();
        keys.into_iter().for_each(|key| self.cut(key, Cut::ByClient));
    }

    /// Ends a stream that nothing serves any more.
    pub fn end(&mut self, key: StreamKey) {
        let Some(stream) = self.get(key) else { return };
        let ended = stream.cut.map_or(StreamEnd::Whole, StreamEnd::Cut);
        *stream = StreamState::default();
        self.ids[key.slot] = 0;
        self.held -= 1;
        if self.held == 0 && self.slots.capacity() > KEPT_MAX {
            (self.ids, self.slots) = (Vec::new(), Vec::new());
        }
        self.remember(key.id, ended);
    }

    pub fn remember(&mut self, id: u32, ended: StreamEnd) {
        if self.ended.len() == REMEMBERED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back((id, ended));
    }

    pub fn how_ended(&self, id: u32) -> StreamEnd {
        let known = self.ended.iter().rev().find(|(one, _)| *one == id);
        known.map_or(StreamEnd::Unknown, |(_, ended)| *ended)
    }
}
