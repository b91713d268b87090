//! Files that a pass-phrase opens, in the published format of `age`, version 1, with its scrypt
//! recipient: <https://age-encryption.org/v1>. Any program that reads age's files opens them. Bytes
//! come in whatever pieces they come; no more than one chunk is held. Randomness comes in.

mod stream;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use ring::hmac;
use thiserror::Error;
use zeroize::Zeroizing;

pub use stream::{CHUNK_BYTES, Decryptor, Encryptor};

/// The line with which every such file begins.
pub const TITLE: &str = "age-encryption.org/v1\n";
/// The beginning of such a file that was made text of, which is to be made bytes of first.
pub const ARMOURED: &str = "-----BEGIN AGE ENCRYPTED FILE-----";
/// The beginning that the formats of all versions share.
const FAMILY: &str = "age-encryption.org/";
const FILE_KEY_BYTES: usize = 16;
const SALT_BYTES: usize = 16;
pub(crate) const PAYLOAD_NONCE_BYTES: usize = 16;
pub(crate) const KEY_BYTES: usize = 32;
const MAC_BYTES: usize = 32;
pub(crate) const TAG_BYTES: usize = 16;
/// What the salt of scrypt begins with.
const SCRYPT_LABEL: &[u8] = b"age-encryption.org/v1/scrypt";
/// The block size and the parallelism of scrypt, which the format fixes.
const SCRYPT_R: u32 = 8;
const SCRYPT_P: u32 = 1;
/// The work for a new file as a power of two: 128 MiB of memory and some tenths of a second for
/// each guess, the least that OWASP advises for scrypt. A node of 512 MB has that much to spare
/// once a day.
pub const WORK: u8 = 17;
/// The most work that a file may ask of its reader: 1 GiB.
pub const WORK_MAX: u8 = 20;
/// The longest header that is read. One with a pass-phrase has 150 bytes; others name up to twenty
/// recipients.
const HEADER_BYTES_MAX: usize = 8 * 1024;

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AgeError {
    #[error("it is encrypted in another version of age's format: take a newer cortex")]
    Version,
    #[error("it is encrypted for keys, not with a pass-phrase: decrypt it with `age -d` first")]
    Recipient,
    #[error(
        "it asks for 2^{0} steps of work and {memory} MiB of memory, and 2^{WORK_MAX} is the \
         limit: decrypt it with `age -d` first",
        memory = 1u64 << (.0 - 10)
    )]
    Work(u8),
    #[error("its first lines are damaged: take another copy")]
    Header,
    #[error("the pass-phrase is wrong")]
    PassPhrase,
    #[error("it is damaged at byte {0}: take another copy")]
    Damaged(u64),
    #[error("its end is missing or damaged: take a whole copy")]
    Cut,
}

/// What must be random, and new for each file.
pub struct Randomness {
    pub file_key: Zeroizing<[u8; FILE_KEY_BYTES]>,
    pub salt: [u8; SALT_BYTES],
    pub nonce: [u8; PAYLOAD_NONCE_BYTES],
}

impl Randomness {
    /// The bytes that it is made of.
    pub const BYTES: usize = FILE_KEY_BYTES + SALT_BYTES + PAYLOAD_NONCE_BYTES;

    pub fn of(bytes: &[u8; Self::BYTES]) -> Randomness {
        let (file_key, rest) = bytes.split_at(FILE_KEY_BYTES);
        let (salt, nonce) = rest.split_at(SALT_BYTES);
        let length = "it has its length";
        Randomness {
            file_key: Zeroizing::new(file_key.try_into().expect(length)),
            salt: salt.try_into().expect(length),
            nonce: nonce.try_into().expect(length),
        }
    }
}

/// The key of one file, which its header holds in a form that the pass-phrase opens.
#[derive(Clone)]
pub struct FileKey(Zeroizing<[u8; FILE_KEY_BYTES]>);

/// Begins a file: returns its first bytes and what encrypts the rest. It takes as long and as much
/// memory as `work` says.
pub fn begin(pass_phrase: &str, work: u8, random: Randomness) -> (Encryptor, Vec<u8>) {
    let wrapping = wrapping_key(pass_phrase, &random.salt, work);
    let mut wrapped = random.file_key.to_vec();
    let sealed =
        cipher(&wrapping).seal_in_place_append_tag(zero_nonce(), Aad::empty(), &mut wrapped);
    sealed.expect("a key is short");
    let (salt, body) = (STANDARD_NO_PAD.encode(random.salt), STANDARD_NO_PAD.encode(wrapped));
    let mut head = format!("{TITLE}-> scrypt {salt} {work}\n{body}\n---");
    let mac = hmac::sign(&header_key(&random.file_key), head.as_bytes());
    head.push_str(&format!(" {}\n", STANDARD_NO_PAD.encode(mac)));
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(&random.nonce);
    let key = FileKey(random.file_key);
    (Encryptor::new(payload_key(&key, &random.nonce)), bytes)
}

/// The lines before what is encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    salt: [u8; SALT_BYTES],
    work: u8,
    wrapped: [u8; FILE_KEY_BYTES + TAG_BYTES],
    /// What the code at its end is of.
    signed: Vec<u8>,
    mac: [u8; MAC_BYTES],
}

impl Header {
    /// Reads a header off the beginning of a file; returns it with its length, or nothing if more
    /// bytes are needed.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Header, usize)>, AgeError> {
        let shared = bytes.len().min(TITLE.len());
        if bytes[..shared] != TITLE.as_bytes()[..shared] {
            let is_other = bytes.starts_with(FAMILY.as_bytes());
            return Err(if is_other { AgeError::Version } else { AgeError::Header });
        }
        let text = &bytes[..bytes.len().min(HEADER_BYTES_MAX)];
        let mark = b"\n---";
        let Some(end) = text.windows(mark.len()).position(|at| at == mark) else {
            return more_or_wrong(bytes);
        };
        let signed = end + mark.len();
        let Some(length) = text[signed..].iter().position(|byte| *byte == b'\n') else {
            return more_or_wrong(bytes);
        };
        let whole = signed + length + 1;
        let mac = text[signed..whole - 1].strip_prefix(b" ").ok_or(AgeError::Header)?;
        let between = text.get(TITLE.len()..end).ok_or(AgeError::Header)?;
        let stanza = std::str::from_utf8(between).map_err(|_| AgeError::Header)?;
        let (line, body) = stanza.split_once('\n').ok_or(AgeError::Header)?;
        let words: Vec<&str> = line.split(' ').collect();
        let ["->", "scrypt", salt, work] = words[..] else {
            let is_other = matches!(words[..], ["->", kind, ..] if kind != "scrypt");
            return Err(if is_other { AgeError::Recipient } else { AgeError::Header });
        };
        let header = Header {
            salt: decode(salt.as_bytes())?,
            work: parse_work(work)?,
            wrapped: decode(body.as_bytes())?,
            signed: text[..signed].to_vec(),
            mac: decode(mac)?,
        };
        Ok(Some((header, whole)))
    }

    /// Opens the key of the file; it takes as long and as much memory as the header says.
    pub fn open(&self, pass_phrase: &str) -> Result<FileKey, AgeError> {
        let wrapping = wrapping_key(pass_phrase, &self.salt, self.work);
        let mut wrapped = Zeroizing::new(self.wrapped.to_vec());
        let opened = cipher(&wrapping).open_in_place(zero_nonce(), Aad::empty(), &mut wrapped);
        let opened: &[u8] = opened.map_err(|_| AgeError::PassPhrase)?;
        let key = FileKey(Zeroizing::new(opened.try_into().map_err(|_| AgeError::Header)?));
        let verified = hmac::verify(&header_key(&key.0), &self.signed, &self.mac);
        verified.map_err(|_| AgeError::Header)?;
        Ok(key)
    }
}

fn more_or_wrong<T>(bytes: &[u8]) -> Result<Option<T>, AgeError> {
    if bytes.len() < HEADER_BYTES_MAX { Ok(None) } else { Err(AgeError::Header) }
}

fn parse_work(text: &str) -> Result<u8, AgeError> {
    let work: u8 = text.parse().map_err(|_| AgeError::Header)?;
    // Numbers have one spelling each, and what is less than this is no work at all.
    let is_plain = work.to_string() == text && (1..64).contains(&work);
    match work {
        _ if !is_plain => Err(AgeError::Header),
        work if work > WORK_MAX => Err(AgeError::Work(work)),
        work => Ok(work),
    }
}

fn decode<const N: usize>(text: &[u8]) -> Result<[u8; N], AgeError> {
    let bytes = STANDARD_NO_PAD.decode(text).map_err(|_| AgeError::Header)?;
    bytes.try_into().map_err(|_| AgeError::Header)
}

fn wrapping_key(pass_phrase: &str, salt: &[u8], work: u8) -> Zeroizing<[u8; KEY_BYTES]> {
    let parameters = scrypt::Params::new(work, SCRYPT_R, SCRYPT_P, KEY_BYTES);
    let parameters = parameters.expect("the work is within bounds");
    let salt = [SCRYPT_LABEL, salt].concat();
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    let made = scrypt::scrypt(pass_phrase.as_bytes(), &salt, &parameters, &mut *key);
    made.expect("a key is neither empty nor long");
    key
}

pub(crate) fn cipher(key: &[u8; KEY_BYTES]) -> LessSafeKey {
    let key = UnboundKey::new(&CHACHA20_POLY1305, key).expect("the key has its length");
    LessSafeKey::new(key)
}

/// Returns the nonce for a key that seals one thing only.
fn zero_nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

struct KeyLength;

impl KeyType for KeyLength {
    fn len(&self) -> usize {
        KEY_BYTES
    }
}

fn derive(key: &[u8; FILE_KEY_BYTES], salt: &[u8], purpose: &[u8]) -> Zeroizing<[u8; KEY_BYTES]> {
    let mut out = Zeroizing::new([0; KEY_BYTES]);
    let extracted = Salt::new(HKDF_SHA256, salt).extract(key);
    let purposes = [purpose];
    let made = extracted.expand(&purposes, KeyLength).and_then(|made| made.fill(&mut *out));
    made.expect("one block is asked for");
    out
}

fn header_key(key: &[u8; FILE_KEY_BYTES]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, &*derive(key, &[], b"header"))
}

pub(crate) fn payload_key(
    key: &FileKey,
    nonce: &[u8; PAYLOAD_NONCE_BYTES],
) -> Zeroizing<[u8; KEY_BYTES]> {
    derive(&key.0, nonce, b"payload")
}

#[cfg(test)]
mod tests;
