//! A message in the text of HTTP/1.1, piece by piece, on its way into frames: its head, put
//! together if it does not come whole, and what of its body is content.

use std::io::{Error, ErrorKind};

use super::answer::Framing;
use super::chunks::{ChunkReader, ChunkStep, Malformed};
use crate::http::HEAD_BYTES_MAX;

/// Bytes that a head may have, with what the router adds to one.
const HEAD_TEXT_MAX: usize = HEAD_BYTES_MAX + 4 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

impl From<TooLong> for Error {
    fn from(_: TooLong) -> Error {
        Error::new(ErrorKind::InvalidData, "the head is too long")
    }
}

impl From<Malformed> for Error {
    fn from(_: Malformed) -> Error {
        Error::new(ErrorKind::InvalidData, "the body has no chunks")
    }
}

/// What has come of a head that is not whole.
#[derive(Debug, Default)]
pub struct HeadText(Vec<u8>);

impl HeadText {
    /// Adds bytes and returns how many of them were used. `whole` says how much of the text it
    /// used, or that more of it is to come.
    pub fn put<E: From<TooLong>>(
        &mut self,
        bytes: &[u8],
        whole: impl FnOnce(&[u8]) -> Result<Option<usize>, E>,
    ) -> Result<usize, E> {
        let before = self.0.len();
        if before == 0 {
            if let Some(used) = whole(bytes)? {
                return Ok(used);
            }
            self.0.extend_from_slice(bytes);
            return Ok(bytes.len());
        }
        // A head in several pieces is rare.
        self.0.extend_from_slice(bytes);
        if let Some(used) = whole(&self.0)? {
            self.0 = Vec::new();
            return Ok(used - before);
        }
        if self.0.len() > HEAD_TEXT_MAX {
            return Err(TooLong.into());
        }
        Ok(bytes.len())
    }
}

/// What is left of a body.
#[derive(Debug)]
pub struct BodyText {
    framing: Framing,
    chunks: ChunkReader,
}

/// What the next bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextPiece {
    /// This many bytes that say nothing in frames.
    Framing(usize),
    /// At most this many bytes of content; `took` is told how many of them were used.
    Content(usize),
    /// The last of the chunks, this many bytes of them; `chunks` has the trailers.
    End(usize),
}

/// What came of content that was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Took {
    /// The number of bytes, with the framing behind it if that is its end.
    pub used: usize,
    pub ended: bool,
}

impl BodyText {
    pub fn new(framing: Framing) -> BodyText {
        BodyText { framing, chunks: ChunkReader::default() }
    }

    /// Returns whether the body ends where its sender closes.
    pub fn is_until_close(&self) -> bool {
        self.framing == Framing::UntilClose
    }

    pub fn chunks(&self) -> &ChunkReader {
        &self.chunks
    }

    /// Returns what some bytes begin with, of which there must be any.
    pub fn next(&mut self, bytes: &[u8]) -> Result<TextPiece, Malformed> {
        match self.framing {
            Framing::Empty => Ok(TextPiece::Framing(bytes.len())),
            Framing::Length(left) => {
                let left = usize::try_from(left).unwrap_or(usize::MAX);
                Ok(TextPiece::Content(left.min(bytes.len())))
            }
            Framing::UntilClose => Ok(TextPiece::Content(bytes.len())),
            Framing::Chunked => loop {
                match self.chunks.step(bytes)? {
                    // The next part begins here.
                    ChunkStep::Skip(0) => {}
                    ChunkStep::Skip(count) => return Ok(TextPiece::Framing(count)),
                    ChunkStep::Content(count) => return Ok(TextPiece::Content(count)),
                    ChunkStep::End(count) => return Ok(TextPiece::End(count)),
                }
            },
        }
    }

    /// Notes that the first `count` of the bytes, which are content, are used.
    pub fn took(&mut self, bytes: &[u8], count: usize) -> Took {
        match &mut self.framing {
            Framing::Length(left) => {
                *left -= count as u64;
                Took { used: count, ended: *left == 0 }
            }
            Framing::Chunked => match self.chunks.took(count, &bytes[count..]) {
                true => Took { used: bytes.len(), ended: true },
                false => Took { used: count, ended: false },
            },
            Framing::Empty | Framing::UntilClose => Took { used: count, ended: false },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_comes_in_pieces() {
        let end = |text: &[u8]| -> Result<Option<usize>, TooLong> {
            Ok(text.iter().position(|byte| *byte == b'.').map(|at| at + 1))
        };
        let mut head = HeadText::default();
        assert_eq!(head.put(b"whole.body", end), Ok(6));
        assert_eq!(head.put(b"in ", end), Ok(3));
        assert_eq!(head.put(b"three ", end), Ok(6));
        assert_eq!(head.put(b"pieces.body", end), Ok(7));
        assert_eq!(head.put(b"again.", end), Ok(6));
        let piece = [b'x'; 1024];
        let ended = (0..HEAD_TEXT_MAX).find_map(|_| head.put(&piece, end).err());
        assert_eq!(ended, Some(TooLong));
    }

    #[test]
    fn content_is_found_in_every_framing() {
        let mut body = BodyText::new(Framing::Length(5));
        assert_eq!(body.next(b"ab"), Ok(TextPiece::Content(2)));
        assert_eq!(body.took(b"ab", 2), Took { used: 2, ended: false });
        assert_eq!(body.next(b"cdefg"), Ok(TextPiece::Content(3)));
        assert_eq!(body.took(b"cdefg", 3), Took { used: 3, ended: true });
        let mut body = BodyText::new(Framing::Chunked);
        assert_eq!(body.next(b"2\r\nab"), Ok(TextPiece::Framing(1)));
        assert_eq!(body.next(b"\r\nab\r\n0\r\n\r\n"), Ok(TextPiece::Framing(2)));
        assert_eq!(body.next(b"ab\r\n0\r\n\r\n"), Ok(TextPiece::Content(2)));
        assert_eq!(body.took(b"ab\r\n0\r\n\r\n", 1), Took { used: 1, ended: false });
        assert_eq!(body.took(b"b\r\n0\r\n\r\n", 1), Took { used: 8, ended: true });
        let mut body = BodyText::new(Framing::UntilClose);
        assert_eq!(body.next(b"abc"), Ok(TextPiece::Content(3)));
        assert_eq!(body.took(b"abc", 3), Took { used: 3, ended: false });
        assert_eq!(BodyText::new(Framing::Empty).next(b"abc"), Ok(TextPiece::Framing(3)));
    }
}
