//! A store in an etcd cluster, behind the same trait as Cortex's own: small values are in etcd,
//! large ones in files of this node that a record in etcd names, and notes under `local` in memory.
//! Every read asks the cluster.

mod feed;
mod hub;
mod keeping;
mod keyspace;
mod leases;
mod link;
mod reading;
mod record;
#[cfg(test)]
mod tests;
mod writes;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use etcd_client::{GetOptions, KeyValue};
use model::value::ContentHash;
use model::{Key, NodeId, Prefix, Timestamp};
use sha1::{Digest, Sha1};
use store_core::{Position, Stamp};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use self::feed::Feed;
use self::hub::{Hub, Subscription};
use self::keeping::Keeping;
use self::keyspace::Keyspace;
use self::link::{EtcdLink, LinkError};
use self::reading::{Projection, read_keys_after, read_range};
use self::record::StoredRecord;
use self::writes::{Job, Operation, WRITES_QUEUED_MAX, Write, Writes, closed};
use os::layout::DataDirectory;
use os::lockfile::FileLock;
use runtime::driver::Clock;
use store::board::Note;
use store::options::{OpenError, Options, lock, make_dir};
use store::reply::Reply;
use store::values::{ValueFiles, ValueWriter};
use store::watchers::QUEUE_MAX;
use store::{
    CommitId, Cursor, Entry, HistoryEntry, INLINE_VALUE_MAX, Store, StoreError, Submission,
    Submitted, Urgency, Value, ValueFile, Version, Watch, Written,
};

/// The beginning of `meta:identity`; another number is another layout of the keys.
const LAYOUT: &str = "cortex-store 1 ";
/// The number of attempts to change an expiry; each failure means that another write of the same
/// key came between.
const EXPIRE_ATTEMPTS_MAX: usize = 16;

/// The address of an etcd cluster, and the prefix of a store in it.
#[derive(Clone, Debug)]
pub struct Address {
    /// The members of the cluster, each as `HOST:PORT`.
    pub endpoints: Vec<String>,
    /// The prefix, without slashes around it.
    pub root: String,
}

pub struct EtcdStore {
    feed: Feed,
    values: Arc<ValueFiles>,
    jobs: mpsc::Sender<Job>,
    /// The background tasks, which end with the store.
    tasks: Vec<JoinHandle<()>>,
    /// The lock of the directory, held until the store is closed.
    lock: Mutex<Option<FileLock>>,
}

/// Connects, and checks that the cluster is there and holds what this build can read.
pub async fn open(
    address: &Address,
    layout: &DataDirectory,
    node: NodeId,
    clock: Clock,
    options: Options,
) -> Result<store::SharedStore, OpenError> {
    let at = layout.clone();
    let lock = blocking_open(move || {
        make_dir(&at.store())?;
        lock(&at.store())
    })
    .await?;
    let link = EtcdLink::connect(address).await.map_err(LinkError::into_open)?;
    let space = Keyspace::new(&address.root);
    let identity = identity(&link, &space).await?;
    let opened = link.put(&space.opened(&node), &clock.now().0.to_string()).await;
    let (cluster, opened) = opened.map_err(LinkError::into_open)?;
    let dir = layout.etcd_values(&identity);
    let values = blocking_open(move || {
        make_dir(&dir)?;
        ValueFiles::open(dir.clone(), options.value_age_min).map_err(OpenError::io(&dir))
    })
    .await?;
    let hub = Arc::new(Hub::new(cluster, opened, values.clone(), node));
    let feed = Feed { link, space, hub, clock };
    enter_ends(&feed).await.map_err(LinkError::into_open)?;
    tracing::info!(
        endpoints = feed.link.endpoints(),
        cluster = format!("{cluster:016x}"),
        identity,
        revision = opened,
        "etcd.opened"
    );
    let (jobs, queued) = mpsc::channel(WRITES_QUEUED_MAX);
    let keeping = Keeping { feed: feed.clone(), values: values.clone() };
    let tasks = vec![
        runtime::task::spawn(feed.clone().run()),
        runtime::task::spawn(Writes::new(feed.clone(), cluster, queued).run()),
        runtime::task::spawn(keeping.run()),
    ];
    Ok(Arc::new(EtcdStore { feed, values, jobs, tasks, lock: Mutex::new(Some(lock)) }))
}

async fn blocking_open<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, OpenError> + Send + 'static,
) -> Result<T, OpenError> {
    let worked = runtime::task::spawn_blocking(work).await;
    worked.unwrap_or_else(|_| Err(OpenError::Interrupted))
}

/// Returns the store's own name, which is given once: value files belong to it wherever the cluster
/// moves.
async fn identity(link: &EtcdLink, space: &Keyspace) -> Result<String, OpenError> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| OpenError::Backend(format!("no random bytes: {error}")))?;
    let fresh = format!("{LAYOUT}{:016x}", u64::from_be_bytes(bytes));
    let kept = link.create(&space.identity(), &fresh).await.map_err(LinkError::into_open)?;
    let text = String::from_utf8_lossy(&kept);
    let name = text.strip_prefix(LAYOUT);
    let is_name = |name: &&str| name.len() == 16 && name.bytes().all(|b| b.is_ascii_hexdigit());
    name.filter(is_name).map(str::to_string).ok_or_else(|| {
        let shown: String = text.escape_debug().take(80).collect();
        OpenError::Backend(format!(
            "'{}' in etcd says '{shown}', and this build reads '{LAYOUT}…': use the version of \
             Cortex that wrote it, or another prefix (--store etcd://{}/PREFIX)",
            space.identity(),
            link.endpoints()
        ))
    })
}

/// Enters the ends of values into the hub. Such values are few: only they have a lease.
async fn enter_ends(feed: &Feed) -> Result<(), LinkError> {
    let mut leased = Vec::new();
    let prefix = Prefix::all();
    let note = |key: Key, kv: &KeyValue| {
        if kv.lease() != leases::NO_LEASE {
            leased.push(key);
        }
    };
    read_range(feed, &prefix, Projection::Keys, note).await?;
    for key in leased {
        let read = feed.link.get(feed.space.name(&key).into(), GetOptions::new()).await?;
        let record = read.kvs().first().and_then(|kv| feed.record(&key, kv.value()));
        let end = record.and_then(|record| record.expires);
        feed.hub.enter_ends(end.map(|end| (key, end)));
    }
    Ok(())
}

impl EtcdStore {
    fn check_open(&self) -> Result<(), StoreError> {
        if self.feed.hub.is_closed() { Err(closed()) } else { Ok(()) }
    }

    fn submit_note(&self, write: Submission) -> Written {
        let Submission { key, change, only_over } = write;
        let version = |note: Note| Version(Position::start_of(note.stamp));
        if only_over.is_some() && only_over != self.feed.hub.note(&key).map(version) {
            return Ok(None);
        }
        let now = self.feed.clock.now();
        match change {
            Submitted::Set { expires: Some(_), .. } => Err(StoreError::Refused(
                "notes under 'local' are in memory only and have no expiry; delete it in time"
                    .into(),
            )),
            Submitted::Set { value, .. } if value.len() <= INLINE_VALUE_MAX => {
                let stamp = self.feed.hub.set_note(key.clone(), value, now);
                Ok(Some(note_id(&key, stamp)))
            }
            Submitted::Set { .. } | Submitted::File { .. } => {
                Err(StoreError::TooLarge { max: INLINE_VALUE_MAX as u64 })
            }
            Submitted::Delete => {
                let stamp = self.feed.hub.remove_note(&key, now);
                Ok(stamp.map(|stamp| note_id(&key, stamp)))
            }
        }
    }

    /// Brings a value to where its record will find it.
    async fn prepare(&self, change: Submitted) -> Result<Option<StoredRecord>, StoreError> {
        let (node, now) = (self.feed.hub.node().clone(), self.feed.clock.now());
        let (file, expires) = match change {
            Submitted::Delete => return Ok(None),
            Submitted::Set { value, expires } if value.len() <= INLINE_VALUE_MAX => {
                return Ok(Some(StoredRecord::of_bytes(node, now, expires, &value)));
            }
            Submitted::Set { value, expires } => (self.values.keep(value).await?, expires),
            Submitted::File { file, expires } => (file, expires),
        };
        let small = self.values.renew_or_read(&file).await?;
        Ok(Some(match small {
            Some(value) => StoredRecord::of_bytes(node, now, expires, &value),
            None => {
                let ValueFile { hash: ContentHash(hash), sha1, size, .. } = file;
                StoredRecord { set_at: now, expires, size, hash, sha1, node, inline: None }
            }
        }))
    }

    /// Returns the record of a key that has a value, and its revision.
    async fn record(&self, key: &Key) -> Result<Option<(StoredRecord, i64)>, StoreError> {
        self.check_open()?;
        let name = self.feed.space.name(key);
        let read = self.feed.link.get(name.into(), GetOptions::new()).await;
        let read = read.map_err(LinkError::into_store)?;
        let Some(kv) = read.kvs().first() else { return Ok(None) };
        let record = self.feed.record(key, kv.value());
        let now = self.feed.clock.now();
        let living = record.filter(|record| !record.has_expired(now));
        Ok(living.map(|record| (record, kv.mod_revision())))
    }

    fn entry(&self, key: Key, record: &StoredRecord, revision: i64) -> Entry {
        Entry {
            key,
            value: self.feed.hub.value(record),
            set_at: record.set_at,
            node: record.node.clone(),
            expires: record.expires,
            version: version(revision),
        }
    }

    fn note_entry(&self, key: Key, note: Note) -> Entry {
        Entry {
            key,
            set_at: note.set_at(),
            version: Version(Position::start_of(note.stamp)),
            value: Value::Inline(note.value),
            node: self.feed.hub.node().clone(),
            expires: None,
        }
    }
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn version(revision: i64) -> Version {
    Version(Position::start_of(Stamp(u64::try_from(revision).unwrap_or(0))))
}

fn revision(version: Version) -> i64 {
    i64::try_from(version.0.stamp.0).unwrap_or(i64::MAX)
}

fn note_id(key: &Key, stamp: Stamp) -> CommitId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(key.as_str().as_bytes()).update(&stamp.0.to_be_bytes());
    CommitId(*hasher.finalize().as_bytes())
}

#[async_trait]
impl Store for EtcdStore {
    async fn writer(&self) -> Result<ValueWriter, StoreError> {
        self.check_open()?;
        self.values.writer().await
    }

    /// Queues a write. All that is queued when a transaction begins goes with it, so none waits for
    /// others.
    async fn submit(&self, write: Submission, _: Urgency, reply: Reply) -> Result<(), StoreError> {
        self.check_open()?;
        if write.key.is_local() {
            reply.say(self.submit_note(write));
            return Ok(());
        }
        let Submission { key, change, only_over } = write;
        let record = self.prepare(change).await?;
        let only_over = only_over.map(revision);
        let operation = Operation { key, record, only_over };
        let job = Job::Write(Write { operation, reply });
        self.jobs.send(job).await.map_err(|_| closed())
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
                Value::File { hash, size, path } => match self.record(key).await? {
                    Some((StoredRecord { sha1, hash: now, .. }, _)) if now == hash.0 => {
                        let file = ValueFile { hash, sha1, size, path };
                        Submitted::File { file, expires }
                    }
                    _ => continue,
                },
                Value::Away { hash, .. } => return Err(StoreError::Away(hash.to_string())),
            };
            let write = Submission { key: key.clone(), change, only_over: Some(version) };
            if self.write(write).await?.is_some() {
                return Ok(true);
            }
        }
        Err(StoreError::Refused(format!("'{key}' is being written all the time; try again later")))
    }

    async fn count(&self) -> Result<usize, StoreError> {
        self.check_open()?;
        let mut count = 0;
        for (from, to) in self.feed.space.ranges(&Prefix::all()) {
            let options = GetOptions::new().with_range(to).with_count_only();
            let read = self.feed.link.get(from, options).await;
            let read = read.map_err(LinkError::into_store)?;
            count += usize::try_from(read.count()).unwrap_or(0);
        }
        let ended = self.feed.hub.ended(self.feed.clock.now());
        Ok(count.saturating_sub(ended) + self.feed.hub.count_notes())
    }

    async fn lookup(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        if key.is_local() {
            let note = self.feed.hub.note(key);
            return Ok(note.map(|note| self.note_entry(key.clone(), note)));
        }
        let Some((record, revision)) = self.record(key).await? else { return Ok(None) };
        let entry = self.entry(key.clone(), &record, revision);
        if let Value::File { path, size, .. } = &entry.value {
            std::fs::metadata(path).map_err(|source| StoreError::Io {
                what: format!(
                    "the {size} bytes of '{key}' are not on this node: {} wrote them, and etcd \
                     holds values up to {INLINE_VALUE_MAX} bytes alone; read it there, or set it \
                     here again",
                    entry.node
                ),
                source,
            })?;
        }
        Ok(Some(entry))
    }

    async fn lookup_hash(&self, key: &Key) -> Result<Option<[u8; 20]>, StoreError> {
        if key.is_local() {
            let note = self.feed.hub.note(key);
            return Ok(note.map(|note| Sha1::digest(&note.value).into()));
        }
        Ok(self.record(key).await?.map(|(record, _)| record.sha1))
    }

    async fn prefix(&self, prefix: &Prefix) -> Result<Vec<Entry>, StoreError> {
        self.check_open()?;
        let now = self.feed.clock.now();
        let mut entries = BTreeMap::new();
        read_range(&self.feed, prefix, Projection::Values, |key, kv| {
            match self.feed.record(&key, kv.value()) {
                Some(record) if !record.has_expired(now) => {
                    let entry = self.entry(key.clone(), &record, kv.mod_revision());
                    entries.insert(key, entry);
                }
                _ => drop(entries.remove(&key)),
            }
        })
        .await
        .map_err(LinkError::into_store)?;
        for (key, note) in self.feed.hub.notes(prefix) {
            entries.insert(key.clone(), self.note_entry(key, note));
        }
        Ok(entries.into_values().collect())
    }

    async fn keys(&self, prefix: &Prefix) -> Result<Vec<Key>, StoreError> {
        self.check_open()?;
        let now = self.feed.clock.now();
        let mut keys = std::collections::BTreeSet::new();
        read_range(&self.feed, prefix, Projection::Keys, |key, _| {
            if !self.feed.hub.has_ended(&key, now) {
                keys.insert(key);
            }
        })
        .await
        .map_err(LinkError::into_store)?;
        keys.extend(self.feed.hub.notes(prefix).into_iter().map(|(key, _)| key));
        Ok(keys.into_iter().collect())
    }

    async fn keys_after(
        &self,
        prefix: &Prefix,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Key>, StoreError> {
        self.check_open()?;
        let now = self.feed.clock.now();
        let is_wanted = |key: &Key| !self.feed.hub.has_ended(key, now);
        let keys = read_keys_after(&self.feed, prefix, after, limit, is_wanted).await;
        let mut keys = keys.map_err(LinkError::into_store)?;
        let notes = self.feed.hub.notes(prefix).into_iter().map(|(key, _)| key);
        keys.extend(notes.filter(|key| after.is_none_or(|after| key > after)));
        keys.sort();
        keys.truncate(limit);
        Ok(keys)
    }

    async fn watch(&self, prefix: Prefix, from: Option<Cursor>) -> Result<Watch, StoreError> {
        self.check_open()?;
        let full = || StoreError::Refused("too many watchers; end some of them first".into());
        let subscribed = self.feed.hub.subscribe(prefix.clone(), from).ok_or_else(full)?;
        match subscribed {
            Subscription::Ready(watch) => Ok(watch),
            Subscription::CatchUp { watch, local, from, until } => {
                let (sender, events) = mpsc::channel(QUEUE_MAX);
                let feed = self.feed.clone();
                let caught_up = feed.catch_up(prefix, watch, local, from, until, sender);
                self.feed.link.home().spawn(caught_up);
                Ok(Watch::new(events))
            }
        }
    }

    async fn history(&self, _: &Prefix, _: usize) -> Result<Vec<HistoryEntry>, StoreError> {
        Err(StoreError::Unsupported(
            "etcd keeps no list of who set what when: the newest change of a key is all it has \
             (`cortex store ls --json`); for a history use Cortex's own store (--store local)"
                .into(),
        ))
    }

    /// Returns the cluster and its revision: etcd itself orders every change, so equal heads are
    /// equal histories.
    async fn head(&self) -> Result<String, StoreError> {
        self.check_open()?;
        let options = GetOptions::new().with_count_only();
        let read = self.feed.link.get(self.feed.space.identity().into(), options).await;
        let read = read.map_err(LinkError::into_store)?;
        let (cluster, revision) =
            read.header().map_or((0, 0), |header| (header.cluster_id(), header.revision()));
        Ok(format!("etcd-{cluster:016x}-{revision}"))
    }

    async fn squash(&self, before: Timestamp) -> Result<(), StoreError> {
        self.check_open()?;
        self.feed.squash(before).await.map_err(LinkError::into_store)
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.check_open()?;
        let (sender, written) = oneshot::channel();
        self.jobs.send(Job::Close(sender)).await.map_err(|_| closed())?;
        written.await.ok();
        self.feed.hub.close();
        self.tasks.iter().for_each(JoinHandle::abort);
        runtime::lock::locked(&self.lock).take();
        Ok(())
    }
}
