//! The gentle close of a connection, so that its peer can read what was said last: with bytes left
//! unread, the kernel would reset it.

use std::time::Duration;

use tokio::time::timeout;

use super::buffer::Buffer;
use super::stream::fill;
use super::wire::Wire;

/// Bytes that a peer may still send after it was told that nobody will read them.
pub const LINGER_BYTES_MAX: usize = 256 * 1024;
pub const LINGER_TIME_MAX: Duration = Duration::from_secs(1);

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
