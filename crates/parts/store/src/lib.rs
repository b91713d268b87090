//! The store as the rest of the binary sees it: one trait, whatever keeps the values. The parts of
//! a node meet only here.

pub mod board;
pub mod bulk;
pub mod bus;
mod cache;
pub mod command;
mod commit_thread;
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
use self::bulk::fetch_board::FetchBoard;
use self::bulk::reader::ValueReader;
pub use self::options::OpenError;
use self::replication::Replication;
use self::reply::Reply;
pub use self::values::ValueWriter;
use self::values::blocking;

/// The size in bytes above which a value is a content-addressed file that travels apart from its
/// commit.
pub const INLINE_VALUE_MAX: usize = 4096;

/// The largest record in bytes. A release with many notes or variables, or a failure with its last
/// words, is larger than what is stored inline; anything above this is no record of Cortex.
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
    /// The store is elsewhere and cannot be reached; the write may or may not have been stored.
    #[error("{0}")]
    Unavailable(String),
    /// This kind of store does not support the operation.
    #[error("{0}")]
    Unsupported(String),
    /// The node knows the value but does not have its bytes.
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

/// The place of a write in the history; every write returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitId(pub [u8; 32]);

#[derive(Clone, Debug)]
pub struct Entry {
    pub key: Key,
    pub value: Value,
    pub set_at: Timestamp,
    pub node: NodeId,
    /// The time from which the key reads as absent; `None` if it never expires.
    pub expires: Option<Timestamp>,
    pub version: Version,
}

/// Identifies the write that gave a key its value, as one node knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(pub Position);

/// A write and the condition that it depends on.
#[derive(Clone, Debug)]
pub struct Submission {
    pub key: Key,
    pub change: Submitted,
    /// The version that the key must still have on this node, for a value that was read first;
    /// `None` if the write is unconditional.
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

/// The result of a write: `None` if there was nothing to delete, or if another version stood where
/// one was expected.
pub type Written = Result<Option<CommitId>, StoreError>;

/// The value of a key: small values are in memory, large ones are files to be opened.
#[derive(Clone, Debug)]
pub enum Value {
    Inline(Bytes),
    File {
        hash: ContentHash,
        size: u64,
        path: PathBuf,
    },
    /// A large value that is not on this node yet; other nodes have its bytes.
    Away {
        hash: ContentHash,
        size: u64,
        fetch_board: Arc<FetchBoard>,
    },
}

impl Value {
    /// Returns the bytes of a small value. A record may be larger; see `record`.
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

    /// Returns the same value with its bytes on this node. Waits until they have come, and fails if
    /// no node that has them can be reached or nothing comes for a minute.
    pub async fn here(self) -> Result<Value, StoreError> {
        match self {
            Value::Away { hash, size, fetch_board } => {
                let path = fetch_board.whole(ValueName { hash: hash.0, size }).await?;
                Ok(Value::File { hash, size, path })
            }
            here => Ok(here),
        }
    }

    /// Returns a reader of a large value from its start, wherever its bytes are; `None` for a small
    /// one. A value on another node is read while it arrives.
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
            Value::Away { hash, size, fetch_board } => {
                fetch_board.read(ValueName { hash: hash.0, size: *size }).await.map(Some)
            }
        }
    }

    /// Returns the bytes, also those of a file, up to `max` bytes: a record with many variables or
    /// notes may be a file. Files are read on the caller's thread, so `max` must be small where
    /// that thread belongs to a runtime.
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

    /// Decodes the value as one of Cortex's own records.
    pub fn record<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        Ok(record::decode(&self.read(RECORD_BYTES_MAX)?)?)
    }
}

/// Decodes a record. One that cannot be read counts as absent and is reported, so that one bad
/// value hides nothing else.
pub fn readable<T: DeserializeOwned>(key: &Key, value: Option<&Value>) -> Option<T> {
    let record = value?.record();
    record.inspect_err(|error| tracing::warn!(%key, %error, "record.unreadable")).ok()
}

/// Decodes the current value of a key, like `readable`.
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

/// A place in the order of arrival, local to one node: the incarnation of the store and the number
/// of the arrival.
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
        /// The new value; `None` after a delete, and when the value has expired.
        value: Option<Value>,
        expired: bool,
    },
    /// Changes were missed (by a slow reader, or the cursor is unknown): read the prefix again.
    Resync { cursor: Cursor },
}

/// The changes of one prefix, in order of arrival. The queue is bounded: a reader that falls behind
/// gets `Resync`.
pub struct Watch {
    pub events: mpsc::Receiver<WatchEvent>,
    lens: Option<Lens>,
}

/// How a store on top of another one shows its changes.
struct Lens {
    see: Box<dyn Fn(WatchEvent) -> WatchEvent + Send + Sync>,
    /// News that what was shown before would look different now.
    renewed: tokio::sync::watch::Receiver<u64>,
    at: Cursor,
}

impl Watch {
    pub fn new(events: mpsc::Receiver<WatchEvent>) -> Watch {
        Watch { events, lens: None }
    }

    /// Returns the same watch with its events seen through `see`, and with a `Resync` whenever
    /// `renewed` has news.
    pub fn seen_through(
        self,
        see: impl Fn(WatchEvent) -> WatchEvent + Send + Sync + 'static,
        renewed: tokio::sync::watch::Receiver<u64>,
    ) -> Watch {
        let at = Cursor { incarnation: 0, arrival: 0 };
        Watch { events: self.events, lens: Some(Lens { see: Box::new(see), renewed, at }) }
    }

    /// Returns the next change; `None` when the store has stopped.
    pub async fn next(&mut self) -> Option<WatchEvent> {
        let Some(lens) = &mut self.lens else { return self.events.recv().await };
        tokio::select! {
            biased;
            event = self.events.recv() => {
                let event = event?;
                let (WatchEvent::Changed { cursor, .. } | WatchEvent::Resync { cursor }) = &event;
                lens.at = *cursor;
                Some((lens.see)(event))
            }
            Ok(()) = lens.renewed.changed() => Some(WatchEvent::Resync { cursor: lens.at }),
        }
    }
}

/// How soon a write goes to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    Now,
    /// No sooner than at the next `Store::hurry`, which must follow. It is for a thread with many
    /// writers, whose writes go to the disk together.
    WithOthers,
}

/// Every method may be called from any runtime. Writes return once they are durable.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Queues a write, in the order of these calls; `reply` is called once it is durable. If it
    /// cannot be queued, an error is returned and `reply` is not called. Values have any size;
    /// above `INLINE_VALUE_MAX` the bytes go to a file first.
    async fn submit(
        &self,
        write: Submission,
        urgency: Urgency,
        reply: Reply,
    ) -> Result<(), StoreError>;
    /// Does what `submit` does with `Urgency::WithOthers` if nothing has to be waited for, without
    /// making a future. Hands back what it cannot do.
    fn submit_at_once(&self, write: Submission, reply: Reply) -> Option<(Submission, Reply)> {
        Some((write, reply))
    }
    /// Sends the writes that were submitted with `Urgency::WithOthers` to the disk now, together.
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
    /// Opens a file to stream a large value to; it is hashed on the way.
    async fn writer(&self) -> Result<ValueWriter, StoreError>;
    /// Sets or removes the expiry of a key's value. Returns `false` if the key has no value.
    async fn expire(&self, key: &Key, expires: Option<Timestamp>) -> Result<bool, StoreError>;
    /// Returns the number of keys that have a value.
    async fn count(&self) -> Result<usize, StoreError> {
        Ok(self.keys(&Prefix::all()).await?.len())
    }
    /// Returns the current entry of a key. If none is found, waits for a write of that key that is
    /// queued on this node.
    async fn lookup(&self, key: &Key) -> Result<Option<Entry>, StoreError>;
    /// Returns what `lookup` does if nothing has to be waited for; `None` if something has.
    fn lookup_at_once(&self, _key: &Key) -> Option<Option<Entry>> {
        None
    }
    /// Returns the SHA-1 of the value, from memory.
    async fn lookup_hash(&self, key: &Key) -> Result<Option<[u8; 20]>, StoreError>;
    /// Returns the entries below a prefix, in key order.
    async fn prefix(&self, prefix: &Prefix) -> Result<Vec<Entry>, StoreError>;
    async fn keys(&self, prefix: &Prefix) -> Result<Vec<Key>, StoreError>;
    /// Returns at most `limit` keys after `after`, in a stable order; an empty page is the end.
    async fn keys_after(
        &self,
        prefix: &Prefix,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Key>, StoreError> {
        let keys = self.keys(prefix).await?.into_iter();
        Ok(keys.filter(|key| after.is_none_or(|after| key > after)).take(limit).collect())
    }
    /// Watches a prefix from now on, or from the cursor `from`.
    async fn watch(&self, prefix: Prefix, from: Option<Cursor>) -> Result<Watch, StoreError>;
    /// Returns the commits below a prefix, newest first, at most `limit`.
    async fn history(&self, prefix: &Prefix, limit: usize)
    -> Result<Vec<HistoryEntry>, StoreError>;
    /// Returns the id of the whole history: equal on two nodes exactly when their histories are.
    async fn head(&self) -> Result<String, StoreError>;
    /// Drops the commits before this time that newer ones have replaced, and deletes.
    async fn squash(&self, before: Timestamp) -> Result<(), StoreError>;
    /// Returns the store that this one rests on, with values as they are kept there; `None` if it
    /// rests on none.
    fn beneath(&self) -> Option<&SharedStore> {
        None
    }
    /// Returns the replication between the nodes; `None` if something else keeps them together.
    fn replication(&self) -> Option<Replication> {
        None
    }
    /// Writes what is queued, marks the log as closed and frees the directory. Later writes fail.
    async fn close(&self) -> Result<(), StoreError>;
}

/// Returns the commit of an unconditional set, which always has one.
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

/// A finished, durable, content-addressed file that no key refers to yet.
#[derive(Clone, Debug)]
pub struct ValueFile {
    pub hash: ContentHash,
    pub sha1: [u8; 20],
    pub size: u64,
    pub path: PathBuf,
}
