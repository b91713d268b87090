//! Frames: how records lie in a segment of the log, and what a broken one means. It works on byte
//! slices alone; the shell reads and writes the files.
//!
//! A frame names its batch. A batch is written only after the one before it is durable, so at most
//! one batch can be torn: a broken frame is a torn tail unless a later batch follows it, or the
//! mark that its own batch was durable. Values lie in frames as they are, so the frames and marks
//! of a segment carry a secret: without it no value can imitate what would follow its own batch.

use thiserror::Error;

const MAGIC: u32 = 0x3158_5243;
/// The length of a header: magic, payload length, batch, flags, checksum.
pub const HEADER_LENGTH: usize = 24;
/// Bytes that frames are aligned to, so that a search after damage has few places to look at.
pub const ALIGNMENT: usize = 8;
/// Bytes that a payload may have; a block of a snapshot with the longest keys has some 600 KiB.
pub const PAYLOAD_MAX: usize = 1 << 20;
const CHECKSUM_AT: usize = 20;
const FLAG_LAST: u32 = 1;
const MARK_MAGIC: u32 = 0x3144_5243;
/// Bytes of a mark, which is aligned like frames and so never astride two sectors of a disk.
pub const MARK_LENGTH: usize = 8;

pub const SECRET_LENGTH: usize = 16;

/// What a segment's magic numbers and checksums are changed by, one word each: of frames, then of
/// marks. A client that only writes values does not know it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u32; 4]);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub batch: u64,
    /// Whether it is the last frame of its batch, with which the batch counts.
    pub last: bool,
    pub payload: &'a [u8],
    /// The length with header and padding.
    pub length: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextFrame<'a> {
    Frame(Frame<'a>),
    /// Only zeros follow.
    Blank,
    Broken,
}

/// The part of a segment that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The offset at which the next frame goes.
    pub end: usize,
    /// Whether something follows `end` that was never acknowledged and must be wiped.
    pub torn: bool,
    /// The first and the last batch; `None` if the segment holds no batch.
    pub batches: Option<(u64, u64)>,
    /// The offset at which the newest batch starts.
    pub newest_start: usize,
    /// Whether the newest batch has its mark.
    pub marked: bool,
}

#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Damage {
    #[error("the record at byte {offset} is damaged")]
    Broken { offset: usize },
    #[error(
        "the record at byte {offset} is damaged, and acknowledged writes follow at byte {later}"
    )]
    Followed { offset: usize, later: usize },
    #[error("the record at byte {offset} is damaged, and it was acknowledged, as byte {mark} says")]
    Acknowledged { offset: usize, mark: usize },
    #[error("the record at byte {offset} belongs to write {found}, but {expected} was expected")]
    OutOfOrder { offset: usize, expected: u64, found: u64 },
}

impl Damage {
    pub fn offset(&self) -> usize {
        match self {
            Damage::Broken { offset }
            | Damage::Followed { offset, .. }
            | Damage::Acknowledged { offset, .. }
            | Damage::OutOfOrder { offset, .. } => *offset,
        }
    }
}

/// Whether the segment may end in the middle of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Sealed,
    MayBeTorn,
}

pub const fn frame_length(payload: usize) -> usize {
    (HEADER_LENGTH + payload).next_multiple_of(ALIGNMENT)
}

pub fn write(out: &mut Vec<u8>, batch: u64, last: bool, payload: &[u8]) {
    debug_assert!(payload.len() <= PAYLOAD_MAX);
    let start = out.len();
    out.extend_from_slice(&MAGIC.to_le_bytes());
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(&batch.to_le_bytes());
    out.extend_from_slice(&u32::from(last).to_le_bytes());
    let checksum = checksum(&out[start..], payload);
    out.extend_from_slice(&checksum.to_le_bytes());
    out.extend_from_slice(payload);
    out.resize(start + frame_length(payload.len()), 0);
}

/// Returns the checksum over the header before it, with the magic number as it is without a secret,
/// and the payload.
fn checksum(header: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&MAGIC.to_le_bytes());
    hasher.update(&header[4..CHECKSUM_AT]);
    hasher.update(payload);
    hasher.finalize()
}

/// Returns the frame at the start of `bytes`, where no secret is in use.
pub fn read(bytes: &[u8]) -> NextFrame<'_> {
    Secret::NONE.read(bytes)
}

impl Secret {
    /// The secret of snapshots, which are whole or nothing, and of segments made before there were
    /// secrets.
    pub const NONE: Secret = Secret([0; 4]);

    pub fn new(random: [u8; SECRET_LENGTH]) -> Secret {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| random[at + i]));
        Secret([word(0), word(4), word(8), word(12)])
    }

    /// Applies the secret to frames that were written without it; they start at `offsets`.
    pub fn seal(&self, frames: &mut [u8], offsets: &[u32]) {
        for start in offsets.iter().map(|offset| *offset as usize) {
            for (at, word) in [(start, self.0[0]), (start + CHECKSUM_AT, self.0[1])] {
                let bytes = frames[at..at + 4].iter_mut();
                bytes.zip(word.to_le_bytes()).for_each(|(byte, secret)| *byte ^= secret);
            }
        }
    }

    /// Returns the mark that is written behind a batch once that is durable, and before anybody is
    /// told. Nobody waits until the mark itself is durable: a process that is killed leaves it to
    /// the kernel, and the next batch syncs it.
    pub fn mark(&self, batch: u64) -> [u8; MARK_LENGTH] {
        let mut mark = [0; MARK_LENGTH];
        let checksum = crc32fast::hash(&batch.to_le_bytes());
        mark[..4].copy_from_slice(&(MARK_MAGIC ^ self.0[2]).to_le_bytes());
        mark[4..].copy_from_slice(&(checksum ^ self.0[3]).to_le_bytes());
        mark
    }

    /// Returns the length of the mark that follows a batch's last frame; 0 if there is none.
    fn mark_length(&self, bytes: &[u8], batch: u64) -> usize {
        if bytes.starts_with(&self.mark(batch)) { MARK_LENGTH } else { 0 }
    }

    /// Returns the frame at the start of `bytes`.
    pub fn read<'a>(&self, bytes: &'a [u8]) -> NextFrame<'a> {
        match self.parse(bytes) {
            Some(frame) => NextFrame::Frame(frame),
            None if bytes.iter().all(|byte| *byte == 0) => NextFrame::Blank,
            None => NextFrame::Broken,
        }
    }

    fn parse<'a>(&self, bytes: &'a [u8]) -> Option<Frame<'a>> {
        let header = bytes.get(..HEADER_LENGTH)?;
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i]));
        let payload_length = word(4) as usize;
        let flags = word(16);
        if word(0) != MAGIC ^ self.0[0] || payload_length > PAYLOAD_MAX || flags & !FLAG_LAST != 0 {
            return None;
        }
        let length = frame_length(payload_length);
        let body = bytes.get(HEADER_LENGTH..length)?;
        let (payload, padding) = body.split_at(payload_length);
        if checksum(header, payload) ^ self.0[1] != word(CHECKSUM_AT)
            || padding.iter().any(|byte| *byte != 0)
        {
            return None;
        }
        let batch = u64::from(word(8)) | u64::from(word(12)) << 32;
        Some(Frame { batch, last: flags & FLAG_LAST != 0, payload, length })
    }

    /// Reads every frame from `start` on and finds where the segment ends. `first` is the batch
    /// that must come first, if that is known.
    pub fn check(
        &self,
        bytes: &[u8],
        start: usize,
        first: Option<u64>,
        ending: Ending,
    ) -> Result<Extent, Damage> {
        let mut offset = start;
        let mut extent =
            Extent { end: start, torn: false, batches: None, newest_start: start, marked: false };
        // The batch whose first frames were read, but not its last.
        let mut open: Option<u64> = None;
        loop {
            let expected = open.or(extent.batches.map(|(_, newest)| newest + 1)).or(first);
            match self.read(&bytes[offset..]) {
                NextFrame::Frame(frame) => {
                    if let Some(expected) = expected.filter(|expected| *expected != frame.batch) {
                        return Err(Damage::OutOfOrder { offset, expected, found: frame.batch });
                    }
                    offset += frame.length;
                    open = if frame.last { None } else { Some(frame.batch) };
                    if frame.last {
                        let oldest = extent.batches.map_or(frame.batch, |(oldest, _)| oldest);
                        let marked = self.mark_length(&bytes[offset..], frame.batch);
                        extent.batches = Some((oldest, frame.batch));
                        extent.newest_start = extent.end;
                        extent.marked = marked > 0;
                        offset += marked;
                        extent.end = offset;
                    }
                }
                NextFrame::Blank if open.is_none() => return Ok(extent),
                NextFrame::Blank | NextFrame::Broken => {
                    if ending == Ending::Sealed {
                        return Err(Damage::Broken { offset });
                    }
                    if let Some(damage) = self.acknowledged(bytes, offset, expected) {
                        return Err(damage);
                    }
                    extent.torn = true;
                    return Ok(extent);
                }
            }
        }
    }

    /// Looks for what can only have been written once the batch at `offset` was durable: its mark,
    /// or a later batch. If nothing was read yet, the lowest batch found is taken to be the torn
    /// one.
    fn acknowledged(&self, bytes: &[u8], offset: usize, torn: Option<u64>) -> Option<Damage> {
        let mut torn = torn;
        let mut at = offset.next_multiple_of(ALIGNMENT);
        while at + MARK_LENGTH <= bytes.len() {
            if torn.is_some_and(|torn| self.mark_length(&bytes[at..], torn) > 0) {
                return Some(Damage::Acknowledged { offset, mark: at });
            }
            let Some(frame) = self.parse(&bytes[at..]) else {
                at += ALIGNMENT;
                continue;
            };
            if frame.batch > *torn.get_or_insert(frame.batch) {
                return Some(Damage::Followed { offset, later: at });
            }
            at += frame.length;
        }
        None
    }

    /// Returns the frames before `extent.end`, which `check` has verified.
    pub fn frames<'a>(
        &self,
        bytes: &'a [u8],
        start: usize,
        end: usize,
    ) -> impl Iterator<Item = (usize, Frame<'a>)> + use<'a> {
        let secret = *self;
        let mut offset = start;
        std::iter::from_fn(move || {
            if offset >= end {
                return None;
            }
            let frame = secret.parse(&bytes[offset..end])?;
            let at = offset;
            offset += frame.length;
            if frame.last {
                offset += secret.mark_length(&bytes[offset..end], frame.batch);
            }
            Some((at, frame))
        })
    }
}
