//! The format of an exported store, version 1, and of an exported cluster, version 2, which has
//! files besides. Numbers are big-endian.
//!
//! ```text
//! "cortex store export 1\n", or 2
//! version 2:     'C', length of the contents (4 bytes), contents as JSON
//! for each key:  'K', length of the key (2 bytes), key, end of the value in Unix milliseconds or 0
//!                for none (8), size of the value (8), value, the first 16 bytes of the BLAKE3 of
//!                all this from 'K' on
//! version 2, for each application with files:
//!                'A', length of its name (2), name
//!                'F', length of a frame (4), frame, as nodes send files to each other
//!                'Z', length of a message (2), message: why the files are left out, or empty
//! at the end:    'E', number of keys (8), bytes of all values (8), the BLAKE3 (32) of everything
//!                before it
//! or else:       'X', length of a message (2), message: the export failed there
//! ```
//!
//! A reader holds no more than one key at a time, and knows at the end that nothing is missing and
//! nothing was changed.

use model::value::VALUE_BYTES_MAX;
use model::{ApplicationName, Key, Timestamp};
use thiserror::Error;

use crate::backup::Contents;

/// The version of an exported store.
pub const VERSION: u32 = 1;
/// The version of an exported cluster.
pub const CLUSTER_VERSION: u32 = 2;
/// What every export begins with, before its version.
pub const TITLE: &str = "cortex store export ";
/// The most bytes of a version with its line's end; a file with a longer one is no export.
const VERSION_BYTES_MAX: usize = 12;
const CONTENTS: u8 = b'C';
const KEY: u8 = b'K';
const FILES: u8 = b'A';
const FRAME: u8 = b'F';
const FILES_END: u8 = b'Z';
const END: u8 = b'E';
const FAILED: u8 = b'X';
const CHECK_BYTES: usize = 16;
const NO_END: u64 = 0;
/// The longest message of a failure in bytes.
const MESSAGE_BYTES_MAX: usize = 1000;
/// The most bytes of a cluster's contents: some hundred for each of ten thousand applications.
const CONTENTS_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The most bytes of a frame: 64 KiB of a file, or an entry with two of the longest paths.
const FRAME_BYTES_MAX: usize = 128 * 1024;

#[derive(Debug, Error, PartialEq, Eq)]
pub enum FormatError {
    #[error("this is no exported store: it does not begin with '{TITLE}{VERSION}'")]
    Title,
    #[error(
        "this was exported in version {0} of the format, and this cortex reads up to version \
         {CLUSTER_VERSION}: import it with the cortex that exported it, or a newer one"
    )]
    Version(String),
    #[error("this is an exported cluster, not a store alone: import it with `cortex import`")]
    Cluster,
    #[error("damaged at byte {0}: export it again, or take another copy")]
    Damaged(u64),
    #[error("cut after {0} keys: its end is missing; export it again, or take a whole copy")]
    Cut(u64),
    #[error("something follows its end, at byte {0}: take a copy that is nothing but the export")]
    Trailing(u64),
    #[error("'{0}' is no key that can be imported")]
    Key(String),
    #[error("the value of '{key}' has {size} bytes, and {VALUE_BYTES_MAX} is the limit")]
    TooLarge { key: Key, size: u64 },
    #[error("the export failed where it was made: {0}")]
    Failed(String),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub keys: u64,
    pub bytes: u64,
}

/// Makes the bytes around the values; the caller puts the values between them.
pub struct ExportEncoder {
    all: blake3::Hasher,
    record: blake3::Hasher,
    totals: Totals,
}

impl ExportEncoder {
    pub fn begin() -> (ExportEncoder, Vec<u8>) {
        ExportEncoder::titled(VERSION)
    }

    /// Begins the export of a whole cluster; `contents` says what is in it.
    pub fn begin_cluster(contents: &Contents) -> (ExportEncoder, Vec<u8>) {
        let (mut encoder, mut head) = ExportEncoder::titled(CLUSTER_VERSION);
        let contents = serde_json::to_vec(contents).expect("a plain structure");
        head.extend(encoder.counted(CONTENTS, &contents));
        (encoder, head)
    }

    fn titled(version: u32) -> (ExportEncoder, Vec<u8>) {
        let hashers = (blake3::Hasher::new(), blake3::Hasher::new());
        let mut encoder =
            ExportEncoder { all: hashers.0, record: hashers.1, totals: Totals::default() };
        let title = format!("{TITLE}{version}\n").into_bytes();
        encoder.all.update(&title);
        (encoder, title)
    }

    /// Begins the files of an application.
    pub fn files(&mut self, application: &ApplicationName) -> Vec<u8> {
        self.named(FILES, application.as_str())
    }

    pub fn frame(&mut self, frame: &[u8]) -> Vec<u8> {
        self.counted(FRAME, frame)
    }

    /// Ends the files of an application; `failure` says why they are left out.
    pub fn files_end(&mut self, failure: Option<&str>) -> Vec<u8> {
        self.named(FILES_END, short(failure.unwrap_or_default()))
    }

    fn named(&mut self, kind: u8, text: &str) -> Vec<u8> {
        let length = u16::try_from(text.len()).expect("it is short").to_be_bytes();
        let record = [&[kind][..], &length, text.as_bytes()].concat();
        self.all.update(&record);
        record
    }

    fn counted(&mut self, kind: u8, bytes: &[u8]) -> Vec<u8> {
        let length = u32::try_from(bytes.len()).expect("it is short").to_be_bytes();
        let record = [&[kind][..], &length, bytes].concat();
        self.all.update(&record);
        record
    }

    pub fn key(&mut self, key: &Key, ends: Option<Timestamp>, size: u64) -> Vec<u8> {
        let text = key.as_str().as_bytes();
        let mut head = vec![KEY];
        head.extend_from_slice(&u16::try_from(text.len()).expect("keys are short").to_be_bytes());
        head.extend_from_slice(text);
        head.extend_from_slice(&ends.map_or(NO_END, |ends| ends.0.max(1)).to_be_bytes());
        head.extend_from_slice(&size.to_be_bytes());
        self.record = blake3::Hasher::new();
        self.totals.keys += 1;
        self.totals.bytes += size;
        self.value(&head);
        head
    }

    /// Adds a piece of the value to the checksums; to be called with every piece.
    pub fn value(&mut self, piece: &[u8]) {
        self.all.update(piece);
        self.record.update(piece);
    }

    pub fn check(&mut self) -> [u8; CHECK_BYTES] {
        let check = first(&self.record);
        self.all.update(&check);
        check
    }

    pub fn end(mut self) -> Vec<u8> {
        let mut end = vec![END];
        end.extend_from_slice(&self.totals.keys.to_be_bytes());
        end.extend_from_slice(&self.totals.bytes.to_be_bytes());
        self.all.update(&end);
        end.extend_from_slice(self.all.finalize().as_bytes());
        end
    }

    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Returns the record of a failure, which is sent in place of the rest.
    pub fn failure(message: &str) -> Vec<u8> {
        let text = short(message);
        let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
        [&[FAILED][..], &length.to_be_bytes(), text.as_bytes()].concat()
    }
}

fn short(message: &str) -> &str {
    let ends = message.char_indices().map(|(at, character)| at + character.len_utf8());
    &message[..ends.take_while(|end| *end <= MESSAGE_BYTES_MAX).last().unwrap_or(0)]
}

fn first(hasher: &blake3::Hasher) -> [u8; CHECK_BYTES] {
    let mut check = [0; CHECK_BYTES];
    check.copy_from_slice(&hasher.finalize().as_bytes()[..CHECK_BYTES]);
    check
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportPiece {
    Key {
        key: Key,
        ends: Option<Timestamp>,
        size: u64,
    },
    Value(Vec<u8>),
    /// The value that came last is whole and unchanged.
    Checked,
    Contents(Contents),
    /// The files of that application follow, in frames.
    Files(ApplicationName),
    Frame(Vec<u8>),
    /// The files of that application are whole; or left out, for that reason.
    FilesEnd(Option<String>),
    End(Totals),
}

enum Expecting {
    Title,
    Contents,
    Record,
    /// Frames of files, or their end.
    Frame,
    Value {
        left: u64,
    },
    Check,
    /// Everything has come.
    Nothing,
}

/// Takes an export apart, in whatever pieces its bytes come.
pub struct ExportDecoder {
    /// The newest version that is welcome.
    newest: u32,
    expecting: Expecting,
    /// Bytes that do not make a whole piece yet: at most the head of a key.
    buffer: Vec<u8>,
    at: u64,
    all: blake3::Hasher,
    record: blake3::Hasher,
    totals: Totals,
}

impl Default for ExportDecoder {
    fn default() -> ExportDecoder {
        ExportDecoder {
            newest: VERSION,
            expecting: Expecting::Title,
            buffer: Vec::new(),
            at: 0,
            all: blake3::Hasher::new(),
            record: blake3::Hasher::new(),
            totals: Totals::default(),
        }
    }
}

impl ExportDecoder {
    /// Returns a decoder for whole clusters, and for stores alone.
    pub fn of_cluster() -> ExportDecoder {
        ExportDecoder { newest: CLUSTER_VERSION, ..ExportDecoder::default() }
    }

    /// Calls `take` with every piece that is complete with these bytes.
    pub fn push<E: From<FormatError>>(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(ExportPiece) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.extend_from_slice(bytes);
        let mut rest = &buffer[..];
        while let Some((piece, used)) = self.next(rest)? {
            self.at += used as u64;
            rest = &rest[used..];
            if let Some(piece) = piece {
                take(piece)?;
            }
        }
        self.buffer = rest.to_vec();
        Ok(())
    }

    /// Returns the totals, or an error if the end is missing; to be called after the last byte.
    pub fn finish(self) -> Result<Totals, FormatError> {
        match self.expecting {
            Expecting::Nothing => Ok(self.totals),
            Expecting::Title => Err(FormatError::Title),
            _ => Err(FormatError::Cut(self.totals.keys)),
        }
    }

    /// Returns the next piece and the number of bytes it took; `None` if more have to come first.
    fn next(&mut self, bytes: &[u8]) -> Result<Option<(Option<ExportPiece>, usize)>, FormatError> {
        match self.expecting {
            Expecting::Title => self.title(bytes),
            Expecting::Contents => self.contents(bytes),
            Expecting::Value { left: 0 } => {
                self.expecting = Expecting::Check;
                Ok(Some((None, 0)))
            }
            Expecting::Check => self.check(bytes),
            _ if bytes.is_empty() => Ok(None),
            Expecting::Value { left } => {
                let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                let value = &bytes[..count];
                self.all.update(value);
                self.record.update(value);
                self.expecting = Expecting::Value { left: left - count as u64 };
                Ok(Some((Some(ExportPiece::Value(value.to_vec())), count)))
            }
            Expecting::Nothing => Err(FormatError::Trailing(self.at)),
            Expecting::Frame => match bytes[0] {
                FRAME => self.frame(bytes),
                FILES_END => self.files_end(bytes),
                FAILED => self.failed(bytes),
                _ => Err(FormatError::Damaged(self.at)),
            },
            Expecting::Record => match bytes[0] {
                KEY => self.key(bytes),
                FILES if self.newest == CLUSTER_VERSION => self.files(bytes),
                END => self.end(bytes),
                FAILED => self.failed(bytes),
                _ => Err(FormatError::Damaged(self.at)),
            },
        }
    }

    fn title(&mut self, bytes: &[u8]) -> Result<Option<(Option<ExportPiece>, usize)>, FormatError> {
        let shared = bytes.len().min(TITLE.len());
        if bytes[..shared] != TITLE.as_bytes()[..shared] {
            return Err(FormatError::Title);
        }
        let version = &bytes[shared..];
        let Some(end) = version.iter().position(|byte| *byte == b'\n') else {
            let is_short = version.len() <= VERSION_BYTES_MAX;
            return if is_short { Ok(None) } else { Err(FormatError::Title) };
        };
        let digits = version[..end].iter().all(u8::is_ascii_digit) && end > 0;
        let version = String::from_utf8_lossy(&version[..end]).into_owned();
        self.expecting = match version.parse() {
            _ if !digits => return Err(FormatError::Title),
            Ok(VERSION) => Expecting::Record,
            Ok(CLUSTER_VERSION) if self.newest == CLUSTER_VERSION => Expecting::Contents,
            Ok(CLUSTER_VERSION) => return Err(FormatError::Cluster),
            _ => return Err(FormatError::Version(version)),
        };
        let used = shared + end + 1;
        self.all.update(&bytes[..used]);
        Ok(Some((None, used)))
    }

    fn contents(
        &mut self,
        bytes: &[u8],
    ) -> Result<Option<(Option<ExportPiece>, usize)>, FormatError> {
        match bytes.first() {
            None => return Ok(None),
            Some(&FAILED) => return self.failed(bytes),
            Some(&CONTENTS) => {}
            Some(_) => return Err(FormatError::Damaged(self.at)),
        }
        let Some((json, used)) = self.counted(bytes, CONTENTS_BYTES_MAX)? else { return Ok(None) };
        let contents = serde_json::from_slice(json).map_err(|_| FormatError::Damaged(self.at))?;
        self.expecting = Expecting::Record;
        Ok(Some((Some(ExportPiece::Contents(contents)), used)))
    }

    fn files(&mut self, bytes: &[u8]) -> Result<Option<(Option<ExportPiece>, usize)>, FormatError> {
        let Some((name, used)) = self.named(bytes)? else { return Ok(None) };
        let name = name.parse().map_err(|_| FormatError::Damaged(self.at))?;
        self.expecting = Expecting::Frame;
        Ok(Some((Some(ExportPiece::Files(name)), used)))
    }

    fn frame(&mut self, bytes: &[u8]) -> Result<Option<(Option<ExportPiece>, usize)>, FormatError> {
        let Some((frame, used)) = self.counted(bytes, FRAME_BYTES_MAX)? else { return Ok(None) };
        Ok(Some((Some(ExportPiece::Frame(frame.to_vec())), used)))
    }

    fn files_end(
        &mut self,
        bytes: &[u8],
    ) -> Result<Option<(Option<ExportPiece>, usize)>, FormatError> {
        let Some((why, used)) = self.named(bytes)? else { return Ok(None) };
        let why = (!why.is_empty()).then(|| why.to_owned());
        self.expecting = Expecting::Record;
        Ok(Some((Some(ExportPiece::FilesEnd(why)), used)))
    }

    /// Returns the text of a record that is a text, and the record's length.
    fn named<'a>(&mut self, bytes: &'a [u8]) -> Result<Option<(&'a str, usize)>, FormatError> {
        let Some(length) = number::<2>(bytes, 1) else { return Ok(None) };
        let used = 3 + length as usize;
        let Some(text) = bytes.get(3..used) else { return Ok(None) };
        self.all.update(&bytes[..used]);
        let text = std::str::from_utf8(text).map_err(|_| FormatError::Damaged(self.at))?;
        Ok(Some((text, used)))
    }

    fn counted<'a>(
        &mut self,
        bytes: &'a [u8],
        max: usize,
    ) -> Result<Option<(&'a [u8], usize)>, FormatError> {
        let Some(length) = number::<4>(bytes, 1) else { return Ok(None) };
        if length > max as u64 {
            return Err(FormatError::Damaged(self.at));
        }
        let used = 5 + length as usize;
        let Some(content) = bytes.get(5..used) else { return Ok(None) };
        self.all.update(&bytes[..used]);
        Ok(Some((content, used)))
    }

    fn key(&mut self, bytes: &[u8]) -> Result<Option<(Option<ExportPiece>, usize)>, FormatError> {
        let damaged = FormatError::Damaged(self.at);
        let Some(length) = number::<2>(bytes, 1) else { return Ok(None) };
        if length > model::key::KEY_LENGTH_MAX as u64 {
            return Err(damaged);
        }
        let text_end = 3 + length as usize;
        let (Some(ends), Some(size)) =
            (number::<8>(bytes, text_end), number::<8>(bytes, text_end + 8))
        else {
            return Ok(None);
        };
        let text = std::str::from_utf8(&bytes[3..text_end]).map_err(|_| damaged)?;
        let shown = || FormatError::Key(text.escape_debug().take(80).collect());
        let key: Key = text.parse().map_err(|_| shown())?;
        if key.is_local() {
            return Err(shown());
        }
        if size > VALUE_BYTES_MAX {
            return Err(FormatError::TooLarge { key, size });
        }
        let used = text_end + 16;
        self.record = blake3::Hasher::new();
        self.record.update(&bytes[..used]);
        self.all.update(&bytes[..used]);
        self.totals = Totals { keys: self.totals.keys + 1, bytes: self.totals.bytes + size };
        self.expecting = Expecting::Value { left: size };
        let ends = (ends != NO_END).then_some(Timestamp(ends));
        Ok(Some((Some(ExportPiece::Key { key, ends, size }), used)))
    }

    fn check(&mut self, bytes: &[u8]) -> Result<Option<(Option<ExportPiece>, usize)>, FormatError> {
        let Some(check) = bytes.get(..CHECK_BYTES) else { return Ok(None) };
        if check != first(&self.record) {
            return Err(FormatError::Damaged(self.at));
        }
        self.all.update(check);
        self.expecting = Expecting::Record;
        Ok(Some((Some(ExportPiece::Checked), CHECK_BYTES)))
    }

    fn end(&mut self, bytes: &[u8]) -> Result<Option<(Option<ExportPiece>, usize)>, FormatError> {
        let (head, used) = (1 + 16, 1 + 16 + 32);
        let Some(check) = bytes.get(head..used) else { return Ok(None) };
        self.all.update(&bytes[..head]);
        let totals = Totals {
            keys: number::<8>(bytes, 1).unwrap_or(0),
            bytes: number::<8>(bytes, 9).unwrap_or(0),
        };
        if check != self.all.finalize().as_bytes() || totals != self.totals {
            return Err(FormatError::Damaged(self.at));
        }
        self.expecting = Expecting::Nothing;
        Ok(Some((Some(ExportPiece::End(totals)), used)))
    }

    fn failed(&self, bytes: &[u8]) -> Result<Option<(Option<ExportPiece>, usize)>, FormatError> {
        let Some(length) = number::<2>(bytes, 1) else { return Ok(None) };
        let Some(text) = bytes.get(3..3 + length as usize) else { return Ok(None) };
        Err(FormatError::Failed(String::from_utf8_lossy(text).into_owned()))
    }
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + N)?;
    Some(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests;
