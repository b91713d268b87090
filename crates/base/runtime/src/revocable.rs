//! A stream that breaks once the other end has no right to it any more: a node that was removed, a
//! client whose token was revoked. Made where a stream is handed out; must not know what is said
//! over it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

type Gone = Pin<Box<dyn Future<Output = ()> + Send>>;

pub struct Revocable<S> {
    stream: S,
    /// A future that resolves when the right to it ends; `None` once it has.
    gone: Option<Gone>,
}

impl<S> Revocable<S> {
    pub fn new(stream: S, gone: impl Future<Output = ()> + Send + 'static) -> Revocable<S> {
        Revocable { stream, gone: Some(Box::pin(gone)) }
    }

    /// Fails if the right to it has ended, and otherwise has the task woken when it does.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let gone = self.gone.as_mut().is_none_or(|gone| gone.as_mut().poll(cx).is_ready());
        if gone {
            self.gone = None;
            let ended = "the other end has no right to this stream any more";
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, ended));
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Revocable<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Revocable<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_read_that_waits_breaks_when_the_right_to_it_ends() {
        let (near, mut far) = tokio::io::duplex(64);
        let (remove, removed) = oneshot::channel::<()>();
        let mut stream = Revocable::new(near, async { drop(removed.await) });
        far.write_all(b"before").await.unwrap();
        let mut said = [0; 6];
        stream.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"before");
        let waiting = crate::task::spawn(async move {
            let read = stream.read_exact(&mut [0; 1]).await;
            (read.unwrap_err().kind(), stream.write_all(b"after").await.unwrap_err().kind())
        });
        remove.send(()).unwrap();
        let aborted = io::ErrorKind::ConnectionAborted;
        assert_eq!(waiting.await.unwrap(), (aborted, aborted));
        let mut rest = Vec::new();
        far.read_to_end(&mut rest).await.unwrap();
        assert!(rest.is_empty());
    }
}
