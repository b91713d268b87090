//! Reading and writing with a time limit.

use std::io::{ErrorKind, Result};
use std::time::{Duration, Instant};

use tokio::time::timeout;

use super::buffer::Buffer;
use super::pace::{Pace, Patience};
use super::serve::Thread;
use super::wire::Wire;

/// What may still be sent by whoever was told that nobody will read it.
pub const LINGER_BYTES_MAX: usize = 256 * 1024;
const LINGER_TIME_MAX: Duration = Duration::from_secs(1);
/// A client whose request was answered early may go on sending it for so long, and pause for so
/// long meanwhile: as with nginx (`lingering_time`, `lingering_timeout`).
const PATIENT_TIME_MAX: Duration = Duration::from_secs(30);
const PATIENT_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Larger than nearly all uploads: whoever sends without end is not read for all of that time.
const PATIENT_BYTES_MAX: usize = 128 << 20;

/// At least one byte; 0 at the end of the stream.
pub async fn fill(stream: &Wire, buffer: &mut Buffer, limit: Duration) -> Result<usize> {
    loop {
        match stream.read_now(buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                stream.readable_within(limit).await?;
            }
            result => return result,
        }
    }
}

/// The same, where many wait without memory until there is something to be read.
pub async fn fill_late(
    stream: &Wire,
    buffer: &mut Buffer,
    thread: &Thread,
    deadline: Instant,
) -> Result<usize> {
    loop {
        match thread.read_now(stream, buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                stream.readable_by(deadline).await?;
            }
            result => return result,
        }
    }
}

pub async fn write_all(stream: &Wire, bytes: &[u8], limit: Duration) -> Result<()> {
    stream.write_all(bytes, Patience::Each(limit)).await
}

/// To a client, a part of its answer.
pub async fn write_paced(stream: &Wire, bytes: &[u8], pace: &Pace) -> Result<()> {
    stream.write_all(bytes, Patience::Paced(pace)).await
}

/// Closes after the answer was read: closing with unread bytes would reset and destroy it.
pub async fn close_gently(stream: Wire, mut buffer: Buffer) -> Buffer {
    stream.shut_down_writing();
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

/// The same after an answer to a request of which more may come: whoever sends all of it before
/// reading is to find the answer. A router that stops waits for it no longer than for others; a
/// stream of HTTP/2 is one of many on a connection that stays.
pub async fn close_patiently(stream: Wire, mut buffer: Buffer, thread: &Thread) -> Buffer {
    if matches!(stream, Wire::Stream(_)) {
        return close_gently(stream, buffer).await;
    }
    stream.shut_down_writing();
    let (end, mut seen) = (Instant::now() + PATIENT_TIME_MAX, 0);
    while seen < PATIENT_BYTES_MAX {
        buffer.consume(usize::MAX / 2);
        let leaving = thread.leaving.notified();
        let pause = if thread.is_stopping() { LINGER_TIME_MAX } else { PATIENT_PAUSE_MAX };
        let until = end.min(Instant::now() + pause);
        let filled = tokio::select! {
            biased;
            () = leaving, if !thread.is_stopping() => continue,
            filled = fill_late(&stream, &mut buffer, thread, until) => filled,
        };
        match filled {
            Ok(count @ 1..) if Instant::now() < end && !thread.is_stopping() => seen += count,
            _ => break,
        }
    }
    buffer
}
