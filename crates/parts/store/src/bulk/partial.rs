//! The part of one value that has come: a file that holds proven groups from the start on. No
//! progress is written down: after a restart the file's content is proven anew against the value's
//! tree, so neither a torn write nor a false record of progress can get into a value. The methods
//! block.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use sha1::{Digest, Sha1};

use super::frame::WantedGroups;
use super::outline::Shape;
use super::{BulkError, Cv, GROUP_BYTES, SPAN_GROUPS, ValueName};
use crate::values::{SYNC_BYTES, ValueFiles};

/// The number of bytes read at a time for the SHA-1 of the whole value.
const SHA1_BYTES: usize = 1 << 20;

pub struct Partial {
    value: ValueName,
    shape: Shape,
    values: Arc<ValueFiles>,
    file: File,
    path: PathBuf,
    /// The hashes of the spans; empty until a peer has told them.
    spans: Vec<Cv>,
    /// The span that is coming and the hashes of its groups.
    page: Option<(u64, Vec<Cv>)>,
    /// The number of proven groups, from the first on.
    groups: u64,
    /// The hashes of the groups after those, which an earlier run left.
    left: Vec<Cv>,
    unsynced: u64,
}

impl Partial {
    pub fn open(values: &Arc<ValueFiles>, value: ValueName) -> Result<Partial, BulkError> {
        let (file, path) = values.open_partial(&value.hash).map_err(BulkError::Disk)?;
        let shape = Shape { size: value.size };
        let values = values.clone();
        let (spans, left) = (Vec::new(), Vec::new());
        let (groups, unsynced) = (0, 0);
        Ok(Partial { value, shape, values, file, path, spans, page: None, groups, left, unsynced })
    }

    /// Returns the number of bytes that are proven and in the file.
    pub fn bytes(&self) -> u64 {
        (self.groups * GROUP_BYTES as u64).min(self.value.size)
    }

    pub fn knows_spans(&self) -> bool {
        !self.spans.is_empty()
    }

    pub fn is_whole(&self) -> bool {
        self.groups == self.shape.groups()
    }

    /// Takes the hashes of the spans and proves with them what an earlier run left.
    pub fn accept_spans(&mut self, spans: Vec<Cv>) -> Result<(), BulkError> {
        if !self.shape.proves_spans(&self.value.hash, &spans) {
            return Err(BulkError::False("hashes that are not those of the value"));
        }
        self.spans = spans;
        self.prove_left().map_err(BulkError::Disk)
    }

    fn prove_left(&mut self) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        let whole = length / GROUP_BYTES as u64;
        let found = if length >= self.value.size { self.shape.groups() } else { whole };
        for span in 0..self.shape.spans() {
            let first = span * SPAN_GROUPS as u64;
            let count = self.shape.groups_in(span) as u64;
            let there = found.saturating_sub(first).min(count);
            let mut page = Vec::new();
            let mut buffer = vec![0; GROUP_BYTES];
            for group in first..first + there {
                let bytes = &mut buffer[..self.shape.group_bytes(group)];
                self.file.read_exact_at(bytes, group * GROUP_BYTES as u64)?;
                page.push(self.shape.hash_group(group, bytes));
            }
            if there < count {
                self.left = page;
                break;
            }
            if !self.shape.proves_page(span, &self.spans[span as usize], &page) {
                break;
            }
            self.groups = first + count;
        }
        let kept = (self.resume_at() * GROUP_BYTES as u64).min(self.value.size);
        if kept < length { self.file.set_len(kept) } else { Ok(()) }
    }

    /// Returns the groups to ask for after `asked` groups, one span at a time.
    pub fn wanted_after(&self, asked: u64) -> Option<WantedGroups> {
        if asked >= self.shape.groups() {
            return None;
        }
        let span = asked / SPAN_GROUPS as u64;
        let from = (asked % SPAN_GROUPS as u64) as usize;
        Some(WantedGroups { value: self.value, span, from, until: self.shape.groups_in(span) })
    }

    /// Returns the first group to ask for: those that were left need not come again if the page,
    /// which comes first, proves them.
    pub fn resume_at(&self) -> u64 {
        self.groups + self.left.len() as u64
    }

    /// Takes the hashes of a span's groups, which prove what was left of it.
    pub fn accept_page(&mut self, span: u64, page: Vec<Cv>) -> Result<(), BulkError> {
        let known = self.spans.get(span as usize);
        if !known.is_some_and(|hash| self.shape.proves_page(span, hash, &page)) {
            return Err(BulkError::False("hashes that are not those of the span"));
        }
        let left = std::mem::take(&mut self.left);
        let sound = left.iter().zip(&page).take_while(|(found, told)| found == told).count();
        self.groups += sound as u64;
        self.page = Some((span, page));
        if sound < left.len() {
            self.file.set_len(self.bytes()).map_err(BulkError::Disk)?;
            return Err(BulkError::Damaged);
        }
        Ok(())
    }

    /// Returns the length in bytes of the group that is `ahead` groups after the next one.
    pub fn next_bytes(&self, ahead: u64) -> usize {
        self.shape.group_bytes(self.groups + ahead)
    }

    /// Takes groups in order, and keeps those before the first false one.
    pub fn accept_groups(&mut self, bytes: &[u8]) -> Result<(), BulkError> {
        let Some((span, page)) = &self.page else {
            return Err(BulkError::False("groups without their hashes"));
        };
        let first = span * SPAN_GROUPS as u64;
        let proves = |(group, piece): (u64, &[u8])| {
            let told = group.checked_sub(first).and_then(|n| page.get(n as usize));
            let whole = piece.len() == self.shape.group_bytes(group);
            whole && told == Some(&self.shape.hash_group(group, piece))
        };
        let pieces = (self.groups..).zip(bytes.chunks(GROUP_BYTES));
        let sound = pieces.take_while(|piece| proves(*piece)).count();
        let kept = &bytes[..bytes.len().min(sound * GROUP_BYTES)];
        self.write(kept, sound as u64).map_err(BulkError::Disk)?;
        if kept.len() < bytes.len() {
            return Err(BulkError::False("a group that is not of the value"));
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8], groups: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, self.groups * GROUP_BYTES as u64)?;
        self.groups += groups;
        self.unsynced += bytes.len() as u64;
        if self.unsynced >= SYNC_BYTES {
            self.file.sync_data()?;
            self.unsynced = 0;
        }
        Ok(())
    }

    /// Returns the SHA-1 of the whole value, which its commit tells too.
    pub fn sha1(&self) -> Result<[u8; 20], BulkError> {
        let (mut hasher, mut buffer) = (Sha1::new(), vec![0; SHA1_BYTES]);
        let mut at = 0;
        while at < self.value.size {
            let count = (self.value.size - at).min(SHA1_BYTES as u64) as usize;
            self.file.read_exact_at(&mut buffer[..count], at).map_err(BulkError::Disk)?;
            hasher.update(&buffer[..count]);
            at += count as u64;
        }
        Ok(hasher.finalize().into())
    }

    /// Discards all that has come.
    pub fn discard(&self) {
        // A file that cannot be removed goes when it is old.
        let _ = std::fs::remove_file(&self.path);
    }

    /// Makes the whole value durable under its name.
    pub fn finish(self) -> Result<(), BulkError> {
        debug_assert!(self.is_whole());
        let placed =
            self.file.sync_all().and_then(|()| self.values.place(&self.path, &self.value.hash));
        placed.map(drop).map_err(BulkError::Disk)
    }
}
