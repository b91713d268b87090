//! One connection of the router: plain to clients and to instances, sealed to the routers of other
//! nodes and to clients that speak TLS. Both are read and written without a buffer of their own
//! while nothing comes.

use std::future::poll_fn;
use std::io::{Error, ErrorKind, IoSlice, Read, Result, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::alarm::Alarm;
use super::far::peer::FarPeer;
use super::far::sealed::Sealed;
use super::h2::stream::Stream;
use super::pace::Patience;
use super::pool::Buffer;
use super::stream::within;

pub enum Wire {
    Plain(Plain),
    /// Larger, and rarer.
    Sealed(Box<Sealed>),
    /// One request, of many on a connection.
    Stream(Box<Stream>),
}

impl From<TcpStream> for Wire {
    fn from(stream: TcpStream) -> Wire {
        Wire::Plain(Plain { stream, alarm: Alarm::default() })
    }
}

pub struct Plain {
    stream: TcpStream,
    alarm: Alarm,
}

impl Deref for Plain {
    type Target = TcpStream;

    fn deref(&self) -> &TcpStream {
        &self.stream
    }
}

impl Plain {
    /// One task at a time waits for it: whoever asked last is woken.
    async fn readable(&self) -> Result<()> {
        poll_fn(|cx| self.stream.poll_read_ready(cx)).await
    }

    async fn readable_within(&self, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        poll_fn(|cx| match self.stream.poll_read_ready(cx) {
            Poll::Pending => {
                let rings = self.alarm.poll(cx, deadline);
                rings.map(|()| Err(Error::from(ErrorKind::TimedOut)))
            }
            ready => ready,
        })
        .await
    }

    /// Two pieces in one write. Where more is written at once behind them, they wait for that.
    pub async fn write_pieces(
        &self,
        pieces: [&[u8]; 2],
        more: bool,
        patience: Patience<'_>,
    ) -> Result<()> {
        let flags = if more { SendFlags::NOSIGNAL | SendFlags::MORE } else { SendFlags::NOSIGNAL };
        let mut slices = pieces.map(IoSlice::new);
        let mut left = slices.as_mut_slice();
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            let written = self.stream.try_io(Interest::WRITABLE, || {
                let mut none = SendAncillaryBuffer::default();
                sendmsg(&self.stream, left, &mut none, flags).map_err(Error::from)
            });
            match written {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    IoSlice::advance_slices(&mut left, count);
                    patience.took(count);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    Box::pin(patience.wait(self.stream.writable())).await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Wire {
    /// What is there now. A read that did not fill the room has emptied the socket, so the next
    /// wait is for new bytes and costs no vain read first. 0 at the end of the stream.
    pub fn read_now(&self, buffer: &mut Buffer) -> Result<usize> {
        match self {
            Wire::Plain(stream) => read_plain(stream, buffer),
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
            Wire::Plain(stream) => stream.readable().await,
            // Apart, so that a plain one needs no room for it.
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
            _ => Box::pin(within(limit, self.readable())).await,
        }
    }

    pub async fn write_all(&self, bytes: &[u8], patience: Patience<'_>) -> Result<()> {
        match self {
            Wire::Plain(stream) => write_plain(stream, bytes, patience).await,
            Wire::Sealed(sealed) => Box::pin(sealed.write_all(bytes, patience)).await,
            // It has a pace of its own.
            Wire::Stream(stream) => Box::pin(stream.write_all(bytes, patience.piece())).await,
        }
    }

    /// Bytes that have come and were not read; none at the end, or when it broke.
    pub fn peek(&self) -> Option<usize> {
        match self {
            Wire::Plain(stream) => peek_plain(stream),
            Wire::Sealed(sealed) => sealed.peek(),
            Wire::Stream(stream) => stream.peek(),
        }
    }

    /// Nothing came, not even an end: it can be used again.
    pub fn is_untouched(&self) -> bool {
        match self {
            Wire::Plain(stream) => {
                let read = stream.try_read(&mut [0; 1]);
                read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
            }
            Wire::Sealed(sealed) => sealed.peek() == Some(0),
            // Of the connection below it others take care.
            Wire::Stream(_) => false,
        }
    }

    pub fn shut_down_writing(&self) {
        match self {
            // A peer that is gone already needs no end.
            Wire::Plain(plain) => drop(SockRef::from(&plain.stream).shutdown(Shutdown::Write)),
            Wire::Sealed(sealed) => sealed.shut_down_writing(),
            Wire::Stream(stream) => stream.shut_down_writing(),
        }
    }

    /// Before it is closed: what an end alone may stand for, a cut or a whole answer, TLS says.
    pub fn sign_end(&self) {
        if let Wire::Sealed(sealed) = self {
            sealed.shut_down_writing();
        }
    }

    /// Ends with a reset, so that what was sent so far cannot pass for the whole.
    pub fn cut(self) {
        let stream = match &self {
            Wire::Plain(plain) => &plain.stream,
            Wire::Sealed(sealed) => sealed.tcp(),
            Wire::Stream(stream) => return stream.cut(),
        };
        SockRef::from(stream).set_linger(Some(Duration::ZERO)).ok();
    }

    /// The node on the other side, where this one called it.
    pub fn far(&self) -> Option<&Arc<FarPeer>> {
        match self {
            Wire::Plain(_) | Wire::Stream(_) => None,
            Wire::Sealed(sealed) => sealed.peer(),
        }
    }

    /// Nobody between here and the other side can read it.
    pub fn is_secure(&self) -> bool {
        match self {
            Wire::Plain(_) => false,
            Wire::Sealed(_) => true,
            Wire::Stream(stream) => stream.is_secure(),
        }
    }

    /// Its messages go both ways at the same time: an answer may come piece by piece as the
    /// request does.
    pub fn is_duplex(&self) -> bool {
        matches!(self, Wire::Stream(_))
    }

    /// To be sent together with what is written next.
    pub fn put(&self, bytes: &[u8]) -> Result<()> {
        match self {
            Wire::Plain(_) | Wire::Stream(_) => Err(Error::from(ErrorKind::Unsupported)),
            Wire::Sealed(sealed) => sealed.put(bytes),
        }
    }

    /// As for streams of tokio.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        match self {
            Wire::Plain(plain) => Pin::new(&mut plain.stream).poll_read(cx, room),
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
            Wire::Plain(plain) => Pin::new(&mut plain.stream).poll_write_vectored(cx, pieces),
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

fn read_plain(stream: &TcpStream, buffer: &mut Buffer) -> Result<usize> {
    let count = read_socket(stream, buffer.room())?;
    buffer.added(count);
    Ok(count)
}

fn read_socket(stream: &TcpStream, room: &mut [u8]) -> Result<usize> {
    let mut partial = None;
    let result = stream.try_io(Interest::READABLE, || {
        let count = (&*SockRef::from(stream)).read(room)?;
        if 0 < count && count < room.len() {
            // Makes tokio forget that the socket was readable, as its own reads do.
            partial = Some(count);
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(count)
    });
    partial.map_or(result, Ok)
}

async fn write_plain(stream: &TcpStream, mut bytes: &[u8], patience: Patience<'_>) -> Result<()> {
    while !bytes.is_empty() {
        match stream.try_write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => {
                bytes = &bytes[count..];
                patience.took(count);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                // Apart, so that what need not wait is small.
                Box::pin(patience.wait(stream.writable())).await?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

pub fn peek_plain(stream: &TcpStream) -> Option<usize> {
    let mut space = [MaybeUninit::new(0)];
    let peeked = stream.try_io(Interest::READABLE, || SockRef::from(stream).peek(&mut space));
    match peeked {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Some(0),
        Err(_) | Ok(0) => None,
        Ok(count) => Some(count),
    }
}

/// Reads and writes a socket that tokio watches: not ready is `WouldBlock`.
pub struct Now<'a>(pub &'a TcpStream);

impl Read for Now<'_> {
    fn read(&mut self, room: &mut [u8]) -> Result<usize> {
        read_socket(self.0, room)
    }
}

impl Write for Now<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Result<usize> {
        self.0.try_write_vectored(pieces)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}
