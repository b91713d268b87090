//! The store of one node on its own disk: reads from memory and the log, writes through the
//! committer.

mod writing;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use model::{Key, NodeId, Prefix, Timestamp};
use sha1::{Digest, Sha1};
use store_core::sync::message::ClusterId;
use store_core::watch::matches;
use store_core::{Commit, CommitAction, Position, Replica, StoreMachine};
use tokio::sync::oneshot;

use self::writing::small;
use super::command::Command;
use super::commit_thread::{CommitThread, unhurried_max};
use super::committer::Committer;
use super::log::CommitLog;
use super::mailbox::{Sender, mailbox};
use super::options::Options;
use super::queue::WriteQueue;
use super::recovery::Recovered;
use super::replication::Replication;
use super::reply::Reply;
use super::shared::{FoundValue, Shared, key_of};
use super::values::{ValueFiles, ValueWriter, blocking};
use super::{
    CommitId, Cursor, Entry, HistoryEntry, Store, StoreError, Submission, Submitted, Urgency,
    Value, Version, Watch,
};
use os::lockfile::FileLock;
use runtime::driver::Clock;
use runtime::lock::locked;

/// The number of attempts to change an expiry; each failure means that another write of the same
/// key came between.
const EXPIRE_ATTEMPTS_MAX: usize = 16;

pub struct LocalStore {
    shared: Arc<Shared>,
    commands: Sender<Command>,
    commit_thread: Arc<CommitThread>,
    queue: Arc<WriteQueue>,
    clock: Clock,
}

impl LocalStore {
    #[allow(clippy::too_many_arguments, reason = "called in one place, with what opening found")]
    /// Starts the committer thread. `lock` is held until that ends.
    pub fn start(
        recovered: Recovered,
        log: Box<dyn CommitLog>,
        node: NodeId,
        cluster: ClusterId,
        clock: Clock,
        dir: PathBuf,
        options: Options,
        values: Arc<ValueFiles>,
        lock: FileLock,
    ) -> io::Result<LocalStore> {
        let past = recovered.past;
        tracing::info!(
            keys = past.replica.live(clock.now()),
            commits = past.replica.history().len(),
            unclean = past.unclean,
            "store.opened"
        );
        let now = clock.now();
        if past.clock.time() > now {
            tracing::warn!(
                ahead_ms = past.clock.time().since(now).as_millis() as u64,
                "store.clock_behind: the log holds later times than this machine's clock"
            );
        }
        let machine = StoreMachine::new(&node, now, past, cluster);
        let shared = Arc::new(Shared::new(machine, log.segments().clone(), values, node));
        let few_cores = options.few_cores;
        let (commands, received) = mailbox(unhurried_max(few_cores));
        let committer =
            Committer::new(shared.clone(), log, clock, dir, options, recovered.snapshot, lock);
        let commit_thread =
            Arc::new(CommitThread::new(shared.clone(), received, committer, clock, few_cores));
        let own = commit_thread.clone();
        std::thread::Builder::new().name("store-commit".into()).spawn(move || own.run())?;
        Ok(LocalStore { shared, commands, commit_thread, queue: WriteQueue::new(), clock })
    }

    fn set_note(&self, key: Key, value: Bytes) -> CommitId {
        CommitId(self.shared.set_note(self.clock.now(), key, value).cid())
    }

    fn remove_note(&self, key: Key) -> Option<CommitId> {
        Some(CommitId(self.shared.remove_note(self.clock.now(), key)?.cid()))
    }

    fn note(&self, key: &Key) -> Option<Entry> {
        let board = locked(&self.shared.board);
        let note = board.get(key)?;
        Some(Entry {
            key: key.clone(),
            value: Value::Inline(note.value.clone()),
            set_at: note.set_at(),
            node: self.shared.node.clone(),
            expires: None,
            version: Version(Position::start_of(note.stamp)),
        })
    }

    fn find_one(&self, key: &Key) -> Option<FoundValue> {
        let machine = self.shared.machine();
        let commit = machine.replica().get(key.as_str(), self.clock.now())?;
        self.shared.find(commit)
    }

    fn find_all(&self, choose: impl FnOnce(&Replica) -> Vec<&Commit>) -> Vec<FoundValue> {
        let machine = self.shared.machine();
        let commits = choose(machine.replica());
        commits.into_iter().filter_map(|commit| self.shared.find(commit)).collect()
    }

    /// Reads values that are not in memory away from the caller's runtime.
    async fn complete(&self, found: Vec<FoundValue>) -> Result<Vec<Entry>, StoreError> {
        let shared = self.shared.clone();
        if found.iter().all(|found| matches!(found, FoundValue::Here(_))) {
            return found.into_iter().map(|found| shared.complete(found)).collect();
        }
        blocking(move || found.into_iter().map(|found| shared.complete(found)).collect()).await
    }
}

#[async_trait]
impl Store for LocalStore {
    async fn submit(
        &self,
        write: Submission,
        urgency: Urgency,
        reply: Reply,
    ) -> Result<(), StoreError> {
        if write.key.is_local() {
            reply.say(self.submit_note(write));
            return Ok(());
        }
        let command = self.command(write, reply).await?;
        let queued = match urgency {
            Urgency::Now => self.commands.send(command),
            Urgency::WithOthers => self.commands.leave(command),
        };
        queued.map_err(|_| self.shared.stopped())
    }

    async fn writer(&self) -> Result<ValueWriter, StoreError> {
        self.shared.values.writer().await
    }

    fn submit_at_once(&self, write: Submission, reply: Reply) -> Option<(Submission, Reply)> {
        if write.key.is_local() {
            return Some((write, reply));
        }
        let Some(place) = self.queue.enter_at_once(&write.key) else {
            return Some((write, reply));
        };
        let Submission { key, change, only_over } = write;
        let (change, value) = match small(change) {
            Ok(prepared) => prepared,
            Err(change) => return Some((Submission { key, change, only_over }, reply)),
        };
        let only_over = only_over.map(|Version(at)| at);
        // A reply that is dropped unsaid reports that the store has stopped.
        self.commands.leave(Command::Write { key, change, only_over, value, reply, place }).ok();
        None
    }

    fn hurry(&self) {
        if !self.commit_thread.commit_here() {
            self.commands.hurry();
        }
    }

    async fn expire(&self, key: &Key, expires: Option<Timestamp>) -> Result<bool, StoreError> {
        for _ in 0..EXPIRE_ATTEMPTS_MAX {
            let Some(Entry { value, version, expires: before, .. }) = self.lookup(key).await?
            else {
                return Ok(false);
            };
            if before == expires {
                return Ok(true);
            }
            let change = match value {
                Value::Inline(value) => Submitted::Set { value, expires },
                // A commit can only be made of a file that is here.
                value => match value.here().await.map(|_| self.file_at(key, version))? {
                    Some(file) => Submitted::File { file, expires },
                    None => continue,
                },
            };
            let write = Submission { key: key.clone(), change, only_over: Some(version) };
            if self.write(write).await?.is_some() {
                return Ok(true);
            }
        }
        Err(StoreError::Refused(format!("'{key}' is being written all the time; try again later")))
    }

    async fn count(&self) -> Result<usize, StoreError> {
        let stored = self.shared.machine().replica().live(self.clock.now());
        Ok(stored + locked(&self.shared.board).count())
    }

    async fn lookup(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        if key.is_local() {
            return Ok(self.note(key));
        }
        let mut found = self.find_one(key);
        if found.is_none() && self.queue.may_hold(key) {
            let (reply, seen) = oneshot::channel();
            self.commands.join(Command::Await { reply }).ok();
            seen.await.ok();
            found = self.find_one(key);
        }
        match found {
            None => Ok(None),
            Some(found) => Ok(self.complete(vec![found]).await?.pop()),
        }
    }

    fn lookup_at_once(&self, key: &Key) -> Option<Option<Entry>> {
        if key.is_local() {
            return Some(self.note(key));
        }
        match self.find_one(key) {
            None if self.queue.may_hold(key) => None,
            None => Some(None),
            Some(FoundValue::Here(entry)) => Some(Some(entry)),
            Some(FoundValue::OnDisk(..)) => None,
        }
    }

    async fn lookup_hash(&self, key: &Key) -> Result<Option<[u8; 20]>, StoreError> {
        if key.is_local() {
            let board = locked(&self.shared.board);
            return Ok(board.get(key).map(|note| Sha1::digest(&note.value).into()));
        }
        let machine = self.shared.machine();
        let commit = machine.replica().get(key.as_str(), self.clock.now());
        Ok(commit.and_then(|commit| match commit.action {
            CommitAction::Set { sha1, .. } => Some(sha1),
            CommitAction::Delete => None,
        }))
    }

    async fn prefix(&self, prefix: &Prefix) -> Result<Vec<Entry>, StoreError> {
        let found = self.find_all(|replica| replica.prefix(prefix, self.clock.now()));
        let mut entries = self.complete(found).await?;
        let board = locked(&self.shared.board);
        let before = entries.len();
        entries.extend(board.prefix(prefix).map(|(key, note)| Entry {
            key: key.clone(),
            value: Value::Inline(note.value.clone()),
            set_at: note.set_at(),
            node: self.shared.node.clone(),
            expires: None,
            version: Version(Position::start_of(note.stamp)),
        }));
        if entries.len() > before && before > 0 {
            entries.sort_by(|a, b| a.key.cmp(&b.key));
        }
        Ok(entries)
    }

    async fn keys(&self, prefix: &Prefix) -> Result<Vec<Key>, StoreError> {
        let machine = self.shared.machine();
        let commits = machine.replica().prefix(prefix, self.clock.now());
        let mut keys: Vec<Key> = commits.iter().map(|commit| key_of(commit.key.clone())).collect();
        let board = locked(&self.shared.board);
        keys.extend(board.prefix(prefix).map(|(key, _)| key.clone()));
        keys.sort();
        Ok(keys)
    }

    /// Returns a page of keys, in which the notes of the board come last.
    async fn keys_after(
        &self,
        prefix: &Prefix,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Key>, StoreError> {
        let mut keys = Vec::new();
        if !after.is_some_and(Key::is_local) {
            let machine = self.shared.machine();
            let after = after.map_or("", Key::as_str);
            let page = machine.replica().page(prefix, after, limit, self.clock.now());
            keys.extend(page.into_iter().map(|commit| key_of(commit.key.clone())));
        }
        let after = after.filter(|key| key.is_local());
        let board = locked(&self.shared.board);
        let notes = board.prefix(prefix).map(|(key, _)| key);
        let notes = notes.filter(|key| after.is_none_or(|after| *key > after));
        keys.extend(notes.take(limit - keys.len()).cloned());
        Ok(keys)
    }

    async fn watch(&self, prefix: Prefix, from: Option<Cursor>) -> Result<Watch, StoreError> {
        let machine = self.shared.machine();
        let arrivals = machine.arrivals();
        let now = Cursor { incarnation: arrivals.incarnation(), arrival: arrivals.last() };
        let first = match from {
            None => Some(Vec::new()),
            Some(from) => self.shared.changes_since(&machine, self.clock.now(), from, &prefix),
        };
        let mut watchers = self.shared.watchers();
        if self.shared.has_stopped() {
            return Err(self.shared.stopped());
        }
        let full = || StoreError::Refused("too many watchers; end some of them first".into());
        watchers.add(prefix, now, first).ok_or_else(full)
    }

    async fn history(
        &self,
        prefix: &Prefix,
        limit: usize,
    ) -> Result<Vec<HistoryEntry>, StoreError> {
        let machine = self.shared.machine();
        let commits = machine.replica().history().iter().rev();
        let wanted = commits.filter(|commit| matches(prefix, &commit.key)).take(limit);
        let entry = |commit: &Commit| HistoryEntry {
            id: CommitId(commit.cid()),
            key: key_of(commit.key.clone()),
            set_at: commit.at.stamp.time(),
            node: commit.at.node.node(),
            deleted: commit.is_delete(),
            size: commit.size(),
        };
        Ok(wanted.map(entry).collect())
    }

    async fn head(&self) -> Result<String, StoreError> {
        Ok(self.shared.machine().replica().history().head().to_string())
    }

    async fn squash(&self, before: Timestamp) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        let command = Command::Squash { before, reply };
        self.commands.send(command).map_err(|_| self.shared.stopped())?;
        answer.await.map_err(|_| self.shared.stopped())
    }

    fn replication(&self) -> Option<Replication> {
        let (shared, commands) = (self.shared.clone(), self.commands.clone());
        Some(Replication::new(shared, commands, self.clock))
    }

    async fn close(&self) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Close { reply }).map_err(|_| self.shared.stopped())?;
        answer.await.map_err(|_| self.shared.stopped())?
    }
}
