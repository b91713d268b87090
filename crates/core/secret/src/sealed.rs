//! One sealed value: a title, the id of the key, a salt of its own, and what ChaCha20-Poly1305
//! makes of the value. The key and the nonce of that come of the cluster's key and the salt by
//! HKDF, so no two values share them; the title, the id and the key of the store are authenticated
//! with it, so a value that is moved to another key does not open.

use model::Key;
use model::secrets::SealingKeyId;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use thiserror::Error;
use zeroize::Zeroizing;

/// The bytes of a cluster's key.
pub const KEY_BYTES: usize = 32;
/// The bytes of a value's own salt: two of them never meet by chance.
pub const SALT_BYTES: usize = 32;

/// The format of sealed values, which their title ends with.
pub const FORMAT: u32 = 1;
/// What every sealed value begins with; no record does, as those are JSON. The last byte is the
/// format's version.
const TITLE: [u8; 8] = *b"\0sealed\x01";
const ID_END: usize = TITLE.len() + SealingKeyId::BYTES;
const HEAD_BYTES: usize = ID_END + SALT_BYTES;
const TAG_BYTES: usize = 16;
/// What HKDF is told besides, so that nothing else that comes of the same key is the same.
const PURPOSE_VALUE: &[u8] = b"cortex sealed value 1";
const PURPOSE_ID: &[u8] = b"cortex sealing key's id 1";

/// The bytes by which a sealed value is longer.
pub const OVERHEAD_BYTES: usize = HEAD_BYTES + TAG_BYTES;

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum OpenError {
    #[error("it is sealed with the key {0}, which this node does not have")]
    NoKey(SealingKeyId),
    #[error("it was damaged, or sealed for another key of the store")]
    Refused,
    #[error("it is sealed in a way that this version of Cortex does not know")]
    Format,
}

/// A key that seals values; its bytes are wiped when it is dropped.
pub struct SealingKey {
    id: SealingKeyId,
    bytes: Zeroizing<[u8; KEY_BYTES]>,
}

struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// Fills `out` with what comes of the key, the salt and the purpose.
fn derive(key: &[u8; KEY_BYTES], salt: &[u8], purpose: &[u8], out: &mut [u8]) {
    let extracted = Salt::new(HKDF_SHA256, salt).extract(key);
    let purposes = [purpose];
    let made = extracted.expand(&purposes, Length(out.len())).and_then(|made| made.fill(out));
    made.expect("far less than 255 blocks are asked for");
}

impl SealingKey {
    pub fn new(bytes: Zeroizing<[u8; KEY_BYTES]>) -> SealingKey {
        let mut id = [0; SealingKeyId::BYTES];
        derive(&bytes, &[], PURPOSE_ID, &mut id);
        SealingKey { id: SealingKeyId(id), bytes }
    }

    pub fn id(&self) -> SealingKeyId {
        self.id
    }

    /// Returns the bytes, for the one file that holds them and the nodes that may.
    pub fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.bytes
    }

    fn cipher(&self, salt: &[u8]) -> (LessSafeKey, Nonce) {
        let mut made = Zeroizing::new([0; KEY_BYTES + NONCE_LEN]);
        derive(&self.bytes, salt, PURPOSE_VALUE, &mut *made);
        let (key, nonce) = made.split_at(KEY_BYTES);
        let key = UnboundKey::new(&CHACHA20_POLY1305, key).expect("the key has its length");
        let nonce = Nonce::try_assume_unique_for_key(nonce).expect("the nonce has its length");
        (LessSafeKey::new(key), nonce)
    }

    /// Seals a value for a key of the store. `salt` must be random, and new for each value.
    pub fn seal(&self, key: &Key, value: &[u8], salt: [u8; SALT_BYTES]) -> Vec<u8> {
        let mut sealed = Vec::with_capacity(value.len() + OVERHEAD_BYTES);
        sealed.extend_from_slice(&TITLE);
        sealed.extend_from_slice(&self.id.0);
        sealed.extend_from_slice(&salt);
        sealed.extend_from_slice(value);
        let (cipher, nonce) = self.cipher(&salt);
        let with = Aad::from(associated(&self.id, key));
        let tag = cipher.seal_in_place_separate_tag(nonce, with, &mut sealed[HEAD_BYTES..]);
        sealed.extend_from_slice(tag.expect("values are far below the limit").as_ref());
        sealed
    }

    /// Opens a value that this key sealed for that key of the store.
    pub fn open(&self, key: &Key, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, OpenError> {
        match key_of(sealed)? {
            Some(id) if id == self.id => {}
            Some(other) => return Err(OpenError::NoKey(other)),
            None => return Err(OpenError::Format),
        }
        let (head, body) = sealed.split_at(HEAD_BYTES);
        let (cipher, nonce) = self.cipher(&head[ID_END..]);
        let mut body = Zeroizing::new(body.to_vec());
        let with = Aad::from(associated(&self.id, key));
        let length = match cipher.open_in_place(nonce, with, &mut body) {
            Ok(value) => value.len(),
            Err(_) => return Err(OpenError::Refused),
        };
        body.truncate(length);
        Ok(body)
    }
}

/// Returns what is authenticated together with a value.
fn associated(id: &SealingKeyId, key: &Key) -> Vec<u8> {
    [&TITLE[..], &id.0, key.as_str().as_bytes()].concat()
}

/// Returns the id of the key that sealed these bytes; `None` if they are not sealed.
pub fn key_of(bytes: &[u8]) -> Result<Option<SealingKeyId>, OpenError> {
    let (family, version) = TITLE.split_at(TITLE.len() - 1);
    if !bytes.starts_with(family) {
        return Ok(None);
    }
    if bytes.get(family.len()) != version.first() || bytes.len() < OVERHEAD_BYTES {
        return Err(OpenError::Format);
    }
    let id = bytes[TITLE.len()..ID_END].try_into().expect("it has its length");
    Ok(Some(SealingKeyId(id)))
}

#[cfg(test)]
mod tests;
