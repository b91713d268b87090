//! The commit log: batches go in, and are durable when `append` returns. Driven by the committer
//! thread alone; readers share the open files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, RwLock};
use std::thread::JoinHandle;

use bytes::Bytes;
use store::machine::Entry;
use store::record::Record;
use store::{Commit, Location, frame};
use thiserror::Error;

use super::open::Options;
use super::segment;

#[derive(Debug, Error)]
pub enum LogError {
    /// Nothing was written; a later attempt may succeed.
    #[error(
        "the disk did not take another log file ({0}); nothing was written: free space for the \
         data directory, then try again"
    )]
    Refused(#[source] io::Error),
    /// What is on disk is unknown now; only a restart can find out.
    #[error("writing the commit log failed: {0}")]
    Failed(#[source] io::Error),
}

pub trait CommitLog: Send {
    /// Whether `append` of so many bytes would begin a new segment; the index as it is now then
    /// covers all segments before it.
    fn begins_segment(&self, bytes: usize) -> bool;
    /// `frames` is one whole batch, and `entries` its records with their offsets inside.
    fn append(&mut self, frames: &[u8]) -> Result<Appended, LogError>;
}

/// Where a batch went.
#[derive(Clone, Copy, Debug)]
pub struct Appended {
    pub segment: u32,
    pub offset: u32,
}

/// A batch as it goes to the log.
pub struct Batch {
    pub frames: Vec<u8>,
    /// The offset of each entry's frame.
    pub offsets: Vec<u32>,
}

impl Batch {
    pub fn encode(batch: u64, entries: &[Entry], value: impl Fn(&Entry) -> Bytes) -> Batch {
        let mut frames = Vec::new();
        let mut offsets = Vec::new();
        let mut payload = Vec::new();
        for (i, entry) in entries.iter().enumerate() {
            payload.clear();
            offsets.push(frames.len() as u32);
            let value = value(entry);
            let record = match entry {
                Entry::Commit { commit, .. } => {
                    Record::Commit { commit: commit.clone(), value: &value }
                }
                Entry::Moved { commit, .. } => {
                    Record::Moved { commit: commit.clone(), value: &value }
                }
                Entry::Horizons(horizons) => Record::Horizons(*horizons),
            };
            record.encode(&mut payload);
            frame::write(&mut frames, batch, i + 1 == entries.len(), &payload);
        }
        Batch { frames, offsets }
    }

    pub fn closing(batch: u64) -> Batch {
        let (mut frames, mut payload) = (Vec::new(), Vec::new());
        Record::Closed.encode(&mut payload);
        frame::write(&mut frames, batch, true, &payload);
        Batch { frames, offsets: vec![0] }
    }

    /// Where each entry's value is, once the batch went to `appended`.
    pub fn locations(&self, entries: &[Entry], appended: Appended) -> Vec<Location> {
        let located = |(entry, offset): (&Entry, &u32)| match entry {
            Entry::Commit { commit: Commit { location: Location::Log { .. }, .. }, .. }
            | Entry::Moved { .. } => {
                Location::Log { segment: appended.segment, offset: appended.offset + offset }
            }
            Entry::Commit { commit, .. } => commit.location,
            Entry::Horizons(_) => Location::Nowhere,
        };
        entries.iter().zip(&self.offsets).map(located).collect()
    }
}

/// One file of the log.
#[derive(Clone, Debug)]
pub struct Segment {
    pub file: Arc<File>,
    pub capacity: u32,
}

/// Every file of the log, for readers too.
pub type Segments = Arc<RwLock<BTreeMap<u32, Segment>>>;

type Preparing = JoinHandle<io::Result<File>>;

pub struct SegmentedLog {
    dir: PathBuf,
    options: Options,
    segments: Segments,
    number: u32,
    current: Segment,
    end: u32,
    next: Option<(u32, Preparing)>,
}

impl SegmentedLog {
    /// Goes on behind what recovery found.
    pub fn new(
        dir: PathBuf,
        options: Options,
        segments: Segments,
        number: u32,
        current: Segment,
        end: u32,
    ) -> SegmentedLog {
        SegmentedLog { dir, options, segments, number, current, end, next: None }
    }

    pub fn number(&self) -> u32 {
        self.number
    }

    /// The first segment is small, as most data directories stay so; each next one is twice as
    /// large, so that many writes mean few files.
    fn capacity_after(&self, batch: usize) -> u32 {
        let doubled = self.current.capacity.saturating_mul(2);
        let grown = doubled.clamp(self.options.segment_bytes_first, self.options.segment_bytes_max);
        let needed = (batch + segment::header_length()).next_multiple_of(4096);
        grown.max(u32::try_from(needed).unwrap_or(u32::MAX))
    }

    fn rotate(&mut self, batch: usize) -> Result<(), LogError> {
        let number = self.number + 1;
        let wanted = self.capacity_after(batch);
        let fits = |capacity: u32| capacity as usize >= batch + segment::header_length();
        let prepared = self.next.take().and_then(|(capacity, preparing)| {
            // One that failed in the background is tried again, and then reported.
            let file = preparing.join().ok()?.ok()?;
            fits(capacity).then_some((capacity, file))
        });
        let (capacity, file) = match prepared {
            Some(prepared) => prepared,
            None => {
                let made = segment::prepare(&self.dir, number, wanted, &self.options.fault);
                (wanted, made.map_err(LogError::Refused)?)
            }
        };
        segment::adopt(&self.dir, number).map_err(LogError::Failed)?;
        self.current = Segment { file: Arc::new(file), capacity };
        self.number = number;
        self.end = segment::header_length() as u32;
        let mut segments = self.segments.write().unwrap_or_else(|e| e.into_inner());
        segments.insert(number, self.current.clone());
        Ok(())
    }

    /// Has the next segment made in the background once this one is half full.
    fn prepare_next(&mut self) {
        if self.next.is_some() || self.end < self.current.capacity / 2 {
            return;
        }
        let capacity = self.capacity_after(0);
        let (dir, number) = (self.dir.clone(), self.number + 1);
        let fault = self.options.fault.clone();
        let spawned = std::thread::Builder::new()
            .name("store-prepare".into())
            .spawn(move || segment::prepare(&dir, number, capacity, &fault));
        self.next = spawned.ok().map(|preparing| (capacity, preparing));
    }
}

impl CommitLog for SegmentedLog {
    fn begins_segment(&self, bytes: usize) -> bool {
        self.end as usize + bytes > self.current.capacity as usize
    }

    fn append(&mut self, frames: &[u8]) -> Result<Appended, LogError> {
        if self.begins_segment(frames.len()) {
            self.rotate(frames.len())?;
        }
        let offset = self.end;
        let file = &self.current.file;
        file.write_all_at(frames, offset.into()).map_err(LogError::Failed)?;
        (self.options.fault)("store.sync").map_err(LogError::Failed)?;
        file.sync_data().map_err(LogError::Failed)?;
        self.end += frames.len() as u32;
        self.prepare_next();
        Ok(Appended { segment: self.number, offset })
    }
}

impl Drop for SegmentedLog {
    fn drop(&mut self) {
        if let Some((_, preparing)) = self.next.take() {
            let _ = preparing.join();
        }
    }
}
