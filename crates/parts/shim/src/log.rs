//! A log file of bounded size that several shims may write at once: during a rollout two
//! incarnations share a slot. Whole lines go out in one write to a file opened for appending; the
//! shim that finds it full moves it aside under a lock, and the others notice and open the new one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

/// The maximum size of one file in bytes. With the older ones an instance's output takes at most
/// about 30 MiB.
pub const FILE_BYTES_MAX: u64 = 10 << 20;
/// The maximum number of files of a log: `x.log`, `x.log.1`, `x.log.2`.
pub const FILES_MAX: u32 = 3;

pub struct LogFile {
    path: PathBuf,
    file_bytes_max: u64,
    file: Option<File>,
    /// The number of lines that found no room since the last one that did.
    dropped: u64,
    /// Whether the disk filled up within a line, which lacks its end now.
    torn: bool,
}

impl LogFile {
    /// Creates it without opening anything yet: a full disk must not hinder a start.
    pub fn new(path: PathBuf, file_bytes_max: u64) -> LogFile {
        LogFile { path, file_bytes_max, file: None, dropped: 0, torn: false }
    }

    /// Appends whole lines. What cannot be written is dropped and counted, and the gap is noted
    /// later.
    pub fn append(&mut self, lines: &[u8], count: u64, stamp: &str) {
        let result = self.rotate_if_full().and_then(|()| {
            if self.dropped > 0 {
                let end = if self.torn { "\n" } else { "" };
                let lost = self.dropped;
                self.write(format!("{end}{stamp} [cortex: {lost} lines lost: disk full?]\n"))?;
                self.dropped = 0;
                self.torn = false;
            }
            self.write(lines)
        });
        if result.is_err() {
            self.dropped += count;
            self.file = None;
        }
    }

    fn write(&mut self, lines: impl AsRef<[u8]>) -> io::Result<()> {
        let lines = lines.as_ref();
        let file = self.file.as_mut().ok_or(io::ErrorKind::NotFound)?;
        let mut written = 0;
        // This is one system call, unless the disk fills up in the midst of it.
        while let Some(rest) = lines.get(written..).filter(|rest| !rest.is_empty()) {
            match file.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.torn |= lines[..written].last().is_some_and(|byte| *byte != b'\n');
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Leaves `file` open on what `path` names, with room in it.
    fn rotate_if_full(&mut self) -> io::Result<()> {
        // Each turn opens the current file or moves a full one away; others may do so meanwhile.
        const TURNS_MAX: u32 = 16;
        for _ in 0..TURNS_MAX {
            let file = match self.file.take() {
                Some(file) if names(&self.path, &file)? => file,
                _ => open(&self.path)?,
            };
            if file.metadata()?.len() < self.file_bytes_max {
                self.file = Some(file);
                return Ok(());
            }
            rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
            if names(&self.path, &file)? {
                self.move_aside()?;
            }
        }
        Err(io::Error::other("the log is moved aside again and again"))
    }

    fn move_aside(&self) -> io::Result<()> {
        for number in (1..FILES_MAX).rev() {
            let from = match number {
                1 => self.path.clone(),
                _ => numbered(&self.path, number - 1),
            };
            match fs::rename(from, numbered(&self.path, number)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns the name of an older file: `x.log.1` is the one before `x.log`.
pub fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

fn names(path: &Path, file: &File) -> io::Result<bool> {
    let own = file.metadata()?;
    match fs::metadata(path) {
        Ok(current) => Ok((current.dev(), current.ino()) == (own.dev(), own.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600);
    options.open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_writers_of_one_log_lose_no_line_but_those_rotated_away() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("web.1.log");
        // There is room for all lines in the three files, with many rotations on the way.
        let lines_each = 600;
        let write_all = |name: &str| {
            let mut log = LogFile::new(path.clone(), 20_000);
            for number in 0..lines_each {
                log.append(format!("{name} {number:04} {}\n", "x".repeat(20)).as_bytes(), 1, "-");
            }
            assert_eq!(log.dropped, 0);
        };
        std::thread::scope(|scope| {
            scope.spawn(|| write_all("a"));
            scope.spawn(|| write_all("b"));
        });
        let mut all = String::new();
        for file in [numbered(&path, 2), numbered(&path, 1), path.clone()] {
            all.push_str(&fs::read_to_string(file).unwrap_or_default());
        }
        assert!(!numbered(&path, 3).exists());
        let mut lines: Vec<&str> = all.lines().collect();
        assert!(lines.iter().all(|line| line.len() == 27), "a line was torn");
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), 2 * lines_each);
    }

    #[test]
    fn a_log_without_room_is_noted_once_there_is_some() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("logs");
        let mut log = LogFile::new(missing.join("web.1.log"), FILE_BYTES_MAX);
        log.append(b"a\nb\n", 2, "T");
        assert_eq!(log.dropped, 2);
        fs::create_dir(&missing).unwrap();
        log.append(b"c\n", 1, "T");
        let text = fs::read_to_string(missing.join("web.1.log")).unwrap();
        assert_eq!(text, "T [cortex: 2 lines lost: disk full?]\nc\n");
    }
}
