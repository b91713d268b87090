//! The bytes of a connection that speaks HTTP/2: what was read already comes first, and a guard
//! sees all that the client sends.

use std::cell::{Cell, RefCell};
use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use super::guard::Guard;
use crate::router::pool::Buffer;
use crate::router::serve::Thread;
use crate::router::wire::Wire;

/// What the two sides of a connection tell each other.
pub struct Watch {
    pub guard: RefCell<Guard>,
    /// Wakes who is to end a connection whose client sends too much.
    pub excess: Notify,
    /// Since when the client takes nothing of what waits for it.
    stalled: Cell<Option<Instant>>,
}

impl Watch {
    pub fn new() -> Rc<Watch> {
        let guard = RefCell::new(Guard::new(Instant::now()));
        Rc::new(Watch { guard, excess: Notify::new(), stalled: Cell::new(None) })
    }

    pub fn stalled_for(&self) -> Duration {
        self.stalled.get().map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn note_write<T>(&self, result: Poll<T>) -> Poll<T> {
        let since = self.stalled.get().unwrap_or_else(Instant::now);
        self.stalled.set(result.is_pending().then_some(since));
        result
    }
}

pub struct Io {
    thread: Rc<Thread>,
    wire: Wire,
    first: Option<Buffer>,
    watch: Rc<Watch>,
    /// The client sent too much: it is listened to no more.
    deaf: bool,
}

impl Io {
    pub fn new(thread: Rc<Thread>, wire: Wire, first: Option<Buffer>, watch: Rc<Watch>) -> Io {
        Io { thread, wire, first, watch, deaf: false }
    }
}

impl AsyncRead for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let io = self.get_mut();
        if io.deaf {
            return Poll::Pending;
        }
        let before = room.filled().len();
        if let Some(mut first) = io.first.take() {
            let taken = first.filled().len().min(room.remaining());
            room.put_slice(&first.filled()[..taken]);
            first.consume(taken);
            match first.filled().is_empty() {
                true => io.thread.pool.give_back(first),
                false => io.first = Some(first),
            }
        } else {
            ready!(io.wire.poll_read(cx, room))?;
        }
        if !io.watch.guard.borrow_mut().admits(&room.filled()[before..], Instant::now()) {
            io.deaf = true;
            io.watch.excess.notify_one();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let io = self.get_mut();
        io.watch.note_write(io.wire.poll_write(cx, &[IoSlice::new(bytes)]))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let io = self.get_mut();
        io.watch.note_write(io.wire.poll_write(cx, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let io = self.get_mut();
        io.watch.note_write(io.wire.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        ready!(self.as_mut().poll_flush(cx))?;
        self.wire.shut_down_writing();
        Poll::Ready(Ok(()))
    }
}
