//! Snapshots of the index: everything that the segments before one number said, so that opening
//! reads those after it only, and segments without values can go.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use store::frame::{self, Next};
use store::record::{FORMAT, Record};
use store::{Frozen, Replica, Stamp};

use super::open::FaultHook;
use super::segment::{create, snapshot_path, sync_dir, unfinished};

/// `batch` is the last that the state holds.
pub fn write(
    dir: &Path,
    next: u32,
    batch: u64,
    frozen: &Frozen,
    fault: &FaultHook,
) -> std::io::Result<u64> {
    let path = snapshot_path(dir, next);
    let written = write_file(&unfinished(&path), next, batch, frozen, fault);
    if written.is_err() {
        let _ = std::fs::remove_file(unfinished(&path));
    }
    let length = written?;
    std::fs::rename(unfinished(&path), &path)?;
    sync_dir(dir)?;
    Ok(length)
}

fn write_file(
    path: &Path,
    next: u32,
    batch: u64,
    frozen: &Frozen,
    fault: &FaultHook,
) -> std::io::Result<u64> {
    let mut out = BufWriter::new(create(path)?);
    let (mut number, mut length) = (0, 0);
    let mut put = |record: &Record<'_>| {
        let (mut payload, mut bytes) = (Vec::new(), Vec::new());
        record.encode(&mut payload);
        frame::write(&mut bytes, number, true, &payload);
        number += 1;
        length += bytes.len() as u64;
        out.write_all(&bytes)
    };
    let (clock, horizons) = (frozen.clock, frozen.horizons);
    put(&Record::Snapshot { format: FORMAT, next, batch, clock, horizons })?;
    for block in frozen.history.blocks() {
        put(&Record::Block(block.commits().to_vec()))?;
    }
    let commits = frozen.history.len() as u64;
    put(&Record::SnapshotEnd { commits, head: frozen.history.head() })?;
    fault("store.snapshot")?;
    out.into_inner()?.sync_all()?;
    Ok(length)
}

pub struct Loaded {
    pub replica: Replica,
    pub clock: Stamp,
    pub batch: u64,
    pub length: u64,
}

pub fn load(path: &Path, expected_next: u32) -> anyhow::Result<Loaded> {
    let mut reader = FrameReader { input: BufReader::new(File::open(path)?), at: 0, number: 0 };
    let mut replica = Replica::default();
    let payload = reader.next()?;
    let (clock, batch) = match Record::decode(&payload)? {
        Record::Snapshot { format, .. } if format > FORMAT => {
            bail!("it has format {format}, which a newer version of Cortex wrote")
        }
        Record::Snapshot { next, batch, clock, horizons, .. } if next == expected_next => {
            replica.raise(horizons);
            (clock, batch)
        }
        _ => bail!("it does not begin as a snapshot with its number does"),
    };
    loop {
        let at = reader.at;
        let payload = reader.next()?;
        match Record::decode(&payload).with_context(|| format!("byte {at}"))? {
            Record::Block(commits) => {
                for commit in commits {
                    replica.admit(commit);
                }
            }
            Record::SnapshotEnd { commits, head } => {
                ensure!(
                    commits == replica.history().len() as u64 && head == replica.history().head(),
                    "its content is not what its last record says"
                );
                ensure!(reader.input.read(&mut [0])? == 0, "more follows byte {}", reader.at);
                return Ok(Loaded { replica, clock, batch, length: reader.at });
            }
            _ => bail!("byte {at}: a record that no snapshot has"),
        }
    }
}

struct FrameReader {
    input: BufReader<File>,
    at: u64,
    number: u64,
}

impl FrameReader {
    fn next(&mut self) -> anyhow::Result<Vec<u8>> {
        let at = self.at;
        let mut bytes = vec![0; frame::HEADER_LENGTH];
        self.input.read_exact(&mut bytes).with_context(|| format!("it ends at byte {at}"))?;
        let payload = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]) as usize;
        ensure!(payload <= frame::PAYLOAD_MAX, "the record at byte {at} is damaged");
        bytes.resize(frame::frame_length(payload), 0);
        self.input
            .read_exact(&mut bytes[frame::HEADER_LENGTH..])
            .with_context(|| format!("it ends inside the record at byte {at}"))?;
        match frame::read(&bytes) {
            Next::Frame(frame) if frame.batch == self.number => {
                self.number += 1;
                self.at += bytes.len() as u64;
                Ok(frame.payload.to_vec())
            }
            _ => bail!("the record at byte {at} is damaged"),
        }
    }
}
