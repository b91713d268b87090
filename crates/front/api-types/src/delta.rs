//! The delta of a source: what a push sends of an archive of which the cluster has pieces already.
//! Both sides cut tar archives at the same places, so that a file is sent only if no earlier source
//! of the application has it. Numbers are big-endian.
//!
//! ```text
//! "cortex delta 1\n"
//! 'L', number of bytes (4), bytes: the archive goes on with these
//! 'C', base (1), offset (8), number of bytes (8): it goes on with these bytes of that base
//! at the end: 'E', the BLAKE3 (32) of the whole archive
//! ```

use std::collections::HashMap;

use model::value::ContentHash;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

const TITLE: &[u8] = b"cortex delta 1\n";
const LITERAL: u8 = b'L';
const COPY: u8 = b'C';
const END: u8 = b'E';
const HASH_BYTES: usize = 32;
const COPY_BYTES: usize = 1 + 8 + 8;
/// The size of tar's blocks.
const BLOCK_BYTES: usize = 512;
/// The largest piece: a change within a large file costs no more, and a piece is held in memory.
pub const PIECE_BYTES_MAX: usize = 1024 * 1024;
/// The most pieces that are compared: two of each file of a large application. A source with more
/// is sent as a whole.
pub const PIECES_MAX: usize = 262_144;
/// The most sources that are copied from: what serves, and what was pushed last.
pub const BASES_MAX: usize = 2;
/// The size of a name of a piece. It need not withstand attacks: the whole archive is checked.
pub const NAME_BYTES: usize = 16;

/// The name of a piece, the beginning of its BLAKE3.
pub type PieceName = [u8; NAME_BYTES];

/// What a cluster has of an archive, in the order of its pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KnownPieces {
    /// The sources that can be copied from.
    #[schemars(with = "Vec<String>")]
    pub bases: Vec<ContentHash>,
    pub runs: Vec<PieceRun>,
}

impl KnownPieces {
    /// Returns how many bytes of these pieces have to be sent, which are those that were asked for.
    pub fn missing_bytes(&self, pieces: &[Piece]) -> u64 {
        let mut pieces = pieces.iter();
        let mut missing = 0;
        for run in &self.runs {
            let bytes = pieces.by_ref().take(usize::try_from(run.pieces).unwrap_or(usize::MAX));
            let bytes: usize = bytes.map(|piece| piece.bytes).sum();
            missing += if run.found.is_some() { 0 } else { bytes as u64 };
        }
        missing + pieces.map(|piece| piece.bytes as u64).sum::<u64>()
    }
}

/// Successive pieces that follow each other in a base as well, or that no base has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PieceRun {
    pub pieces: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<PieceOrigin>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PieceOrigin {
    pub base: u8,
    pub offset: u64,
}

/// One piece of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub name: PieceName,
    pub bytes: usize,
}

#[derive(Clone, Copy, Debug)]
enum CutState {
    Header,
    /// What is left of a file with its padding.
    File(u64),
    /// Behind the end mark, or behind what is no tar.
    Rest,
}

/// Cuts a tar archive into pieces: each header, and the content of each file with its padding.
pub struct Splitter {
    state: CutState,
    piece: Vec<u8>,
}

impl Default for Splitter {
    fn default() -> Splitter {
        Splitter { state: CutState::Header, piece: Vec::new() }
    }
}

impl Splitter {
    /// Takes the next bytes of the archive; calls `each` with every piece that is whole.
    pub fn push<E>(
        &mut self,
        mut bytes: &[u8],
        each: &mut impl FnMut(Piece, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while !bytes.is_empty() {
            let due = match self.state {
                CutState::Header => BLOCK_BYTES,
                CutState::File(left) => left.min(PIECE_BYTES_MAX as u64) as usize,
                CutState::Rest => PIECE_BYTES_MAX,
            };
            let (now, later) = bytes.split_at(bytes.len().min(due - self.piece.len()));
            self.piece.extend_from_slice(now);
            bytes = later;
            if self.piece.len() == due {
                self.cut(each)?;
            }
        }
        Ok(())
    }

    /// Ends the archive.
    pub fn finish<E>(
        mut self,
        each: &mut impl FnMut(Piece, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.piece.is_empty() { Ok(()) } else { self.cut(each) }
    }

    fn cut<E>(&mut self, each: &mut impl FnMut(Piece, &[u8]) -> Result<(), E>) -> Result<(), E> {
        self.state = match self.state {
            CutState::Header => match content_bytes(&self.piece) {
                Some(0) => CutState::Header,
                Some(bytes) => CutState::File(bytes),
                None => CutState::Rest,
            },
            CutState::File(left) => match left - self.piece.len() as u64 {
                0 => CutState::Header,
                left => CutState::File(left),
            },
            CutState::Rest => CutState::Rest,
        };
        let mut name = [0; NAME_BYTES];
        name.copy_from_slice(&blake3::hash(&self.piece).as_bytes()[..NAME_BYTES]);
        let cut = each(Piece { name, bytes: self.piece.len() }, &self.piece);
        self.piece.clear();
        cut
    }
}

/// Returns how many bytes follow a header, with the padding; `None` if it is the end mark or none.
fn content_bytes(header: &[u8]) -> Option<u64> {
    let field = header.get(124..136)?;
    if header.iter().all(|byte| *byte == 0) {
        return None;
    }
    let size = if field[0] & 0x80 != 0 {
        // Larger than what eleven octal digits say: a binary number, as GNU tar writes it.
        if field[1..4] != [0; 3] || field[0] != 0x80 {
            return None;
        }
        u64::from_be_bytes(field[4..].try_into().ok()?)
    } else {
        let digits = field.split(|byte| matches!(byte, 0 | b' ')).find(|part| !part.is_empty());
        let digits = std::str::from_utf8(digits.unwrap_or(b"0")).ok()?;
        u64::from_str_radix(digits, 8).ok()?
    };
    size.checked_next_multiple_of(BLOCK_BYTES as u64)
}

/// The pieces of one or more bases, by name and by place.
#[derive(Default)]
pub struct PieceIndex {
    by_name: HashMap<PieceName, (u8, u64)>,
    by_place: HashMap<(u8, u64), Piece>,
}

impl PieceIndex {
    /// Takes a piece of a base; returns whether there was room for it.
    pub fn add(&mut self, origin: PieceOrigin, piece: Piece) -> bool {
        if self.by_place.len() >= BASES_MAX * PIECES_MAX {
            return false;
        }
        self.by_place.insert((origin.base, origin.offset), piece);
        self.by_name.entry(piece.name).or_insert((origin.base, origin.offset));
        true
    }

    /// Finds pieces; those that follow each other in a base are one run.
    pub fn find(&self, names: impl IntoIterator<Item = PieceName>) -> Vec<PieceRun> {
        let mut runs: Vec<PieceRun> = Vec::new();
        // The place behind the last run.
        let mut next = None;
        for name in names {
            let follows = next.filter(|at| self.by_place.get(at).is_some_and(|p| p.name == name));
            let found = follows.or_else(|| self.by_name.get(&name).copied());
            next = found.and_then(|(base, offset)| {
                Some((base, offset + self.by_place.get(&(base, offset))?.bytes as u64))
            });
            match runs.last_mut() {
                Some(run) if follows.is_some() || run.found.is_none() && found.is_none() => {
                    run.pieces += 1;
                }
                _ => runs.push(PieceRun {
                    pieces: 1,
                    found: found.map(|(base, offset)| PieceOrigin { base, offset }),
                }),
            }
        }
        runs
    }
}

/// Writes a delta, for the side that has the archive. The pieces come in the order in which the
/// cluster was asked for them.
pub struct DeltaEncoder {
    runs: std::vec::IntoIter<PieceRun>,
    run: Option<PieceRun>,
    /// Bytes of the run that are copied.
    copied: u64,
    whole: blake3::Hasher,
}

impl DeltaEncoder {
    pub fn begin(known: KnownPieces, out: &mut Vec<u8>) -> DeltaEncoder {
        out.extend_from_slice(TITLE);
        let mut runs = known.runs.into_iter();
        let run = runs.next();
        DeltaEncoder { runs, run, copied: 0, whole: blake3::Hasher::new() }
    }

    pub fn piece(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        self.whole.update(bytes);
        match &mut self.run {
            Some(run) => {
                run.pieces = run.pieces.saturating_sub(1);
                match run.found {
                    Some(_) => self.copied += bytes.len() as u64,
                    None => literal(bytes, out),
                }
            }
            None => literal(bytes, out),
        }
        if self.run.as_ref().is_some_and(|run| run.pieces == 0) {
            self.end_run(out);
        }
    }

    fn end_run(&mut self, out: &mut Vec<u8>) {
        let origin = self.run.take().and_then(|run| run.found);
        if let Some(PieceOrigin { base, offset }) = origin.filter(|_| self.copied > 0) {
            out.extend_from_slice(&[COPY, base]);
            out.extend_from_slice(&offset.to_be_bytes());
            out.extend_from_slice(&self.copied.to_be_bytes());
        }
        self.copied = 0;
        self.run = self.runs.next();
    }

    pub fn finish(mut self, out: &mut Vec<u8>) {
        self.end_run(out);
        out.push(END);
        out.extend_from_slice(self.whole.finalize().as_bytes());
    }
}

fn literal(bytes: &[u8], out: &mut Vec<u8>) {
    for part in bytes.chunks(PIECE_BYTES_MAX) {
        out.push(LITERAL);
        out.extend_from_slice(&(part.len() as u32).to_be_bytes());
        out.extend_from_slice(part);
    }
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum DeltaError {
    #[error("this is no delta of a source that this version reads")]
    Title,
    #[error("the delta is damaged at byte {0}")]
    Damaged(u64),
    #[error("the delta was cut: its end is missing")]
    Cut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeltaStep<'a> {
    Literal(&'a [u8]),
    Copy { origin: PieceOrigin, bytes: u64 },
    End(ContentHash),
}

/// Reads a delta as it comes; holds no more than one instruction without its bytes.
#[derive(Default)]
pub struct DeltaDecoder {
    buffer: Vec<u8>,
    at: u64,
    is_begun: bool,
    /// Bytes of a literal that are still to come.
    literal: usize,
    is_ended: bool,
}

impl DeltaDecoder {
    pub fn push<E: From<DeltaError>>(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(DeltaStep<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        while !bytes.is_empty() {
            if self.literal > 0 {
                let (now, later) = bytes.split_at(bytes.len().min(self.literal));
                self.literal -= now.len();
                self.at += now.len() as u64;
                bytes = later;
                each(DeltaStep::Literal(now))?;
                continue;
            }
            let missing = self.due()?.saturating_sub(self.buffer.len());
            let (now, later) = bytes.split_at(bytes.len().min(missing));
            self.buffer.extend_from_slice(now);
            self.at += now.len() as u64;
            bytes = later;
            if self.buffer.len() == self.due()? {
                self.instruction(&mut each)?;
            }
        }
        Ok(())
    }

    /// Returns the length of the instruction that comes, as far as it is known.
    fn due(&self) -> Result<usize, DeltaError> {
        if self.is_ended {
            return Err(DeltaError::Damaged(self.at));
        }
        if !self.is_begun {
            return Ok(TITLE.len());
        }
        match self.buffer.first() {
            None => Ok(1),
            Some(&LITERAL) => Ok(1 + 4),
            Some(&COPY) => Ok(1 + COPY_BYTES),
            Some(&END) => Ok(1 + HASH_BYTES),
            Some(_) => Err(DeltaError::Damaged(self.at)),
        }
    }

    fn instruction<E: From<DeltaError>>(
        &mut self,
        each: &mut impl FnMut(DeltaStep<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let damaged = DeltaError::Damaged(self.at);
        let buffer = std::mem::take(&mut self.buffer);
        if !self.is_begun {
            if buffer != TITLE {
                return Err(DeltaError::Title.into());
            }
            self.is_begun = true;
            return Ok(());
        }
        let number = |range: std::ops::Range<usize>| {
            buffer[range].iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
        };
        match buffer[0] {
            LITERAL => {
                self.literal = number(1..5) as usize;
                if self.literal > PIECE_BYTES_MAX {
                    return Err(damaged.into());
                }
                Ok(())
            }
            COPY => {
                let origin = PieceOrigin { base: buffer[1], offset: number(2..10) };
                each(DeltaStep::Copy { origin, bytes: number(10..18) })
            }
            _ => {
                self.is_ended = true;
                let hash = buffer[1..].try_into().map_err(|_| damaged)?;
                each(DeltaStep::End(ContentHash(hash)))
            }
        }
    }

    pub fn finish(self) -> Result<(), DeltaError> {
        if self.is_ended { Ok(()) } else { Err(DeltaError::Cut) }
    }
}

#[cfg(test)]
mod tests;
