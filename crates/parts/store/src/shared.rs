//! The state that the committer and the readers of one node's store share, and how a commit becomes
//! the entry that a reader gets. Owns no thread and decides nothing.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use bytes::Bytes;
use model::value::ContentHash;
use model::{Key, NodeId, Prefix, Timestamp};
use sha1::{Digest, Sha1};
use store_core::watch::Since;
use store_core::{Commit, CommitAction, Expiry, Location, StoreMachine};

use super::board::Board;
use super::bulk::ValueName;
use super::bulk::fetch_board::FetchBoard;
use super::cache::ValueCache;
use super::log::Segments;
use super::replication::Outlet;
use super::segment::{Segment, read_value};
use super::values::ValueFiles;
use super::watchers::Watchers;
use super::{Cursor, Entry, StoreError, Value, Version, WatchEvent};
use runtime::lock::locked;

/// The shared state. Locks are taken in the order of the fields.
pub struct Shared {
    machine: RwLock<StoreMachine>,
    pub segments: Segments,
    pub board: Mutex<Board>,
    cache: Mutex<ValueCache>,
    watchers: Mutex<Watchers>,
    pub values: Arc<ValueFiles>,
    pub fetch_board: Arc<FetchBoard>,
    stopped: OnceLock<String>,
    pub node: NodeId,
    /// The way to other nodes; unset while there is no transport.
    outlet: OnceLock<Arc<dyn Outlet>>,
}

/// A value in memory, or the place to read it from.
pub enum FoundValue {
    Here(Entry),
    OnDisk(Commit, Segment),
}

impl Shared {
    pub fn new(
        machine: StoreMachine,
        segments: Segments,
        values: Arc<ValueFiles>,
        node: NodeId,
    ) -> Shared {
        Shared {
            machine: RwLock::new(machine),
            segments,
            board: Mutex::default(),
            cache: Mutex::default(),
            watchers: Mutex::default(),
            fetch_board: FetchBoard::new(values.clone()),
            values,
            stopped: OnceLock::new(),
            node,
            outlet: OnceLock::new(),
        }
    }

    pub fn machine(&self) -> RwLockReadGuard<'_, StoreMachine> {
        self.machine.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn machine_mut(&self) -> std::sync::RwLockWriteGuard<'_, StoreMachine> {
        self.machine.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn cache(&self) -> MutexGuard<'_, ValueCache> {
        locked(&self.cache)
    }

    pub fn watchers(&self) -> MutexGuard<'_, Watchers> {
        locked(&self.watchers)
    }

    pub fn connect(&self, outlet: Arc<dyn Outlet>) {
        if self.outlet.set(outlet).is_err() {
            tracing::error!("store.connected_twice");
        }
    }

    pub fn outlet(&self) -> Option<&Arc<dyn Outlet>> {
        self.outlet.get()
    }

    /// Stops the store; only the first reason counts.
    pub fn stop(&self, reason: String) {
        let _ = self.stopped.set(reason);
    }

    pub fn has_stopped(&self) -> bool {
        self.stopped.get().is_some()
    }

    pub fn stopped(&self) -> StoreError {
        let reason = self.stopped.get().map_or("its writing thread ended", |reason| reason);
        StoreError::Stopped(reason.into())
    }

    /// Returns the value of a commit whose bytes are in memory or in a file of their own.
    pub fn value(&self, commit: &Commit, inline: Option<Bytes>) -> Option<Value> {
        match (commit.action, commit.location) {
            // A value that was found damaged is only on other nodes, like one that never came.
            (CommitAction::Set { hash, size, .. }, Location::File)
                if self.values.is_damaged(&ValueName { hash, size }) =>
            {
                Some(Value::Away {
                    hash: ContentHash(hash),
                    size,
                    fetch_board: self.fetch_board.clone(),
                })
            }
            (CommitAction::Set { hash, size, .. }, Location::File) => {
                Some(Value::File { hash: ContentHash(hash), size, path: self.values.path(&hash) })
            }
            (CommitAction::Set { hash, size, .. }, Location::Nowhere) if inline.is_none() => {
                Some(Value::Away {
                    hash: ContentHash(hash),
                    size,
                    fetch_board: self.fetch_board.clone(),
                })
            }
            (CommitAction::Set { .. }, _) => inline.map(Value::Inline),
            (CommitAction::Delete, _) => None,
        }
    }

    pub fn file_of(&self, commit: &Commit) -> Option<Segment> {
        let Location::Log { segment, .. } = commit.location else { return None };
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        segments.get(&segment).cloned()
    }

    /// Reads the value of a commit in the log.
    pub fn read(&self, commit: &Commit, file: &Segment) -> Result<Bytes, StoreError> {
        let value = read_value(file, commit).map_err(|source| StoreError::Io {
            what: format!("the value of '{}' cannot be read: {source}", commit.key),
            source,
        })?;
        self.cache().put(commit.location, &value);
        Ok(value)
    }

    /// Finds the value of a commit. Called under the machine's lock, so that no segment is removed
    /// before its file is open.
    pub fn find(&self, commit: &Commit) -> Option<FoundValue> {
        let cached = self.cache().get(commit.location);
        match self.value(commit, cached) {
            Some(value) => Some(FoundValue::Here(entry(commit, value))),
            None => Some(FoundValue::OnDisk(commit.clone(), self.file_of(commit)?)),
        }
    }

    pub fn complete(&self, found: FoundValue) -> Result<Entry, StoreError> {
        match found {
            FoundValue::Here(entry) => Ok(entry),
            FoundValue::OnDisk(commit, file) => {
                let value = Value::Inline(self.read(&commit, &file)?);
                Ok(entry(&commit, value))
            }
        }
    }

    /// Announces a change. The value is made only if somebody watches the key.
    pub fn announce(
        &self,
        cursor: Cursor,
        key: &Arc<str>,
        expired: bool,
        value: impl Fn() -> Option<Value>,
    ) {
        self.watchers().notify(key, cursor, || WatchEvent::Changed {
            cursor,
            key: key_of(key.clone()),
            value: value(),
            expired,
        });
    }

    /// Sets a note, which only this node knows, in memory.
    pub fn set_note(&self, now: Timestamp, key: Key, value: Bytes) -> Commit {
        let mut machine = self.machine_mut();
        let (at, arrival) = machine.stamp_local(now, &key);
        let (hash, sha1) = (*blake3::hash(&value).as_bytes(), Sha1::digest(&value).into());
        let action = CommitAction::Set { hash, sha1, size: value.len() as u64, expires: None };
        let text = key.as_str().into();
        let commit = Commit { at, key: text, action, location: Location::Nowhere };
        let gone = locked(&self.board).set(key.clone(), value.clone(), at.stamp);
        self.announce_note(&machine, arrival, &key, Some(Value::Inline(value)));
        for key in gone {
            let (_, arrival) = machine.stamp_local(now, &key);
            self.announce_note(&machine, arrival, &key, None);
        }
        commit
    }

    /// Removes a note; `None` if there is none.
    pub fn remove_note(&self, now: Timestamp, key: Key) -> Option<Commit> {
        let mut machine = self.machine_mut();
        if !locked(&self.board).remove(&key) {
            return None;
        }
        let (at, arrival) = machine.stamp_local(now, &key);
        let text = key.as_str().into();
        self.announce_note(&machine, arrival, &key, None);
        Some(Commit { at, key: text, action: CommitAction::Delete, location: Location::Nowhere })
    }

    fn announce_note(&self, machine: &StoreMachine, arrival: u64, key: &Key, value: Option<Value>) {
        let cursor = Cursor { incarnation: machine.arrivals().incarnation(), arrival };
        self.announce(cursor, &key.clone().into(), false, || value.clone());
    }

    /// Returns the changes that a watcher must get first, to go on from its cursor; `None` if they
    /// are not known.
    pub fn changes_since(
        &self,
        machine: &StoreMachine,
        now: Timestamp,
        from: Cursor,
        prefix: &Prefix,
    ) -> Option<Vec<WatchEvent>> {
        let since = machine.arrivals().since(from.incarnation, from.arrival, prefix);
        let Since::Changed(keys) = since else { return None };
        let board = locked(&self.board);
        let mut events = Vec::new();
        for (arrival, text) in keys {
            let key = key_of(text.clone());
            let value = if key.is_local() {
                board.get(&key).map(|note| Value::Inline(note.value.clone()))
            } else {
                let commit = machine.replica().get(&text, now);
                let found = commit.and_then(|commit| self.find(commit));
                found.map(|found| self.complete(found)).transpose().ok()?.map(|entry| entry.value)
            };
            let cursor = Cursor { incarnation: from.incarnation, arrival };
            events.push(WatchEvent::Changed { cursor, key, value, expired: false });
        }
        Some(events)
    }
}

fn entry(commit: &Commit, value: Value) -> Entry {
    Entry {
        key: key_of(commit.key.clone()),
        value,
        set_at: commit.at.stamp.time(),
        node: commit.at.node.node(),
        expires: commit.expires().map(Expiry::time),
        version: Version(commit.at),
    }
}

pub fn key_of(text: Arc<str>) -> Key {
    Key::try_from(text).expect("commits hold well-formed keys")
}
