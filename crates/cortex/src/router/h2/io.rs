//! The bytes of a connection that speaks HTTP/2: what was read already comes first, and a guard
//! sees all that the client sends. What is sent is gathered for as long as there is more.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice, Result};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use super::guard::Guard;
use crate::router::pool::Buffer;
use crate::router::serve::Thread;
use crate::router::wire::Wire;

/// One record of TLS. Frames that become ready together leave in one write.
const GATHERED_BYTES: usize = 16 * 1024;

/// What the two sides of a connection tell each other.
pub struct Watch {
    pub guard: RefCell<Guard>,
    /// Wakes who is to end a connection whose client sends too much.
    pub excess: Notify,
    /// Since when the client takes nothing of what waits for it.
    stalled: Cell<Option<Instant>>,
    thread: Rc<Thread>,
    wire: RefCell<Wire>,
    /// In this turn nothing more comes: who is to be woken is known already.
    is_dry: Cell<bool>,
    /// Frames that leave at the end of the connection's turn. Empty, it holds no memory.
    gathered: RefCell<Vec<u8>>,
}

impl Watch {
    pub fn new(thread: Rc<Thread>, wire: Wire) -> Rc<Watch> {
        Rc::new(Watch {
            guard: RefCell::new(Guard::new(Instant::now())),
            excess: Notify::new(),
            stalled: Cell::new(None),
            thread,
            wire: RefCell::new(wire),
            is_dry: Cell::new(false),
            gathered: RefCell::default(),
        })
    }

    pub fn stalled_for(&self) -> Duration {
        self.stalled.get().map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Polls what works on the connection, and then sends what that has gathered: `h2` writes each
    /// frame of data by itself. None when nothing can be sent any more.
    pub async fn turn<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|cx| {
            self.is_dry.set(false);
            match work.as_mut().poll(cx) {
                Poll::Ready(done) => Poll::Ready(Some(done)),
                Poll::Pending => match self.poll_send(cx) {
                    Poll::Ready(Err(_)) => Poll::Ready(None),
                    Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
                },
            }
        })
        .await
    }

    fn poll_gather(&self, cx: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<Result<usize>> {
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        let before = self.gathered.borrow().len();
        if before + bytes > GATHERED_BYTES {
            ready!(self.poll_send(cx))?;
            if bytes > GATHERED_BYTES {
                return self.note(self.wire.borrow_mut().poll_write(cx, pieces));
            }
        }
        let mut gathered = self.gathered.borrow_mut();
        if gathered.capacity() == 0 {
            *gathered = self.thread.pool.scratch();
        }
        pieces.iter().for_each(|piece| gathered.extend_from_slice(piece));
        Poll::Ready(Ok(bytes))
    }

    /// All that was gathered, and what the layers below still hold.
    fn poll_send(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let (mut wire, mut gathered) = (self.wire.borrow_mut(), self.gathered.borrow_mut());
        while !gathered.is_empty() {
            match self.note(wire.poll_write(cx, &[IoSlice::new(&gathered)])) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => drop(gathered.drain(..count)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        if gathered.capacity() > 0 {
            self.thread.pool.give_back_scratch(std::mem::take(&mut gathered));
        }
        self.note(wire.poll_flush(cx))
    }

    fn note<T>(&self, result: Poll<T>) -> Poll<T> {
        let since = self.stalled.get().unwrap_or_else(Instant::now);
        self.stalled.set(result.is_pending().then_some(since));
        result
    }
}

pub struct Io {
    first: Option<Buffer>,
    watch: Rc<Watch>,
    /// The client sent too much: it is listened to no more.
    deaf: bool,
}

impl Io {
    pub fn new(first: Option<Buffer>, watch: Rc<Watch>) -> Io {
        Io { first, watch, deaf: false }
    }
}

impl AsyncRead for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let io = self.get_mut();
        // The library asks again for each request.
        if io.deaf || io.watch.is_dry.get() {
            return Poll::Pending;
        }
        let before = room.filled().len();
        if let Some(mut first) = io.first.take() {
            let taken = first.filled().len().min(room.remaining());
            room.put_slice(&first.filled()[..taken]);
            first.consume(taken);
            match first.filled().is_empty() {
                true => io.watch.thread.pool.give_back(first),
                false => io.first = Some(first),
            }
        } else {
            let read = io.watch.wire.borrow_mut().poll_read(cx, room);
            io.watch.is_dry.set(read.is_pending());
            ready!(read)?;
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
        self.watch.poll_gather(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        self.watch.poll_gather(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// `Watch::turn` does it, once for all frames.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        ready!(self.watch.poll_send(cx))?;
        self.watch.wire.borrow().shut_down_writing();
        Poll::Ready(Ok(()))
    }
}
