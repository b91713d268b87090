//! The parser of replies, for clients of our own: measurements and tests. It is bounded like that
//! of requests.

use super::{ARGUMENTS_MAX, COMMAND_BYTES_MAX, NESTING_MAX, ProtocolError, header};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Null,
    /// An array, or a map as keys and values in turn.
    Array(Vec<Response>),
    Push(Vec<Response>),
}

/// Returns one reply off the front of `input` and its length; `None` if it is not whole yet.
pub fn parse(input: &[u8]) -> Result<Option<(Response, usize)>, ProtocolError> {
    nested(input, 0)
}

fn nested(input: &[u8], depth: usize) -> Result<Option<(Response, usize)>, ProtocolError> {
    if depth > NESTING_MAX {
        return Err(ProtocolError::Nesting);
    }
    let Some(kind) = input.first() else { return Ok(None) };
    match kind {
        b'+' | b'-' => {
            let window = &input[..input.len().min(COMMAND_BYTES_MAX)];
            let Some(end) = window.windows(2).position(|two| two == b"\r\n") else {
                let whole = window.len() < COMMAND_BYTES_MAX;
                return if whole { Ok(None) } else { Err(ProtocolError::Line) };
            };
            let text = String::from_utf8_lossy(&input[1..end]).into_owned();
            let simple = *kind == b'+';
            let line = if simple { Response::Simple(text) } else { Response::Error(text) };
            Ok(Some((line, end + 2)))
        }
        b'_' => match input.get(..3) {
            None => Ok(None),
            Some(b"_\r\n") => Ok(Some((Response::Null, 3))),
            Some(_) => Err(ProtocolError::Line),
        },
        b':' => Ok(header(input)?.map(|(number, used)| (Response::Integer(number), used))),
        b'$' | b'=' => bulk(input),
        b'*' | b'%' | b'>' => {
            let Some((count, mut at)) = header(input)? else { return Ok(None) };
            if count == -1 {
                return Ok(Some((Response::Null, at)));
            }
            let count = usize::try_from(count).map_err(|_| ProtocolError::Arguments)?;
            let count = if *kind == b'%' { count.saturating_mul(2) } else { count };
            if count > ARGUMENTS_MAX {
                return Err(ProtocolError::Arguments);
            }
            let mut items = Vec::new();
            for _ in 0..count {
                let Some((item, used)) = nested(&input[at..], depth + 1)? else { return Ok(None) };
                items.push(item);
                at += used;
            }
            let pushed = *kind == b'>';
            Ok(Some((if pushed { Response::Push(items) } else { Response::Array(items) }, at)))
        }
        other => Err(ProtocolError::Expected(b'+', *other)),
    }
}

fn bulk(input: &[u8]) -> Result<Option<(Response, usize)>, ProtocolError> {
    let Some((length, start)) = header(input)? else { return Ok(None) };
    if length == -1 {
        return Ok(Some((Response::Null, start)));
    }
    let length = usize::try_from(length).map_err(|_| ProtocolError::Length)?;
    if length > COMMAND_BYTES_MAX {
        return Err(ProtocolError::Command);
    }
    let end = start + length;
    match input.get(end..end + 2) {
        None => Ok(None),
        Some(b"\r\n") => {
            let value = &input[start..end];
            // A verbatim text tells its format first.
            let value = if input[0] == b'=' { value.get(4..).unwrap_or(value) } else { value };
            Ok(Some((Response::Bulk(value.to_vec()), end + 2)))
        }
        Some(_) => Err(ProtocolError::End),
    }
}
