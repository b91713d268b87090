//! The commit log: a batch that goes in is durable when `append` returns. Only the committer drives
//! it; readers share the open files.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::thread::JoinHandle;

use store_core::Location;
use store_core::event::BatchEntry;
use store_core::frame::{self, MARK_LENGTH};
use store_core::record::Record;
use thiserror::Error;

use super::options::{OpenError, Options};
use super::recovery::{self, Recovered};
use super::segment::{self, Segment, log_path};

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

/// The usual size of a frame in bytes, with a short key and a short value; memory for a whole batch
/// is allocated at once.
const FRAME_BYTES_USUAL: usize = 192;

/// The size in bytes up to which the memory of a batch is kept; larger batches are rare.
const SEALED_BYTES_KEPT: usize = 1 << 20;

/// A log of batches in numbered segments. Values are read directly from the files, by segment and
/// offset.
pub trait CommitLog: Send {
    /// Opens the log: reads everything that is durable and continues after it.
    fn open(dir: &Path, options: &Options) -> Result<(Recovered, Self), OpenError>
    where
        Self: Sized;
    fn segments(&self) -> &Segments;
    /// Returns the number of the segment that batches go to.
    fn number(&self) -> u32;
    /// Returns whether `append` of this many bytes would begin a new segment; the index as it is
    /// now then covers all segments before it.
    fn begins_segment(&self, bytes: usize) -> bool;
    /// Appends a batch, which is durable when this returns; only then may the next one be appended.
    fn append(&mut self, batch: &Batch) -> Result<Appended, LogError>;
    /// Removes segments that no commit needs.
    fn free(&mut self, numbers: &[u32]) -> io::Result<()>;
}

/// The place to which a batch went.
#[derive(Clone, Copy, Debug)]
pub struct Appended {
    pub segment: u32,
    pub offset: u32,
}

/// A batch as it is written to the log.
pub struct Batch {
    pub number: u64,
    pub frames: Vec<u8>,
    /// The offset of each entry's frame.
    pub offsets: Vec<u32>,
}

impl Batch {
    pub fn encode<'a>(
        number: u64,
        entries: &'a [BatchEntry],
        value: impl Fn(&'a BatchEntry) -> &'a [u8],
    ) -> Batch {
        let mut frames = Vec::with_capacity(entries.len() * FRAME_BYTES_USUAL);
        let mut offsets = Vec::with_capacity(entries.len());
        let mut payload = Vec::new();
        for (i, entry) in entries.iter().enumerate() {
            payload.clear();
            offsets.push(frames.len() as u32);
            entry.encode(value(entry), &mut payload);
            frame::write(&mut frames, number, i + 1 == entries.len(), &payload);
        }
        Batch { number, frames, offsets }
    }

    pub fn closing(number: u64) -> Batch {
        let (mut frames, mut payload) = (Vec::new(), Vec::new());
        Record::Closed.encode(&mut payload);
        frame::write(&mut frames, number, true, &payload);
        Batch { number, frames, offsets: vec![0] }
    }

    /// Returns where each entry's value is, once the batch went to `appended`.
    pub fn locations(&self, entries: &[BatchEntry], appended: Appended) -> Vec<Location> {
        let located = |(entry, offset): (&BatchEntry, &u32)| {
            let (segment, offset) = (appended.segment, appended.offset + offset);
            entry.location(Location::Log { segment, offset })
        };
        entries.iter().zip(&self.offsets).map(located).collect()
    }
}

/// Every segment of the log by number, shared with the readers.
pub type Segments = Arc<RwLock<BTreeMap<u32, Segment>>>;

type Preparing = JoinHandle<io::Result<Segment>>;

pub struct SegmentedLog {
    dir: PathBuf,
    options: Options,
    segments: Segments,
    number: u32,
    current: Segment,
    end: u32,
    /// The newest batch, sealed with its segment's secret; kept to reuse its memory.
    sealed: Vec<u8>,
    next: Option<Preparing>,
}

impl SegmentedLog {
    /// Returns the capacity of the next segment. The first one is small, since most data
    /// directories stay so; each next one is twice as large, so that many writes need few files.
    fn capacity_after(&self, batch: usize) -> u32 {
        let doubled = self.current.capacity.saturating_mul(2);
        let grown = doubled.clamp(self.options.segment_bytes_first, self.options.segment_bytes_max);
        let needed = (segment::HEADER_LENGTH + batch + MARK_LENGTH).next_multiple_of(4096);
        grown.max(u32::try_from(needed).unwrap_or(u32::MAX))
    }

    fn rotate(&mut self, batch: usize) -> Result<(), LogError> {
        let number = self.number + 1;
        let wanted = self.capacity_after(batch);
        let fits =
            |capacity: u32| capacity as usize >= segment::HEADER_LENGTH + batch + MARK_LENGTH;
        let prepared = self.next.take().and_then(|preparing| {
            // A segment that failed in the background is tried again, and then reported.
            let made = preparing.join().ok()?.ok()?;
            fits(made.capacity).then_some(made)
        });
        let prepared = match prepared {
            Some(prepared) => prepared,
            None => segment::prepare(&self.dir, number, wanted, &self.options)
                .map_err(LogError::Refused)?,
        };
        segment::adopt(&self.dir, number, &self.options).map_err(LogError::Failed)?;
        self.end = prepared.start;
        self.current = prepared;
        self.number = number;
        let mut segments = self.segments.write().unwrap_or_else(|e| e.into_inner());
        segments.insert(number, self.current.clone());
        Ok(())
    }

    /// Starts making the next segment in the background once this one is half full.
    fn prepare_next(&mut self) {
        if self.next.is_some() || self.end < self.current.capacity / 2 {
            return;
        }
        let capacity = self.capacity_after(0);
        let (dir, number) = (self.dir.clone(), self.number + 1);
        let options = self.options.clone();
        let spawned = std::thread::Builder::new()
            .name("store-prepare".into())
            .spawn(move || segment::prepare(&dir, number, capacity, &options));
        self.next = spawned.ok();
    }
}

impl CommitLog for SegmentedLog {
    fn open(dir: &Path, options: &Options) -> Result<(Recovered, SegmentedLog), OpenError> {
        let (recovered, segments, end) = recovery::recover(dir, options)?;
        let (number, current) = segments.last_key_value().expect("recovery leaves a segment");
        let log = SegmentedLog {
            dir: dir.to_path_buf(),
            options: options.clone(),
            number: *number,
            current: current.clone(),
            end,
            segments: Arc::new(RwLock::new(segments)),
            sealed: Vec::new(),
            next: None,
        };
        Ok((recovered, log))
    }

    fn segments(&self) -> &Segments {
        &self.segments
    }

    fn number(&self) -> u32 {
        self.number
    }

    fn begins_segment(&self, bytes: usize) -> bool {
        self.end as usize + bytes + MARK_LENGTH > self.current.capacity as usize
    }

    fn append(&mut self, batch: &Batch) -> Result<Appended, LogError> {
        let length = batch.frames.len();
        if self.begins_segment(length) {
            self.rotate(length)?;
        }
        let offset = self.end;
        let Segment { file, secret, .. } = &self.current;
        self.sealed.clone_from(&batch.frames);
        secret.seal(&mut self.sealed, &batch.offsets);
        file.write_at(&self.sealed, offset.into()).map_err(LogError::Failed)?;
        self.sealed.shrink_to(SEALED_BYTES_KEPT);
        (self.options.fault)("store.sync").map_err(LogError::Failed)?;
        file.sync_content().map_err(LogError::Failed)?;
        self.end += length as u32;
        file.write_at(&secret.mark(batch.number), self.end.into()).map_err(LogError::Failed)?;
        self.end += MARK_LENGTH as u32;
        self.prepare_next();
        Ok(Appended { segment: self.number, offset })
    }

    fn free(&mut self, numbers: &[u32]) -> io::Result<()> {
        let mut segments = self.segments.write().unwrap_or_else(|e| e.into_inner());
        numbers.iter().for_each(|number| drop(segments.remove(number)));
        drop(segments);
        numbers.iter().try_for_each(|n| self.options.disk.remove(&log_path(&self.dir, *n)))
    }
}

impl Drop for SegmentedLog {
    fn drop(&mut self) {
        if let Some(preparing) = self.next.take() {
            let _ = preparing.join();
        }
    }
}
