//! The files of the log: makes them, names them and reads records from them. A segment is filled
//! with zeros before use, so that a later fdatasync writes no metadata and cannot lack space.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use store_core::frame::{self, NextFrame, SECRET_LENGTH, Secret};
use store_core::record::{self, FORMAT, Record};
use store_core::{Commit, Location};

use super::disk::DiskFile;
use super::options::Options;

/// The size in bytes of one write of zeros.
const FILL_CHUNK: usize = 1 << 20;

pub fn log_path(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("log-{number:08}"))
}

pub fn snapshot_path(dir: &Path, next: u32) -> PathBuf {
    dir.join(format!("index-{next:08}"))
}

/// Returns the name that a file has beside its final one until its content is durable.
pub fn unfinished(path: &Path) -> PathBuf {
    path.with_extension("new")
}

/// The number of bytes in a segment before its first batch.
pub const HEADER_LENGTH: usize = HEADER_LENGTH_OLD + frame::frame_length(1 + SECRET_LENGTH);
/// The same for a format without a secret.
pub const HEADER_LENGTH_OLD: usize = frame::frame_length(13);

/// One file of the log.
#[derive(Clone)]
pub struct Segment {
    pub file: Arc<dyn DiskFile>,
    pub capacity: u32,
    /// The offset of the first batch.
    pub start: u32,
    pub secret: Secret,
}

/// Makes a durable segment under its unfinished name.
pub fn prepare(dir: &Path, number: u32, capacity: u32, options: &Options) -> io::Result<Segment> {
    let path = unfinished(&log_path(dir, number));
    let mut random = [0; SECRET_LENGTH];
    let got = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    if got < random.len() {
        return Err(io::Error::other("the kernel gave too few random bytes"));
    }
    let written = options.disk.create(&path).and_then(|file| {
        (options.fault)("store.extend")?;
        let mut header = Vec::new();
        // It is in two frames, so that builds that know no secret can say that a newer one wrote
        // it.
        for record in [Record::Segment { format: FORMAT, number, capacity }, Record::Secret(random)]
        {
            let mut payload = Vec::new();
            record.encode(&mut payload);
            frame::write(&mut header, 0, true, &payload);
        }
        file.write_at(&header, 0)?;
        fill(&*file, header.len() as u64, capacity.into())?;
        file.sync_all()?;
        Ok(Segment { file, capacity, start: HEADER_LENGTH as u32, secret: Secret::new(random) })
    });
    if written.is_err() {
        let _ = options.disk.remove(&path);
    }
    written
}

/// Makes a prepared segment part of the log.
pub fn adopt(dir: &Path, number: u32, options: &Options) -> io::Result<()> {
    let path = log_path(dir, number);
    options.disk.rename(&unfinished(&path), &path)?;
    options.disk.sync_names(dir)
}

/// Overwrites with zeros what a torn write left.
pub fn wipe(file: &dyn DiskFile, from: u64, to: u64) -> io::Result<()> {
    fill(file, from, to)?;
    file.sync_content()
}

fn fill(file: &dyn DiskFile, from: u64, to: u64) -> io::Result<()> {
    let zeros = vec![0; FILL_CHUNK];
    let mut at = from;
    while at < to {
        let count = usize::try_from(to - at).unwrap_or(FILL_CHUNK).min(FILL_CHUNK);
        file.write_at(&zeros[..count], at)?;
        at += count as u64;
    }
    Ok(())
}

/// Reads the value in the record of this commit; every byte of the record is checked.
pub fn read_value(segment: &Segment, commit: &Commit) -> io::Result<Bytes> {
    let Location::Log { segment: number, offset } = commit.location else {
        return Err(io::Error::other("the value is not in the log"));
    };
    let mut bytes = vec![0; frame::frame_length(record::commit_payload_length(commit))];
    segment.file.read_at(&mut bytes, offset.into())?;
    if let NextFrame::Frame(found) = segment.secret.read(&bytes)
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
            "the record at byte {offset} of log-{number:08} is damaged; stop the node; with other \
             nodes in the cluster move its store directory aside and start it with --join ADDRESS, \
             alone restore the directory from a copy"
        ),
    ))
}
