//! Files of the log: making them, naming them, reading a record out of them. A segment is filled
//! with zeros before use, so that a later fdatasync writes no metadata and cannot lack space.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use store::frame::{self, Next};
use store::record::{self, FORMAT, Record};
use store::{Commit, Location};

use super::open::FaultHook;

/// One write of zeros.
const FILL_CHUNK: usize = 1 << 20;

pub fn log_path(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("log-{number:08}"))
}

pub fn snapshot_path(dir: &Path, next: u32) -> PathBuf {
    dir.join(format!("index-{next:08}"))
}

/// Beside the final name until the content is durable.
pub fn unfinished(path: &Path) -> PathBuf {
    path.with_extension("new")
}

pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Only the owner reads what is stored.
pub fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// The bytes of a segment before its first batch.
pub fn header_length() -> usize {
    frame::frame_length(13)
}

/// A durable file under its unfinished name.
pub fn prepare(dir: &Path, number: u32, capacity: u32, fault: &FaultHook) -> io::Result<File> {
    let path = unfinished(&log_path(dir, number));
    let written = create(&path).and_then(|mut file| {
        fault("store.extend")?;
        let mut payload = Vec::new();
        Record::Segment { format: FORMAT, number, capacity }.encode(&mut payload);
        let mut chunk = Vec::new();
        frame::write(&mut chunk, 0, true, &payload);
        let mut left = capacity as usize;
        while left > 0 {
            chunk.resize(left.min(FILL_CHUNK), 0);
            file.write_all(&chunk)?;
            left -= chunk.len();
            chunk.clear();
        }
        file.sync_all()?;
        Ok(file)
    });
    if written.is_err() {
        let _ = std::fs::remove_file(&path);
    }
    written
}

/// Makes a prepared segment part of the log.
pub fn adopt(dir: &Path, number: u32) -> io::Result<()> {
    let path = log_path(dir, number);
    std::fs::rename(unfinished(&path), &path)?;
    sync_dir(dir)
}

/// Overwrites with zeros what a torn write left behind.
pub fn wipe(file: &File, from: u64, to: u64) -> io::Result<()> {
    let zeros = vec![0; FILL_CHUNK];
    let mut at = from;
    while at < to {
        let count = usize::try_from(to - at).unwrap_or(FILL_CHUNK).min(FILL_CHUNK);
        file.write_all_at(&zeros[..count], at)?;
        at += count as u64;
    }
    file.sync_data()
}

/// The value inside the record of this commit; every byte of the record is checked.
pub fn read_value(file: &File, commit: &Commit) -> io::Result<Bytes> {
    let Location::Log { segment, offset } = commit.location else {
        return Err(io::Error::other("the value is not in the log"));
    };
    let mut bytes = vec![0; frame::frame_length(record::commit_payload_length(commit))];
    file.read_exact_at(&mut bytes, offset.into())?;
    if let Next::Frame(found) = frame::read(&bytes)
        && let Ok(
            Record::Commit { commit: stored, value } | Record::Moved { commit: stored, value },
        ) = Record::decode(found.payload)
        && (stored.at, &stored.key, stored.action) == (commit.at, &commit.key, commit.action)
    {
        return Ok(Bytes::copy_from_slice(value));
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        format!(
            "the record at byte {offset} of log-{segment:08} is damaged; stop the node and restore \
             its store directory from a copy"
        ),
    ))
}
