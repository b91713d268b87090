//! The log of what the platform itself says of an application: one line per event, for people, in
//! the format that shims write. Bounded: the file before the current one is kept, older ones go.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use model::Timestamp;

use crate::directory::private_directory;
use crate::stamp::stamp;

/// The maximum size of a file in bytes: years of events.
const BYTES_MAX: u64 = 1 << 20;

/// Appends lines. Never fails: a full disk must not stop what is being reported on.
pub fn append(path: &Path, now: Timestamp, text: &str) {
    if let Err(error) = try_append(path, now, text) {
        tracing::warn!(path = %path.display(), %error, "platform_log.failed");
    }
}

fn try_append(path: &Path, now: Timestamp, text: &str) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        private_directory(parent)?;
    }
    if fs::metadata(path).is_ok_and(|metadata| metadata.len() > BYTES_MAX) {
        fs::rename(path, path.with_extension("log.1"))?;
    }
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    let lines: String = text.lines().map(|line| format!("{} {line}\n", stamp(now.0))).collect();
    file.write_all(lines.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_carry_their_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("logs/cortex.log");
        append(&path, Timestamp(1_700_000_000_123), "one\ntwo");
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 2);
        assert!(text.starts_with("2023-11-14T22:13:20.123Z one\n"), "{text}");
    }
}
