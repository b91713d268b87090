//! The Redis protocol as bytes: requests in, replies out, glob patterns. Owns its limits; must not
//! know what a command does, nor sockets. Driven by the listener for Redis clients.

pub mod glob;
pub mod reply;
pub mod request;
pub mod response;

use thiserror::Error;

/// Arguments of a command: enough for `MGET` and `DEL` of a large page of keys; each argument costs
/// 8 bytes of bookkeeping.
pub const ARGUMENTS_MAX: usize = 65_536;
/// Bytes of one buffered command, all arguments together: `MSET` and `PUBLISH` hold their values in
/// memory.
pub const COMMAND_BYTES_MAX: usize = 4 << 20;
/// The length from which on the value of a `SET` is handed over in pieces and never buffered whole.
pub const STREAMED_FROM: u64 = 64 << 10;
/// Bytes of a line typed by a person, as many as other servers allow.
pub const INLINE_BYTES_MAX: usize = 64 << 10;
/// Bytes of a header: `*`, `$` and a number.
const HEADER_BYTES_MAX: usize = 32;
/// Levels of replies inside replies; ours have two.
pub const NESTING_MAX: usize = 8;

/// An error after which nothing that follows on the connection can be understood.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ProtocolError {
    #[error("Protocol error: expected '{}', got '{}'", char::from(*.0), .1.escape_ascii())]
    Expected(u8, u8),
    #[error("Protocol error: invalid multibulk length; at most {ARGUMENTS_MAX} arguments")]
    Arguments,
    #[error("Protocol error: invalid bulk length; send a length between 0 and 2^63")]
    Length,
    #[error("Protocol error: a line goes on without its end")]
    Line,
    #[error("Protocol error: too big inline request")]
    Inline,
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
    #[error(
        "Protocol error: a command of more than {COMMAND_BYTES_MAX} bytes; store large values with \
         SET, one key at a time"
    )]
    Command,
    #[error("Protocol error: a value does not end with CR LF")]
    End,
    #[error("Protocol error: replies nested deeper than {NESTING_MAX}")]
    Nesting,
    #[error("this port speaks the Redis protocol, not HTTP")]
    Http,
}

/// The protocol that the client asked for with `HELLO`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    #[default]
    Resp2,
    Resp3,
}

/// Returns the header line at the front: its number and its length with CR LF; `None` if it is not
/// whole.
fn header(bytes: &[u8]) -> Result<Option<(i64, usize)>, ProtocolError> {
    let window = &bytes[..bytes.len().min(HEADER_BYTES_MAX)];
    let Some(end) = window.iter().position(|byte| *byte == b'\n') else {
        return if window.len() < HEADER_BYTES_MAX { Ok(None) } else { Err(ProtocolError::Line) };
    };
    let line = window[1..end].strip_suffix(b"\r").ok_or(ProtocolError::Line)?;
    let number = std::str::from_utf8(line).ok().and_then(|text| text.parse().ok());
    Ok(Some((number.ok_or(ProtocolError::Length)?, end + 1)))
}
