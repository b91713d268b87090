//! A body that is written by a thread while it is sent.

use std::io::{self, Write};

use anyhow::Context;
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// The size of the pieces in which the body travels.
const CHUNK_BYTES: usize = 64 * 1024;
/// Pieces that wait between writing and sending.
const CHUNKS_WAITING_MAX: usize = 16;

pub type Chunks = std::pin::Pin<Box<dyn futures_util::Stream<Item = io::Result<Bytes>> + Send>>;

/// Writes on a thread of its own, at most a few chunks ahead of the socket.
pub fn pack<T: Send + 'static>(
    write: impl FnOnce(&mut dyn Write) -> anyhow::Result<T> + Send + 'static,
) -> (Chunks, JoinHandle<anyhow::Result<T>>) {
    let (sender, receiver) = mpsc::channel(CHUNKS_WAITING_MAX);
    let packed = runtime::task::spawn_blocking(move || {
        let mut chunks = ChunkWriter { sender, buffer: Vec::with_capacity(CHUNK_BYTES) };
        let written = write(&mut chunks)
            .and_then(|result| chunks.flush().map(|()| result).map_err(Into::into));
        if written.is_err() {
            // The stream must end as broken, not as complete.
            let broken = io::Error::other("the source could not be packed");
            chunks.sender.blocking_send(Err(broken)).ok();
        }
        written.context("the source cannot be packed")
    });
    let chunks = futures_util::stream::unfold(receiver, |mut receiver| async {
        Some((receiver.recv().await?, receiver))
    });
    (Box::pin(chunks), packed)
}

/// The error that the node stopped reading; the node's own answer says why.
#[derive(Debug, thiserror::Error)]
#[error("the node stopped reading")]
pub struct Unwanted;

struct ChunkWriter {
    sender: mpsc::Sender<io::Result<Bytes>>,
    buffer: Vec<u8>,
}

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(CHUNK_BYTES - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..count]);
        if self.buffer.len() == CHUNK_BYTES {
            self.flush()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let full = std::mem::replace(&mut self.buffer, Vec::with_capacity(CHUNK_BYTES));
        self.sender.blocking_send(Ok(full.into())).map_err(|_| io::Error::other(Unwanted))
    }
}
