//! A connection without TLS. The runtime watches its socket from the first wait on: one that brings
//! its request along, and closes after the answer, is never waited for.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::poll_fn;
use std::io::{Error, ErrorKind, IoSlice, Read, Result, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, send, sendmsg};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, ReadBuf};
use tokio::time::Instant;

use super::buffer::Buffer;
use super::lazy_timer::LazyTimer;
use super::pace::Patience;
use super::registration::UpstreamRegistration;
use os::loopback;

/// The bytes by which the head of an answer may be longer than that of the one before.
pub(super) const HEAD_SLACK: usize = 256;
/// Long answers to a client on this machine whose heads go ahead of them. Linux lets a receiver's
/// window grow to what its buffer has free behind what has just come (`tcp_grow_window`), and sends
/// no segment longer than half of the window (`tcp_bound_to_half_wnd`). On loopback segments have
/// 64 KB: one of them takes half of the buffer, and the window stays too small for two; behind a
/// head it grows. Two answers open it; as many more are for what comes in other pieces at first.
const HEADS_AHEAD: u8 = 4;

pub struct Plain {
    // This stands before the stream, which it must not outlive.
    watch: OnceCell<AsyncFd<RawFd>>,
    stream: TcpStream,
    timer: LazyTimer,
    /// The most bytes that a read takes, while a long answer is expected.
    brief: Cell<Option<usize>>,
    /// The number of heads that went ahead, `HEADS_AHEAD` at most.
    heads_ahead: Cell<u8>,
    /// The registration in the lane of its thread, if it leads to an instance and no task has
    /// waited since.
    registration: RefCell<Option<UpstreamRegistration>>,
}

impl From<TcpStream> for Plain {
    /// Takes over a stream, which must not block.
    fn from(stream: TcpStream) -> Plain {
        Plain {
            watch: OnceCell::new(),
            stream,
            timer: LazyTimer::default(),
            brief: Cell::new(None),
            heads_ahead: Cell::new(0),
            registration: RefCell::default(),
        }
    }
}

/// Returns `WouldBlock` when the socket is not ready.
impl Read for &Plain {
    fn read(&mut self, room: &mut [u8]) -> Result<usize> {
        self.read_into(room)
    }
}

impl Write for &Plain {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.try_write(bytes)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Result<usize> {
        match pieces {
            [piece] => self.try_write(piece),
            _ => self.try_write_slices(pieces, SendFlags::NOSIGNAL),
        }
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl AsRawFd for Plain {
    fn as_raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}

impl AsFd for Plain {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Plain {
    pub async fn connect(address: SocketAddr) -> Result<Plain> {
        let kind = Type::STREAM.nonblocking();
        let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))?;
        loopback::ease(&socket, address.ip());
        socket.set_tcp_nodelay(true)?;
        match socket.connect(&address.into()) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INPROGRESS) => {}
            connected => connected?,
        }
        let plain = Plain::from(TcpStream::from(socket));
        plain.writable().await?;
        match plain.stream.take_error()? {
            Some(error) => Err(error),
            None => Ok(plain),
        }
    }

    /// Returns the stream, which nobody watches any more.
    pub fn into_stream(mut self) -> TcpStream {
        self.watch.take();
        self.stream
    }

    /// Leaves the watch to somebody else from now on, who knows how long to wait.
    pub fn unwatch(&mut self) {
        self.watch.take();
        self.timer = LazyTimer::default();
    }

    /// Returns whether the lane watches it already; if so, what comes is an answer for that client.
    pub fn is_registered_for(&self, client: usize) -> bool {
        self.registration.borrow().as_ref().inspect(|one| one.wait_for(client)).is_some()
    }

    pub fn register(&self, registration: UpstreamRegistration) {
        self.registration.replace(Some(registration));
    }

    /// Tells the lane to wait for nothing from there.
    pub fn calm(&self) {
        if let Some(registration) = &*self.registration.borrow() {
            registration.calm();
        }
    }

    fn watch(&self) -> Result<&AsyncFd<RawFd>> {
        if let Some(watch) = self.watch.get() {
            return Ok(watch);
        }
        #[expect(deprecated, reason = "what replaces it is unsafe, and the socket outlives it")]
        let watch = AsyncFd::new(self.stream.as_raw_fd())?;
        // What comes would wake the lane for nothing.
        if let Some(registration) = self.registration.take() {
            registration.leave(self);
        }
        Ok(self.watch.get_or_init(|| watch))
    }

    /// Does some work without asking the kernel if the runtime knows that it is in vain.
    pub fn try_io<R>(&self, interest: Interest, work: impl FnOnce() -> Result<R>) -> Result<R> {
        match self.watch.get() {
            Some(watch) => watch.try_io(interest, |_| work()),
            None => work(),
        }
    }

    /// Waits for something to read. One task at a time may wait: the last one that asked is woken.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let ready = ready!(self.watch()?.poll_read_ready(cx));
        Poll::Ready(ready.map(drop))
    }

    pub fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let ready = ready!(self.watch()?.poll_write_ready(cx));
        Poll::Ready(ready.map(drop))
    }

    pub async fn readable(&self) -> Result<()> {
        poll_fn(|cx| self.poll_readable(cx)).await
    }

    pub async fn writable(&self) -> Result<()> {
        poll_fn(|cx| self.poll_writable(cx)).await
    }

    pub async fn readable_within(&self, limit: Duration) -> Result<()> {
        self.readable_by(Instant::now() + limit).await
    }

    pub async fn readable_by(&self, deadline: Instant) -> Result<()> {
        poll_fn(|cx| match self.poll_readable(cx) {
            Poll::Pending => {
                let rings = self.timer.poll(cx, deadline);
                rings.map(|()| Err(Error::from(ErrorKind::TimedOut)))
            }
            ready => ready,
        })
        .await
    }

    pub fn read_now(&self, buffer: &mut Buffer) -> Result<usize> {
        let room = buffer.room();
        let most = self.brief.get().unwrap_or(usize::MAX).min(room.len());
        let count = self.read_into(&mut room[..most])?;
        buffer.added(count);
        Ok(count)
    }

    /// Reads little more than such a head at a time from now on: what is not read can be spliced.
    pub fn expect_long(&self, head: usize) {
        self.brief.set(Some(head + HEAD_SLACK));
    }

    /// Returns whether it expected a long answer, and expects any from now on.
    pub fn expect_any(&self) -> bool {
        self.brief.take().is_some()
    }

    /// Returns whether the head of this long answer should be a segment of its own; asked once for
    /// each.
    pub fn sends_head_ahead(&self) -> bool {
        let so_far = self.heads_ahead.get();
        self.heads_ahead.set(HEADS_AHEAD.min(so_far + 1));
        so_far < HEADS_AHEAD
    }

    fn read_into(&self, room: &mut [u8]) -> Result<usize> {
        let mut partial = None;
        let result = self.try_io(Interest::READABLE, || {
            let (count, _) = recv(&self.stream, &mut *room, RecvFlags::empty())?;
            if 0 < count && count < room.len() {
                // This makes the runtime forget that the socket was readable, as its own reads do.
                partial = Some(count);
                return Err(ErrorKind::WouldBlock.into());
            }
            Ok(count)
        });
        partial.map_or(result, Ok)
    }

    pub async fn write_all(&self, mut bytes: &[u8], patience: Patience<'_>) -> Result<()> {
        while !bytes.is_empty() {
            match self.try_write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    bytes = &bytes[count..];
                    patience.took(count);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // The wait is boxed, so that a write that need not wait is small.
                    Box::pin(patience.wait(self.writable())).await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes past the C library, whose calls can be cancelled, which costs each of them something.
    pub fn try_write(&self, bytes: &[u8]) -> Result<usize> {
        self.try_io(Interest::WRITABLE, || Ok(send(&self.stream, bytes, SendFlags::NOSIGNAL)?))
    }

    /// Writes two pieces likewise; if `more` is written at once behind them, they wait for that.
    pub fn try_write_pieces(&self, pieces: [&[u8]; 2], more: bool) -> Result<usize> {
        let flags = if more { SendFlags::NOSIGNAL | SendFlags::MORE } else { SendFlags::NOSIGNAL };
        match pieces {
            [piece, []] | [[], piece] => {
                self.try_io(Interest::WRITABLE, || Ok(send(&self.stream, piece, flags)?))
            }
            _ => self.try_write_slices(&pieces.map(IoSlice::new), flags),
        }
    }

    fn try_write_slices(&self, pieces: &[IoSlice<'_>], flags: SendFlags) -> Result<usize> {
        self.try_io(Interest::WRITABLE, || {
            let mut none = SendAncillaryBuffer::default();
            Ok(sendmsg(&self.stream, pieces, &mut none, flags)?)
        })
    }

    /// Reads like a stream of tokio.
    pub fn poll_read(&self, cx: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        loop {
            match self.read_into(room.initialize_unfilled()) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    ready!(self.poll_readable(cx))?;
                }
                result => return Poll::Ready(result.map(|count| room.advance(count))),
            }
        }
    }

    pub fn poll_write(&self, cx: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<Result<usize>> {
        loop {
            match (&mut &*self).write_vectored(pieces) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    ready!(self.poll_writable(cx))?;
                }
                result => return Poll::Ready(result),
            }
        }
    }

    /// Returns how many bytes have come and were not read; `None` at the end, or when it broke.
    pub fn peek(&self) -> Option<usize> {
        let mut space = [MaybeUninit::new(0)];
        let work = || SockRef::from(&self.stream).peek(&mut space);
        match self.try_io(Interest::READABLE, work) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Some(0),
            Err(_) | Ok(0) => None,
            Ok(count) => Some(count),
        }
    }

    /// Returns the first byte that was not read; `None` at the end.
    pub fn first(&self) -> Result<Option<u8>> {
        let mut first = [0];
        let count = self.try_io(Interest::READABLE, || {
            Ok(recv(&self.stream, &mut first, RecvFlags::PEEK)?.0)
        })?;
        Ok((count > 0).then_some(first[0]))
    }

    pub fn peer_addr(&self) -> Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// Returns whether nothing came, not even an end, so that it can be used again. The runtime may
    /// not have heard of what came just now: `for_certain` asks the kernel.
    pub fn is_untouched(&self, for_certain: bool) -> bool {
        let is_quiet =
            || self.registration.borrow().as_ref().is_some_and(UpstreamRegistration::is_quiet);
        if !for_certain && is_quiet() {
            return true;
        }
        let read = || Ok(recv(&self.stream, &mut [0; 1], RecvFlags::empty())?.0);
        let read = if for_certain { read() } else { self.try_io(Interest::READABLE, read) };
        read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }
}
