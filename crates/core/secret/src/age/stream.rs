//! What follows the header: chunks of 64 KiB, each sealed with its number and whether it is the
//! last, so that none can be changed, left out or put elsewhere, and the end cannot be cut off.

use ring::aead::{Aad, LessSafeKey, NONCE_LEN, Nonce};
use zeroize::Zeroizing;

use super::{AgeError, FileKey, KEY_BYTES, PAYLOAD_NONCE_BYTES, TAG_BYTES, cipher, payload_key};

/// The bytes of every chunk but the last.
pub const CHUNK_BYTES: usize = 64 * 1024;
const SEALED_CHUNK_BYTES: usize = CHUNK_BYTES + TAG_BYTES;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Within,
    Last,
}

/// The nonce of a chunk: its number and a mark on the last one. A file of so many chunks that the
/// number does not suffice does not exist.
fn nonce(number: u64, place: Place) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[3..NONCE_LEN - 1].copy_from_slice(&number.to_be_bytes());
    bytes[NONCE_LEN - 1] = u8::from(place == Place::Last);
    Nonce::assume_unique_for_key(bytes)
}

pub struct Encryptor {
    cipher: LessSafeKey,
    number: u64,
    /// A chunk is sealed once more follows, as the last one is marked.
    waiting: Zeroizing<Vec<u8>>,
}

impl Encryptor {
    pub(super) fn new(key: Zeroizing<[u8; KEY_BYTES]>) -> Encryptor {
        let waiting = Zeroizing::new(Vec::with_capacity(SEALED_CHUNK_BYTES));
        Encryptor { cipher: cipher(&key), number: 0, waiting }
    }

    /// Adds bytes; what of the file is complete with them comes to the end of `out`.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while !bytes.is_empty() {
            if self.waiting.len() == CHUNK_BYTES {
                self.seal(Place::Within, out);
            }
            let (now, rest) = bytes.split_at(bytes.len().min(CHUNK_BYTES - self.waiting.len()));
            self.waiting.extend_from_slice(now);
            bytes = rest;
        }
    }

    pub fn finish(mut self, out: &mut Vec<u8>) {
        self.seal(Place::Last, out);
    }

    fn seal(&mut self, place: Place, out: &mut Vec<u8>) {
        let nonce = nonce(self.number, place);
        let sealed =
            self.cipher.seal_in_place_separate_tag(nonce, Aad::empty(), &mut self.waiting[..]);
        out.extend_from_slice(&self.waiting);
        out.extend_from_slice(sealed.expect("a chunk is short").as_ref());
        self.waiting.clear();
        self.number += 1;
    }
}

pub struct Decryptor {
    key: FileKey,
    cipher: Option<LessSafeKey>,
    number: u64,
    waiting: Vec<u8>,
    /// The bytes of the file that were opened, with its header.
    at: u64,
}

impl Decryptor {
    /// Begins with what follows a header of that length.
    pub fn new(key: FileKey, header: usize) -> Decryptor {
        let waiting = Vec::with_capacity(SEALED_CHUNK_BYTES);
        Decryptor { key, cipher: None, number: 0, waiting, at: header as u64 }
    }

    /// Adds bytes of the file; what they open comes to the end of `out`.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut Zeroizing<Vec<u8>>) -> Result<(), AgeError> {
        while !bytes.is_empty() {
            let full = match self.cipher {
                None => PAYLOAD_NONCE_BYTES,
                Some(_) => SEALED_CHUNK_BYTES,
            };
            if self.waiting.len() == full {
                self.open(Place::Within, out)?;
                continue;
            }
            let (now, rest) = bytes.split_at(bytes.len().min(full - self.waiting.len()));
            self.waiting.extend_from_slice(now);
            bytes = rest;
            if self.cipher.is_none() && self.waiting.len() == PAYLOAD_NONCE_BYTES {
                let nonce = self.waiting[..].try_into().expect("it has its length");
                self.cipher = Some(cipher(&payload_key(&self.key, &nonce)));
                self.waiting.clear();
                self.at += PAYLOAD_NONCE_BYTES as u64;
            }
        }
        Ok(())
    }

    /// Opens the last chunk; to be called after the last byte.
    pub fn finish(mut self, out: &mut Zeroizing<Vec<u8>>) -> Result<(), AgeError> {
        let is_short = self.cipher.is_none() || self.waiting.len() < TAG_BYTES;
        // Only a file without content ends with an empty chunk.
        if is_short || (self.waiting.len() == TAG_BYTES && self.number > 0) {
            return Err(AgeError::Cut);
        }
        let last = self.waiting.clone();
        if self.open(Place::Last, out).is_ok() {
            return Ok(());
        }
        self.waiting = last;
        // One that opens as a chunk in the middle, or is shorter than one, is the rest of a file.
        let is_whole = self.waiting.len() == SEALED_CHUNK_BYTES;
        let mut unused = Zeroizing::new(Vec::new());
        match is_whole && self.open(Place::Within, &mut unused).is_err() {
            true => Err(AgeError::Damaged(self.at)),
            false => Err(AgeError::Cut),
        }
    }

    fn open(&mut self, place: Place, out: &mut Zeroizing<Vec<u8>>) -> Result<(), AgeError> {
        let cipher = self.cipher.as_ref().ok_or(AgeError::Cut)?;
        let length = self.waiting.len() as u64;
        let nonce = nonce(self.number, place);
        let opened = cipher.open_in_place(nonce, Aad::empty(), &mut self.waiting);
        out.extend_from_slice(opened.map_err(|_| AgeError::Damaged(self.at))?);
        self.waiting.clear();
        self.number += 1;
        self.at += length;
        Ok(())
    }
}
