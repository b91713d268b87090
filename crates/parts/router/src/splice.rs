//! Long bodies from one socket to another without a copy through this process: a pipe in the kernel
//! refers to their pages meanwhile.

use std::cell::Cell;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::read;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;

use super::buffer::Buffer;
use super::plain::Plain;

/// The bytes that a pipe holds: what a socket holds at most when its peer is quick. An ordinary
/// user's pipes may be smaller.
const PIPE_BYTES: usize = 512 * 1024;

/// A pipe in the kernel, empty whenever nobody uses it.
pub struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    filled: Cell<usize>,
}

impl Pipe {
    pub fn new() -> Result<Pipe> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // If the kernel gives less, bodies take more turns.
        fcntl_setpipe_size(&writer, PIPE_BYTES).ok();
        Ok(Pipe { reader, writer, filled: Cell::new(0) })
    }

    pub fn len(&self) -> usize {
        self.filled.get()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes up to `most` bytes that are there now; returns 0 at the end of the stream.
    pub fn take(&self, from: &Plain, most: usize) -> Result<usize> {
        let count = from.try_io(Interest::READABLE, || {
            pass(from.as_fd(), self.writer.as_fd(), most.min(PIPE_BYTES))
        })?;
        self.filled.set(self.filled.get() + count);
        Ok(count)
    }

    /// Takes what is there now of a body that must end after `rest` bytes; any more should not have
    /// been sent. It asks for more than the rest, as otherwise nothing would tell whether anything
    /// follows.
    pub fn take_rest(&self, from: &Plain, rest: u64) -> Result<usize> {
        let rest = usize::try_from(rest).unwrap_or(usize::MAX);
        let most = rest.saturating_add(1).min(PIPE_BYTES);
        let mut ended = false;
        let result = from.try_io(Interest::READABLE, || {
            let count = pass(from.as_fd(), self.writer.as_fd(), most)?;
            ended = count == rest && rest < most;
            // This makes the runtime forget that the socket was readable, as reads do that find
            // less.
            if ended { Err(ErrorKind::WouldBlock.into()) } else { Ok(count) }
        });
        let count = if ended { rest } else { result? };
        self.filled.set(self.filled.get() + count);
        Ok(count)
    }

    /// Gives as much as the socket takes now; returns `WouldBlock` if that is not all.
    pub fn give_now(&self, to: &Plain, mut took: impl FnMut(usize)) -> Result<()> {
        while !self.is_empty() {
            let given = to.try_io(Interest::WRITABLE, || {
                pass(self.reader.as_fd(), to.as_fd(), self.filled.get())
            });
            match given? {
                0 => return Err(ErrorKind::WriteZero.into()),
                count => {
                    self.filled.set(self.filled.get() - count);
                    took(count);
                }
            }
        }
        Ok(())
    }

    /// Reads back what was taken and nobody wants to have now.
    pub fn read_back(&self, buffer: &mut Buffer) -> Result<()> {
        buffer.reserve(self.filled.get());
        while !self.is_empty() {
            let count = read(&self.reader, buffer.room())?;
            buffer.added(count);
            self.filled.set(self.filled.get() - count);
        }
        Ok(())
    }
}

fn pass(from: impl AsFd, to: impl AsFd, most: usize) -> Result<usize> {
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    splice(from, None, to, None, most, flags).map_err(Error::from)
}
