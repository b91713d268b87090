//! The record of a key in etcd: who set the value, when and until when, its hashes, and the bytes
//! of a small value. A large one is a file, and the record names it by its hash. Records come over
//! a network from a store that others may write to: they are checked, never trusted.

use model::{NodeId, Timestamp};
use sha1::{Digest, Sha1};
use thiserror::Error;

use store::INLINE_VALUE_MAX;

/// The first byte of every record.
const VERSION: u8 = 1;
const INLINE: u8 = 0;
const FILE: u8 = 1;
const NO_EXPIRY: u64 = 0;
/// The length of a record's head in bytes: version, kind, three numbers, two hashes and the length
/// of the node's name.
const HEAD_BYTES: usize = 2 + 3 * 8 + 32 + 20 + 1;

#[derive(Debug, Error, PartialEq, Eq)]
pub enum StoredRecordError {
    #[error("it ends early")]
    Short,
    #[error("it has version {0}, and this build reads {VERSION}: is a newer Cortex at work here?")]
    Version(u8),
    #[error("its {0} is malformed")]
    Field(&'static str),
    #[error("its bytes are not those that were set")]
    Content,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRecord {
    pub set_at: Timestamp,
    pub expires: Option<Timestamp>,
    pub size: u64,
    pub hash: [u8; 32],
    pub sha1: [u8; 20],
    pub node: NodeId,
    /// The bytes of a small value; `None` if the value is a file.
    pub inline: Option<Vec<u8>>,
}

impl StoredRecord {
    pub fn of_bytes(
        node: NodeId,
        set_at: Timestamp,
        expires: Option<Timestamp>,
        bytes: &[u8],
    ) -> StoredRecord {
        let (hash, sha1) = (*blake3::hash(bytes).as_bytes(), Sha1::digest(bytes).into());
        let (size, inline) = (bytes.len() as u64, Some(bytes.to_vec()));
        StoredRecord { set_at, expires, size, hash, sha1, node, inline }
    }

    pub fn has_expired(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }

    pub fn encode(&self) -> Vec<u8> {
        let inline = self.inline.as_deref().unwrap_or_default();
        let node = self.node.as_str().as_bytes();
        let mut bytes = Vec::with_capacity(HEAD_BYTES + node.len() + inline.len());
        bytes.push(VERSION);
        bytes.push(if self.inline.is_some() { INLINE } else { FILE });
        // The first millisecond of the epoch stands for no expiry; a value that ends there has
        // ended as well.
        let expires = self.expires.map_or(NO_EXPIRY, |expires| expires.0.max(1));
        for number in [self.set_at.0, expires, self.size] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        bytes.extend_from_slice(&self.hash);
        bytes.extend_from_slice(&self.sha1);
        bytes.push(u8::try_from(node.len()).expect("names of nodes are short"));
        bytes.extend_from_slice(node);
        bytes.extend_from_slice(inline);
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<StoredRecord, StoredRecordError> {
        let mut rest = bytes;
        match take::<1>(&mut rest)? {
            [VERSION] => {}
            [version] => return Err(StoredRecordError::Version(version)),
        }
        let [kind] = take(&mut rest)?;
        let set_at = Timestamp(u64::from_be_bytes(take(&mut rest)?));
        let expires = u64::from_be_bytes(take(&mut rest)?);
        let expires = (expires != NO_EXPIRY).then_some(Timestamp(expires));
        let size = u64::from_be_bytes(take(&mut rest)?);
        let (hash, sha1) = (take(&mut rest)?, take(&mut rest)?);
        let [length] = take(&mut rest)?;
        let (node, content) =
            rest.split_at_checked(usize::from(length)).ok_or(StoredRecordError::Short)?;
        let node = std::str::from_utf8(node).ok().and_then(|node| node.parse().ok());
        let node = node.ok_or(StoredRecordError::Field("node"))?;
        let inline = match kind {
            FILE if content.is_empty() && size > INLINE_VALUE_MAX as u64 => None,
            INLINE if content.len() as u64 == size && content.len() <= INLINE_VALUE_MAX => {
                let is_whole = blake3::hash(content).as_bytes() == &hash;
                Some(is_whole.then(|| content.to_vec()).ok_or(StoredRecordError::Content)?)
            }
            FILE | INLINE => return Err(StoredRecordError::Field("size")),
            _ => return Err(StoredRecordError::Field("kind")),
        };
        Ok(StoredRecord { set_at, expires, size, hash, sha1, node, inline })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], StoredRecordError> {
    let (taken, left) = rest.split_first_chunk().ok_or(StoredRecordError::Short)?;
    *rest = left;
    Ok(*taken)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn small(bytes: &[u8]) -> StoredRecord {
        let expires = Some(Timestamp(9));
        StoredRecord::of_bytes("n1".parse().unwrap(), Timestamp(7), expires, bytes)
    }

    fn large() -> StoredRecord {
        let size = INLINE_VALUE_MAX as u64 + 1;
        StoredRecord { size, inline: None, expires: None, ..small(b"") }
    }

    #[test]
    fn records_round_trip() {
        for record in [small(b""), small(b"value"), small(&[7; INLINE_VALUE_MAX]), large()] {
            assert_eq!(StoredRecord::decode(&record.encode()), Ok(record));
        }
    }

    #[test]
    fn what_is_cut_or_from_elsewhere_is_refused() {
        for record in [small(b"value"), large()] {
            let bytes = record.encode();
            for end in 0..bytes.len() {
                assert!(StoredRecord::decode(&bytes[..end]).is_err(), "{end}");
            }
            let longer = [&bytes[..], b"x"].concat();
            assert!(StoredRecord::decode(&longer).is_err());
        }
        let mut newer = small(b"value").encode();
        newer[0] = 2;
        assert_eq!(StoredRecord::decode(&newer), Err(StoredRecordError::Version(2)));
        let mut other = small(b"value").encode();
        *other.last_mut().unwrap() ^= 1;
        assert_eq!(StoredRecord::decode(&other), Err(StoredRecordError::Content));
        let too_large = StoredRecord { size: 1, ..large() };
        assert!(StoredRecord::decode(&too_large.encode()).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let versioned = [&[VERSION][..], &bytes].concat();
            for bytes in [&bytes, &versioned] {
                if let Ok(record) = StoredRecord::decode(bytes) {
                    prop_assert_eq!(&record.encode(), bytes);
                }
            }
        }
    }
}
