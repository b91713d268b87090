//! A commit: one change of one key, and its encoding. The id of a commit is the BLAKE3 of that
//! encoding, so the encoding never changes without a new version byte.

use std::fmt;
use std::sync::Arc;

use model::value::{ContentHash, ValueLocation};
use model::{Key, NodeId, Timestamp, ValueRef};
use thiserror::Error;

use crate::clock::Stamp;
use crate::expiry::Expiry;

/// The first byte of every encoded commit.
const ENCODING_VERSION: u8 = 1;
const ACTION_SET: u8 = 1;
const ACTION_DELETE: u8 = 2;
const ACTION_SET_EXPIRING: u8 = 3;

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CommitError {
    #[error("a commit ends early")]
    Short,
    #[error("a commit has encoding version {0}; this build reads {ENCODING_VERSION}")]
    Version(u8),
    #[error("a commit has an unknown action {0}")]
    Action(u8),
    #[error("a commit has no time")]
    Stamp,
    #[error("a commit expires at no time")]
    Expiry,
    #[error("a commit has a malformed node id")]
    Node,
    #[error("a commit has a malformed key")]
    Key,
}

/// A node id in 16 bytes, padded with zeros, so that tags sort like the ids' text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeTag([u8; 16]);

impl NodeTag {
    /// The tag below that of every node, where a range starts.
    pub const LOWEST: NodeTag = NodeTag([0; 16]);

    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(16);
        std::str::from_utf8(&self.0[..end]).unwrap_or_default()
    }

    /// Returns the tag of `node`, which must be a valid node id.
    fn of(node: &str) -> NodeTag {
        let mut tag = [0; 16];
        let length = node.len().min(16);
        tag[..length].copy_from_slice(&node.as_bytes()[..length]);
        NodeTag(tag)
    }

    pub fn node(&self) -> NodeId {
        self.as_str().parse().expect("tags are made from node ids alone")
    }
}

impl From<&NodeId> for NodeTag {
    fn from(node: &NodeId) -> NodeTag {
        NodeTag::of(node.as_str())
    }
}

impl fmt::Debug for NodeTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The place of a commit in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub stamp: Stamp,
    pub node: NodeTag,
}

impl Position {
    pub const fn start_of(stamp: Stamp) -> Position {
        Position { stamp, node: NodeTag::LOWEST }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitAction {
    Set {
        hash: [u8; 32],
        sha1: [u8; 20],
        size: u64,
        /// The instant from which on the key reads as absent.
        expires: Option<Expiry>,
    },
    Delete,
}

/// The place where this node holds the value; it is not part of the commit's identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Location {
    /// The commit is a delete, or this node does not have the value's bytes.
    #[default]
    Nowhere,
    /// The value is in the record that starts at this offset of this segment.
    Log {
        segment: u32,
        offset: u32,
    },
    File,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    pub at: Position,
    pub key: Arc<str>,
    pub action: CommitAction,
    pub location: Location,
}

impl Commit {
    pub fn is_delete(&self) -> bool {
        self.action == CommitAction::Delete
    }

    pub fn expires(&self) -> Option<Expiry> {
        match self.action {
            CommitAction::Set { expires, .. } => expires,
            CommitAction::Delete => None,
        }
    }

    /// Returns whether it gives its key a value at this time, provided that it is the newest.
    pub fn lives(&self, now: Timestamp) -> bool {
        !self.is_delete() && !self.expires().is_some_and(|expires| expires.has_passed(now))
    }

    pub fn size(&self) -> u64 {
        match self.action {
            CommitAction::Set { size, .. } => size,
            CommitAction::Delete => 0,
        }
    }

    pub fn value(&self) -> Option<ValueRef> {
        let CommitAction::Set { hash, size, .. } = self.action else { return None };
        let place = match self.location {
            Location::Nowhere => return None,
            Location::Log { segment, offset } => {
                ValueLocation::Log { segment: segment.into(), offset }
            }
            Location::File => ValueLocation::File,
        };
        Some(ValueRef { hash: ContentHash(hash), size, place })
    }

    pub fn cid(&self) -> [u8; 32] {
        let mut bytes = Vec::with_capacity(self.encoded_length());
        self.encode(&mut bytes);
        *blake3::hash(&bytes).as_bytes()
    }

    pub fn encoded_length(&self) -> usize {
        let action = match self.action {
            CommitAction::Set { expires: None, .. } => 32 + 20 + 8,
            CommitAction::Set { expires: Some(_), .. } => 32 + 20 + 8 + 8,
            CommitAction::Delete => 0,
        };
        1 + 8 + 1 + self.at.node.as_str().len() + 1 + 2 + self.key.len() + action
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        let node = self.at.node.as_str().as_bytes();
        out.push(ENCODING_VERSION);
        out.extend_from_slice(&self.at.stamp.0.to_le_bytes());
        out.push(node.len() as u8);
        out.extend_from_slice(node);
        out.push(match self.action {
            CommitAction::Delete => ACTION_DELETE,
            CommitAction::Set { expires: None, .. } => ACTION_SET,
            CommitAction::Set { expires: Some(_), .. } => ACTION_SET_EXPIRING,
        });
        out.extend_from_slice(&(self.key.len() as u16).to_le_bytes());
        out.extend_from_slice(self.key.as_bytes());
        if let CommitAction::Set { hash, sha1, size, expires } = &self.action {
            out.extend_from_slice(hash);
            out.extend_from_slice(sha1);
            out.extend_from_slice(&size.to_le_bytes());
            if let Some(expires) = expires {
                out.extend_from_slice(&expires.time().0.to_le_bytes());
            }
        }
    }

    /// Decodes a commit and returns it with the bytes that follow. Its location is left open.
    pub fn decode(bytes: &[u8]) -> Result<(Commit, &[u8]), CommitError> {
        let mut reader = Reader(bytes);
        match reader.byte()? {
            ENCODING_VERSION => {}
            other => return Err(CommitError::Version(other)),
        }
        let stamp = Stamp(u64::from_le_bytes(reader.array()?));
        if stamp == Stamp::default() {
            return Err(CommitError::Stamp);
        }
        let node_length = reader.byte()?;
        let node = std::str::from_utf8(reader.take(node_length.into())?);
        let node = node.ok().filter(|node| NodeId::is_valid(node)).ok_or(CommitError::Node)?;
        let action = reader.byte()?;
        let key_length = u16::from_le_bytes(reader.array()?);
        let key = std::str::from_utf8(reader.take(key_length.into())?);
        let key = key.ok().filter(|key| Key::is_valid(key)).ok_or(CommitError::Key)?;
        let action = match action {
            ACTION_SET | ACTION_SET_EXPIRING => CommitAction::Set {
                hash: reader.array()?,
                sha1: reader.array()?,
                size: u64::from_le_bytes(reader.array()?),
                expires: match action {
                    ACTION_SET => None,
                    _ => Some(reader.expiry()?),
                },
            },
            ACTION_DELETE => CommitAction::Delete,
            other => return Err(CommitError::Action(other)),
        };
        let at = Position { stamp, node: NodeTag::of(node) };
        let commit = Commit { at, key: key.into(), action, location: Location::Nowhere };
        Ok((commit, reader.0))
    }
}

/// A reader that takes fields off the front of a byte slice, never past its end.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], CommitError> {
        let (front, rest) = self.0.split_at_checked(count).ok_or(CommitError::Short)?;
        self.0 = rest;
        Ok(front)
    }

    pub fn byte(&mut self) -> Result<u8, CommitError> {
        Ok(self.take(1)?[0])
    }

    fn expiry(&mut self) -> Result<Expiry, CommitError> {
        match u64::from_le_bytes(self.array()?) {
            0 => Err(CommitError::Expiry),
            time => Ok(Expiry::at(Timestamp(time))),
        }
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], CommitError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn commit(stamp: u64, node: &str, key: &str, size: Option<u64>) -> Commit {
        expiring(stamp, node, key, size, None)
    }

    fn expiring(
        stamp: u64,
        node: &str,
        key: &str,
        size: Option<u64>,
        expires: Option<u64>,
    ) -> Commit {
        let expires = expires.map(|time| Expiry::at(Timestamp(time)));
        let node: NodeId = node.parse().unwrap();
        Commit {
            at: Position { stamp: Stamp(stamp), node: NodeTag::from(&node) },
            key: key.into(),
            action: match size {
                Some(size) => CommitAction::Set { hash: [3; 32], sha1: [4; 20], size, expires },
                None => CommitAction::Delete,
            },
            location: Location::Nowhere,
        }
    }

    proptest! {
        #[test]
        fn commits_round_trip_and_every_prefix_is_refused(
            stamp in 1..=u64::MAX,
            node in "[a-z0-9]{1,16}",
            key in "[a-zä]{1,9}(::[a-z]{1,9}){0,3}",
            size: Option<u64>,
            expires: Option<u64>,
            cut: prop::sample::Index,
        ) {
            let commit = expiring(stamp, &node, &key, size, expires);
            let mut bytes = Vec::new();
            commit.encode(&mut bytes);
            prop_assert_eq!(bytes.len(), commit.encoded_length());
            let short = &bytes[..cut.index(bytes.len())];
            prop_assert!(Commit::decode(short).is_err());
            bytes.push(9);
            prop_assert_eq!(Commit::decode(&bytes), Ok((commit, &[9u8][..])));
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let mut versioned = vec![ENCODING_VERSION];
            versioned.extend_from_slice(&bytes);
            let _ = Commit::decode(&bytes);
            let _ = Commit::decode(&versioned);
        }
    }

    #[test]
    fn the_id_covers_every_field_but_the_location() {
        let base = commit(1, "a", "k", Some(1));
        for other in [
            commit(2, "a", "k", Some(1)),
            commit(1, "b", "k", Some(1)),
            commit(1, "a", "l", Some(1)),
            commit(1, "a", "k", Some(2)),
            commit(1, "a", "k", None),
            expiring(1, "a", "k", Some(1), Some(1)),
        ] {
            assert_ne!(base.cid(), other.cid());
        }
        let moved = Commit { location: Location::File, ..base.clone() };
        assert_eq!(base.cid(), moved.cid());
    }

    #[test]
    fn tags_order_as_their_text() {
        let tag = |text: &str| NodeTag::from(&text.parse::<NodeId>().unwrap());
        assert!(tag("a") < tag("aa") && tag("aa") < tag("b"));
        assert_eq!(tag("0123456789abcdef").as_str(), "0123456789abcdef");
    }
}
