//! The messages between a node without a store and one that keeps it: frames of a head in JSON, so
//! that later versions can add to it, and raw bytes. Must not know what becomes of a request.

use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use model::hex::{from_hex, to_hex};
use model::value::ContentHash;
use model::{Key, NodeId, Timestamp};
use serde::{Deserialize, Serialize};
use store_core::{NodeTag, Position, Stamp};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use store::{CommitId, Cursor, HistoryEntry, StoreError, Version};

/// The size of a frame in bytes: one record of the largest size and its head.
pub const FRAME_BYTES_MAX: usize = 4 << 20;
/// The size in bytes after which an answer goes on in another frame.
pub const PART_BYTES: usize = 256 << 10;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToStore {
    Ping,
    /// Starts sending changes; once.
    Watch {
        from: Option<At>,
    },
    Ask {
        id: u64,
        what: StoreRequest,
    },
    /// Uploads a value. It is the first and only message on a stream of its own; the bytes follow,
    /// without frames.
    Put {
        key: Key,
        size: u64,
        expires: Option<Timestamp>,
        only_over: Option<WireVersion>,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreRequest {
    Lookup {
        key: Key,
    },
    Hash {
        key: Key,
    },
    Prefix {
        prefix: String,
    },
    Keys {
        prefix: String,
    },
    KeysAfter {
        prefix: String,
        after: Option<Key>,
        limit: usize,
    },
    History {
        prefix: String,
        limit: usize,
    },
    Head,
    Count,
    Squash {
        before: Timestamp,
    },
    Expire {
        key: Key,
        expires: Option<Timestamp>,
    },
    /// The value is the frame's bytes.
    Set {
        key: Key,
        expires: Option<Timestamp>,
        only_over: Option<WireVersion>,
    },
    Delete {
        key: Key,
        only_over: Option<WireVersion>,
    },
}

impl StoreRequest {
    pub fn is_write(&self) -> bool {
        matches!(
            self,
            StoreRequest::Set { .. } | StoreRequest::Delete { .. } | StoreRequest::Expire { .. }
        )
    }

    /// Returns whether it may be sent again when the answer was lost. Setting the same value twice
    /// gives that value; a condition may have been true only for its own first attempt.
    pub fn may_be_repeated(&self) -> bool {
        match self {
            StoreRequest::Set { only_over, .. } | StoreRequest::Delete { only_over, .. } => {
                only_over.is_none()
            }
            StoreRequest::Expire { .. } => false,
            _ => true,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromStore {
    Pong,
    Changed {
        at: At,
        key: Key,
        /// The new value; `None` after a delete.
        value: Option<WireValue>,
        expired: bool,
    },
    Resync {
        at: At,
    },
    Answer {
        id: u64,
        part: AnswerPart,
        /// Whether this is the last part of the answer.
        last: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerPart {
    Entries(Vec<WireEntry>),
    Keys(Vec<Key>),
    Hash(Option<String>),
    History(Vec<PastCommit>),
    Text(String),
    Count(u64),
    Changed(bool),
    /// The commit's id; `None` if there was nothing to delete, or another version stood.
    Written(Option<String>),
    Failed(WireFailure),
}

/// A value; inline ones follow as the frame's bytes, in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WireValue {
    Inline(usize),
    Large { hash: ContentHash, size: u64 },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WireEntry {
    pub key: Key,
    pub value: WireValue,
    pub set_at: Timestamp,
    pub node: NodeId,
    pub expires: Option<Timestamp>,
    pub version: WireVersion,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PastCommit {
    pub id: String,
    pub key: Key,
    pub set_at: Timestamp,
    pub node: NodeId,
    pub deleted: bool,
    pub size: u64,
}

impl PastCommit {
    pub fn of(entry: HistoryEntry) -> PastCommit {
        let HistoryEntry { id, key, set_at, node, deleted, size } = entry;
        PastCommit { id: to_hex(&id.0), key, set_at, node, deleted, size }
    }

    pub fn entry(self) -> Option<HistoryEntry> {
        let PastCommit { id, key, set_at, node, deleted, size } = self;
        Some(HistoryEntry { id: CommitId(from_hex(&id)?), key, set_at, node, deleted, size })
    }
}

/// A cursor of the node that is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct At {
    pub incarnation: u64,
    pub arrival: u64,
}

impl From<Cursor> for At {
    fn from(Cursor { incarnation, arrival }: Cursor) -> At {
        At { incarnation, arrival }
    }
}

impl From<At> for Cursor {
    fn from(At { incarnation, arrival }: At) -> Cursor {
        Cursor { incarnation, arrival }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WireVersion {
    stamp: u64,
    node: String,
}

impl From<Version> for WireVersion {
    fn from(Version(at): Version) -> WireVersion {
        WireVersion { stamp: at.stamp.0, node: at.node.as_str().into() }
    }
}

impl From<WireVersion> for Version {
    fn from(WireVersion { stamp, node }: WireVersion) -> Version {
        // A version that no node wrote is the version of no value.
        let node = node.parse::<NodeId>().map_or(NodeTag::LOWEST, |node| NodeTag::from(&node));
        Version(Position { stamp: Stamp(stamp), node })
    }
}

/// An error of the node that was asked, in a form that becomes an error here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WireFailure {
    pub kind: FailureKind,
    pub what: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    Refused,
    Unsupported,
    Away,
    #[serde(other)]
    Unavailable,
}

impl From<StoreError> for WireFailure {
    fn from(error: StoreError) -> WireFailure {
        let kind = match &error {
            StoreError::Refused(_) | StoreError::TooLarge { .. } | StoreError::Missing(_) => {
                FailureKind::Refused
            }
            StoreError::Unsupported(_) => FailureKind::Unsupported,
            StoreError::Away(_) => FailureKind::Away,
            StoreError::Stopped(_) | StoreError::Unavailable(_) | StoreError::Io { .. } => {
                FailureKind::Unavailable
            }
        };
        let what = match error {
            StoreError::Away(what) => what,
            other => other.to_string(),
        };
        WireFailure { kind, what }
    }
}

impl From<WireFailure> for StoreError {
    fn from(WireFailure { kind, what }: WireFailure) -> StoreError {
        match kind {
            FailureKind::Refused => StoreError::Refused(what),
            FailureKind::Unsupported => StoreError::Unsupported(what),
            FailureKind::Away => StoreError::Away(what),
            FailureKind::Unavailable => StoreError::Unavailable(what),
        }
    }
}

pub fn id_of(text: &str) -> Option<CommitId> {
    from_hex(text).map(CommitId)
}

/// Makes one frame: its length, the length of its head, the head, the bytes.
pub fn frame(head: &impl Serialize, bytes: &[u8]) -> Bytes {
    let mut out = vec![0; 8];
    serde_json::to_writer(&mut out, head).expect("heads are plain data");
    let head = out.len() - 8;
    out.extend_from_slice(bytes);
    let length = (out.len() - 4) as u32;
    out[..4].copy_from_slice(&length.to_le_bytes());
    out[4..8].copy_from_slice(&(head as u32).to_le_bytes());
    out.into()
}

/// Writes one frame; `last` if no other one waits.
pub async fn write(
    to: &mut (impl AsyncWrite + Unpin),
    frame: &[u8],
    last: bool,
    time_max: Duration,
) -> anyhow::Result<()> {
    let written = async {
        to.write_all(frame).await?;
        if last { to.flush().await } else { Ok(()) }
    };
    Ok(timeout(time_max, written).await.context("it takes nothing in")??)
}

/// Reads the next frame; its bytes come from outside.
pub async fn read<T: serde::de::DeserializeOwned>(
    from: &mut (impl AsyncRead + Unpin),
) -> anyhow::Result<(T, Bytes)> {
    let length = from.read_u32_le().await? as usize;
    ensure!(
        (4..=FRAME_BYTES_MAX).contains(&length),
        "it announced a frame of {length} bytes; {FRAME_BYTES_MAX} are the limit"
    );
    let mut frame = vec![0; length];
    from.read_exact(&mut frame).await?;
    let mut frame = Bytes::from(frame);
    let head = frame.split_to(4);
    let head = u32::from_le_bytes(head[..].try_into()?) as usize;
    ensure!(head <= frame.len(), "the head of a frame is longer than the frame");
    let head = frame.split_to(head);
    Ok((serde_json::from_slice(&head).context("a frame's head")?, frame))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn frames_are_read_back() {
        let key: Key = "instance::a::web::1::n1".parse().unwrap();
        let place = WireVersion { stamp: u64::MAX, node: "n1".into() };
        let what = StoreRequest::Set { key, expires: None, only_over: Some(place.clone()) };
        assert!(what.is_write() && !what.may_be_repeated());
        let ask = ToStore::Ask { id: 7, what };
        let bytes = [frame(&ask, b"value"), frame(&ToStore::Ping, b"")].concat();
        let mut from = &bytes[..];
        run(async {
            let (head, value) = read::<ToStore>(&mut from).await.unwrap();
            assert_eq!((head, &value[..]), (ask, &b"value"[..]));
            assert_eq!(read::<ToStore>(&mut from).await.unwrap().0, ToStore::Ping);
            assert!(read::<ToStore>(&mut from).await.is_err());
        });
        assert_eq!(WireVersion::from(Version::from(place.clone())), place);
    }

    #[test]
    fn failures_keep_their_kind() {
        let away = WireFailure::from(StoreError::Away("x".into()));
        assert!(matches!(StoreError::from(away), StoreError::Away(what) if what == "x"));
        let newer: WireFailure = serde_json::from_str(r#"{"kind":"tired","what":"w"}"#).unwrap();
        assert_eq!(newer.kind, FailureKind::Unavailable);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut from = &bytes[..];
            run(async {
                while read::<ToStore>(&mut from).await.is_ok() {}
                let _ = read::<FromStore>(&mut &bytes[..]).await;
            });
        }
    }
}
