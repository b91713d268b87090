//! The application's output: cut into lines, stamped, logged, and its end kept for people who ask
//! why the process ended.

use std::os::fd::OwnedFd;
use std::time::{SystemTime, UNIX_EPOCH};

use agent_core::{ansi, last_words};

use super::log::LogFile;
use os::stamp::stamp;

/// The maximum length of a line in bytes; longer ones are split: nobody reads them, and they are
/// held in memory.
const LINE_BYTES_MAX: usize = 8 << 10;
/// The number of bytes read at once.
const READ_BYTES: usize = 16 << 10;
/// The number of bytes written at once; a flood of empty lines grows by the stamps.
const WRITE_BYTES: usize = 32 << 10;
/// The maximum number of reads before other work gets its turn: as much as a pipe holds.
const READS_MAX: u32 = 4;
/// The number of bytes at the end of the output that are searched for what went wrong: enough for
/// the stack trace of a deep call with its causes.
const RECENT_BYTES: usize = 32 << 10;
/// The maximum number of bytes of it that are kept for people.
const LAST_WORDS_BYTES: usize = 4 << 10;
/// The maximum number of lines of it that are kept for people: a screen.
const LAST_WORDS_LINES: usize = 60;

pub struct Output {
    pub pipe: OwnedFd,
    lines: Lines,
}

/// Whether more may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipeState {
    Open,
    /// Everything that was printed so far has been read.
    Empty,
    Ended,
}

impl Output {
    pub fn new(pipe: OwnedFd, log: LogFile) -> Output {
        Output { pipe, lines: Lines::new(log) }
    }

    /// Reads what is there, but not for ever.
    pub fn read(&mut self) -> PipeState {
        let mut chunk = [0; READ_BYTES];
        for _ in 0..READS_MAX {
            match rustix::io::read(&self.pipe, &mut chunk) {
                Ok(0) => return PipeState::Ended,
                Ok(count) => self.lines.take(&chunk[..count], now_ms()),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return PipeState::Empty,
                Err(_) => return PipeState::Ended,
            }
        }
        PipeState::Open
    }

    /// Ends the log after the last read: a line without an end is a line too. Returns the last
    /// words.
    pub fn finish(mut self) -> String {
        self.lines.finish(now_ms());
        self.lines.last_words()
    }
}

pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

struct Lines {
    log: LogFile,
    /// A line whose end has not come yet.
    partial: Vec<u8>,
    /// The recent output; at most twice as much as is needed, so that it is seldom moved.
    recent: Vec<u8>,
    batch: Vec<u8>,
    batch_lines: u64,
}

impl Lines {
    fn new(log: LogFile) -> Lines {
        Lines { log, partial: Vec::new(), recent: Vec::new(), batch: Vec::new(), batch_lines: 0 }
    }

    fn take(&mut self, bytes: &[u8], now_ms: u64) {
        self.remember(bytes);
        let stamp = stamp(now_ms);
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(piece);
            while self.partial.len() > LINE_BYTES_MAX {
                let rest = self.partial.split_off(boundary(&self.partial, LINE_BYTES_MAX));
                let line = std::mem::replace(&mut self.partial, rest);
                self.push(&line, &stamp);
            }
            if self.partial.last() == Some(&b'\n') {
                let mut line = std::mem::take(&mut self.partial);
                line.pop();
                self.push(&line, &stamp);
                line.clear();
                self.partial = line;
            }
        }
        self.flush(&stamp);
    }

    fn finish(&mut self, now_ms: u64) {
        let stamp = stamp(now_ms);
        if !self.partial.is_empty() {
            let line = std::mem::take(&mut self.partial);
            self.push(&line, &stamp);
        }
        self.flush(&stamp);
    }

    fn push(&mut self, line: &[u8], stamp: &str) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        self.batch.extend_from_slice(stamp.as_bytes());
        self.batch.push(b' ');
        self.batch.extend_from_slice(String::from_utf8_lossy(line).as_bytes());
        self.batch.push(b'\n');
        self.batch_lines += 1;
        if self.batch.len() >= WRITE_BYTES {
            self.flush(stamp);
        }
    }

    fn flush(&mut self, stamp: &str) {
        if self.batch_lines > 0 {
            self.log.append(&self.batch, self.batch_lines, stamp);
            self.batch.clear();
            self.batch_lines = 0;
        }
    }

    fn remember(&mut self, bytes: &[u8]) {
        let tail = &bytes[bytes.len().saturating_sub(RECENT_BYTES)..];
        if self.recent.len() + tail.len() > 2 * RECENT_BYTES {
            let excess = self.recent.len().saturating_sub(RECENT_BYTES);
            self.recent.drain(..excess);
        }
        self.recent.extend_from_slice(tail);
    }

    /// Returns the part of the output that says most about why the process ended; begins with a
    /// whole line if anything was cut off.
    fn last_words(&self) -> String {
        let excess = self.recent.len().saturating_sub(RECENT_BYTES);
        let mut tail = &self.recent[excess..];
        if excess > 0
            && let Some(end) = tail.iter().position(|byte| *byte == b'\n')
            && end + 1 < tail.len()
        {
            tail = &tail[end + 1..];
        }
        let text = ansi::strip(&String::from_utf8_lossy(tail));
        last_words::pick(&text, LAST_WORDS_LINES, LAST_WORDS_BYTES)
    }
}

/// Returns where to cut: at `limit` or before, and neither within a character nor within a colour
/// sequence.
fn boundary(bytes: &[u8], limit: usize) -> usize {
    let is_continuation = |byte: u8| byte & 0xC0 == 0x80;
    let whole = (limit - 3..=limit).rev().find(|end| !is_continuation(bytes[*end]));
    ansi::boundary(bytes, whole.unwrap_or(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds the chunks; returns the lines of the log without their stamps, and the last words.
    fn check(chunks: &[&[u8]]) -> (Vec<String>, String) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.log");
        let mut lines = Lines::new(LogFile::new(path.clone(), super::super::log::FILE_BYTES_MAX));
        for chunk in chunks {
            lines.take(chunk, 0);
        }
        lines.finish(0);
        let text = std::fs::read_to_string(path).unwrap();
        let stripped = text
            .lines()
            .map(|line| line.strip_prefix("1970-01-01T00:00:00.000Z ").unwrap().to_owned())
            .collect();
        (stripped, lines.last_words())
    }

    #[test]
    fn lines_are_put_together_from_pieces() {
        let (lines, last) = check(&[b"on", b"e\r\n\ntwo\nth", b"ree"]);
        assert_eq!(lines, ["one", "", "two", "three"]);
        assert_eq!(last, "one\r\n\ntwo\nthree");
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_as_such() {
        assert_eq!(check(&[b"a\xffb\n"]).0, ["a\u{fffd}b"]);
    }

    #[test]
    fn long_lines_are_split_between_characters() {
        let long = "ä".repeat(LINE_BYTES_MAX);
        let (lines, last) = check(&[b"x", long.as_bytes(), b"\n"]);
        assert_eq!(lines.concat(), format!("x{long}"));
        assert!(lines.len() == 3 && lines.iter().all(|line| line.len() <= LINE_BYTES_MAX));
        assert!(last.len() <= LAST_WORDS_BYTES + 100);
    }

    #[test]
    fn last_words_are_the_last_lines() {
        let chunks: Vec<String> = (0..5000).map(|number| format!("line {number}\n")).collect();
        let bytes: Vec<&[u8]> = chunks.iter().map(String::as_bytes).collect();
        let last = check(&bytes).1;
        assert!(last.starts_with("line ") && last.ends_with("line 4999"), "{last}");
        assert!(last.len() <= LAST_WORDS_BYTES + 100 && last.contains(" left out"), "{last}");
    }

    #[test]
    fn the_reason_is_kept_however_deep_the_call() {
        let mut chunks = vec!["Error: no configuration\n".to_string()];
        chunks.extend((0..200).map(|n| format!("    at f{n} (/app/module{n}.js:{n}:5)\n")));
        let bytes: Vec<&[u8]> = chunks.iter().map(String::as_bytes).collect();
        let last = check(&bytes).1;
        assert!(last.starts_with("Error: no configuration\n") && last.contains("f199"), "{last}");
    }

    #[test]
    fn a_long_line_is_not_cut_within_a_colour() {
        let line = format!("{}\x1b[1;31mred", "x".repeat(LINE_BYTES_MAX - 3));
        let lines = check(&[line.as_bytes(), b"\n"]).0;
        assert_eq!(lines[1], "\u{1b}[1;31mred");
    }
}
