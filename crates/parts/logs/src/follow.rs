//! A reader of a log file that others write and rotate, from its end or its beginning, line by
//! line. Blocks shortly for each read: what is followed was just written and is in memory.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use api_types::LogLine;
use shim::log::{FILES_MAX, numbered};

/// The maximum length of a line in bytes; a longer one is cut in pieces.
const LINE_BYTES_MAX: usize = 64 * 1024;
const READ_BYTES: usize = 64 * 1024;
/// The maximum number of reads of one call, so that a chatty application cannot hold a runtime's
/// thread.
const READS_MAX: usize = 16;

pub struct Follower {
    path: PathBuf,
    source: String,
    file: Option<File>,
    inode: u64,
    /// The bytes of a line whose end has not been written yet.
    partial: Vec<u8>,
}

impl Follower {
    pub fn from_start(path: PathBuf, source: String) -> Follower {
        Follower { path, source, file: None, inode: 0, partial: Vec::new() }
    }

    /// Follows the lines that are written from now on.
    pub fn from_end(path: PathBuf, source: String) -> Follower {
        let mut follower = Follower::from_start(path, source);
        follower.open();
        if let Some(file) = &mut follower.file
            && file.seek(SeekFrom::End(0)).is_err()
        {
            follower.file = None;
        }
        follower
    }

    /// Returns how many bytes of the current file were read; `None` where there is no file yet.
    pub fn position(&mut self) -> Option<u64> {
        self.file.as_mut().and_then(|file| file.stream_position().ok())
    }

    fn open(&mut self) {
        self.open_at(&self.path.clone());
    }

    fn open_at(&mut self, path: &Path) {
        self.file = File::open(path).ok();
        let metadata = self.file.as_ref().and_then(|file| file.metadata().ok());
        self.inode = metadata.map_or(0, |metadata| metadata.ino());
    }

    /// Returns what was written since the last call. After a rotation the old file is read to its
    /// end first.
    pub fn read(&mut self) -> Vec<LogLine> {
        let mut lines = Vec::new();
        if self.file.is_none() {
            self.open();
        }
        let ended = self.read_open_file(&mut lines);
        if ended && self.was_replaced() {
            self.finish_line(&mut lines);
            self.open_next(&mut lines);
            self.read_open_file(&mut lines);
        }
        lines
    }

    /// Opens the file after the one that was read, which was moved aside, perhaps more than once
    /// since.
    fn open_next(&mut self, lines: &mut Vec<LogLine>) {
        let is_ours = |number: &u32| {
            let metadata = std::fs::metadata(numbered(&self.path, *number));
            metadata.is_ok_and(|metadata| metadata.ino() == self.inode)
        };
        let is_current = std::fs::metadata(&self.path).is_ok_and(|now| now.ino() == self.inode);
        let oldest = FILES_MAX - 1;
        match (1..=oldest).find(is_ours) {
            _ if is_current => self.open(),
            Some(1) => self.open(),
            Some(number) => self.open_at(&numbered(&self.path, number - 1)),
            // The file was removed, as more was printed than is kept.
            None if numbered(&self.path, oldest).exists() => {
                let source = &self.source;
                let said = format!("lines of {source} are missing: it prints faster than they go");
                lines.push(LogLine::remark(said));
                self.open_at(&numbered(&self.path, oldest));
            }
            None => self.open(),
        }
    }

    /// Reads what is there; returns whether the end was reached.
    fn read_open_file(&mut self, lines: &mut Vec<LogLine>) -> bool {
        let mut buffer = vec![0; READ_BYTES];
        for _ in 0..READS_MAX {
            let Some(file) = &mut self.file else {
                return true;
            };
            match file.read(&mut buffer) {
                Ok(0) | Err(_) => return true,
                Ok(count) => self.take(&buffer[..count], lines),
            }
        }
        false
    }

    fn was_replaced(&mut self) -> bool {
        let Ok(now) = std::fs::metadata(&self.path) else {
            return false;
        };
        let position = self.position();
        now.ino() != self.inode || position.is_some_and(|position| now.size() < position)
    }

    fn take(&mut self, bytes: &[u8], lines: &mut Vec<LogLine>) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.partial.len() >= LINE_BYTES_MAX {
                self.finish_line(lines);
            }
        }
    }

    fn finish_line(&mut self, lines: &mut Vec<LogLine>) {
        if !self.partial.is_empty() {
            lines.push(line(&self.partial, &self.source));
            self.partial.clear();
        }
    }
}

/// Parses `TIME TEXT`, as shims write; without a time the whole is text.
pub fn line(bytes: &[u8], source: &str) -> LogLine {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_end_matches(['\n', '\r']);
    let (time, text) = match text.split_once(' ') {
        Some((time, rest)) if is_time(time) => (Some(time.to_string()), rest),
        None if is_time(text) => (Some(text.to_string()), ""),
        _ => (None, text),
    };
    LogLine { time, node: None, source: source.into(), text: text.into(), remark: false }
}

fn is_time(word: &str) -> bool {
    let bytes = word.as_bytes();
    bytes.len() >= 20
        && bytes.len() <= 40
        && bytes[4] == b'-'
        && bytes[7] == b'-'
        && bytes[10] == b'T'
        && bytes[13] == b':'
        && bytes[16] == b':'
        && bytes[..4].iter().all(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn texts(lines: Vec<LogLine>) -> Vec<String> {
        lines.into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn times_are_told_from_text() {
        let read = line(b"2026-08-01T12:00:00.123Z hello world\n", "web.1");
        assert_eq!(read.time.as_deref(), Some("2026-08-01T12:00:00.123Z"));
        assert_eq!(read.text, "hello world");
        let read = line(b"no time at all", "web.1");
        assert_eq!((read.time, read.text.as_str()), (None, "no time at all"));
        assert_eq!(line(b"\xff\xfe", "web.1").text, "\u{fffd}\u{fffd}");
    }

    #[test]
    fn a_rotated_file_is_read_to_its_end_and_then_the_new_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("web.1.log");
        let mut old = File::create(&path).unwrap();
        old.write_all(b"one\ntw").unwrap();
        let mut follower = Follower::from_start(path.clone(), "web.1".into());
        assert_eq!(texts(follower.read()), ["one"]);
        old.write_all(b"o\n").unwrap();
        std::fs::rename(&path, directory.path().join("web.1.log.1")).unwrap();
        old.write_all(b"three\n").unwrap();
        std::fs::write(&path, "four\n").unwrap();
        assert_eq!(texts(follower.read()), ["two", "three", "four"]);
        assert!(follower.read().is_empty());
    }

    #[test]
    fn a_slow_reader_reads_what_is_kept_and_is_told_what_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("web.1.log");
        let rotate = |text: &str| {
            std::fs::rename(numbered(&path, 1), numbered(&path, 2)).ok();
            std::fs::rename(&path, numbered(&path, 1)).ok();
            std::fs::write(&path, text).unwrap();
        };
        rotate("one\n");
        let mut follower = Follower::from_start(path.clone(), "web.1".into());
        assert_eq!(texts(follower.read()), ["one"]);
        rotate("two\n");
        rotate("three\n");
        assert_eq!(texts([follower.read(), follower.read()].concat()), ["two", "three"]);
        ["four\n", "five\n", "six\n", "seven\n"].into_iter().for_each(rotate);
        let lines = [follower.read(), follower.read(), follower.read()].concat();
        assert!(lines[0].remark && lines[0].text.contains("lines of web.1 are missing"));
        assert_eq!(texts(lines[1..].to_vec()), ["five", "six", "seven"]);
    }

    #[test]
    fn a_file_that_comes_later_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("later.log");
        let mut follower = Follower::from_end(path.clone(), "x".into());
        assert!(follower.read().is_empty());
        std::fs::write(&path, "here\n").unwrap();
        assert_eq!(texts(follower.read()), ["here"]);
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("long.log");
        std::fs::write(&path, vec![b'x'; LINE_BYTES_MAX + 10]).unwrap();
        let mut follower = Follower::from_start(path, "x".into());
        let lines = follower.read();
        assert_eq!(lines.len(), 1);
        assert!(lines[0].text.len() >= LINE_BYTES_MAX);
    }
}
