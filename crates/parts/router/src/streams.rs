//! Bytes both ways between a client and a back end until both have ended. The end of one half is
//! passed on and the other half goes on; a reset of one side resets the other, so that nothing that
//! was cut looks whole. Long streams go through a pipe in the kernel and are never seen here. The
//! router's threads and `cortex proxy` use it.

use std::cell::{Cell, RefCell};
use std::io::{Error, ErrorKind, Result};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use super::moved::{Direction, Moved};

/// Bytes read at once; one buffer serves all connections of a thread.
const BUFFER_BYTES: usize = 64 * 1024;
/// Bytes moved in one direction after which a pipe pays, as it costs system calls of its own.
const SPLICE_FROM: u64 = 256 * 1024;
/// Bytes spliced at once: a pipe holds as much unless it is told otherwise.
const SPLICE_BYTES: usize = 64 * 1024;
/// Pipes per thread, of two descriptors each; connections beyond them are copied.
const PIPES_MAX: usize = 128;
/// Pieces that a connection moves before others have their turn.
const PIECES_AT_ONCE: u32 = 16;

struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

/// The buffer and the pipes that one thread has for all its connections.
pub struct Means {
    buffer: RefCell<Vec<u8>>,
    pipes: RefCell<Vec<Pipe>>,
    /// The number of pipes, including those that are lent out.
    piped: Cell<usize>,
}

impl Default for Means {
    fn default() -> Means {
        Means {
            buffer: RefCell::new(vec![0; BUFFER_BYTES]),
            pipes: RefCell::default(),
            piped: Cell::new(0),
        }
    }
}

impl Means {
    fn pipe(&self) -> Option<Pipe> {
        if let Some(kept) = self.pipes.borrow_mut().pop() {
            return Some(kept);
        }
        if self.piped.get() >= PIPES_MAX {
            return None;
        }
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        self.piped.set(self.piped.get() + 1);
        Some(Pipe { read, write })
    }
}

/// A pipe for one direction, which is used again only if it is empty.
struct Lent<'a> {
    means: &'a Means,
    pipe: Option<Pipe>,
    held: usize,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        match self.pipe.take() {
            Some(pipe) if self.held == 0 => self.means.pipes.borrow_mut().push(pipe),
            Some(_) => self.means.piped.set(self.means.piped.get() - 1),
            None => {}
        }
    }
}

/// The way in which a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferEnd {
    /// Both sides closed it.
    Closed,
    Idle,
    ClientReset,
    BackEndReset,
}

enum Broken {
    Reading,
    Writing,
    Idle,
}

struct Relay<'a> {
    means: &'a Means,
    moved: &'a Moved,
    idle: Duration,
    last: Cell<Instant>,
}

/// One direction of the two.
struct Half<'a> {
    from: &'a TcpStream,
    to: &'a TcpStream,
    direction: Direction,
}

/// Resolves when both halves have ended, one side broke, or nothing moved for `idle`. Then both
/// connections are to be dropped.
pub async fn relay(
    means: &Means,
    client: &TcpStream,
    back_end: &TcpStream,
    idle: Duration,
    moved: &Moved,
) -> TransferEnd {
    let relay = Relay { means, moved, idle, last: Cell::new(Instant::now()) };
    let up = Half { from: client, to: back_end, direction: Direction::FromClient };
    let up = async {
        relay.one_way(up).await.map_err(|broken| match broken {
            Broken::Reading => TransferEnd::ClientReset,
            Broken::Writing => TransferEnd::BackEndReset,
            Broken::Idle => TransferEnd::Idle,
        })
    };
    let down = Half { from: back_end, to: client, direction: Direction::ToClient };
    let down = async {
        relay.one_way(down).await.map_err(|broken| match broken {
            Broken::Reading => TransferEnd::BackEndReset,
            Broken::Writing => TransferEnd::ClientReset,
            Broken::Idle => TransferEnd::Idle,
        })
    };
    match tokio::try_join!(up, down) {
        Ok(_) => TransferEnd::Closed,
        Err(status) => {
            cut(client);
            cut(back_end);
            status
        }
    }
}

/// Makes closing the stream send a reset.
pub fn cut(stream: &impl AsFd) {
    SockRef::from(stream).set_linger(Some(Duration::ZERO)).ok();
}

/// Makes closing the stream send what is left, and an end.
pub fn uncut(stream: &impl AsFd) {
    SockRef::from(stream).set_linger(None).ok();
}

impl Relay<'_> {
    async fn one_way(&self, half: Half<'_>) -> std::result::Result<(), Broken> {
        let mut lent = Lent { means: self.means, pipe: None, held: 0 };
        let mut pieces = 0;
        loop {
            self.wait(half.from, Interest::READABLE, Broken::Reading).await?;
            if lent.pipe.is_none() && self.moved.get(half.direction) >= SPLICE_FROM {
                lent.pipe = self.means.pipe();
            }
            let moved = match lent.pipe.is_some() {
                true => self.splice_some(&half, &mut lent).await?,
                false => self.copy_some(&half).await?,
            };
            match moved {
                // The stream was no longer readable.
                None => continue,
                Some(0) => break,
                Some(_) => self.last.set(Instant::now()),
            }
            pieces += 1;
            if pieces % PIECES_AT_ONCE == 0 {
                tokio::task::yield_now().await;
            }
        }
        // A side that is gone already needs no end.
        SockRef::from(half.to).shutdown(Shutdown::Write).ok();
        Ok(())
    }

    /// Waits until the stream is ready, for as long as anything moves in either direction.
    async fn wait(
        &self,
        stream: &TcpStream,
        interest: Interest,
        broken: Broken,
    ) -> std::result::Result<(), Broken> {
        loop {
            let deadline = self.last.get() + self.idle;
            match timeout_at(deadline, stream.ready(interest)).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(_)) => return Err(broken),
                Err(_) if self.last.get() + self.idle > deadline => {}
                Err(_) => return Err(Broken::Idle),
            }
        }
    }

    async fn copy_some(&self, half: &Half<'_>) -> std::result::Result<Option<usize>, Broken> {
        let Half { from, to, direction } = *half;
        // The shared buffer is given up before any wait; what could not be written is kept apart.
        let (count, rest) = {
            let mut buffer = self.means.buffer.borrow_mut();
            let Some(count) = now(from.try_read(&mut buffer)).map_err(|_| Broken::Reading)? else {
                return Ok(None);
            };
            let mut written = 0;
            while written < count {
                match now(to.try_write(&buffer[written..count])).map_err(|_| Broken::Writing)? {
                    Some(more) => {
                        written += more;
                        self.moved.add(direction, more);
                    }
                    None => break,
                }
            }
            (count, buffer[written..count].to_vec())
        };
        let mut rest = &rest[..];
        while !rest.is_empty() {
            self.wait(to, Interest::WRITABLE, Broken::Writing).await?;
            if let Some(more) = now(to.try_write(rest)).map_err(|_| Broken::Writing)? {
                rest = &rest[more..];
                self.moved.add(direction, more);
                self.last.set(Instant::now());
            }
        }
        Ok(Some(count))
    }

    async fn splice_some(
        &self,
        half: &Half<'_>,
        lent: &mut Lent<'_>,
    ) -> std::result::Result<Option<usize>, Broken> {
        let Half { from, to, direction } = *half;
        let Some(pipe) = &lent.pipe else { return Ok(None) };
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        // The pipe is empty here, so that only the socket can have nothing.
        let read = from.try_io(Interest::READABLE, || {
            Ok(splice(from, None, &pipe.write, None, SPLICE_BYTES, flags)?)
        });
        let Some(count) = now(read).map_err(|_| Broken::Reading)? else { return Ok(None) };
        lent.held = count;
        while lent.held > 0 {
            let held = lent.held;
            let write = to.try_io(Interest::WRITABLE, || {
                Ok(splice(&pipe.read, None, to, None, held, flags)?)
            });
            match now(write).map_err(|_| Broken::Writing)? {
                Some(0) => return Err(Broken::Writing),
                Some(more) => {
                    lent.held -= more;
                    self.moved.add(direction, more);
                    self.last.set(Instant::now());
                }
                None => self.wait(to, Interest::WRITABLE, Broken::Writing).await?,
            }
        }
        self.moved.spliced.set(self.moved.spliced.get() + count as u64);
        Ok(Some(count))
    }
}

/// Turns an error that means waiting into `None`.
fn now(result: Result<usize>) -> Result<Option<usize>> {
    match result {
        Ok(count) => Ok(Some(count)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads what is there behind `bytes`, by `until`; returns 0 at the end.
pub async fn read_more(
    stream: &TcpStream,
    bytes: &mut Vec<u8>,
    max: usize,
    until: Instant,
) -> Result<usize> {
    let start = bytes.len();
    loop {
        timeout_at(until, stream.readable())
            .await
            .map_err(|_| Error::from(ErrorKind::TimedOut))??;
        bytes.resize(max.max(start), 0);
        let read = stream.try_read(&mut bytes[start..]);
        bytes.truncate(start + *read.as_ref().unwrap_or(&0));
        if let Some(count) = now(read)? {
            return Ok(count);
        }
    }
}

/// Writes the bytes that a back end is to read before anything else.
pub async fn write_first(stream: &TcpStream, mut bytes: &[u8], until: Instant) -> Result<()> {
    while !bytes.is_empty() {
        match now(stream.try_write(bytes))? {
            Some(count) => bytes = &bytes[count..],
            None => timeout_at(until, stream.writable())
                .await
                .map_err(|_| Error::from(ErrorKind::TimedOut))??,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
