//! One connection of the router: plain to clients and to instances, sealed to the routers of other
//! nodes and to clients that speak TLS. Both are read and written without a buffer of their own
//! while nothing comes.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::net::Shutdown;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use socket2::SockRef;
use tokio::io::ReadBuf;

use super::buffer::Buffer;
use super::far::peer::FarPeer;
use super::far::sealed::Sealed;
use super::h2::stream::H2Stream;
use super::pace::Patience;
use super::plain::Plain;
use super::time_limit::within;

pub enum Wire {
    Plain(Plain),
    /// A connection inside TLS; larger, and rarer.
    Sealed(Box<Sealed>),
    /// One request, of many on a connection.
    Stream(Box<H2Stream>),
}

impl From<Plain> for Wire {
    fn from(plain: Plain) -> Wire {
        Wire::Plain(plain)
    }
}

impl Wire {
    /// Reads what is there now; returns 0 at the end of the stream. A read that did not fill the
    /// room has emptied the socket, so the next wait is for new bytes and costs no vain read first.
    pub fn read_now(&self, buffer: &mut Buffer) -> Result<usize> {
        match self {
            Wire::Plain(plain) => plain.read_now(buffer),
            Wire::Sealed(sealed) => {
                let count = sealed.read_now(buffer.room())?;
                buffer.added(count);
                Ok(count)
            }
            Wire::Stream(stream) => {
                let count = stream.read_now(buffer.room())?;
                buffer.added(count);
                Ok(count)
            }
        }
    }

    pub async fn readable(&self) -> Result<()> {
        match self {
            Wire::Plain(plain) => plain.readable().await,
            // The future is boxed, so that a plain connection needs no room for it.
            Wire::Sealed(sealed) => Box::pin(sealed.readable()).await,
            Wire::Stream(stream) => {
                Box::pin(stream.readable()).await;
                Ok(())
            }
        }
    }

    pub async fn readable_within(&self, limit: Duration) -> Result<()> {
        match self {
            Wire::Plain(plain) => plain.readable_within(limit).await,
            Wire::Sealed(sealed) => Box::pin(sealed.readable_within(limit)).await,
            Wire::Stream(_) => Box::pin(within(limit, self.readable())).await,
        }
    }

    pub async fn readable_by(&self, deadline: Instant) -> Result<()> {
        match self {
            Wire::Plain(plain) => plain.readable_by(deadline.into()).await,
            Wire::Sealed(_) | Wire::Stream(_) => {
                let left = deadline.saturating_duration_since(Instant::now());
                Box::pin(self.readable_within(left)).await
            }
        }
    }

    pub async fn write_all(&self, bytes: &[u8], patience: Patience<'_>) -> Result<()> {
        match self {
            Wire::Plain(plain) => plain.write_all(bytes, patience).await,
            Wire::Sealed(sealed) => Box::pin(sealed.write_all(bytes, patience)).await,
            // A stream has a pace of its own.
            Wire::Stream(stream) => {
                let left = stream.write_now(bytes)?;
                if left.is_empty() {
                    return Ok(());
                }
                Box::pin(stream.write_all(left, patience.piece())).await
            }
        }
    }

    /// Returns how many bytes have come and were not read; `None` at the end, or when it broke.
    pub fn peek(&self) -> Option<usize> {
        match self {
            Wire::Plain(plain) => plain.peek(),
            Wire::Sealed(sealed) => sealed.peek(),
            Wire::Stream(stream) => stream.peek(),
        }
    }

    /// Returns whether nothing came, not even an end, so that it can be used again.
    pub fn is_untouched(&self, for_certain: bool) -> bool {
        match self {
            Wire::Plain(plain) => plain.is_untouched(for_certain),
            Wire::Sealed(sealed) => sealed.peek() == Some(0),
            // The connection below it is looked after elsewhere.
            Wire::Stream(_) => false,
        }
    }

    pub fn shut_down_writing(&self) {
        match self {
            // A peer that is gone already needs no end.
            Wire::Plain(plain) => drop(SockRef::from(plain).shutdown(Shutdown::Write)),
            Wire::Sealed(sealed) => sealed.shut_down_writing(),
            Wire::Stream(stream) => stream.shut_down_writing(),
        }
    }

    /// Signs the end before it is closed: TLS says whether an end stands for a cut or a whole
    /// answer.
    pub fn sign_end(&self) {
        if let Wire::Sealed(sealed) = self {
            sealed.shut_down_writing();
        }
    }

    /// Ends with a reset, so that what was sent so far cannot pass for the whole.
    pub fn cut(self) {
        let socket = match &self {
            Wire::Plain(plain) => SockRef::from(plain),
            Wire::Sealed(sealed) => SockRef::from(sealed.tcp()),
            Wire::Stream(stream) => return stream.cut(),
        };
        socket.set_linger(Some(Duration::ZERO)).ok();
    }

    /// Says whether the connection is reset when it is dropped as it is now.
    pub fn end_with_a_reset(&self, is_reset: bool) {
        let socket = match self {
            Wire::Plain(plain) => SockRef::from(plain),
            Wire::Sealed(sealed) => SockRef::from(sealed.tcp()),
            // The connection below it carries others, too.
            Wire::Stream(_) => return,
        };
        socket.set_linger(is_reset.then_some(Duration::ZERO)).ok();
    }

    /// Returns the node on the other side, if this one called it.
    pub fn far(&self) -> Option<&Arc<FarPeer>> {
        match self {
            Wire::Plain(_) | Wire::Stream(_) => None,
            Wire::Sealed(sealed) => sealed.peer(),
        }
    }

    /// Returns whether nobody between here and the other side can read it.
    pub fn is_secure(&self) -> bool {
        match self {
            Wire::Plain(_) => false,
            Wire::Sealed(_) => true,
            Wire::Stream(stream) => stream.is_secure(),
        }
    }

    /// Returns whether its messages go both ways at the same time: an answer may come piece by
    /// piece as the request does.
    pub fn is_duplex(&self) -> bool {
        matches!(self, Wire::Stream(_))
    }

    /// Adds bytes that are sent together with what is written next.
    pub fn put(&self, bytes: &[u8]) -> Result<()> {
        match self {
            Wire::Plain(_) | Wire::Stream(_) => Err(Error::from(ErrorKind::Unsupported)),
            Wire::Sealed(sealed) => sealed.put(bytes),
        }
    }

    /// Reads like a stream of tokio.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        match self {
            Wire::Plain(plain) => plain.poll_read(cx, room),
            Wire::Sealed(sealed) => sealed.poll_read(cx, room),
            Wire::Stream(_) => Poll::Ready(Err(ErrorKind::Unsupported.into())),
        }
    }

    pub fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        match self {
            Wire::Plain(plain) => plain.poll_write(cx, pieces),
            Wire::Sealed(sealed) => sealed.poll_write(cx, pieces),
            Wire::Stream(_) => Poll::Ready(Err(ErrorKind::Unsupported.into())),
        }
    }

    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match self {
            Wire::Sealed(sealed) => sealed.poll_flush(cx),
            Wire::Plain(_) | Wire::Stream(_) => Poll::Ready(Ok(())),
        }
    }
}
