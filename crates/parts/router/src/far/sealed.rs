//! A connection inside TLS, between two routers or to a client. The handshake is over when it is
//! made. An end that nobody signed is an error, so an answer that was cut off never looks whole.

use std::cell::RefCell;
use std::io::{Error, ErrorKind, IoSlice, Read, Result, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::ReadBuf;
use tokio_rustls::rustls::Connection;

use super::peer::FarPeer;
use crate::pace::Patience;
use crate::plain::Plain;

/// The time between probes: a node that vanished without a word is noticed on a quiet connection
/// too.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Opened bytes that are held, one record; rustls holds hardly more that nobody has read.
const OPENED_BYTES_MAX: usize = 16 * 1024;

pub struct Sealed {
    tcp: Plain,
    tls: RefCell<Connection>,
    /// The peer, if this node is the one that called.
    peer: Option<Arc<FarPeer>>,
}

impl Sealed {
    pub fn new(tcp: Plain, tls: Connection, peer: Option<Arc<FarPeer>>) -> Result<Sealed> {
        SockRef::from(&tcp).set_tcp_nodelay(true)?;
        let keepalive = socket2::TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
        SockRef::from(&tcp).set_tcp_keepalive(&keepalive)?;
        Ok(Sealed { tcp, tls: RefCell::new(tls), peer })
    }

    /// Creates the connection to a client. Its socket has no delay, as its listener had none.
    pub fn to_client(tcp: Plain, tls: Connection) -> Sealed {
        Sealed { tcp, tls: RefCell::new(tls), peer: None }
    }

    pub fn tcp(&self) -> &Plain {
        &self.tcp
    }

    pub fn peer(&self) -> Option<&Arc<FarPeer>> {
        self.peer.as_ref()
    }

    /// Opens what has come until there is enough for `room`, or no more.
    fn take_in(&self, room: usize) -> Result<()> {
        let mut tls = self.tls.borrow_mut();
        loop {
            let state = tls.process_new_packets().map_err(invalid)?;
            let enough = room.clamp(1, OPENED_BYTES_MAX);
            if state.plaintext_bytes_to_read() >= enough || state.peer_has_closed() {
                return Ok(());
            }
            match tls.read_tls(&mut &self.tcp) {
                // The reader says whether that end was signed.
                Ok(0) => return tls.process_new_packets().map(drop).map_err(invalid),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    pub fn read_now(&self, room: &mut [u8]) -> Result<usize> {
        let mut count = 0;
        loop {
            let broken = self.take_in(room.len() - count);
            match self.tls.borrow_mut().reader().read(&mut room[count..]) {
                Ok(0) => return Ok(count),
                Ok(more) if count + more == room.len() => return Ok(room.len()),
                Ok(more) => count += more,
                // What came before it broke is good.
                Err(_) if count > 0 => return Ok(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    broken?;
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
    }

    pub fn peek(&self) -> Option<usize> {
        self.take_in(1).ok()?;
        let mut tls = self.tls.borrow_mut();
        let state = tls.process_new_packets().ok()?;
        match state.plaintext_bytes_to_read() {
            0 => {
                let empty = tls.reader().read(&mut [0; 1]);
                empty.is_err_and(|error| error.kind() == ErrorKind::WouldBlock).then_some(0)
            }
            count => Some(count),
        }
    }

    fn has_more(&self) -> bool {
        let state = self.tls.borrow_mut().process_new_packets();
        state.map_or(true, |state| state.plaintext_bytes_to_read() > 0 || state.peer_has_closed())
    }

    pub async fn readable(&self) -> Result<()> {
        if self.has_more() {
            return Ok(());
        }
        self.unless_given_up(self.tcp.readable()).await
    }

    pub async fn readable_within(&self, limit: Duration) -> Result<()> {
        if self.has_more() {
            return Ok(());
        }
        self.unless_given_up(self.tcp.readable_within(limit)).await
    }

    async fn unless_given_up(&self, wait: impl Future<Output = Result<()>>) -> Result<()> {
        let Some(peer) = &self.peer else { return wait.await };
        tokio::select! {
            biased;
            result = wait => result,
            () = peer.given_up() => Err(Error::from(ErrorKind::ConnectionAborted)),
        }
    }

    /// Sends what the kernel takes now; returns true if that was all.
    fn flush_now(&self) -> Result<bool> {
        self.flush(|_| ())
    }

    fn flush(&self, took: impl Fn(usize)) -> Result<bool> {
        let mut tls = self.tls.borrow_mut();
        while tls.wants_write() {
            match tls.write_tls(&mut &self.tcp) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => took(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    pub async fn write_all(&self, mut bytes: &[u8], patience: Patience<'_>) -> Result<()> {
        loop {
            if !bytes.is_empty() {
                let taken = self.tls.borrow_mut().writer().write(bytes)?;
                bytes = &bytes[taken..];
            }
            if !self.flush(|count| patience.took(count))? {
                patience.wait(self.unless_given_up(self.tcp.writable())).await?;
            } else if bytes.is_empty() {
                return Ok(());
            }
        }
    }

    /// Reads like a stream of tokio.
    pub fn poll_read(&self, cx: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        loop {
            match self.read_now(room.initialize_unfilled()) {
                Ok(count) => {
                    room.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    ready!(self.tcp.poll_readable(cx))?;
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    pub fn poll_write(&self, cx: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<Result<usize>> {
        loop {
            let taken = self.tls.borrow_mut().writer().write_vectored(pieces)?;
            let all = self.flush_now()?;
            if taken > 0 || pieces.iter().all(|piece| piece.is_empty()) {
                return Poll::Ready(Ok(taken));
            }
            if !all {
                ready!(self.tcp.poll_writable(cx))?;
            }
        }
    }

    pub fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        while !self.flush_now()? {
            ready!(self.tcp.poll_writable(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    pub fn put(&self, bytes: &[u8]) -> Result<()> {
        self.tls.borrow_mut().writer().write_all(bytes)
    }

    /// Signs the end of what is sent; a peer that does not take that in sees an unsigned end.
    pub fn shut_down_writing(&self) {
        self.tls.borrow_mut().send_close_notify();
        if self.flush_now().is_ok_and(|all| all) {
            SockRef::from(&self.tcp).shutdown(Shutdown::Write).ok();
        }
    }
}

fn invalid(error: tokio_rustls::rustls::Error) -> Error {
    Error::new(ErrorKind::InvalidData, error)
}
