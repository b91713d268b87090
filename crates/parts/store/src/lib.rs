//! The store as the rest of the binary sees it: one trait, whatever keeps the values. Parts of a
//! node meet here alone.

pub mod board;
pub mod bulk;
pub mod bus;
mod cache;
pub mod command;
mod committer;
mod cores;
pub mod disk;
pub mod local;
mod log;
mod mailbox;
mod missing;
pub mod open;
pub mod options;
mod queue;
mod recovery;
pub mod replication;
pub mod reply;
mod seat;
mod segment;
pub mod shared;
mod snapshot;
#[cfg(test)]
mod tests;
pub mod values;
pub mod watchers;

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use model::value::ContentHash;
use model::{Key, NodeId, Prefix, Timestamp, record};
use serde::de::DeserializeOwned;
use store_core::Position;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

use self::bulk::ValueName;
use self::bulk::desk::Desk;
use self::bulk::reader::ValueReader;
pub use self::options::OpenError;
use self::replication::Replication;
use self::reply::Reply;
pub use self::values::ValueWriter;
use self::values::blocking;

/// Values above this are content-addressed files and travel apart from their commits.
pub const INLINE_VALUE_MAX: usize = 4096;

/// A release with many notes, variables, or a failure with its last words is larger than what is
/// stored inline; more than this is no record of Cortex.
pub const RECORD_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Error)]
pub enum StoreError {
    #[error("the store has stopped: {0}; restart the node once the cause is mended")]
    Stopped(String),
    #[error("no value is stored under '{0}'")]
    Missing(Key),
    #[error("the value is larger than {max} bytes; stream it instead")]
    TooLarge { max: u64 },
    /// Nothing was written; the store goes on.
    #[error("{0}")]
    Refused(String),
    /// The store is elsewhere and cannot be reached; a write may or may not have been stored.
    #[error("{0}")]
    Unavailable(String),
    /// This kind of store cannot do it.
    #[error("{0}")]
    Unsupported(String),
    /// The node knows the value and does not have its bytes.
    #[error(
        "the bytes of this value are on other nodes and cannot be had now: {0}; try again, or \
         start a node that has them"
    )]
    Away(String),
    #[error("{what}")]
    Io {
        what: String,
        #[source]
        source: std::io::Error,
    },
}

/// What a write returns: its place in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitId(pub [u8; 32]);

#[derive(Clone, Debug)]
pub struct Entry {
    pub key: Key,
    pub value: Value,
    pub set_at: Timestamp,
    pub node: NodeId,
    /// From then on the key reads as absent.
    pub expires: Option<Timestamp>,
    pub version: Version,
}

/// Which write gave a key its value, as one node knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(pub Position);

/// A write and its terms.
#[derive(Clone, Debug)]
pub struct Submission {
    pub key: Key,
    pub change: Submitted,
    /// Only while this is the key's version on this node; for what was read first.
    pub only_over: Option<Version>,
}

#[derive(Clone, Debug)]
pub enum Submitted {
    Set { value: Bytes, expires: Option<Timestamp> },
    File { file: ValueFile, expires: Option<Timestamp> },
    Delete,
}

impl Submission {
    pub fn set(key: Key, value: Bytes) -> Submission {
        Submission { key, change: Submitted::Set { value, expires: None }, only_over: None }
    }

    pub fn delete(key: Key) -> Submission {
        Submission { key, change: Submitted::Delete, only_over: None }
    }
}

/// None: there was nothing to delete, or another version stood where one was expected.
pub type Written = Result<Option<CommitId>, StoreError>;

/// Small values are at hand; large ones are files to be opened.
#[derive(Clone, Debug)]
pub enum Value {
    Inline(Bytes),
    File {
        hash: ContentHash,
        size: u64,
        path: PathBuf,
    },
    /// Large, and not on this node yet: other nodes have the bytes.
    Away {
        hash: ContentHash,
        size: u64,
        desk: Arc<Desk>,
    },
}

impl Value {
    /// The bytes of a small value; a record may be larger, see `record`.
    pub fn inline(&self) -> Option<&Bytes> {
        match self {
            Value::Inline(bytes) => Some(bytes),
            Value::File { .. } | Value::Away { .. } => None,
        }
    }

    pub fn size(&self) -> u64 {
        match self {
            Value::Inline(bytes) => bytes.len() as u64,
            Value::File { size, .. } | Value::Away { size, .. } => *size,
        }
    }

    /// The same value with its bytes on this node: waits until they have come, and fails when no
    /// node that has them can be reached or nothing comes for a minute.
    pub async fn here(self) -> Result<Value, StoreError> {
        match self {
            Value::Away { hash, size, desk } => {
                let path = desk.whole(ValueName { hash: hash.0, size }).await?;
                Ok(Value::File { hash, size, path })
            }
            here => Ok(here),
        }
    }

    /// The bytes of a large value from the start, wherever they are; None for a small one. What is
    /// on another node is read while it comes.
    pub async fn reader(&self) -> Result<Option<ValueReader>, StoreError> {
        match self {
            Value::Inline(_) => Ok(None),
            Value::File { hash, size, path } => {
                let (value, path) = (ValueName { hash: hash.0, size: *size }, path.clone());
                let at = path.clone();
                let open = move || {
                    let what = format!("{} cannot be read", path.display());
                    File::open(&path).map_err(|source| StoreError::Io { what, source })
                };
                Ok(Some(ValueReader::of_file(blocking(open).await?, value, at)))
            }
            Value::Away { hash, size, desk } => {
                desk.read(ValueName { hash: hash.0, size: *size }).await.map(Some)
            }
        }
    }

    /// The bytes, also of a file, up to `max`: a record with many variables or notes may be one.
    /// Files are read by the caller's thread, so `max` is small where that thread is a runtime's.
    pub fn read(&self, max: u64) -> Result<Bytes, StoreError> {
        match self {
            Value::Inline(bytes) => Ok(bytes.clone()),
            large if large.size() > max => Err(StoreError::TooLarge { max }),
            Value::Away { hash, size, .. } => {
                Err(StoreError::Away(format!("{hash} ({size} bytes) is still to come")))
            }
            Value::File { path, hash, size } => match std::fs::read(path) {
                Ok(bytes) if *blake3::hash(&bytes).as_bytes() != hash.0 => {
                    values::suspect(path, &ValueName { hash: hash.0, size: *size });
                    Err(StoreError::Away(format!("the file of {hash} was damaged")))
                }
                Ok(bytes) => Ok(bytes.into()),
                Err(source) => Err(StoreError::Io {
                    what: format!("{} cannot be read", path.display()),
                    source,
                }),
            },
        }
    }

    /// One of Cortex's own records.
    pub fn record<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        Ok(record::decode(&self.read(RECORD_BYTES_MAX)?)?)
    }
}

/// A record that cannot be read counts as absent, and is reported: one bad value hides nothing
/// else.
pub fn readable<T: DeserializeOwned>(key: &Key, value: Option<&Value>) -> Option<T> {
    let record = value?.record();
    record.inspect_err(|error| tracing::warn!(%key, %error, "record.unreadable")).ok()
}

/// As `readable`, of what the key has now.
pub async fn lookup_record<T: DeserializeOwned>(
    store: &dyn Store,
    key: Key,
) -> anyhow::Result<Option<T>> {
    let entry = store.lookup(&key).await?;
    Ok(readable(&key, entry.as_ref().map(|entry| &entry.value)))
}

#[derive(Clone, Debug)]
pub struct HistoryEntry {
    pub id: CommitId,
    pub key: Key,
    pub set_at: Timestamp,
    pub node: NodeId,
    pub deleted: bool,
    pub size: u64,
}

/// Local to one node: (incarnation of the store, arrival number).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub incarnation: u64,
    pub arrival: u64,
}

#[derive(Clone, Debug)]
pub enum WatchEvent {
    Changed {
        cursor: Cursor,
        key: Key,
        /// None after a delete, and when the value has expired.
        value: Option<Value>,
        expired: bool,
    },
    /// Changes were missed (a slow reader, an unknown cursor): read the prefix again.
    Resync { cursor: Cursor },
}

/// Changes of one prefix, in order of arrival. Bounded: a reader that falls behind gets `Resync`.
pub struct Watch {
    pub events: mpsc::Receiver<WatchEvent>,
}

impl Watch {
    /// None when the store has stopped.
    pub async fn next(&mut self) -> Option<WatchEvent> {
        self.events.recv().await
    }
}

/// How soon the disk is asked for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    Now,
    /// No sooner than at the next `Store::hurry`, which must follow: for a thread with many
    /// writers, whose writes go to the disk together.
    WithOthers,
}

/// Every method may be called from any runtime. Writes return once they are durable.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Queues a write in the order of these calls; `reply` hears once it is durable. An error is
    /// returned and no reply comes when it could not be queued. Values have any size; above
    /// `INLINE_VALUE_MAX` the bytes go to a file first.
    async fn submit(
        &self,
        write: Submission,
        urgency: Urgency,
        reply: Reply,
    ) -> Result<(), StoreError>;
    /// Does what `submit` does with others where nothing has to be waited for: no future is made.
    /// Hands back what it cannot do.
    fn submit_at_once(&self, write: Submission, reply: Reply) -> Option<(Submission, Reply)> {
        Some((write, reply))
    }
    /// Sends writes that were submitted with others to the disk now, together.
    fn hurry(&self) {}
    /// Submits a write and waits for its reply.
    async fn write(&self, write: Submission) -> Written {
        let (reply, written) = oneshot::channel();
        let reply = Reply::to(move |result| drop(reply.send(result)));
        self.submit(write, Urgency::Now, reply).await?;
        written.await.unwrap_or_else(|_| Err(StoreError::Stopped("it was closed".into())))
    }
    async fn set(&self, key: Key, value: Bytes) -> Result<CommitId, StoreError> {
        committed(self.write(Submission::set(key, value)).await)
    }
    /// Sets `key` to the content of a finished file made by `writer`.
    async fn set_file(&self, key: Key, file: ValueFile) -> Result<CommitId, StoreError> {
        let change = Submitted::File { file, expires: None };
        committed(self.write(Submission { key, change, only_over: None }).await)
    }
    async fn delete(&self, key: Key) -> Result<Option<CommitId>, StoreError> {
        self.write(Submission::delete(key)).await
    }
    /// Makes a place to stream a large value to; hashing happens on the way.
    async fn writer(&self) -> Result<ValueWriter, StoreError>;
    /// Gives a key's value another end, or none. False when the key has no value.
    async fn expire(&self, key: &Key, expires: Option<Timestamp>) -> Result<bool, StoreError>;
    /// How many keys have a value.
    async fn count(&self) -> Result<usize, StoreError> {
        Ok(self.keys(&Prefix::all()).await?.len())
    }
    /// Where nothing is found, a write of the key that waits on this node is waited for.
    async fn lookup(&self, key: &Key) -> Result<Option<Entry>, StoreError>;
    /// As `lookup` where nothing has to be waited for; None where something has.
    fn lookup_at_once(&self, _key: &Key) -> Option<Option<Entry>> {
        None
    }
    /// SHA-1 of the value, from memory.
    async fn lookup_hash(&self, key: &Key) -> Result<Option<[u8; 20]>, StoreError>;
    /// In key order.
    async fn prefix(&self, prefix: &Prefix) -> Result<Vec<Entry>, StoreError>;
    async fn keys(&self, prefix: &Prefix) -> Result<Vec<Key>, StoreError>;
    /// At most `limit` keys after `after`, in an order that stays; an empty page is the end.
    async fn keys_after(
        &self,
        prefix: &Prefix,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Key>, StoreError> {
        let keys = self.keys(prefix).await?.into_iter();
        Ok(keys.filter(|key| after.is_none_or(|after| key > after)).take(limit).collect())
    }
    /// From now on, or from `cursor`.
    async fn watch(&self, prefix: Prefix, from: Option<Cursor>) -> Result<Watch, StoreError>;
    /// Newest first, at most `limit`.
    async fn history(&self, prefix: &Prefix, limit: usize)
    -> Result<Vec<HistoryEntry>, StoreError>;
    /// The id of the whole history: equal on two nodes exactly when their histories are.
    async fn head(&self) -> Result<String, StoreError>;
    /// Drops commits before this time that newer ones have replaced, and deletes.
    async fn squash(&self, before: Timestamp) -> Result<(), StoreError>;
    /// None where something else keeps the members together.
    fn replication(&self) -> Option<Replication> {
        None
    }
    /// Writes what waits, marks the log as closed and frees the directory. Later writes fail.
    async fn close(&self) -> Result<(), StoreError>;
}

/// A set without terms is always a commit.
fn committed(written: Written) -> Result<CommitId, StoreError> {
    written?.ok_or_else(|| {
        StoreError::Unavailable(
            "a value was set, and where it is kept says that nothing was: start the same version \
             of Cortex on all nodes"
                .into(),
        )
    })
}

pub type SharedStore = Arc<dyn Store>;

/// A finished, durable content-addressed file that no key refers to yet.
#[derive(Clone, Debug)]
pub struct ValueFile {
    pub hash: ContentHash,
    pub sha1: [u8; 20],
    pub size: u64,
    pub path: PathBuf,
}
