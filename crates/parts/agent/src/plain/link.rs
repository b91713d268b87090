//! The node's end of a connection to a shim.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use shim::message::{LINE_BYTES_MAX, ShimCommand, ShimReply, ShimRequest, Tell, VERSION, line};

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

    /// Returns the connection of a client of the session that the shim holds.
    pub async fn attach(mut self, by: &str) -> anyhow::Result<UnixStream> {
        self.ask(ShimCommand::Attach { by: by.into() }).await?;
        loop {
            match self.hear().await? {
                // The first one is the shim's state.
                Some(Tell::Running { .. } | Tell::Ended { .. } | Tell::Waiting) => {}
                Some(Tell::Attaching) => break,
                Some(Tell::Refused { why }) => anyhow::bail!(why),
                Some(_) => anyhow::bail!("the shim said something odd"),
                None => anyhow::bail!("the command has ended, and nothing of it is left"),
            }
        }
        // Nothing more is said before the client has spoken.
        anyhow::ensure!(self.received.is_empty(), "the shim said something out of turn");
        Ok(self.stream)
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
