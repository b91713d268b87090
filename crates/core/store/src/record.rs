//! Records: what a frame's payload says, in the log and in snapshots of the index.

use thiserror::Error;

use crate::clock::Stamp;
use crate::commit::{Commit, CommitError, Location, Position, Reader};
use crate::event::Standing;
use crate::frame::SECRET_LENGTH;
use crate::replica::Horizons;
use crate::sum::Fingerprint;
use crate::sync::message::{ClusterId, Vector};
use crate::sync::wire;

/// The version of the format, raised when older builds could not read what this one writes.
pub const FORMAT: u32 = 4;
/// The first format whose segments have a secret.
pub const FORMAT_SECRET: u32 = 4;

const SEGMENT: u8 = 1;
const COMMIT: u8 = 2;
const HORIZONS: u8 = 3;
const CLOSED: u8 = 4;
const SNAPSHOT: u8 = 5;
const BLOCK: u8 = 6;
const SNAPSHOT_END: u8 = 7;
const MOVED: u8 = 8;
const VECTOR: u8 = 9;
const STANDING: u8 = 10;
const FORGOTTEN: u8 = 11;
const SECRET: u8 = 12;

const NOWHERE: u8 = 0;
const IN_LOG: u8 = 1;
const IN_FILE: u8 = 2;

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum LogRecordError {
    #[error("a record of an unknown kind {0}; a newer version of Cortex may have written it")]
    Kind(u8),
    #[error("a record of an unknown location {0}")]
    Location(u8),
    #[error("a record with {0} bytes too many")]
    Surplus(usize),
    #[error(transparent)]
    Commit(#[from] CommitError),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// The first record of a segment; its frame has batch 0.
    Segment {
        format: u32,
        number: u32,
        capacity: u32,
    },
    /// The second record of a segment: what its other frames and its marks are changed by.
    Secret([u8; SECRET_LENGTH]),
    /// A commit, with its value if that travels inside.
    Commit {
        commit: Commit,
        value: &'a [u8],
    },
    /// A commit written anew because its segment is to be freed; it counts only while it is held.
    Moved {
        commit: Commit,
        value: &'a [u8],
    },
    Horizons(Horizons),
    Vector {
        promise: Stamp,
        held: Vector,
    },
    Standing(Standing),
    Forgotten {
        positions: Vec<Position>,
        clock: Stamp,
    },
    /// The store was stopped in order: nothing before it can be a torn tail.
    Closed,
    /// The first record of a snapshot, which covers every segment before `next`.
    Snapshot {
        format: u32,
        next: u32,
        batch: u64,
        clock: Stamp,
        horizons: Horizons,
    },
    Block(Vec<Commit>),
    SnapshotEnd {
        commits: u64,
        head: Fingerprint,
    },
}

impl Record<'_> {
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Record::Segment { format, number, capacity } => {
                out.push(SEGMENT);
                for word in [format, number, capacity] {
                    out.extend_from_slice(&word.to_le_bytes());
                }
            }
            Record::Secret(secret) => {
                out.push(SECRET);
                out.extend_from_slice(secret);
            }
            Record::Commit { commit, value } => encode_new(commit, value, out),
            Record::Moved { commit, value } => encode_commit(MOVED, commit, value, out),
            Record::Horizons(horizons) => {
                out.push(HORIZONS);
                encode_horizons(horizons, out);
            }
            Record::Vector { promise, held } => {
                out.push(VECTOR);
                out.extend_from_slice(&promise.0.to_le_bytes());
                wire::put_vector(held, out);
            }
            Record::Standing(standing) => {
                out.push(STANDING);
                out.extend_from_slice(&standing.cluster.0);
                out.extend_from_slice(&standing.incarnation.to_le_bytes());
                out.extend_from_slice(&standing.fresh_until.0.to_le_bytes());
                out.extend_from_slice(&standing.listed.0.to_le_bytes());
                out.push(u8::from(standing.foreign));
            }
            Record::Forgotten { positions, clock } => {
                out.push(FORGOTTEN);
                out.extend_from_slice(&clock.0.to_le_bytes());
                out.extend_from_slice(&(positions.len() as u32).to_le_bytes());
                for at in positions {
                    out.extend_from_slice(&at.stamp.0.to_le_bytes());
                    wire::put_node(&at.node, out);
                }
            }
            Record::Closed => out.push(CLOSED),
            Record::Snapshot { format, next, batch, clock, horizons } => {
                out.push(SNAPSHOT);
                out.extend_from_slice(&format.to_le_bytes());
                out.extend_from_slice(&next.to_le_bytes());
                out.extend_from_slice(&batch.to_le_bytes());
                out.extend_from_slice(&clock.0.to_le_bytes());
                encode_horizons(horizons, out);
            }
            Record::Block(commits) => encode_block(commits, out),
            Record::SnapshotEnd { commits, head } => {
                out.push(SNAPSHOT_END);
                out.extend_from_slice(&commits.to_le_bytes());
                out.extend_from_slice(&head.0);
            }
        }
    }

    pub fn decode(payload: &[u8]) -> Result<Record<'_>, LogRecordError> {
        let mut reader = Reader(payload);
        let record = match reader.byte()? {
            SEGMENT => Record::Segment {
                format: u32::from_le_bytes(reader.array()?),
                number: u32::from_le_bytes(reader.array()?),
                capacity: u32::from_le_bytes(reader.array()?),
            },
            SECRET => Record::Secret(reader.array()?),
            COMMIT => {
                let (commit, value) = decode_commit(&mut reader)?;
                Record::Commit { commit, value }
            }
            MOVED => {
                let (commit, value) = decode_commit(&mut reader)?;
                Record::Moved { commit, value }
            }
            HORIZONS => Record::Horizons(decode_horizons(&mut reader)?),
            VECTOR => Record::Vector {
                promise: Stamp(u64::from_le_bytes(reader.array()?)),
                held: wire::take_vector(&mut reader)?,
            },
            STANDING => Record::Standing(decode_standing(&mut reader)?),
            FORGOTTEN => {
                let clock = Stamp(u64::from_le_bytes(reader.array()?));
                let count = u32::from_le_bytes(reader.array()?);
                let mut positions = Vec::new();
                for _ in 0..count {
                    let stamp = Stamp(u64::from_le_bytes(reader.array()?));
                    positions.push(Position { stamp, node: wire::take_node(&mut reader)? });
                }
                Record::Forgotten { positions, clock }
            }
            CLOSED => Record::Closed,
            SNAPSHOT => Record::Snapshot {
                format: u32::from_le_bytes(reader.array()?),
                next: u32::from_le_bytes(reader.array()?),
                batch: u64::from_le_bytes(reader.array()?),
                clock: Stamp(u64::from_le_bytes(reader.array()?)),
                horizons: decode_horizons(&mut reader)?,
            },
            BLOCK => Record::Block(decode_block(&mut reader)?),
            SNAPSHOT_END => Record::SnapshotEnd {
                commits: u64::from_le_bytes(reader.array()?),
                head: Fingerprint(reader.array()?),
            },
            other => return Err(LogRecordError::Kind(other)),
        };
        if reader.0.is_empty() { Ok(record) } else { Err(LogRecordError::Surplus(reader.0.len())) }
    }
}

/// Encodes a commit as `Record::Commit`. The location says where the value is; one inside the log
/// is inside this very record.
pub(crate) fn encode_new(commit: &Commit, value: &[u8], out: &mut Vec<u8>) {
    encode_commit(COMMIT, commit, value, out);
}

fn encode_commit(kind: u8, commit: &Commit, value: &[u8], out: &mut Vec<u8>) {
    out.push(kind);
    out.push(match commit.location {
        Location::Nowhere => NOWHERE,
        Location::Log { .. } => IN_LOG,
        Location::File => IN_FILE,
    });
    commit.encode(out);
    out.extend_from_slice(value);
}

/// Returns the payload length of the record that holds this commit with its value inside.
pub fn commit_payload_length(commit: &Commit) -> usize {
    2 + commit.encoded_length() + commit.size() as usize
}

fn encode_horizons(horizons: &Horizons, out: &mut Vec<u8>) {
    out.extend_from_slice(&horizons.squash.0.to_le_bytes());
    out.extend_from_slice(&horizons.garbage.0.to_le_bytes());
}

fn decode_horizons(reader: &mut Reader<'_>) -> Result<Horizons, CommitError> {
    Ok(Horizons {
        squash: Stamp(u64::from_le_bytes(reader.array()?)),
        garbage: Stamp(u64::from_le_bytes(reader.array()?)),
    })
}

fn decode_standing(reader: &mut Reader<'_>) -> Result<Standing, CommitError> {
    let mut standing = Standing {
        cluster: ClusterId(reader.array()?),
        incarnation: u64::from_le_bytes(reader.array()?),
        fresh_until: Stamp(u64::from_le_bytes(reader.array()?)),
        ..Standing::default()
    };
    // Format 2 ended here.
    if !reader.0.is_empty() {
        standing.listed = Stamp(u64::from_le_bytes(reader.array()?));
        standing.foreign = reader.byte()? != 0;
    }
    Ok(standing)
}

/// Decodes a commit. A location inside the log is marked as such; the caller knows the segment and
/// the offset.
fn decode_commit<'a>(reader: &mut Reader<'a>) -> Result<(Commit, &'a [u8]), LogRecordError> {
    let location = reader.byte()?;
    let (mut commit, rest) = Commit::decode(reader.0)?;
    reader.0 = rest;
    let inline = if location == IN_LOG { commit.size() } else { 0 };
    commit.location = match location {
        NOWHERE => Location::Nowhere,
        IN_LOG => Location::Log { segment: 0, offset: 0 },
        IN_FILE => Location::File,
        other => return Err(LogRecordError::Location(other)),
    };
    let count = usize::try_from(inline).map_err(|_| CommitError::Short)?;
    let value = reader.take(count)?;
    Ok((commit, value))
}

fn encode_block(commits: &[Commit], out: &mut Vec<u8>) {
    out.push(BLOCK);
    out.extend_from_slice(&(commits.len() as u32).to_le_bytes());
    for commit in commits {
        match commit.location {
            Location::Nowhere => out.push(NOWHERE),
            Location::File => out.push(IN_FILE),
            Location::Log { segment, offset } => {
                out.push(IN_LOG);
                out.extend_from_slice(&segment.to_le_bytes());
                out.extend_from_slice(&offset.to_le_bytes());
            }
        }
        commit.encode(out);
    }
}

fn decode_block(reader: &mut Reader<'_>) -> Result<Vec<Commit>, LogRecordError> {
    let count = u32::from_le_bytes(reader.array()?);
    let mut commits = Vec::new();
    for _ in 0..count {
        let location = match reader.byte()? {
            NOWHERE => Location::Nowhere,
            IN_FILE => Location::File,
            IN_LOG => Location::Log {
                segment: u32::from_le_bytes(reader.array()?),
                offset: u32::from_le_bytes(reader.array()?),
            },
            other => return Err(LogRecordError::Location(other)),
        };
        let (commit, rest) = Commit::decode(reader.0)?;
        reader.0 = rest;
        commits.push(Commit { location, ..commit });
    }
    Ok(commits)
}
