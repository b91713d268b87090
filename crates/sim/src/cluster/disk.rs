//! A node's disk: the bytes of its log as the binary writes them, how far they are synced, its
//! large values, and older copies of all that. It knows no machine; the world decides what fails.

use std::collections::BTreeSet;

use model::Timestamp;
use store_core::event::BatchEntry;
use store_core::frame::{self, Ending, Secret};
use store_core::record::Record;
use store_core::{Location, Past, Ticket};

use crate::random::Random;

/// The number of backups that are kept.
const COPIES_MAX: usize = 3;

#[derive(Clone, Debug, Default)]
struct Content {
    log: Vec<u8>,
    files: BTreeSet<[u8; 32]>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    content: Content,
    /// The length that is synced; what is behind it is lost or torn by a crash.
    synced: usize,
    copies: Vec<(u64, Content)>,
    /// The places of the values of the batch that is not synced.
    written: Vec<Location>,
}

/// What a crash did to the write that was on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Torn {
    Nothing,
    Partly,
    /// All of it is there, though nobody was told.
    Whole,
}

impl Disk {
    /// Appends a batch to the log, which has only one segment.
    pub fn write<'a>(
        &mut self,
        batch: u64,
        entries: &[BatchEntry],
        value: impl Fn(Ticket) -> &'a [u8],
    ) {
        let mut payload = Vec::new();
        self.written.clear();
        for (index, entry) in entries.iter().enumerate() {
            payload.clear();
            let here = Location::Log { segment: 1, offset: self.content.log.len() as u32 };
            self.written.push(entry.location(here));
            let bytes = entry.ticket().map(&value).unwrap_or_default();
            entry.record(bytes).encode(&mut payload);
            let last = index + 1 == entries.len();
            frame::write(&mut self.content.log, batch, last, &payload);
        }
    }

    /// Makes the batch durable and appends its mark, which is not synced itself. Returns where the
    /// entries' values are.
    pub fn sync(&mut self, batch: u64) -> Vec<Location> {
        self.synced = self.content.log.len();
        self.content.log.extend_from_slice(&Secret::NONE.mark(batch));
        std::mem::take(&mut self.written)
    }

    pub fn close(&mut self, batch: u64) {
        let mut payload = Vec::new();
        Record::Closed.encode(&mut payload);
        frame::write(&mut self.content.log, batch, true, &payload);
        self.synced = self.content.log.len();
    }

    /// Keeps any of the unsynced bytes, as nobody has heard of them.
    pub fn crash(&mut self, random: &mut Random) -> Torn {
        let length = self.content.log.len();
        if length == self.synced {
            return Torn::Nothing;
        }
        let kept = match random.between(0, 4) {
            0 => length,
            1 => self.synced,
            _ => random.between(self.synced as u64, length as u64 + 1) as usize,
        };
        self.content.log.truncate(kept);
        if kept > self.synced && random.chance(40) {
            // Disks write sectors in any order: some in between are still blank.
            let from = random.between(self.synced as u64, kept as u64) as usize;
            let until = random.between(from as u64, kept as u64) as usize;
            self.content.log[from..until].fill(0);
            return Torn::Partly;
        }
        if kept == length { Torn::Whole } else { Torn::Partly }
    }

    /// Reads the log back and cuts its torn tail, as the binary does.
    pub fn recover(&mut self) -> Past {
        let log = &mut self.content.log;
        let mut past = Past::default();
        let extent = Secret::NONE
            .check(log, 0, Some(past.next_batch), Ending::MayBeTorn)
            .unwrap_or_else(|damage| panic!("a crash damaged the log: {damage}"));
        for (offset, frame) in Secret::NONE.frames(log, 0, extent.end) {
            let here = Location::Log { segment: 1, offset: offset as u32 };
            let record = Record::decode(frame.payload).expect("what was written can be read");
            assert!(past.replay(record, here), "a record that no log has");
        }
        past.next_batch = extent.batches.map_or(1, |(_, newest)| newest + 1);
        log.truncate(extent.end);
        self.synced = extent.end;
        past
    }

    /// Returns the value of the record at that offset.
    pub fn value(&self, offset: u32) -> Option<Vec<u8>> {
        let bytes = self.content.log.get(offset as usize..)?;
        let (_, frame) = Secret::NONE.frames(bytes, 0, bytes.len()).next()?;
        match Record::decode(frame.payload) {
            Ok(Record::Commit { value, .. } | Record::Moved { value, .. }) => Some(value.into()),
            _ => None,
        }
    }

    pub fn holds_file(&self, hash: &[u8; 32]) -> bool {
        self.content.files.contains(hash)
    }

    pub fn keep_file(&mut self, hash: [u8; 32]) {
        self.content.files.insert(hash);
    }

    /// Makes a backup of what is synced.
    pub fn copy(&mut self, at: Timestamp) {
        if self.copies.len() == COPIES_MAX {
            self.copies.remove(0);
        }
        let mut content = self.content.clone();
        content.log.truncate(self.synced);
        self.copies.push((at.0, content));
    }

    /// Puts a backup back, and returns when it was made.
    pub fn roll_back(&mut self, random: &mut Random) -> Option<u64> {
        let index = random.between(0, self.copies.len() as u64) as usize;
        let (at, content) = self.copies.get(index)?.clone();
        self.copies.truncate(index + 1);
        self.synced = content.log.len();
        self.content = content;
        Some(at)
    }

    pub fn has_copies(&self) -> bool {
        !self.copies.is_empty()
    }
}
