//! A stream of HTTP/2 as a `Wire`: it is read as HTTP/1.1, and what is written to it as HTTP/1.1
//! goes out in frames. Either side's window holds up the writer.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{ErrorKind, Result};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::pace::Pace;
use crate::time_limit::within;

/// The two directions of a stream, of a client or to an instance.
pub trait Ways {
    /// Reads what is ready, as far as there is room.
    fn take(&self, room: &mut [u8]) -> usize;

    /// Returns how many bytes are ready.
    fn ready_bytes(&self) -> usize;

    /// Resolves to whether something is ready; false at the end.
    fn poll_more(&self, cx: &mut Context<'_>) -> Poll<Result<bool>>;

    /// Returns whether the end of what comes is an end for the reader. After the end of a client's
    /// request only the end of the stream may come, unless it is a tunnel.
    fn has_ended(&self) -> bool;

    /// Resolves when the other side wants nothing more.
    fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// Writes bytes, and returns how many were used: at least one.
    fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>>;

    /// Ends a message that ends with its connection.
    fn finish(&self);

    /// Cuts the stream off, so that what was sent so far cannot pass for the whole.
    fn cut(&self);

    /// Returns whether it came inside TLS.
    fn is_secure(&self) -> bool {
        false
    }

    /// Sets how long its connection may be without a request.
    fn may_idle(&self, _time: Duration) {}
}

pub struct H2Stream<W: Ways + ?Sized = dyn Ways> {
    /// The pace of a client, whose windows may be as small as it likes.
    pace: Option<Pace>,
    ways: W,
}

/// A stream that is counted until it is dropped.
pub struct CountedStream(Rc<Cell<usize>>);

impl CountedStream {
    pub fn begin(count: &Rc<Cell<usize>>) -> CountedStream {
        count.set(count.get() + 1);
        CountedStream(count.clone())
    }
}

impl Drop for CountedStream {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl<W: Ways> H2Stream<W> {
    pub fn of_client(ways: W) -> H2Stream<W> {
        H2Stream { pace: Some(Pace::default()), ways }
    }

    pub fn of_instance(ways: W) -> H2Stream<W> {
        H2Stream { pace: None, ways }
    }
}

impl<W: Ways + ?Sized> H2Stream<W> {
    pub fn may_idle(&self, time: Duration) {
        self.ways.may_idle(time);
    }

    pub fn is_secure(&self) -> bool {
        self.ways.is_secure()
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self.ways.poll_more(cx) {
            Poll::Ready(Ok(false)) if !self.ways.has_ended() => self.ways.poll_reset(cx),
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        }
    }

    pub fn read_now(&self, room: &mut [u8]) -> Result<usize> {
        let cx = &mut Context::from_waker(Waker::noop());
        let mut count = 0;
        loop {
            count += self.ways.take(&mut room[count..]);
            if count == room.len() {
                return Ok(count);
            }
            match self.ways.poll_more(cx) {
                Poll::Ready(Ok(true)) => {}
                _ if count > 0 => return Ok(count),
                Poll::Ready(Ok(false)) if self.ways.has_ended() => return Ok(0),
                Poll::Ready(Ok(false)) => {
                    let reset = self.ways.poll_reset(cx).is_ready();
                    let kind =
                        if reset { ErrorKind::ConnectionReset } else { ErrorKind::WouldBlock };
                    return Err(kind.into());
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => return Err(ErrorKind::WouldBlock.into()),
            }
        }
    }

    pub async fn readable(&self) {
        poll_fn(|cx| self.poll_readable(cx)).await;
    }

    /// Writes what can be sent now; returns what is left.
    pub fn write_now<'a>(&self, mut bytes: &'a [u8]) -> Result<&'a [u8]> {
        while !bytes.is_empty() {
            let now = &mut Context::from_waker(Waker::noop());
            let Poll::Ready(taken) = self.ways.poll_write(now, bytes) else { break };
            bytes = self.took(bytes, taken?);
        }
        Ok(bytes)
    }

    /// Writes each piece within `limit`; all of what a client takes, with a second more for each
    /// 240 bytes.
    pub async fn write_all(&self, mut bytes: &[u8], limit: Duration) -> Result<()> {
        while !bytes.is_empty() {
            let taken = self.write_later(bytes, limit).await?;
            bytes = self.write_now(self.took(bytes, taken))?;
        }
        Ok(())
    }

    fn took<'a>(&self, bytes: &'a [u8], taken: usize) -> &'a [u8] {
        if let Some(pace) = &self.pace {
            pace.took(taken);
        }
        &bytes[taken..]
    }

    async fn write_later(&self, bytes: &[u8], limit: Duration) -> Result<usize> {
        let work = poll_fn(|cx| self.ways.poll_write(cx, bytes));
        match &self.pace {
            Some(pace) => pace.wait(limit, work).await,
            None => within(limit, work).await,
        }
    }

    /// Returns how many bytes have come and were not read; `None` at the end.
    pub fn peek(&self) -> Option<usize> {
        match self.ways.poll_more(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(true)) => Some(self.ways.ready_bytes()),
            Poll::Ready(_) => None,
            Poll::Pending => Some(0),
        }
    }

    pub fn shut_down_writing(&self) {
        self.ways.finish();
    }

    pub fn cut(&self) {
        self.ways.cut();
    }
}

#[cfg(test)]
mod tests;
