//! One connection's bytes, whatever they travel over.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

pub enum Wire {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
    /// The lane has the connection's socket.
    Elsewhere,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireKind {
    Tcp,
    Unix,
}

impl Wire {
    pub fn new(fd: OwnedFd, kind: WireKind) -> io::Result<Wire> {
        Ok(match kind {
            WireKind::Tcp => Wire::Tcp(TcpStream::from_std(fd.into())?),
            WireKind::Unix => Wire::Unix(UnixStream::from_std(fd.into())?),
        })
    }

    /// Takes the socket, without its runtime; fails for TLS.
    pub fn take(&mut self) -> io::Result<(OwnedFd, WireKind)> {
        match std::mem::replace(self, Wire::Elsewhere) {
            Wire::Tcp(stream) => Ok((stream.into_std()?.into(), WireKind::Tcp)),
            Wire::Unix(stream) => Ok((stream.into_std()?.into(), WireKind::Unix)),
            Wire::Tls(_) | Wire::Elsewhere => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Writes what goes out without waiting; nothing over TLS, which may have to wait for anything.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Wire::Tcp(stream) => stream.try_write(bytes),
            Wire::Unix(stream) => stream.try_write(bytes),
            Wire::Tls(_) => Err(io::ErrorKind::WouldBlock.into()),
            Wire::Elsewhere => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Wire::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
            Wire::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
            Wire::Elsewhere => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Wire::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Wire::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
            Wire::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
            Wire::Elsewhere => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Wire::Unix(stream) => Pin::new(stream).poll_flush(context),
            Wire::Tls(stream) => Pin::new(stream).poll_flush(context),
            Wire::Elsewhere => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Wire::Unix(stream) => Pin::new(stream).poll_shutdown(context),
            Wire::Tls(stream) => Pin::new(stream).poll_shutdown(context),
            Wire::Elsewhere => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}
