//! The store of a node that keeps none: another node's, over mutual TLS. Which one, `choice`
//! decides; what was asked and not answered goes on with the next one, watchers read again there.
//! Notes stay on this node. Must not know who asks; opened where a node without the role `store`
//! starts.

mod calls;
mod choice;
mod hub;
mod keepers;
mod ledger;
pub mod serve;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, ensure};
use async_trait::async_trait;
use bytes::Bytes;
use model::{Key, NodeId, Prefix, Timestamp};
use sha1::{Digest, Sha1};
use store::sync::message::ClusterId;
use store::{Position, Stamp};
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use self::calls::Calls;
use self::choice::{Choice, Event};
use self::hub::Hub;
use self::keepers::Keepers;
use self::ledger::{Ledger, closed};
use self::wire::{At, FromStore, Part, Request, Shape, ToStore, Told};
use super::board::Note;
use super::bulk::desk::Desk;
use super::bulk::schedule::Wants;
use super::bulk::{Claim, ValueName};
use super::open::{self, OpenError, Options};
use super::peers::identity::{Authority, Membership, from_hex, node_key, random};
use super::peers::roster;
use super::peers::tls::ClusterTls;
use super::values::{ValueFiles, ValueWriter};
use super::{
    CommitId, Cursor, Entry, HistoryEntry, INLINE_VALUE_MAX, Reply, SharedStore, Store, StoreError,
    Submission, Submitted, Value, ValueFile, Version, Watch, Written,
};
use crate::driver::{Clock, drive};
use crate::layout::DataDirectory;
use crate::lockfile::FileLock;
use crate::node::parts::supervise;

/// Calls, losses and what is heard of one connection.
const EVENTS_MAX: usize = 1024;
/// Who has waited too long hears so within this.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// Fetched values and those that were sent on are copies: they go when nobody used them lately.
const COLLECT_INTERVAL: Duration = Duration::from_secs(600);
/// A roster that could not be read is read again.
const ROSTER_PAUSE: Duration = Duration::from_secs(1);
/// An upload that was cut begins anew with the next node.
const PUT_ATTEMPTS_MAX: usize = 5;
const PUT_PAUSE: Duration = Duration::from_millis(200);
/// Without progress an upload is given up.
const PUT_STALL_MAX: Duration = Duration::from_secs(20);

/// What the transport needs of a node that keeps no store.
#[derive(Clone)]
pub struct Guest {
    pub cluster: ClusterId,
    pub large: Arc<Desk>,
    ledger: Arc<Ledger>,
}

impl Guest {
    /// Whose store is used now.
    pub fn in_use(&self) -> Option<NodeId> {
        self.ledger.in_use()
    }
}

/// Nothing is kept, so nothing is missing: what is read is fetched.
pub struct Nothing;

impl Wants for Nothing {
    fn missing(&self, _max: usize, _skip: &dyn Fn(&ValueName) -> bool) -> Vec<ValueName> {
        Vec::new()
    }

    fn is_missing(&self, _value: &ValueName) -> bool {
        false
    }

    fn claims(&self, _value: &ValueName) -> Vec<Claim> {
        Vec::new()
    }

    fn arrived(&self, _values: &[ValueName]) {}
}

pub struct Shared {
    node: NodeId,
    clock: Clock,
    cluster: ClusterId,
    tls: ClusterTls,
    keepers: Keepers,
    ledger: Arc<Ledger>,
    hub: Hub,
    values: Arc<ValueFiles>,
    large: Arc<Desk>,
    /// Where the feed of changes is, and of whose store.
    fed: Mutex<(bool, Option<At>)>,
    closing: watch::Sender<bool>,
    /// Held until the store is closed.
    lock: Mutex<Option<FileLock>>,
}

/// Nobody needs to be reached for this: what is asked waits for a while.
pub async fn open(
    layout: &DataDirectory,
    node: NodeId,
    clock: Clock,
    options: Options,
) -> Result<SharedStore, OpenError> {
    let layout = layout.clone();
    let made = tokio::task::spawn_blocking(move || prepare(&layout, node, clock, options)).await;
    let shared = made.unwrap_or_else(|_| Err(OpenError::Interrupted))?;
    let (running, keeping) = (shared.clone(), shared.clone());
    shared.spawn(supervise("remote", move || running.clone().run()));
    shared.spawn(async move { keeping.collect().await });
    Ok(shared)
}

fn prepare(
    layout: &DataDirectory,
    node: NodeId,
    clock: Clock,
    options: Options,
) -> Result<Arc<Shared>, OpenError> {
    open::make_dir(&layout.store())?;
    let lock = open::lock(&layout.store())?;
    open::make_dir(&layout.values())?;
    let values = ValueFiles::open(layout.values(), options.value_age_min)
        .map_err(OpenError::io(&layout.values()))?;
    let secrets = || -> anyhow::Result<(ClusterId, ClusterTls, Keepers, u64)> {
        let dir = layout.cluster();
        let membership = Membership::load(&dir)?.context("this node belongs to no cluster")?;
        ensure!(membership.guest, "this node joined its cluster as one that keeps the store");
        let authority = Authority::load_or_make(&dir, membership.id())?;
        let tls = ClusterTls::new(&authority, membership.id(), &node, &node_key(&dir)?)?;
        let keepers = Keepers::load(dir.join("keepers.json"), membership.seeds.clone())?;
        Ok((membership.id(), tls, keepers, u64::from_le_bytes(random()?)))
    };
    let failed = |error: anyhow::Error| OpenError::Backend(format!("{error:#}"));
    let (cluster, tls, keepers, incarnation) = secrets().map_err(failed)?;
    Ok(Arc::new(Shared {
        ledger: Arc::new(Ledger::new(node.clone())),
        node,
        clock,
        cluster,
        tls,
        keepers,
        hub: Hub::new(incarnation),
        large: Desk::new(values.clone()),
        values,
        fed: Mutex::default(),
        closing: watch::channel(false).0,
        lock: Mutex::new(Some(lock)),
    }))
}

impl Shared {
    /// Until it ends, or the store is closed.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let mut closing = self.closing.subscribe();
        let task = tokio::spawn(async move {
            tokio::select! {
                () = work => {}
                _ = closing.wait_for(|closing| *closing) => {}
            }
        });
        task.abort_handle()
    }

    async fn run(self: Arc<Self>) -> anyhow::Result<()> {
        let (events, mut inbox) = mpsc::channel(EVENTS_MAX);
        let mut machine = Choice::new(self.node.clone());
        let mut calls = Calls::new(self.clone(), events.clone());
        events.send(Event::Known(self.keepers.ids())).await?;
        tokio::select! {
            ended = drive(&mut machine, &mut calls, &mut inbox, self.clock) => ended,
            ended = self.follow_roster(&events) => ended,
            ended = self.watch_over(&events) => ended,
        }
    }

    /// Keeps the list of nodes that keep the store.
    async fn follow_roster(&self, events: &mpsc::Sender<Event>) -> anyhow::Result<()> {
        let mut members = self.watch(roster::prefix(), None).await?;
        let mut moved = self.watch(roster::addresses_prefix(), None).await?;
        loop {
            let keepers = match roster::read(self).await {
                Ok(keepers) => keepers,
                Err(error) => {
                    tracing::debug!(error = format!("{error:#}"), "remote.roster_unread");
                    tokio::time::sleep(ROSTER_PAUSE).await;
                    continue;
                }
            };
            if self.keepers.replace(keepers) {
                events.send(Event::Known(self.keepers.ids())).await?;
            }
            tokio::select! {
                event = members.next() => event.map(drop).context("the store was closed")?,
                known = roster::next_address(&mut moved) => ensure!(known, "the store was closed"),
            }
            while members.events.try_recv().is_ok() {}
        }
    }

    async fn watch_over(&self, events: &mpsc::Sender<Event>) -> anyhow::Result<()> {
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            if let Some(node) = self.ledger.look() {
                tracing::warn!(%node, "remote.stalls: it does not write");
                events.send(Event::Lost(node)).await?;
            }
        }
    }

    async fn collect(&self) {
        loop {
            tokio::time::sleep(COLLECT_INTERVAL).await;
            let values = self.values.clone();
            let removed = tokio::task::spawn_blocking(move || values.collect(|_| false)).await;
            if let Ok(Err(error)) = removed {
                tracing::warn!(%error, "remote.collect_failed");
            }
        }
    }

    /// Everything goes over this connection now.
    fn begin(&self, node: NodeId, out: mpsc::UnboundedSender<Bytes>) {
        let mut fed = self.fed.lock().unwrap_or_else(PoisonError::into_inner);
        let (was_fed, from) = *fed;
        fed.0 = true;
        self.ledger.connect(node, out, from);
        if was_fed && from.is_none() {
            // Where it was before is not known, so neither is what it missed.
            self.hub.resync();
        }
    }

    fn resync(&self, at: At) {
        self.fed.lock().unwrap_or_else(PoisonError::into_inner).1 = Some(at);
        self.hub.resync();
    }

    fn changed(&self, at: At, key: &Key, value: Option<Value>, expired: bool) {
        self.fed.lock().unwrap_or_else(PoisonError::into_inner).1 = Some(at);
        self.hub.changed(key, value, expired);
    }

    /// `bytes` begins with the value, if it is at hand.
    fn value(&self, shape: Shape, bytes: &mut Bytes) -> anyhow::Result<Value> {
        match shape {
            Shape::Inline(length) => {
                ensure!(length <= bytes.len(), "a value is longer than what came of it");
                Ok(Value::Inline(bytes.split_to(length)))
            }
            Shape::Large { hash, size } => {
                let held = self.values.holds(&ValueName { hash: hash.0, size });
                Ok(match held {
                    Ok(true) => Value::File { hash, size, path: self.values.path(&hash.0) },
                    _ => Value::Away { hash, size, desk: self.large.clone() },
                })
            }
        }
    }

    async fn ask(&self, what: Request) -> Result<Vec<(Part, Bytes)>, StoreError> {
        let answer = self.ledger.ask(what, Bytes::new())?;
        checked(answer.await.unwrap_or_else(|_| Err(closed())))
    }

    async fn ask_one(&self, what: Request) -> Result<Part, StoreError> {
        self.ask(what).await?.pop().map(|(part, _)| part).ok_or_else(strange)
    }

    async fn entries(&self, what: Request) -> Result<Vec<Entry>, StoreError> {
        let mut entries = Vec::new();
        for (part, mut bytes) in self.ask(what).await? {
            let Part::Entries(told) = part else { return Err(strange()) };
            for Told { key, value, set_at, node, expires, version } in told {
                let value = self.value(value, &mut bytes).map_err(|_| strange())?;
                entries.push(Entry { key, value, set_at, node, expires, version: version.into() });
            }
        }
        Ok(entries)
    }

    async fn keys_of(&self, what: Request) -> Result<Vec<Key>, StoreError> {
        let mut keys = Vec::new();
        for (part, _) in self.ask(what).await? {
            let Part::Keys(some) = part else { return Err(strange()) };
            keys.extend(some);
        }
        Ok(keys)
    }

    fn note_entry(&self, key: Key, note: Note) -> Entry {
        Entry {
            key,
            set_at: note.set_at(),
            version: Version(Position::start_of(note.stamp)),
            value: Value::Inline(note.value),
            node: self.node.clone(),
            expires: None,
        }
    }

    fn submit_note(&self, write: Submission) -> Written {
        let Submission { key, change, only_over } = write;
        let version = |note: Note| Version(Position::start_of(note.stamp));
        if only_over.is_some() && only_over != self.hub.note(&key).map(version) {
            return Ok(None);
        }
        let now = self.clock.now();
        match change {
            Submitted::Set { expires: Some(_), .. } => Err(StoreError::Refused(
                "notes under 'local' are in memory only and have no expiry; delete it in time"
                    .into(),
            )),
            Submitted::Set { value, .. } if value.len() <= INLINE_VALUE_MAX => {
                Ok(Some(note_id(&key, self.hub.set_note(key.clone(), value, now))))
            }
            Submitted::Set { .. } | Submitted::File { .. } => {
                Err(StoreError::TooLarge { max: INLINE_VALUE_MAX as u64 })
            }
            Submitted::Delete => {
                let stamp = self.hub.remove_note(&key, now);
                Ok(stamp.map(|stamp| note_id(&key, stamp)))
            }
        }
    }

    /// Sends a value that is larger than a request may be.
    async fn put(
        &self,
        key: Key,
        file: &ValueFile,
        expires: Option<Timestamp>,
        only_over: Option<Version>,
    ) -> Written {
        let mut failed = StoreError::Unavailable("no node that keeps the store is known".into());
        for _ in 0..PUT_ATTEMPTS_MAX {
            if let Some(node) = self.ledger.in_use() {
                match self.put_to(&node, &key, file, expires, only_over).await {
                    Ok(written) => return written,
                    Err(error) => {
                        let what = format!(
                            "the value of '{key}' could not be sent to node {node}: {error:#}"
                        );
                        failed = StoreError::Unavailable(what);
                    }
                }
                if only_over.is_some() {
                    return Err(failed);
                }
            }
            tokio::time::sleep(PUT_PAUSE).await;
        }
        Err(failed)
    }

    async fn put_to(
        &self,
        node: &NodeId,
        key: &Key,
        file: &ValueFile,
        expires: Option<Timestamp>,
        only_over: Option<Version>,
    ) -> anyhow::Result<Written> {
        let mut stream = calls::connect(self, node).await?;
        let only_over = only_over.map(Into::into);
        let put = ToStore::Put { key: key.clone(), size: file.size, expires, only_over };
        stream.write_all(&wire::frame(&put, b"")).await?;
        let value = ValueName { hash: file.hash.0, size: file.size };
        let opened = std::fs::File::open(&file.path).context("the uploaded value is gone")?;
        let reader = super::bulk::reader::ValueReader::of_file(opened, value, file.path.clone());
        let mut pieces = std::pin::pin!(reader.into_stream());
        while let Some(piece) = futures_util::StreamExt::next(&mut pieces).await {
            let piece = piece?;
            tokio::time::timeout(PUT_STALL_MAX, stream.write_all(&piece)).await??;
        }
        stream.flush().await?;
        let answer = tokio::time::timeout(PUT_STALL_MAX, wire::read::<FromStore>(&mut stream));
        match answer.await?? {
            (FromStore::Answer { part, .. }, _) => Ok(written(part)),
            _ => Ok(Err(strange())),
        }
    }
}

/// An answer that fails says so in one of its parts.
fn checked(answer: ledger::Answer) -> ledger::Answer {
    let failed = answer?.into_iter().map(|(part, bytes)| match part {
        Part::Failed(failure) => Err(failure.into()),
        part => Ok((part, bytes)),
    });
    failed.collect()
}

fn written(part: Part) -> Written {
    match part {
        Part::Written(None) => Ok(None),
        Part::Written(Some(id)) => wire::id_of(&id).map(Some).ok_or_else(strange),
        Part::Failed(failure) => Err(failure.into()),
        _ => Err(strange()),
    }
}

fn strange() -> StoreError {
    StoreError::Unavailable(
        "the node that keeps the store answers what was not asked: start the same version of \
         Cortex on both"
            .into(),
    )
}

fn note_id(key: &Key, stamp: Stamp) -> CommitId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(key.as_str().as_bytes()).update(&stamp.0.to_be_bytes());
    CommitId(*hasher.finalize().as_bytes())
}

#[async_trait]
impl Store for Shared {
    async fn set(&self, key: Key, value: Bytes) -> Result<CommitId, StoreError> {
        let id = self.write(Submission::set(key, value)).await?;
        id.ok_or_else(strange)
    }

    async fn set_file(&self, key: Key, file: ValueFile) -> Result<CommitId, StoreError> {
        let change = Submitted::File { file, expires: None };
        let id = self.write(Submission { key, change, only_over: None }).await?;
        id.ok_or_else(strange)
    }

    async fn writer(&self) -> Result<ValueWriter, StoreError> {
        self.values.writer().await
    }

    async fn delete(&self, key: Key) -> Result<Option<CommitId>, StoreError> {
        self.write(Submission::delete(key)).await
    }

    async fn submit(&self, write: Submission, reply: Reply) -> Result<(), StoreError> {
        if self.hub.is_closed() {
            return Err(closed());
        }
        if write.key.is_local() {
            reply.say(self.submit_note(write));
            return Ok(());
        }
        let Submission { key, change, only_over } = write;
        let place = only_over.map(Into::into);
        let (file, expires) = match change {
            Submitted::Delete => {
                let answer =
                    self.ledger.ask(Request::Delete { key, only_over: place }, Bytes::new())?;
                return Ok(self.hand_on(answer, reply));
            }
            Submitted::Set { value, expires } if value.len() <= INLINE_VALUE_MAX => {
                let set = Request::Set { key, expires, only_over: place };
                return Ok(self.hand_on(self.ledger.ask(set, value)?, reply));
            }
            Submitted::Set { value, expires } => (self.values.keep(value).await?, expires),
            Submitted::File { file, expires } => (file, expires),
        };
        if let Some(value) = self.values.renew_or_read(&file).await? {
            let set = Request::Set { key, expires, only_over: place };
            return Ok(self.hand_on(self.ledger.ask(set, value)?, reply));
        }
        // Large values are written one after the other by whoever waits for them.
        reply.say(self.put(key, &file, expires, only_over).await);
        Ok(())
    }

    async fn expire(&self, key: &Key, expires: Option<Timestamp>) -> Result<bool, StoreError> {
        if key.is_local() {
            return Err(StoreError::Refused("notes under 'local' have no expiry".into()));
        }
        match self.ask_one(Request::Expire { key: key.clone(), expires }).await? {
            Part::Changed(changed) => Ok(changed),
            _ => Err(strange()),
        }
    }

    async fn count(&self) -> Result<usize, StoreError> {
        match self.ask_one(Request::Count).await? {
            Part::Count(count) => Ok(usize::try_from(count)
                .unwrap_or(usize::MAX)
                .saturating_add(self.hub.count_notes())),
            _ => Err(strange()),
        }
    }

    async fn lookup(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        if key.is_local() {
            return Ok(self.hub.note(key).map(|note| self.note_entry(key.clone(), note)));
        }
        Ok(self.entries(Request::Lookup { key: key.clone() }).await?.pop())
    }

    async fn lookup_hash(&self, key: &Key) -> Result<Option<[u8; 20]>, StoreError> {
        if key.is_local() {
            return Ok(self.hub.note(key).map(|note| Sha1::digest(&note.value).into()));
        }
        match self.ask_one(Request::Hash { key: key.clone() }).await? {
            Part::Hash(None) => Ok(None),
            Part::Hash(Some(hash)) => from_hex(&hash).map(Some).ok_or_else(strange),
            _ => Err(strange()),
        }
    }

    async fn prefix(&self, prefix: &Prefix) -> Result<Vec<Entry>, StoreError> {
        let mut entries = Vec::new();
        if !is_local(prefix) {
            entries = self.entries(Request::Prefix { prefix: prefix.as_str().into() }).await?;
        }
        let notes = self.hub.notes(prefix);
        if !notes.is_empty() {
            entries.extend(notes.into_iter().map(|(key, note)| self.note_entry(key, note)));
            entries.sort_by(|a, b| a.key.cmp(&b.key));
        }
        Ok(entries)
    }

    async fn keys(&self, prefix: &Prefix) -> Result<Vec<Key>, StoreError> {
        let mut keys = Vec::new();
        if !is_local(prefix) {
            keys = self.keys_of(Request::Keys { prefix: prefix.as_str().into() }).await?;
        }
        let notes = self.hub.notes(prefix);
        if !notes.is_empty() {
            keys.extend(notes.into_iter().map(|(key, _)| key));
            keys.sort();
        }
        Ok(keys)
    }

    async fn keys_after(
        &self,
        prefix: &Prefix,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Key>, StoreError> {
        let mut keys = Vec::new();
        if !is_local(prefix) && !after.is_some_and(Key::is_local) {
            let (prefix, after) = (prefix.as_str().into(), after.cloned());
            keys = self.keys_of(Request::KeysAfter { prefix, after, limit }).await?;
        }
        // The order of that node's is kept; notes come after all of them.
        if keys.is_empty() {
            let is_note = |key: &&Key| key.is_local();
            let last = after.filter(is_note);
            let notes = self.hub.notes(prefix).into_iter().map(|(key, _)| key);
            keys = notes.filter(|key| last.is_none_or(|last| key > last)).take(limit).collect();
        }
        Ok(keys)
    }

    async fn watch(&self, prefix: Prefix, from: Option<Cursor>) -> Result<Watch, StoreError> {
        if self.hub.is_closed() {
            return Err(closed());
        }
        let full = || StoreError::Refused("too many watchers; end some of them first".into());
        self.hub.subscribe(prefix, from).ok_or_else(full)
    }

    async fn history(
        &self,
        prefix: &Prefix,
        limit: usize,
    ) -> Result<Vec<HistoryEntry>, StoreError> {
        let what = Request::History { prefix: prefix.as_str().into(), limit };
        let mut history = Vec::new();
        for (part, _) in self.ask(what).await? {
            let Part::History(some) = part else { return Err(strange()) };
            for past in some {
                history.push(past.entry().ok_or_else(strange)?);
            }
        }
        Ok(history)
    }

    async fn head(&self) -> Result<String, StoreError> {
        match self.ask_one(Request::Head).await? {
            Part::Text(head) => Ok(head),
            _ => Err(strange()),
        }
    }

    async fn squash(&self, before: Timestamp) -> Result<(), StoreError> {
        self.ask_one(Request::Squash { before }).await.map(drop)
    }

    fn guest(&self) -> Option<Guest> {
        let (large, ledger) = (self.large.clone(), self.ledger.clone());
        Some(Guest { cluster: self.cluster, large, ledger })
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.ledger.close();
        self.hub.close();
        self.large.stop();
        self.closing.send_replace(true);
        self.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(())
    }
}

impl Shared {
    /// The reply hears of the answer, in whatever order they come.
    fn hand_on(&self, answer: tokio::sync::oneshot::Receiver<ledger::Answer>, reply: Reply) {
        tokio::spawn(async move {
            let answer = checked(answer.await.unwrap_or_else(|_| Err(closed())));
            let part = answer.and_then(|mut parts| parts.pop().ok_or_else(strange));
            reply.say(part.and_then(|(part, _)| written(part)));
        });
    }
}

fn is_local(prefix: &Prefix) -> bool {
    prefix.tokens().next() == Some(Key::LOCAL)
}
