//! The node's end of a connection to a shim.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;

use shim::descriptors;
use shim::message::{LINE_BYTES_MAX, ShimCommand, ShimReply, ShimRequest, Tell, VERSION, line};
use shim::spec::Attached;

pub struct ShimLink {
    stream: UnixStream,
    received: Vec<u8>,
}

impl ShimLink {
    pub async fn connect(socket: &Path) -> io::Result<ShimLink> {
        Ok(ShimLink { stream: UnixStream::connect(socket).await?, received: Vec::new() })
    }

    pub async fn ask(&mut self, ask: ShimCommand) -> io::Result<()> {
        self.stream.write_all(&line(&ShimRequest { v: VERSION, ask })?).await
    }

    /// Sends a request with open files, which are closed here.
    pub async fn ask_with(&mut self, ask: ShimCommand, attached: Attached) -> io::Result<()> {
        let bytes = line(&ShimRequest { v: VERSION, ask })?;
        let Attached { stdin, stdout, stderr, .. } = &attached;
        let sending = || {
            let fds: [BorrowedFd<'_>; 3] = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
            descriptors::send(&self.stream, &bytes, &fds)
        };
        let sent = self.stream.async_io(Interest::WRITABLE, sending).await?;
        drop(attached);
        self.stream.write_all(&bytes[sent..]).await
    }

    /// Returns the shim's next message; `None` when the shim is gone. May be dropped at any time
    /// without losing anything.
    pub async fn hear(&mut self) -> io::Result<Option<Tell>> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let reply = serde_json::from_slice::<ShimReply>(&self.received[..end]);
                self.received.drain(..=end);
                match reply {
                    Ok(reply) => return Ok(Some(reply.tell)),
                    // The reply is from a later version; its state is on disk as well.
                    Err(error) => tracing::warn!(%error, "shim.not_understood"),
                }
                continue;
            }
            if self.received.len() > LINE_BYTES_MAX {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            match self.stream.read_buf(&mut self.received).await {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until the shim is gone, but not for ever.
    pub async fn closed(&mut self, limit: Duration) {
        let gone = async { while let Ok(Some(_)) = self.hear().await {} };
        if tokio::time::timeout(limit, gone).await.is_err() {
            tracing::warn!("shim.does_not_go");
        }
    }
}
