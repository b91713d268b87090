//! Reading and writing with a time limit.

use std::io::{ErrorKind, Result};
use std::time::Duration;

use super::buffer::Buffer;
use super::pace::{Pace, Patience};
use super::wire::Wire;

/// Reads at least one byte; returns 0 at the end of the stream.
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

pub async fn write_all(stream: &Wire, bytes: &[u8], limit: Duration) -> Result<()> {
    stream.write_all(bytes, Patience::Each(limit)).await
}

/// Writes a part of an answer to a client.
pub async fn write_paced(stream: &Wire, bytes: &[u8], pace: &Pace) -> Result<()> {
    stream.write_all(bytes, Patience::Paced(pace)).await
}
