//! The format of an exported store, version 1. Numbers are big-endian.
//!
//! ```text
//! "cortex store export 1\n"
//! for each key:  'K', length of the key (2 bytes), key, end of the value in Unix milliseconds or 0
//!                for none (8), size of the value (8), value, the first 16 bytes of the BLAKE3 of
//!                all this from 'K' on
//! at the end:    'E', number of keys (8), bytes of all values (8), the BLAKE3 (32) of everything
//!                before it
//! or else:       'X', length of a message (2), message: the export failed there
//! ```
//!
//! A reader holds no more than one key at a time, and knows at the end that nothing is missing and
//! nothing was changed.

use model::{Key, Timestamp};
use thiserror::Error;

use model::value::VALUE_BYTES_MAX;

pub const VERSION: u32 = 1;
const TITLE: &str = "cortex store export ";
/// The most bytes of a version with its line's end; a file with a longer one is no export.
const VERSION_BYTES_MAX: usize = 12;
const KEY: u8 = b'K';
const END: u8 = b'E';
const FAILED: u8 = b'X';
const CHECK_BYTES: usize = 16;
const NO_END: u64 = 0;
/// The longest message of a failure in bytes.
const MESSAGE_BYTES_MAX: usize = 1000;

#[derive(Debug, Error, PartialEq, Eq)]
pub enum FormatError {
    #[error("this is no exported store: it does not begin with '{TITLE}{VERSION}'")]
    Title,
    #[error(
        "this store was exported in version {0} of the format, and this cortex reads version \
         {VERSION}: import it with the cortex that exported it, or a newer one"
    )]
    Version(String),
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
        let hashers = (blake3::Hasher::new(), blake3::Hasher::new());
        let mut encoder =
            ExportEncoder { all: hashers.0, record: hashers.1, totals: Totals::default() };
        let title = format!("{TITLE}{VERSION}\n").into_bytes();
        encoder.all.update(&title);
        (encoder, title)
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
        let mut text = message;
        while text.len() > MESSAGE_BYTES_MAX {
            let end = text.char_indices().next_back().map_or(0, |(at, _)| at);
            text = &text[..end];
        }
        let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
        [&[FAILED][..], &length.to_be_bytes(), text.as_bytes()].concat()
    }
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
    End(Totals),
}

enum Expecting {
    Title,
    Record,
    Value {
        left: u64,
    },
    Check,
    /// Everything has come.
    Nothing,
}

/// Takes an export apart, in whatever pieces its bytes come.
pub struct ExportDecoder {
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
            Expecting::Record => match bytes[0] {
                KEY => self.key(bytes),
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
        if version[..end] != *VERSION.to_string().as_bytes() {
            let digits = version[..end].iter().all(u8::is_ascii_digit) && end > 0;
            let version = String::from_utf8_lossy(&version[..end]).into_owned();
            let error = if digits { FormatError::Version(version) } else { FormatError::Title };
            return Err(error);
        }
        let used = shared + end + 1;
        self.all.update(&bytes[..used]);
        self.expecting = Expecting::Record;
        Ok(Some((None, used)))
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Stored = (String, Option<u64>, Vec<u8>);

    fn export(stored: &[Stored]) -> Vec<u8> {
        let (mut encoder, mut bytes) = ExportEncoder::begin();
        for (key, ends, value) in stored {
            let (key, ends) = (key.parse().unwrap(), ends.map(Timestamp));
            bytes.extend(encoder.key(&key, ends, value.len() as u64));
            encoder.value(value);
            bytes.extend(value);
            bytes.extend(encoder.check());
        }
        bytes.extend(encoder.end());
        bytes
    }

    fn import(bytes: &[u8], step: usize) -> Result<(Vec<Stored>, Totals), FormatError> {
        let (mut decoder, mut stored) = (ExportDecoder::default(), Vec::<Stored>::new());
        for chunk in bytes.chunks(step) {
            decoder.push(chunk, |piece| {
                match piece {
                    ExportPiece::Key { key, ends, .. } => {
                        stored.push((key.to_string(), ends.map(|ends| ends.0), Vec::new()));
                    }
                    ExportPiece::Value(bytes) => stored.last_mut().unwrap().2.extend(bytes),
                    ExportPiece::Checked | ExportPiece::End(_) => {}
                }
                Ok::<(), FormatError>(())
            })?;
        }
        Ok((stored, decoder.finish()?))
    }

    fn some() -> Vec<Stored> {
        vec![
            ("a::b".into(), None, b"value".to_vec()),
            ("empty".into(), Some(9), Vec::new()),
            ("ä".into(), None, vec![7; 300]),
        ]
    }

    proptest! {
        #[test]
        fn exports_round_trip_however_they_are_cut(
            stored in prop::collection::vec(
                ("[a-z]{1,9}(::[a-zä]{1,9})?", prop::option::of(1u64..99),
                 prop::collection::vec(any::<u8>(), 0..200)),
                0..6,
            ),
            step in 1usize..400,
        ) {
            let stored: Vec<Stored> =
                stored.into_iter().filter(|(key, ..)| !key.starts_with("local")).collect();
            let bytes = stored.iter().map(|(_, _, value)| value.len() as u64).sum();
            let totals = Totals { keys: stored.len() as u64, bytes };
            prop_assert_eq!(import(&export(&stored), step), Ok((stored, totals)));
        }

        #[test]
        fn any_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(import(&bytes, 7).is_err());
            let titled = [b"cortex store export 1\n", &bytes[..]].concat();
            prop_assert!(import(&titled, 7).is_err());
        }
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_noticed() {
        let whole = export(&some());
        for end in 0..whole.len() {
            let error = import(&whole[..end], 64).unwrap_err();
            let is_cut = matches!(error, FormatError::Cut(_) | FormatError::Title);
            assert!(is_cut, "{end}: {error}");
        }
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << bit;
                assert!(import(&flipped, 64).is_err(), "{at} {bit}");
            }
        }
        let longer = [&whole[..], b"\n"].concat();
        assert_eq!(import(&longer, 9), Err(FormatError::Trailing(whole.len() as u64)));
        let twice = [&whole[..], &whole].concat();
        assert_eq!(import(&twice, 9), Err(FormatError::Trailing(whole.len() as u64)));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let newer = export(&some());
        let newer = [b"cortex store export 2\n", &newer[22..]].concat();
        assert_eq!(import(&newer, 5), Err(FormatError::Version("2".into())));
        assert_eq!(import(b"hello", 5), Err(FormatError::Title));
        assert_eq!(import(b"", 5), Err(FormatError::Title));
        let note = export(&[("local::x".into(), None, Vec::new())]);
        assert_eq!(import(&note, 5), Err(FormatError::Key("local::x".into())));
        let (_, mut failed) = ExportEncoder::begin();
        failed.extend(ExportEncoder::failure("the disk is gone"));
        assert_eq!(import(&failed, 5), Err(FormatError::Failed("the disk is gone".into())));
        let long = ExportEncoder::failure(&"ä".repeat(5000));
        assert!(long.len() <= MESSAGE_BYTES_MAX + 3);
    }
}
