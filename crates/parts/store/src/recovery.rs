//! Recovery: reads back what is on disk, the newest snapshot and then every batch after it. Cuts
//! the torn tail of the last segment; any other damage is refused and nothing is changed.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;

use store_core::frame::{Ending, Extent, MARK_LENGTH, Secret};
use store_core::record::{FORMAT, FORMAT_SECRET, Record};
use store_core::{Location, Past};

use super::disk::Disk;
use super::options::{OpenError, Options};
use super::segment::{
    self, HEADER_LENGTH, HEADER_LENGTH_OLD, Segment, log_path, snapshot_path, wipe,
};
use super::snapshot;

/// The number of bytes of segments covered by a snapshot that are read through when opening, newest
/// first: a second or so. The records of the others are checked whenever they are read.
const VERIFIED_BYTES_MAX: u64 = 1 << 30;

pub struct Recovered {
    pub past: Past,
    /// The segment before which the newest snapshot ends, and the snapshot's length; `None` without
    /// one.
    pub snapshot: Option<(u32, u64)>,
}

/// What was recovered, the segments, and where the last one continues.
pub type Opened = (Recovered, BTreeMap<u32, Segment>, u32);

pub fn recover(dir: &Path, options: &Options) -> Result<Opened, OpenError> {
    let found = list(dir, &*options.disk)?;
    let first = found.snapshots.last().copied().unwrap_or(1);
    let last = found.logs.last().copied().unwrap_or(0);
    if found.logs.is_empty() && found.snapshots.is_empty() {
        segment::prepare(dir, 1, options.segment_bytes_first, options)
            .and_then(|_| segment::adopt(dir, 1, options))
            .map_err(OpenError::io(&log_path(dir, 1)))?;
        let state = Recovered { past: Past::default(), snapshot: None };
        return replay_all(dir, options, state, BTreeMap::new(), 1..2);
    }
    if let Some(missing) = (first..=last.max(first)).find(|n| !found.logs.contains(n)) {
        return Err(OpenError::Missing(log_path(dir, missing)));
    }
    let covered: Vec<u32> = found.logs.iter().copied().filter(|n| *n < first).collect();
    // Both run side by side, since each takes a second for a million keys.
    let (state, segments) = std::thread::scope(|scope| {
        let verifying = scope.spawn(|| verify_covered(dir, options, &covered));
        let state = load_snapshot(dir, options, found.snapshots.last().copied());
        match verifying.join() {
            Ok(segments) => Ok((state?, segments?)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })?;
    replay_all(dir, options, state, segments, first..last + 1)
}

fn load_snapshot(dir: &Path, options: &Options, next: Option<u32>) -> Result<Recovered, OpenError> {
    let Some(next) = next else {
        return Ok(Recovered { past: Past::default(), snapshot: None });
    };
    let path = snapshot_path(dir, next);
    let loaded = snapshot::load(&*options.disk, &path, next)
        .map_err(|error| OpenError::Snapshot { file: path, what: format!("{error:#}") })?;
    Ok(Recovered { past: loaded.past, snapshot: Some((next, loaded.length)) })
}

/// Opens the segments before the newest snapshot, which hold only values, and verifies them.
fn verify_covered(
    dir: &Path,
    options: &Options,
    numbers: &[u32],
) -> Result<BTreeMap<u32, Segment>, OpenError> {
    let mut segments = BTreeMap::new();
    let mut budget = VERIFIED_BYTES_MAX;
    for number in numbers.iter().rev().copied() {
        let segment = open_segment(&*options.disk, dir, number)?;
        if u64::from(segment.capacity) <= budget {
            budget -= u64::from(segment.capacity);
            let bytes = read_all(dir, number, &segment)?;
            check(dir, number, &segment, &bytes, None, Ending::Sealed)?;
        }
        segments.insert(number, segment);
    }
    Ok(segments)
}

struct FoundFiles {
    logs: Vec<u32>,
    snapshots: Vec<u32>,
}

fn list(dir: &Path, disk: &dyn Disk) -> Result<FoundFiles, OpenError> {
    let (mut logs, mut snapshots) = (Vec::new(), Vec::new());
    let mut removed = false;
    for name in disk.names(dir).map_err(OpenError::io(dir))? {
        if name.ends_with(".new") {
            let path = dir.join(name);
            disk.remove(&path).map_err(OpenError::io(&path))?;
            removed = true;
        } else if let Some(number) = name.strip_prefix("log-").and_then(|n| n.parse().ok()) {
            logs.push(number);
        } else if let Some(number) = name.strip_prefix("index-").and_then(|n| n.parse().ok()) {
            snapshots.push(number);
        }
    }
    if removed {
        // Otherwise the removal could come after the next file of that name, and remove that one.
        disk.sync_names(dir).map_err(OpenError::io(dir))?;
    }
    logs.sort_unstable();
    snapshots.sort_unstable();
    Ok(FoundFiles { logs, snapshots })
}

fn replay_all(
    dir: &Path,
    options: &Options,
    mut state: Recovered,
    mut segments: BTreeMap<u32, Segment>,
    replayed: Range<u32>,
) -> Result<Opened, OpenError> {
    let mut end = 0;
    for number in replayed.clone() {
        let segment = open_segment(&*options.disk, dir, number)?;
        let bytes = read_all(dir, number, &segment)?;
        let newest = number + 1 == replayed.end;
        let ending = if newest { Ending::MayBeTorn } else { Ending::Sealed };
        let extent = check(dir, number, &segment, &bytes, Some(state.past.next_batch), ending)?;
        replay(dir, number, &segment, &bytes, extent, &mut state)?;
        end = extent.end as u32;
        if newest {
            end =
                confirm(&segment, &bytes, extent).map_err(OpenError::io(&log_path(dir, number)))?;
        }
        if extent.torn {
            tracing::warn!(
                file = %log_path(dir, number).display(), offset = end,
                "store.torn_tail_cut: a write that was never acknowledged was cut off"
            );
            wipe(&*segment.file, end.into(), segment.capacity.into())
                .map_err(OpenError::io(&log_path(dir, number)))?;
        }
        segments.insert(number, segment);
    }
    let referred = state.past.replica.segments().keys();
    if let Some(missing) = referred.into_iter().find(|n| !segments.contains_key(n)) {
        return Err(OpenError::Missing(log_path(dir, *missing)));
    }
    Ok((state, segments, end))
}

/// Makes the newest batch durable and returns where the log continues. Without its mark, that batch
/// may be only in the kernel's memory: the process was killed before fdatasync, or fdatasync failed
/// and the kernel takes the pages for clean since. So it is written again and synced before anybody
/// reads it.
fn confirm(segment: &Segment, bytes: &[u8], extent: Extent) -> io::Result<u32> {
    let end = extent.end as u32;
    let Some((_, newest)) = extent.batches.filter(|_| !extent.marked) else { return Ok(end) };
    segment.file.write_at(&bytes[extent.newest_start..extent.end], extent.newest_start as u64)?;
    segment.file.sync_content()?;
    if extent.end + MARK_LENGTH > segment.capacity as usize {
        return Ok(end);
    }
    segment.file.write_at(&segment.secret.mark(newest), end.into())?;
    Ok(end + MARK_LENGTH as u32)
}

/// Opens a segment and checks its first records and its length.
fn open_segment(disk: &dyn Disk, dir: &Path, number: u32) -> Result<Segment, OpenError> {
    let path = log_path(dir, number);
    let io = |source| OpenError::Io { path: path.clone(), source };
    let file = disk.open(&path).map_err(io)?;
    let found = file.length().map_err(io)?;
    let damaged =
        |what: &str| OpenError::Damaged { file: path.clone(), offset: 0, what: what.into() };
    let mut header = [0; HEADER_LENGTH];
    if found < header.len() as u64 {
        return Err(damaged("the file is too short to be a part of the log"));
    }
    file.read_at(&mut header, 0).map_err(io)?;
    let mut frames = Secret::NONE.frames(&header, 0, header.len());
    let mut next = || frames.next().and_then(|(_, frame)| Record::decode(frame.payload).ok());
    let (format, capacity) = match next() {
        Some(Record::Segment { format, .. }) if format > FORMAT => {
            return Err(damaged("a newer version of Cortex wrote it; start that version"));
        }
        Some(Record::Segment { number: n, format, capacity }) if n == number => (format, capacity),
        Some(Record::Segment { number: n, .. }) => {
            return Err(damaged(&format!("its first record says that it is part {n}")));
        }
        _ => return Err(damaged("its first record is damaged")),
    };
    if found < u64::from(capacity) {
        return Err(OpenError::Short { file: path, found, expected: capacity.into() });
    }
    let (start, secret) = match next() {
        _ if format < FORMAT_SECRET => (HEADER_LENGTH_OLD, Secret::NONE),
        Some(Record::Secret(secret)) => (HEADER_LENGTH, Secret::new(secret)),
        _ => return Err(damaged("its second record is damaged")),
    };
    Ok(Segment { file, capacity, start: start as u32, secret })
}

fn read_all(dir: &Path, number: u32, segment: &Segment) -> Result<Vec<u8>, OpenError> {
    let mut bytes = vec![0; segment.capacity as usize];
    segment.file.read_at(&mut bytes, 0).map_err(OpenError::io(&log_path(dir, number)))?;
    Ok(bytes)
}

fn check(
    dir: &Path,
    number: u32,
    segment: &Segment,
    bytes: &[u8],
    first: Option<u64>,
    ending: Ending,
) -> Result<Extent, OpenError> {
    let checked = segment.secret.check(bytes, segment.start as usize, first, ending);
    checked.map_err(|damage| OpenError::Damaged {
        file: log_path(dir, number),
        offset: damage.offset() as u64,
        what: damage.to_string(),
    })
}

fn replay(
    dir: &Path,
    number: u32,
    segment: &Segment,
    bytes: &[u8],
    extent: Extent,
    state: &mut Recovered,
) -> Result<(), OpenError> {
    let frames = segment.secret.frames(bytes, segment.start as usize, extent.end);
    for (offset, frame) in frames {
        let damaged = |what: String| OpenError::Damaged {
            file: log_path(dir, number),
            offset: offset as u64,
            what,
        };
        let here = Location::Log { segment: number, offset: offset as u32 };
        let record = Record::decode(frame.payload).map_err(|error| damaged(error.to_string()))?;
        if !state.past.replay(record, here) {
            return Err(damaged("a record that does not belong here".into()));
        }
    }
    if let Some((_, newest)) = extent.batches {
        state.past.next_batch = newest + 1;
    }
    Ok(())
}
