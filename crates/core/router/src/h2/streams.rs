//! The streams of a connection: what came in each and was not read, what each may still send, and
//! who waits for either.

use std::collections::VecDeque;
use std::io::Write;
use std::task::{Context, Waker};

use super::request::Asked;

/// Browsers ask for about 100 at once at the most.
pub const STREAMS_MAX: usize = 128;
/// With those that are over for the client while somebody still sees to them here.
pub const HELD_MAX: usize = 2 * STREAMS_MAX;
/// What a client may send in each before it is read. With the connection's window, which all of
/// them share, that bounds what a connection holds.
pub const WINDOW_BYTES: u32 = 64 * 1024;
/// Streams that are over and for which frames may still be on their way.
const REMEMBERED_MAX: usize = 64;
/// Room that a connection keeps while nothing is asked.
const KEPT_MAX: usize = 8;

/// A stream, for whoever serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    slot: usize,
    pub id: u32,
}

#[derive(Debug, Default)]
pub struct Stream {
    /// To be read next, as HTTP/1.1.
    pub incoming: Vec<u8>,
    /// So much of it was read.
    pub taken: usize,
    /// Bytes of the client's window that come back to it once all is read.
    pub owed: u32,
    /// Those that were read and of which it was not told.
    pub unsaid: u32,
    /// Of the body's length, where that was said.
    pub left: Option<u64>,
    /// The body is put into chunks.
    pub chunked: bool,
    /// What the client may still send.
    pub window_in: i64,
    /// What the client takes.
    pub window_out: i64,
    /// The request is whole.
    pub has_come: bool,
    /// The answer is whole.
    pub is_sent: bool,
    pub cut: Option<Cut>,
    /// Counted as one that is over.
    is_over: bool,
    pub reader: Waiting,
    pub writer: Waiting,
}

/// Who ended it before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    ByClient,
    ByUs,
}

/// How a stream ended that is here no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Whole,
    Cut(Cut),
    /// It is too long ago, or it never was.
    Unknown,
}

/// Whoever is to be woken.
#[derive(Debug, Default)]
pub struct Waiting(Option<Waker>);

impl Waiting {
    /// Whoever only looks, with a waker that does nothing, takes nobody's place.
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

/// It does not wait.
pub fn looks_only(cx: &Context<'_>) -> bool {
    cx.waker().will_wake(Waker::noop())
}

impl Stream {
    pub fn ready(&self) -> &[u8] {
        &self.incoming[self.taken..]
    }

    /// A part of the body, for who reads it.
    pub fn put(&mut self, content: &[u8]) {
        if self.chunked && !content.is_empty() {
            // It cannot fail.
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
    /// By slots; 0 where one is free.
    ids: Vec<u32>,
    slots: Vec<Stream>,
    held: usize,
    open: usize,
    /// The newest last.
    ended: VecDeque<(u32, Ended)>,
}

impl Streams {
    /// Those that are over for neither side.
    pub fn open(&self) -> usize {
        self.open
    }

    pub fn has_room(&self) -> bool {
        self.open < STREAMS_MAX && self.held < HELD_MAX
    }

    pub fn begin(&mut self, id: u32, asked: &Asked, has_come: bool, window_out: i64) -> Key {
        let slot = self.ids.iter().position(|id| *id == 0).unwrap_or_else(|| {
            self.ids.push(0);
            self.slots.push(Stream::default());
            self.ids.len() - 1
        });
        self.ids[slot] = id;
        self.slots[slot] = Stream {
            left: asked.length,
            chunked: asked.chunked,
            window_in: i64::from(WINDOW_BYTES),
            window_out,
            has_come,
            ..Stream::default()
        };
        self.held += 1;
        self.open += 1;
        Key { slot, id }
    }

    pub fn find(&self, id: u32) -> Option<Key> {
        let slot = self.ids.iter().position(|held| *held == id)?;
        Some(Key { slot, id })
    }

    pub fn get(&mut self, key: Key) -> Option<&mut Stream> {
        (self.ids.get(key.slot) == Some(&key.id)).then(|| &mut self.slots[key.slot])
    }

    pub fn all(&mut self) -> impl Iterator<Item = &mut Stream> {
        let held = self.ids.iter().zip(&mut self.slots);
        held.filter(|(id, _)| **id != 0).map(|(_, stream)| stream)
    }

    /// One that was changed may be over now.
    pub fn settle(&mut self, key: Key) {
        let Some(stream) = self.get(key) else { return };
        let is_over = stream.cut.is_some() || (stream.has_come && stream.is_sent);
        if is_over && !stream.is_over {
            stream.is_over = true;
            self.open -= 1;
        }
    }

    /// Nothing more is read or sent in it.
    pub fn cut(&mut self, key: Key, by: Cut) {
        if let Some(stream) = self.get(key) {
            stream.cut.get_or_insert(by);
            stream.wake();
        }
        self.settle(key);
    }

    pub fn cut_all(&mut self) {
        let keys = self.ids.iter().enumerate().filter(|(_, id)| **id != 0);
        let keys: Vec<Key> = keys.map(|(slot, id)| Key { slot, id: *id }).collect();
        keys.into_iter().for_each(|key| self.cut(key, Cut::ByClient));
    }

    /// Whoever served it does so no more.
    pub fn end(&mut self, key: Key) {
        let Some(stream) = self.get(key) else { return };
        let ended = stream.cut.map_or(Ended::Whole, Ended::Cut);
        *stream = Stream::default();
        self.ids[key.slot] = 0;
        self.held -= 1;
        if self.held == 0 && self.slots.capacity() > KEPT_MAX {
            (self.ids, self.slots) = (Vec::new(), Vec::new());
        }
        self.remember(key.id, ended);
    }

    pub fn remember(&mut self, id: u32, ended: Ended) {
        if self.ended.len() == REMEMBERED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back((id, ended));
    }

    pub fn how_ended(&self, id: u32) -> Ended {
        let known = self.ended.iter().rev().find(|(one, _)| *one == id);
        known.map_or(Ended::Unknown, |(_, ended)| *ended)
    }
}
