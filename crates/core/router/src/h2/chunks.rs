//! The reader that takes a body out of its chunks, with the trailers behind it. What comes here was
//! checked on its way already; what is malformed all the same ends the message.

use super::is_of_connection;
use crate::http::HEADERS_MAX;

/// Bytes of all trailers; the body's reader allows less.
const TRAILER_BYTES_MAX: usize = 16 * 1024;
/// A last chunk behind the content of another, with no trailers.
const LAST: &[u8] = b"\r\n0\r\n\r\n";

#[derive(Debug, Default)]
pub struct ChunkReader {
    state: State,
    /// The bytes of the present chunk that are still to come.
    left: u64,
    trailers: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Size,
    Extension,
    Content,
    /// The reader is behind the content of a chunk.
    Gap,
    /// The reader is at the start of a line behind the last chunk, or in it.
    Trailers,
}

/// What the next bytes are.
#[derive(Debug, PartialEq, Eq)]
pub enum ChunkStep {
    /// This many bytes of framing.
    Skip(usize),
    /// This many bytes of content; `took` is told how many of them were used.
    Content(usize),
    /// The end, with this many bytes of it; `trailers` has what else it said.
    End(usize),
}

/// The body is not made of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl ChunkReader {
    pub fn step(&mut self, input: &[u8]) -> Result<ChunkStep, Malformed> {
        match self.state {
            State::Size => self.size(input),
            State::Content => {
                let left = usize::try_from(self.left).unwrap_or(usize::MAX);
                Ok(ChunkStep::Content(left.min(input.len())))
            }
            State::Extension | State::Gap => {
                let end = input.iter().position(|byte| *byte == b'\n');
                if end.is_some() {
                    self.state = match self.state {
                        State::Gap => State::Size,
                        _ if self.left == 0 => State::Trailers,
                        _ => State::Content,
                    };
                    // The digits of the next one count from here.
                    self.left = if self.state == State::Size { 0 } else { self.left };
                }
                Ok(ChunkStep::Skip(end.map_or(input.len(), |at| at + 1)))
            }
            State::Trailers => self.last_lines(input),
        }
    }

    fn size(&mut self, input: &[u8]) -> Result<ChunkStep, Malformed> {
        for (at, byte) in input.iter().enumerate() {
            let Some(digit) = char::from(*byte).to_digit(16) else {
                self.state = State::Extension;
                return Ok(ChunkStep::Skip(at));
            };
            let larger = self.left.checked_mul(16).ok_or(Malformed)?;
            self.left = larger + u64::from(digit);
        }
        Ok(ChunkStep::Skip(input.len()))
    }

    fn last_lines(&mut self, input: &[u8]) -> Result<ChunkStep, Malformed> {
        for (at, byte) in input.iter().enumerate() {
            self.trailers.push(*byte);
            let (whole, lines) = (self.trailers.ends_with(b"\r\n\r\n"), self.trailers.len());
            if whole || self.trailers == b"\r\n" {
                return Ok(ChunkStep::End(at + 1));
            }
            if lines > TRAILER_BYTES_MAX {
                return Err(Malformed);
            }
        }
        Ok(ChunkStep::Skip(input.len()))
    }

    /// Calls `each`, behind the end, with names and values of trailers that mean the same in the
    /// other form.
    pub fn trailers(&self, mut each: impl FnMut(&str, &[u8])) -> Result<(), Malformed> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        if self.trailers.len() > b"\r\n".len() {
            httparse::parse_headers(&self.trailers, &mut headers).map_err(|_| Malformed)?;
        }
        let named = headers.iter().take_while(|header| !header.name.is_empty());
        for header in named.filter(|header| !is_of_connection(header.name)) {
            each(header.name, header.value);
        }
        Ok(())
    }

    /// Notes that this much of the content is used. Returns true if `rest`, which is behind it, is
    /// the whole end.
    pub fn took(&mut self, count: usize, rest: &[u8]) -> bool {
        self.left -= (count as u64).min(self.left);
        if self.left > 0 {
            return false;
        }
        self.state = State::Gap;
        rest == LAST
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns content and trailers, with the input in pieces of `size` bytes.
    fn run(wire: &[u8], size: usize) -> Result<(Vec<u8>, Option<Vec<String>>), Malformed> {
        let (mut chunks, mut content, mut end) = (ChunkReader::default(), Vec::new(), None);
        for mut piece in wire.chunks(size) {
            while !piece.is_empty() && end.is_none() {
                let taken = match chunks.step(piece)? {
                    ChunkStep::Skip(count) => count,
                    ChunkStep::Content(count) => {
                        content.extend_from_slice(&piece[..count]);
                        chunks.took(count, b"");
                        count
                    }
                    ChunkStep::End(count) => {
                        let mut trailers = Vec::new();
                        chunks.trailers(|name, value| {
                            trailers.push(format!("{name}={}", String::from_utf8_lossy(value)));
                        })?;
                        end = Some(trailers);
                        count
                    }
                };
                piece = &piece[taken..];
            }
        }
        Ok((content, end))
    }

    #[test]
    fn content_and_trailers_come_apart() {
        let wire =
            b"4;x=y\r\nWiki\r\n006\r\npedia.\r\n0\r\nGrpc-Status: 0\r\nConnection: x\r\n\r\n";
        for size in [1, 2, 3, 7, 500] {
            let (content, trailers) = run(wire, size).unwrap();
            assert_eq!(content, b"Wikipedia.");
            assert_eq!(trailers.unwrap(), ["Grpc-Status=0"]);
        }
        assert_eq!(run(b"0\r\n\r\n", 2).unwrap(), (Vec::new(), Some(Vec::new())));
        assert_eq!(run(b"1\r\na\r\n", 9).unwrap(), (b"a".to_vec(), None));
    }

    #[test]
    fn the_end_is_seen_behind_the_content() {
        let mut chunks = ChunkReader::default();
        assert_eq!(chunks.step(b"5\r\nhello\r\n0\r\n\r\n").unwrap(), ChunkStep::Skip(1));
        assert_eq!(chunks.step(b"\r\nhello\r\n0\r\n\r\n").unwrap(), ChunkStep::Skip(2));
        assert_eq!(chunks.step(b"hello\r\n0\r\n\r\n").unwrap(), ChunkStep::Content(5));
        assert!(!chunks.took(2, b"llo\r\n0\r\n\r\n"));
        assert!(chunks.took(3, b"\r\n0\r\n\r\n"));
    }

    #[test]
    fn endless_trailers_and_sizes_are_refused() {
        let long = format!("0\r\n{}", "a".repeat(TRAILER_BYTES_MAX + 1));
        run(long.as_bytes(), 1000).unwrap_err();
        run("f".repeat(40).as_bytes(), 7).unwrap_err();
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes: Vec<u8>, size in 1usize..20) {
            run(&bytes, size).ok();
        }
    }
}
