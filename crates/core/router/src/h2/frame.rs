//! Frames, the units that a connection is made of (RFC 9113, sections 4 and 6).

use std::ops::Range;

/// The bytes that a client that knows HTTP/2 sends first.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub const HEAD_BYTES: usize = 9;
/// Bytes of a payload that either side may send unless another length is agreed.
pub const PAYLOAD_BYTES_MAX: usize = 16 * 1024;

pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const PADDED: u8 = 8;
pub const PRIORITY: u8 = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameType(pub u8);

impl FrameType {
    pub const DATA: FrameType = FrameType(0);
    pub const HEADERS: FrameType = FrameType(1);
    pub const PRIORITY: FrameType = FrameType(2);
    pub const RST_STREAM: FrameType = FrameType(3);
    pub const SETTINGS: FrameType = FrameType(4);
    pub const PUSH_PROMISE: FrameType = FrameType(5);
    pub const PING: FrameType = FrameType(6);
    pub const GOAWAY: FrameType = FrameType(7);
    pub const WINDOW_UPDATE: FrameType = FrameType(8);
    pub const CONTINUATION: FrameType = FrameType(9);
}

/// What one side agrees to (RFC 9113, section 6.5.2; the last one RFC 8441).
pub mod setting {
    pub const TABLE_BYTES: u16 = 1;
    pub const ENABLE_PUSH: u16 = 2;
    pub const STREAMS_MAX: u16 = 3;
    pub const INITIAL_WINDOW: u16 = 4;
    pub const FRAME_BYTES_MAX: u16 = 5;
    pub const HEAD_BYTES_MAX: u16 = 6;
    pub const CONNECT_PROTOCOL: u16 = 8;
}

/// The reason why a stream or a connection ends (RFC 9113, section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason(pub u32);

impl Reason {
    pub const NO_ERROR: Reason = Reason(0);
    pub const PROTOCOL_ERROR: Reason = Reason(1);
    pub const INTERNAL_ERROR: Reason = Reason(2);
    pub const FLOW_CONTROL_ERROR: Reason = Reason(3);
    pub const STREAM_CLOSED: Reason = Reason(5);
    pub const FRAME_SIZE_ERROR: Reason = Reason(6);
    pub const REFUSED_STREAM: Reason = Reason(7);
    pub const CANCEL: Reason = Reason(8);
    pub const COMPRESSION_ERROR: Reason = Reason(9);
    pub const ENHANCE_YOUR_CALM: Reason = Reason(11);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    pub length: usize,
    pub kind: FrameType,
    pub flags: u8,
    /// The stream; 0 for the connection itself.
    pub stream: u32,
}

impl FrameHead {
    /// Reads a frame's head; `None` while it is not complete.
    pub fn read(input: &[u8]) -> Option<FrameHead> {
        let [a, b, c, kind, flags, stream @ ..] = input.first_chunk::<HEAD_BYTES>()?;
        Some(FrameHead {
            length: usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c),
            kind: FrameType(*kind),
            flags: *flags,
            stream: u32::from_be_bytes(*stream) & STREAM_MASK,
        })
    }

    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns its bytes; none is longer than a frame may be.
    fn bytes(&self) -> [u8; HEAD_BYTES] {
        let [_, _, _, _, _, a, b, c] = (self.length as u64).to_be_bytes();
        let [d, e, f, g] = self.stream.to_be_bytes();
        [a, b, c, self.kind.0, self.flags, d, e, f, g]
    }
}

/// The bits that count in the number of a stream or a window: the highest means nothing.
pub const STREAM_MASK: u32 = 0x7fff_ffff;

pub fn put(out: &mut Vec<u8>, kind: FrameType, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&FrameHead { length: payload.len(), kind, flags, stream }.bytes());
    out.extend_from_slice(payload);
}

pub fn put_number(out: &mut Vec<u8>, kind: FrameType, stream: u32, number: u32) {
    put(out, kind, 0, stream, &number.to_be_bytes());
}

/// Writes the head of a message, whose block `write` appends, saying whether the message ends with
/// it. A block that is longer than a frame may be goes out in several. If `write` fails, nothing is
/// written.
pub fn put_block<T, E>(
    out: &mut Vec<u8>,
    stream: u32,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(T, bool), E>,
) -> Result<T, E> {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD_BYTES]);
    let (result, ended) = match write(out) {
        Ok(written) => written,
        Err(error) => {
            out.truncate(start);
            return Err(error);
        }
    };
    let length = out.len() - start - HEAD_BYTES;
    let first = length.min(PAYLOAD_BYTES_MAX);
    let end = if first == length { END_HEADERS } else { 0 };
    let flags = end | if ended { END_STREAM } else { 0 };
    let head = FrameHead { length: first, kind: FrameType::HEADERS, flags, stream };
    out[start..start + HEAD_BYTES].copy_from_slice(&head.bytes());
    if first < length {
        let rest = out.split_off(start + HEAD_BYTES + first);
        let mut pieces = rest.chunks(PAYLOAD_BYTES_MAX).peekable();
        while let Some(piece) = pieces.next() {
            let flags = if pieces.peek().is_none() { END_HEADERS } else { 0 };
            put(out, FrameType::CONTINUATION, flags, stream, piece);
        }
    }
    Ok(result)
}

/// Returns the payload without its padding; `None` if that is longer than all of it.
pub fn unpadded(head: &FrameHead, payload: &[u8]) -> Option<Range<usize>> {
    if !head.has(PADDED) {
        return Some(0..payload.len());
    }
    let padding = usize::from(*payload.first()?);
    let end = payload.len().checked_sub(padding).filter(|end| *end > 0)?;
    Some(1..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_it_was_written() {
        let head =
            FrameHead { length: 0x01_02_03, kind: FrameType(7), flags: 5, stream: 0x7a0b_0c0d };
        assert_eq!(FrameHead::read(&head.bytes()), Some(head));
        assert_eq!(FrameHead::read(&head.bytes()[..8]), None);
    }

    #[test]
    fn a_long_block_goes_out_in_several() {
        let mut out = Vec::new();
        let written = put_block(&mut out, 3, |out| {
            out.extend_from_slice(&[1; 2 * PAYLOAD_BYTES_MAX + 5]);
            Ok::<_, ()>(("done", true))
        });
        assert_eq!(written, Ok("done"));
        let (mut rest, mut seen) = (&out[..], Vec::new());
        while let Some(head) = FrameHead::read(rest) {
            rest = &rest[HEAD_BYTES + head.length..];
            seen.push((head.kind, head.flags, head.length));
        }
        assert_eq!(
            seen,
            [
                (FrameType::HEADERS, END_STREAM, PAYLOAD_BYTES_MAX),
                (FrameType::CONTINUATION, 0, PAYLOAD_BYTES_MAX),
                (FrameType::CONTINUATION, END_HEADERS, 5),
            ]
        );
        let length = out.len();
        put_block(&mut out, 5, |out| {
            out.push(1);
            Err::<((), bool), _>(())
        })
        .unwrap_err();
        assert_eq!(out.len(), length);
    }

    #[test]
    fn padding_is_left_away() {
        let padded = FrameHead { length: 0, kind: FrameType::DATA, flags: PADDED, stream: 1 };
        assert_eq!(unpadded(&padded, &[2, 1, 0, 0]), Some(1..2));
        assert_eq!(unpadded(&padded, &[3, 0, 0, 0]), Some(1..1));
        assert_eq!(unpadded(&padded, &[4, 0, 0, 0]), None);
        assert_eq!(unpadded(&padded, &[]), None);
        assert_eq!(unpadded(&FrameHead { flags: 0, ..padded }, &[4]), Some(0..1));
    }
}
