//! Snapshots of the index: all that the segments before a certain number say, so that opening reads
//! only those after it, and segments without values can be removed.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use anyhow::{Context, bail, ensure};
use store_core::event::Standing;
use store_core::frame::{self, NextFrame};
use store_core::record::{FORMAT, Record};
use store_core::replica::Restoring;
use store_core::sync::message::Vector;
use store_core::{Commit, Fingerprint, Frozen, Horizons, Past, Stamp};

use super::disk::{Disk, DiskFile};
use super::options::Options;
use super::segment::{snapshot_path, unfinished};

/// The size in bytes of one write or read; the blocks of a snapshot are a tenth of this.
const CHUNK: usize = 1 << 20;
/// The number of blocks read ahead, some 100 KiB each.
const PIECES_AHEAD_MAX: usize = 32;

/// Writes a snapshot and returns its length; `batch` is the last one that the state holds.
pub fn write(
    dir: &Path,
    next: u32,
    batch: u64,
    frozen: &Frozen,
    options: &Options,
) -> io::Result<u64> {
    let path = snapshot_path(dir, next);
    let written = write_file(&unfinished(&path), next, batch, frozen, options);
    if written.is_err() {
        let _ = options.disk.remove(&unfinished(&path));
    }
    let length = written?;
    options.disk.rename(&unfinished(&path), &path)?;
    options.disk.sync_names(dir)?;
    Ok(length)
}

fn write_file(
    path: &Path,
    next: u32,
    batch: u64,
    frozen: &Frozen,
    options: &Options,
) -> io::Result<u64> {
    let file = options.disk.create(path)?;
    let (mut number, mut length) = (0, 0);
    let mut chunk = Vec::new();
    let mut put = |record: &Record<'_>| {
        let mut payload = Vec::new();
        record.encode(&mut payload);
        frame::write(&mut chunk, number, true, &payload);
        number += 1;
        if chunk.len() >= CHUNK || matches!(record, Record::SnapshotEnd { .. }) {
            file.write_at(&chunk, length)?;
            length += chunk.len() as u64;
            chunk.clear();
        }
        io::Result::Ok(())
    };
    let (clock, horizons) = (frozen.clock, frozen.horizons);
    put(&Record::Snapshot { format: FORMAT, next, batch, clock, horizons })?;
    put(&Record::Vector { promise: frozen.promised, held: frozen.held.clone() })?;
    put(&Record::Standing(frozen.standing))?;
    for block in frozen.history.blocks() {
        put(&Record::Block(block.commits().to_vec()))?;
    }
    let commits = frozen.history.len() as u64;
    put(&Record::SnapshotEnd { commits, head: frozen.history.head() })?;
    (options.fault)("store.snapshot")?;
    file.sync_all()?;
    Ok(length)
}

pub struct Loaded {
    pub past: Past,
    pub length: u64,
}

pub fn load(disk: &dyn Disk, path: &Path, expected_next: u32) -> anyhow::Result<Loaded> {
    let mut reader = FrameReader::of(disk.open(path)?)?;
    let mut past = Past::default();
    let payload = reader.next()?;
    let horizons = match Record::decode(payload)? {
        Record::Snapshot { format, .. } if format > FORMAT => {
            bail!("it has format {format}, which a newer version of Cortex wrote")
        }
        Record::Snapshot { next, batch, clock, horizons, .. } if next == expected_next => {
            past.clock = clock;
            past.next_batch = batch + 1;
            horizons
        }
        _ => bail!("it does not begin as a snapshot with its number does"),
    };
    let (pieces, received) = sync_channel(PIECES_AHEAD_MAX);
    std::thread::scope(|scope| {
        let reading = scope.spawn(move || read_pieces(reader, &pieces));
        let end = take_pieces(&mut past, horizons, received);
        let length = match reading.join() {
            Ok(read) => read?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let replica = &past.replica;
        ensure!(
            end == Some((replica.history().len() as u64, replica.history().head())),
            "its content is not what its last record says"
        );
        Ok(length)
    })
    .map(|length| Loaded { past, length })
}

/// A part of a snapshot that one thread reads, checks and hashes, and another puts in its place.
enum Piece {
    Commits(Vec<(Commit, [u8; 32])>),
    Held { promise: Stamp, held: Vector },
    Standing(Standing),
    End(u64, Fingerprint),
}

fn read_pieces(mut reader: FrameReader, pieces: &SyncSender<Piece>) -> anyhow::Result<u64> {
    loop {
        let at = reader.at;
        let payload = reader.next()?;
        let piece = match Record::decode(payload).with_context(|| format!("byte {at}"))? {
            Record::Block(commits) => {
                let identified = commits.into_iter().map(|commit| {
                    let cid = commit.cid();
                    (commit, cid)
                });
                Piece::Commits(identified.collect())
            }
            Record::Vector { promise, held } => Piece::Held { promise, held },
            Record::Standing(standing) => Piece::Standing(standing),
            Record::SnapshotEnd { commits, head } => {
                ensure!(reader.at == reader.length, "more follows byte {}", reader.at);
                let _ = pieces.send(Piece::End(commits, head));
                return Ok(reader.at);
            }
            _ => bail!("byte {at}: a record that no snapshot has"),
        };
        ensure!(pieces.send(piece).is_ok(), "it has two commits at one position");
    }
}

/// Takes the parts in and returns what the last record says; `None` if two commits have one
/// position.
fn take_pieces(
    past: &mut Past,
    horizons: Horizons,
    pieces: Receiver<Piece>,
) -> Option<(u64, Fingerprint)> {
    let mut restoring = Restoring::new(horizons);
    let mut end = None;
    for piece in pieces {
        match piece {
            Piece::Commits(commits) => {
                for (commit, cid) in commits {
                    if !restoring.take(commit, &cid) {
                        return None;
                    }
                }
            }
            Piece::Held { promise, held } => {
                past.promised = promise;
                past.held = held;
            }
            Piece::Standing(standing) => past.standing = standing,
            Piece::End(commits, head) => end = Some((commits, head)),
        }
    }
    past.replica = restoring.finish();
    end
}

struct FrameReader {
    file: Arc<dyn DiskFile>,
    length: u64,
    /// The offset of the next frame.
    at: u64,
    number: u64,
    /// The bytes read ahead; `used` of them are before the next frame.
    chunk: Vec<u8>,
    used: usize,
}

impl FrameReader {
    fn of(file: Arc<dyn DiskFile>) -> io::Result<FrameReader> {
        let length = file.length()?;
        Ok(FrameReader { file, length, at: 0, number: 0, chunk: Vec::new(), used: 0 })
    }

    /// Makes at least this many bytes of the next frame readable.
    fn fill(&mut self, wanted: usize) -> anyhow::Result<()> {
        if self.chunk.len() - self.used >= wanted {
            return Ok(());
        }
        self.chunk.drain(..self.used);
        self.used = 0;
        let (at, held) = (self.at, self.chunk.len());
        let left = usize::try_from(self.length - at).unwrap_or(usize::MAX);
        ensure!(wanted <= left, "it ends inside the record at byte {at}");
        self.chunk.resize(left.min(wanted.max(CHUNK)), 0);
        Ok(self.file.read_at(&mut self.chunk[held..], at + held as u64)?)
    }

    fn next(&mut self) -> anyhow::Result<&[u8]> {
        let at = self.at;
        self.fill(frame::HEADER_LENGTH)?;
        let length = &self.chunk[self.used + 4..self.used + 8];
        let payload = u32::from_le_bytes(length.try_into().expect("it has 4 bytes")) as usize;
        ensure!(payload <= frame::PAYLOAD_MAX, "the record at byte {at} is damaged");
        let length = frame::frame_length(payload);
        self.fill(length)?;
        let start = self.used;
        match frame::read(&self.chunk[start..start + length]) {
            NextFrame::Frame(frame) if frame.batch == self.number => {
                self.number += 1;
                self.at += length as u64;
                self.used += length;
                Ok(frame.payload)
            }
            _ => bail!("the record at byte {at} is damaged"),
        }
    }
}
