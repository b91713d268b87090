//! Reading and writing sockets with a time limit, without a buffer while nothing comes.

use std::io::{Error, ErrorKind, Read, Result};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::pool::Buffer;

/// What a client may still send after an answer that ended its request early.
const LINGER_BYTES_MAX: usize = 256 * 1024;
const LINGER_TIME_MAX: Duration = Duration::from_secs(1);

/// What is there now. A read that did not fill the room has emptied the socket, so the next wait
/// is for new bytes and costs no vain read first.
pub fn read_now(stream: &TcpStream, buffer: &mut Buffer) -> Result<usize> {
    let mut partial = None;
    let result = stream.try_io(Interest::READABLE, || {
        let room = buffer.room();
        let count = (&*SockRef::from(stream)).read(room)?;
        if 0 < count && count < room.len() {
            // Makes tokio forget that the socket was readable, as its own reads do.
            partial = Some(count);
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(count)
    });
    let count = partial.map_or(result, Ok)?;
    buffer.added(count);
    Ok(count)
}

/// At least one byte; 0 at the end of the stream.
pub async fn fill(stream: &TcpStream, buffer: &mut Buffer, limit: Duration) -> Result<usize> {
    loop {
        match read_now(stream, buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                within(limit, stream.readable()).await?;
            }
            result => return result,
        }
    }
}

pub async fn write_all(stream: &TcpStream, mut bytes: &[u8], limit: Duration) -> Result<()> {
    while !bytes.is_empty() {
        match stream.try_write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                within(limit, stream.writable()).await?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

pub async fn within<T>(limit: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(limit, work).await.unwrap_or_else(|_| Err(Error::from(ErrorKind::TimedOut)))
}

pub fn shut_down_writing(stream: &TcpStream) {
    // A peer that is gone already needs no end.
    SockRef::from(stream).shutdown(std::net::Shutdown::Write).ok();
}

/// Ends with a reset, so that what was sent so far cannot pass for the whole.
pub fn cut(stream: TcpStream) {
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).ok();
    drop(stream);
}

/// Closes after the answer was read: closing with unread bytes would reset and destroy it.
pub async fn close_gently(stream: TcpStream, mut buffer: Buffer) -> Buffer {
    shut_down_writing(&stream);
    let read_rest = async {
        let mut seen = 0;
        while seen < LINGER_BYTES_MAX {
            buffer.consume(usize::MAX / 2);
            match fill(&stream, &mut buffer, LINGER_TIME_MAX).await {
                Ok(0) | Err(_) => break,
                Ok(count) => seen += count,
            }
        }
    };
    timeout(LINGER_TIME_MAX, read_rest).await.ok();
    buffer
}
