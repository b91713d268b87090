//! The end of a body: by length, by chunks or with the connection. Chunks are checked strictly.
//! Those of an answer are passed on unchanged; those of a request are written anew, so that an
//! instance sees no extensions, no size written in an unusual way, and of trailers only those that
//! say nothing a head should have said.

use std::io::Write;

use thiserror::Error;

use super::syntax::is_token_byte;
use super::trailers::Trailers;

/// Bytes of an extension; extensions are hardly ever sent and never needed.
const EXTENSION_BYTES_MAX: u32 = 256;
const TRAILER_BYTES_MAX: u32 = 8 * 1024;
/// Digits of a size: 15 hexadecimal ones are more than any disk holds.
const SIZE_DIGITS_MAX: u32 = 15;

#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the chunks of the body are malformed")]
pub struct BadChunks;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    Empty,
    /// The bytes that are still to come.
    Length(u64),
    Chunked(Chunks),
    UntilClose,
}

impl Body {
    pub fn chunked() -> Body {
        Body::Chunked(Chunks::default())
    }

    pub fn is_done(&self) -> bool {
        match self {
            Body::Empty | Body::Length(0) => true,
            Body::Chunked(chunks) => chunks.state == State::Done,
            Body::Length(_) | Body::UntilClose => false,
        }
    }

    /// Returns the bytes of content in chunks so far; a length says its own.
    pub fn content(&self) -> u64 {
        match self {
            Body::Chunked(chunks) => chunks.content,
            Body::Empty | Body::Length(_) | Body::UntilClose => 0,
        }
    }

    /// Returns how many bytes of `input` belong to the body as it is on the wire.
    pub fn accept(&mut self, input: &[u8]) -> Result<usize, BadChunks> {
        match self {
            Body::Empty => Ok(0),
            Body::Length(left) => {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
                *left -= taken as u64;
                Ok(taken)
            }
            Body::Chunked(chunks) => chunks.accept(input, |_| (), |_| ()),
            Body::UntilClose => Ok(input.len()),
        }
    }

    /// Does the same, and writes the content alone to `out`.
    pub fn decode(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize, BadChunks> {
        if let Body::Chunked(chunks) = self {
            return chunks.accept(input, |content| out.extend_from_slice(content), |_| ());
        }
        let taken = self.accept(input)?;
        out.extend_from_slice(&input[..taken]);
        Ok(taken)
    }

    /// Does the same, and frames what goes to `out` as `input` is, in the plainest way. Trailers
    /// are collected in `trailers` until all are there.
    pub fn reframe(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        trailers: &mut Trailers,
    ) -> Result<usize, BadChunks> {
        let Body::Chunked(chunks) = self else { return self.decode(input, out) };
        let was_done = chunks.state == State::Done;
        let put = |content: &[u8]| {
            // Writing to memory cannot fail.
            let _ = write!(out, "{:x}\r\n", content.len());
            out.extend_from_slice(content);
            out.extend_from_slice(b"\r\n");
        };
        let taken = chunks.accept(input, put, |byte| trailers.push(byte))?;
        if chunks.state == State::Done && !was_done {
            out.extend_from_slice(b"0\r\n");
            trailers.put_allowed(out).ok_or(BadChunks)?;
            out.extend_from_slice(b"\r\n");
        }
        Ok(taken)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chunks {
    state: State,
    size: u64,
    /// The bytes of all chunks so far.
    content: u64,
    /// The digits of the size, or bytes of the extension or of all trailers so far.
    seen: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Size,
    /// White space that must be read before an extension, and nowhere else.
    Space,
    Extension,
    SizeEnd,
    Content,
    ContentCr,
    ContentLf,
    /// The reader is at the start of a line after the last chunk.
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerEnd,
    LastLf,
    Done,
}

impl State {
    /// Returns whether this is within a line behind the last chunk that is not the empty one.
    fn is_of_trailer(self) -> bool {
        matches!(self, State::TrailerName | State::TrailerValue | State::TrailerEnd)
    }
}

impl Chunks {
    /// Reads chunks; trailers come byte by byte, with the ends of their lines.
    fn accept(
        &mut self,
        input: &[u8],
        mut content: impl FnMut(&[u8]),
        mut trailer: impl FnMut(u8),
    ) -> Result<usize, BadChunks> {
        let mut at = 0;
        while at < input.len() && self.state != State::Done {
            if self.state == State::Content {
                let left = usize::try_from(self.size).unwrap_or(usize::MAX);
                let taken = left.min(input.len() - at);
                content(&input[at..at + taken]);
                self.size -= taken as u64;
                self.content = self.content.saturating_add(taken as u64);
                at += taken;
                if self.size == 0 {
                    self.state = State::ContentCr;
                }
                continue;
            }
            let before = self.state;
            self.state = self.step(input[at])?;
            if before == State::TrailerEnd || self.state.is_of_trailer() {
                trailer(input[at]);
            }
            at += 1;
        }
        Ok(at)
    }

    fn step(&mut self, byte: u8) -> Result<State, BadChunks> {
        let text = byte == b'\t' || (byte >= b' ' && byte != 0x7f);
        match (self.state, byte) {
            (State::Size, b'\r') if self.seen > 0 => Ok(State::SizeEnd),
            (State::Size, b';') if self.seen > 0 => self.count(0, 1, State::Extension),
            (State::Size, b' ' | b'\t') if self.seen > 0 => self.count(0, 1, State::Space),
            (State::Space, b' ' | b'\t') => {
                self.count(self.seen, EXTENSION_BYTES_MAX, State::Space)
            }
            (State::Space, b';') => self.count(self.seen, EXTENSION_BYTES_MAX, State::Extension),
            (State::Size, digit) => {
                let digit = char::from(digit).to_digit(16).ok_or(BadChunks)?;
                self.size = self.size * 16 + u64::from(digit);
                self.seen += 1;
                if self.seen > SIZE_DIGITS_MAX { Err(BadChunks) } else { Ok(State::Size) }
            }
            (State::Extension, b'\r') => Ok(State::SizeEnd),
            (State::Extension, _) if text => {
                self.count(self.seen, EXTENSION_BYTES_MAX, State::Extension)
            }
            (State::SizeEnd, b'\n') => {
                self.seen = 0;
                Ok(if self.size == 0 { State::TrailerStart } else { State::Content })
            }
            (State::ContentCr, b'\r') => Ok(State::ContentLf),
            (State::ContentLf, b'\n') => Ok(State::Size),
            (State::TrailerStart, b'\r') => Ok(State::LastLf),
            (State::TrailerName, b':') => {
                self.count(self.seen, TRAILER_BYTES_MAX, State::TrailerValue)
            }
            (State::TrailerStart | State::TrailerName, _) if is_token_byte(byte) => {
                self.count(self.seen, TRAILER_BYTES_MAX, State::TrailerName)
            }
            (State::TrailerValue, b'\r') => Ok(State::TrailerEnd),
            (State::TrailerValue, _) if text => {
                self.count(self.seen, TRAILER_BYTES_MAX, State::TrailerValue)
            }
            (State::TrailerEnd, b'\n') => Ok(State::TrailerStart),
            (State::LastLf, b'\n') => Ok(State::Done),
            _ => Err(BadChunks),
        }
    }

    fn count(&mut self, seen: u32, max: u32, next: State) -> Result<State, BadChunks> {
        self.seen = seen + 1;
        if self.seen > max { Err(BadChunks) } else { Ok(next) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::HEADERS_MAX;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn fresh() -> (Body, Vec<u8>, Trailers) {
        (Body::chunked(), Vec::new(), Trailers::default())
    }

    /// Reads the input in pieces of `step` bytes.
    fn run(input: &[u8], step: usize) -> Result<(usize, Vec<u8>, bool), BadChunks> {
        let (mut body, mut out, mut taken) = (Body::chunked(), Vec::new(), 0);
        for piece in input.chunks(step) {
            let accepted = body.decode(piece, &mut out)?;
            taken += accepted;
            if accepted < piece.len() {
                break;
            }
        }
        Ok((taken, out, body.is_done()))
    }

    #[test]
    fn chunks_end_where_they_say() {
        let wire = b"4\r\nWiki\r\n6 \t;a=b\r\npedia.\r\n0\r\nX: y\r\n\r\nGET /";
        for step in [1, 2, 3, 7, 100] {
            let (taken, content, done) = run(wire, step).unwrap();
            assert_eq!((taken, &content[..], done), (wire.len() - 5, &b"Wikipedia."[..], true));
        }
    }

    #[test]
    fn malformed_chunks_are_refused() {
        for bad in [
            "\r\n",
            "x\r\n",
            "-1\r\n",
            "4\nWiki",
            "4\r\nWikiX",
            "4\r\nWiki\n",
            "0\n\n",
            "0\r\n\n",
            "+4\r\n",
            "0x4\r\n",
            "4;a\nb\r\n",
            "ffffffffffffffff\r\n",
            "0\r\nA: b\n\r\n",
            "4 \r\n",
            "4 0\r\n",
            "4 \n",
            " ;a\r\n",
            "4\t\r\n",
            ";a\r\n",
            "4;a\rb\r\n",
            "4;\0\r\n",
            "0\r\nGET / HTTP/1.1\r\n",
            "0\r\n A: b\r\n",
            "0\r\nA : b\r\n",
            "0\r\n: b\r\n",
            "0\r\nA\r\n",
        ] {
            assert_eq!(run(bad.as_bytes(), 100), Err(BadChunks), "{bad:?}");
        }
        assert_eq!(run(format!("1;{}", "a".repeat(300)).as_bytes(), 9), Err(BadChunks));
        assert_eq!(run(format!("1{};", " ".repeat(300)).as_bytes(), 9), Err(BadChunks));
        assert_eq!(run(format!("0\r\n{}", "a".repeat(9000)).as_bytes(), 9), Err(BadChunks));
    }

    #[test]
    fn chunks_are_written_anew_without_extensions_and_with_what_may_trail() {
        let wire = b"004;a=b\r\nWiki\r\nB\r\nhello world\r\n000;x\r\nHost: evil\r\n\r\nGET /";
        let (mut body, mut out, mut trailers) = fresh();
        let taken = body.reframe(wire, &mut out, &mut trailers).unwrap();
        assert_eq!((&wire[taken..], body.is_done()), (&b"GET /"[..], true));
        assert_eq!(out, b"4\r\nWiki\r\nb\r\nhello world\r\n0\r\n\r\n");
        assert_eq!(body.content(), 15);
        assert_eq!(body.reframe(b"more", &mut out, &mut trailers), Ok(0));
        assert!(out.ends_with(b"world\r\n0\r\n\r\n"), "its end is written once");
        let (mut body, mut out) = (Body::Length(3), Vec::new());
        assert_eq!(body.reframe(b"abcd", &mut out, &mut trailers), Ok(3));
        assert_eq!(out, b"abc");
        let wire = b"1\r\nx\r\n0\r\nSum:7\r\nCookie: a\r\nx-b: \r\nX_C: 1\r\n\r\n";
        for step in [1, 2, 5, 100] {
            let (mut body, mut out, mut trailers) = fresh();
            for piece in wire.chunks(step) {
                assert_eq!(body.reframe(piece, &mut out, &mut trailers), Ok(piece.len()));
            }
            assert_eq!(out, b"1\r\nx\r\n0\r\nSum:7\r\nx-b: \r\n\r\n");
            assert!(body.is_done());
        }
        let many = format!("0\r\n{}\r\n", "a: b\r\n".repeat(HEADERS_MAX + 1));
        let (mut body, mut out, mut trailers) = fresh();
        assert_eq!(body.reframe(many.as_bytes(), &mut out, &mut trailers), Err(BadChunks));
    }

    proptest! {
        #[test]
        fn any_split_decodes_alike(
            parts in vec(vec(any::<u8>(), 1..40), 0..6),
            step in 1usize..20,
        ) {
            let mut wire = Vec::new();
            for part in &parts {
                wire.extend(format!("{:X}\r\n", part.len()).bytes());
                wire.extend(part);
                wire.extend(b"\r\n");
            }
            wire.extend(b"0\r\n\r\n");
            let (taken, content, done) = run(&wire, step).unwrap();
            prop_assert_eq!((taken, &content, done), (wire.len(), &parts.concat(), true));
            let (mut body, mut anew, mut trailers) = fresh();
            for piece in wire.chunks(step) {
                body.reframe(piece, &mut anew, &mut trailers).unwrap();
            }
            let (taken, content, done) = run(&anew, step).unwrap();
            prop_assert_eq!((taken, content, done), (anew.len(), parts.concat(), true));
        }

        #[test]
        fn any_bytes_are_read(bytes in vec(any::<u8>(), 0..200)) {
            run(&bytes, 13).ok();
        }
    }
}
