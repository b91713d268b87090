//! Large files on their way to a client: from the kernel's cache by `sendfile`, or piece by piece
//! if the connection is sealed. The disk itself is read by the pool of other threads.

use std::fs::File;
use std::io::{Error, ErrorKind, IoSliceMut, Result};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::io::{ReadWriteFlags, preadv2};
use tokio::io::Interest;
use tokio::runtime::Handle;

use crate::pace::{Pace, WRITE_TIME_MAX};
use crate::plain::Plain;
use crate::stream::write_paced;
use crate::wire::Wire;

/// Bytes of a file after which others have their turn.
const PIECE_BYTES: usize = 256 * 1024;

/// A part of a file.
pub struct FilePart {
    pub file: Arc<File>,
    pub start: u64,
    pub length: u64,
}

impl FilePart {
    /// Sends the part; an error means that not all was sent. What is not in memory is read by
    /// `disk`.
    pub async fn send(mut self, disk: &Handle, client: &Wire, pace: &Pace) -> Result<()> {
        while self.length > 0 {
            let count = match client {
                Wire::Plain(stream) => self.send_plain(disk, stream, pace).await?,
                _ => self.send_copy(disk, client, pace).await?,
            };
            if count == 0 {
                // It became shorter than it was said to be.
                return Err(ErrorKind::UnexpectedEof.into());
            }
            self.start += count as u64;
            self.length -= count as u64;
        }
        Ok(())
    }

    fn piece(&self) -> usize {
        usize::try_from(self.length).unwrap_or(PIECE_BYTES).min(PIECE_BYTES)
    }

    async fn send_plain(&self, disk: &Handle, stream: &Plain, pace: &Pace) -> Result<usize> {
        let piece = self.piece();
        if !self.is_in_memory(piece) {
            self.read(disk).await?;
        }
        loop {
            let mut offset = self.start;
            let sent = stream.try_io(Interest::WRITABLE, || {
                rustix::fs::sendfile(stream, &self.file, Some(&mut offset), piece)
                    .map_err(Error::from)
            });
            match sent {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    pace.wait(WRITE_TIME_MAX, stream.writable()).await?;
                }
                Ok(count) => {
                    pace.took(count);
                    if count == piece {
                        tokio::task::yield_now().await;
                    }
                    return Ok(count);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns whether the piece is in memory, as far as two looks tell: the kernel reads ahead, so
    /// what lies between is rarely missing.
    fn is_in_memory(&self, piece: usize) -> bool {
        [self.start, self.start + piece as u64 - 1].into_iter().all(|at| {
            let mut byte = [0];
            preadv2(&self.file, &mut [IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT)
                == Ok(1)
        })
    }

    async fn send_copy(&self, disk: &Handle, client: &Wire, pace: &Pace) -> Result<usize> {
        let piece = self.read(disk).await?;
        write_paced(client, &piece, pace).await?;
        Ok(piece.len())
    }

    async fn read(&self, disk: &Handle) -> Result<Vec<u8>> {
        let (file, start, count) = (self.file.clone(), self.start, self.piece());
        let read = disk.spawn_blocking(move || {
            let mut piece = vec![0; count];
            let count = file.read_at(&mut piece, start)?;
            piece.truncate(count);
            Ok(piece)
        });
        read.await.map_err(Error::other)?
    }
}

#[cfg(test)]
mod tests;
