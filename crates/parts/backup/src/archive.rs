//! Files with a whole cluster: encrypted with a pass-phrase in age's format, or plain. What is read
//! and written goes through in pieces; nothing that was decrypted is ever on a disk.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};

use anyhow::Context;
use api_types::backup::Contents;
use api_types::export::{self, ExportDecoder, ExportPiece, FormatError, Totals};
use ring::rand::{SecureRandom, SystemRandom};
use secret_core::age::{self, AgeError, Decryptor, Encryptor, FileKey, Header, Randomness};
use zeroize::Zeroizing;

const READ_BYTES: usize = 64 * 1024;

/// How a file of that kind begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrapping {
    /// A pass-phrase opens it.
    PassPhrase,
    Plain,
}

/// Looks at how a file begins, and goes back to its beginning.
pub fn wrapping_of(file: &mut File) -> anyhow::Result<Wrapping> {
    let mut head = Vec::new();
    Read::by_ref(file).take(age::ARMOURED.len() as u64).read_to_end(&mut head)?;
    file.seek(SeekFrom::Start(0))?;
    let begins = |with: &str| head.starts_with(&with.as_bytes()[..head.len().min(with.len())]);
    anyhow::ensure!(!head.is_empty(), "it is empty");
    if begins(export::TITLE) {
        return Ok(Wrapping::Plain);
    }
    anyhow::ensure!(
        !begins(age::ARMOURED),
        "it is encrypted as text (armoured): decrypt it with `age -d`, and import what that makes"
    );
    // A later version is refused by name once it is read.
    if begins("age-encryption.org/") {
        return Ok(Wrapping::PassPhrase);
    }
    Err(FormatError::Title.into())
}

/// Writes a file, encrypted if there is a pass-phrase.
pub struct ArchiveWriter<W> {
    out: W,
    encryptor: Option<Encryptor>,
    buffer: Vec<u8>,
    /// The bytes of the file so far.
    pub written: u64,
}

impl<W: Write> ArchiveWriter<W> {
    /// Begins a file; with a pass-phrase, that takes some tenths of a second.
    pub fn begin(mut out: W, pass_phrase: Option<&str>) -> anyhow::Result<ArchiveWriter<W>> {
        let mut written = 0;
        let encryptor = match pass_phrase {
            None => None,
            Some(phrase) => {
                let mut bytes = Zeroizing::new([0; Randomness::BYTES]);
                let filled = SystemRandom::new().fill(&mut *bytes);
                filled.ok().context("the kernel gave no randomness: try again")?;
                let (encryptor, head) = age::begin(phrase, age::WORK, Randomness::of(&bytes));
                out.write_all(&head)?;
                written = head.len() as u64;
                Some(encryptor)
            }
        };
        Ok(ArchiveWriter { out, encryptor, buffer: Vec::new(), written })
    }

    /// Writes the end, and returns how many bytes the file has.
    pub fn finish(mut self) -> anyhow::Result<u64> {
        if let Some(encryptor) = self.encryptor.take() {
            encryptor.finish(&mut self.buffer);
            self.drain()?;
        }
        self.out.flush()?;
        Ok(self.written)
    }

    fn drain(&mut self) -> std::io::Result<()> {
        self.out.write_all(&self.buffer)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

impl<W: Write> Write for ArchiveWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match &mut self.encryptor {
            None => {
                self.out.write_all(bytes)?;
                self.written += bytes.len() as u64;
            }
            Some(encryptor) => {
                encryptor.push(bytes, &mut self.buffer);
                self.drain()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// A file whose content comes out in clear, once or more often.
pub struct Archive {
    file: File,
    key: Option<(FileKey, usize)>,
    pub file_bytes: u64,
}

/// What stands in an archive that was read through.
pub struct Checked {
    pub totals: Totals,
    /// The BLAKE3 of the content in hexadecimal digits.
    pub hash: String,
    pub contents: Option<Contents>,
}

impl Archive {
    /// Opens a file; with a pass-phrase, that takes some tenths of a second.
    pub fn open(mut file: File, pass_phrase: Option<&str>) -> anyhow::Result<Archive> {
        let file_bytes = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(0))?;
        let key = match pass_phrase {
            None => None,
            Some(phrase) => {
                let mut head = Vec::new();
                let (header, length) = loop {
                    let before = head.len();
                    Read::by_ref(&mut file).take(READ_BYTES as u64).read_to_end(&mut head)?;
                    match Header::parse(&head)? {
                        Some(found) => break found,
                        None if head.len() == before => return Err(AgeError::Cut.into()),
                        None => {}
                    }
                };
                Some((header.open(phrase)?, length))
            }
        };
        Ok(Archive { file, key, file_bytes })
    }

    /// Passes the whole content to `take`, and the bytes of the file that it took so far.
    pub fn read(
        &mut self,
        mut take: impl FnMut(&[u8], u64) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let begin = self.key.as_ref().map_or(0, |(_, length)| *length as u64);
        self.file.seek(SeekFrom::Start(begin))?;
        let key = self.key.clone();
        let mut decryptor = key.map(|(key, length)| Decryptor::new(key, length));
        let (mut chunk, mut clear) = (vec![0; READ_BYTES], Zeroizing::new(Vec::new()));
        let mut at = begin;
        loop {
            let count = self.file.read(&mut chunk)?;
            at += count as u64;
            match &mut decryptor {
                None if count == 0 => return Ok(()),
                None => take(&chunk[..count], at)?,
                Some(_) if count == 0 => break,
                Some(decryptor) => {
                    decryptor.push(&chunk[..count], &mut clear)?;
                    take(&clear, at)?;
                    clear.clear();
                }
            }
        }
        if let Some(decryptor) = decryptor {
            decryptor.finish(&mut clear)?;
            take(&clear, at)?;
        }
        Ok(())
    }

    /// Reads the file through and makes sure that nothing is missing and nothing was changed.
    pub fn check(&mut self) -> anyhow::Result<Checked> {
        let (mut decoder, mut hash) = (ExportDecoder::of_cluster(), blake3::Hasher::new());
        let mut contents = None;
        self.read(|bytes, _| {
            hash.update(bytes);
            Ok(decoder.push(bytes, |piece| {
                if let ExportPiece::Contents(found) = piece {
                    contents = Some(found);
                }
                Ok::<(), FormatError>(())
            })?)
        })?;
        let hash = hash.finalize().to_hex().to_string();
        Ok(Checked { totals: decoder.finish()?, hash, contents })
    }
}

#[cfg(test)]
mod tests;
