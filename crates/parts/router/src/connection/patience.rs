//! The patient close of a client's connection, behind an answer to a request of which more may
//! come.

use std::time::{Duration, Instant};

use crate::buffer::Buffer;
use crate::closing::{LINGER_TIME_MAX, close_gently};
use crate::thread::Thread;
use crate::wire::Wire;

/// The time that a client whose request was answered early may go on sending it, and how long it
/// may pause meanwhile, as with nginx (`lingering_time`, `lingering_timeout`).
const PATIENT_TIME_MAX: Duration = Duration::from_secs(30);
const PATIENT_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Bytes that are read from such a client, more than nearly all uploads: one that sends without end
/// is not read for all of that time.
const PATIENT_BYTES_MAX: usize = 128 << 20;

/// Closes after an answer to a request of which more may come: a client that sends all of it before
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
            filled = thread.fill_late(&stream, &mut buffer, until) => filled,
        };
        match filled {
            Ok(count @ 1..) if Instant::now() < end && !thread.is_stopping() => seen += count,
            _ => break,
        }
    }
    buffer
}
