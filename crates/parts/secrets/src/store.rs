//! The store as all parts of a node see it: secrets are sealed on their way in and opened on their
//! way out, everything else passes. The one beneath, whose values are as they lie on the disk, is
//! what replicates, what Redis clients see and what `cortex store` shows.

use std::sync::Arc;
use std::time::Duration;

use ::store::replication::Replication;
use ::store::reply::Reply;
use ::store::{
    Cursor, Entry, HistoryEntry, RECORD_BYTES_MAX, SharedStore, Store, StoreError, Submission,
    Submitted, Urgency, Value, ValueWriter, Watch, WatchEvent, lookup_record,
};
use async_trait::async_trait;
use bytes::Bytes;
use model::secrets::{SECRET_ROOTS, SealingKeyId, SealingRecord, sealed_for};
use model::{Key, Prefix, Timestamp, TypedKey};
use ring::rand::{SecureRandom, SystemRandom};
use secret_core::sealed::{self, OpenError, SALT_BYTES};
use tokio::time::timeout;

use crate::keys::Keys;

/// The time for which a reader or writer waits for a key that another node is asked for.
const KEY_WAIT: Duration = Duration::from_secs(5);

pub struct SealedStore {
    beneath: SharedStore,
    pub(crate) keys: Arc<Keys>,
}

/// Returns whether a value of this key may be a secret, without parsing it.
fn may_be_secret(key: &Key) -> bool {
    SECRET_ROOTS.contains(&key.as_str().split("::").next().unwrap_or_default())
}

/// Returns whether secrets may lie at or below a prefix.
fn may_hold_secrets(prefix: &Prefix) -> bool {
    prefix.tokens().next().is_none_or(|root| SECRET_ROOTS.contains(&root))
}

fn key_for(key: &Key) -> Option<Key> {
    if may_be_secret(key) { sealed_for(key) } else { None }
}

fn random_salt() -> Result<[u8; SALT_BYTES], StoreError> {
    let mut salt = [0; SALT_BYTES];
    SystemRandom::new()
        .fill(&mut salt)
        .map_err(|_| StoreError::Refused("the kernel gave no randomness: try again".into()))?;
    Ok(salt)
}

/// Reads a whole value, off the runtime's threads if it is a file.
async fn whole(value: Value) -> Result<Bytes, StoreError> {
    match value {
        Value::Inline(bytes) => Ok(bytes),
        file => ::store::values::blocking(move || file.read(RECORD_BYTES_MAX)).await,
    }
}

impl SealedStore {
    pub fn new(beneath: SharedStore, keys: Arc<Keys>) -> SealedStore {
        SealedStore { beneath, keys }
    }

    /// Waits until there is this key, for a while.
    async fn wait_for(&self, id: SealingKeyId) -> bool {
        let mut renewed = self.keys.renewed();
        let known = async {
            while self.keys.ring().get(&id).is_none() {
                if renewed.changed().await.is_err() {
                    return;
                }
            }
        };
        timeout(KEY_WAIT, known).await.is_ok()
    }

    fn missing(&self, id: SealingKeyId) -> StoreError {
        StoreError::Unavailable(format!(
            "secrets of this cluster are sealed with the key {id}, which this node does not have: \
             start another member that keeps the store and has it, or put back a copy of {} (see \
             `cortex secrets`)",
            self.keys.file().path().display()
        ))
    }

    /// Returns the value as it goes to the disk.
    async fn seal(&self, key: &Key, value: Bytes) -> Result<Bytes, StoreError> {
        let ring = self.keys.ring();
        if ring.open(key, &value).is_ok_and(|opened| opened.is_some()) {
            return Ok(value);
        }
        if let Some(sealed) = ring.seal(key, &value, random_salt()?) {
            return Ok(sealed.into());
        }
        // The cluster may have a key that has not come to this node yet.
        let record: Option<SealingRecord> =
            lookup_record(&*self.beneath, TypedKey::Sealing.key()).await.unwrap_or_default();
        let Some(id) = record.and_then(|record| record.seals) else { return Ok(value) };
        if !self.wait_for(id).await {
            return Err(self.missing(id));
        }
        let ring = self.keys.ring();
        let key_there = ring.get(&id).ok_or_else(|| self.missing(id))?;
        Ok(key_there.seal(key, &value, random_salt()?).into())
    }

    async fn sealed(&self, mut write: Submission) -> Result<Submission, StoreError> {
        let Some(key) = key_for(&write.key) else { return Ok(write) };
        write.change = match write.change {
            Submitted::Set { value, expires } => {
                Submitted::Set { value: self.seal(&key, value).await?, expires }
            }
            Submitted::File { file, expires } if file.size <= RECORD_BYTES_MAX => {
                let value = Value::File { hash: file.hash, size: file.size, path: file.path };
                // The file stays for an hour, like every one that no commit refers to: another key
                // may have the same content.
                let value = self.seal(&key, whole(value).await?).await?;
                Submitted::Set { value, expires }
            }
            Submitted::File { .. } => {
                return Err(StoreError::TooLarge { max: RECORD_BYTES_MAX });
            }
            Submitted::Delete => Submitted::Delete,
        };
        Ok(write)
    }

    fn refused(&self, key: &Key, error: OpenError) -> StoreError {
        match error {
            OpenError::NoKey(id) => self.missing(id),
            error => StoreError::Refused(format!(
                "the secret under '{key}' does not open: {error}; set it again"
            )),
        }
    }

    /// Opens the value of an entry; one that is still on other nodes stays so.
    async fn open(&self, mut entry: Entry) -> Result<Result<Entry, OpenError>, StoreError> {
        let Some(key) = key_for(&entry.key) else { return Ok(Ok(entry)) };
        if matches!(entry.value, Value::Away { .. }) || entry.value.size() > RECORD_BYTES_MAX {
            return Ok(Ok(entry));
        }
        let bytes = whole(entry.value.clone()).await?;
        Ok(match self.keys.ring().open(&key, &bytes) {
            Ok(Some(clear)) => {
                entry.value = Value::Inline(Bytes::from(clear.to_vec()));
                Ok(entry)
            }
            Ok(None) => Ok(entry),
            Err(error) => Err(error),
        })
    }

    /// Seals what is sealed with `from`, or clear, with the key that seals now. A value that
    /// changed meanwhile is left to the next look.
    pub(crate) async fn reseal(&self, from: Option<SealingKeyId>) -> anyhow::Result<usize> {
        let mut count = 0;
        for (entry, of) in secrets_of(&*self.beneath).await?.sealed {
            if of != from {
                continue;
            }
            let key = sealed_for(&entry.key).unwrap_or_else(|| entry.key.clone());
            let bytes = whole(entry.value).await?;
            let ring = self.keys.ring();
            let clear = match ring.open(&key, &bytes) {
                Ok(Some(clear)) => Bytes::from(clear.to_vec()),
                Ok(None) => bytes,
                Err(error) => {
                    // It would be in the way of every later step.
                    tracing::error!(key = %entry.key, %error, "secrets.does_not_open");
                    continue;
                }
            };
            let Some(value) = ring.seal(&key, &clear, random_salt()?) else { continue };
            let change = Submitted::Set { value: value.into(), expires: entry.expires };
            let only_over = Some(entry.version);
            let write = Submission { key: entry.key, change, only_over };
            count += usize::from(self.beneath.write(write).await?.is_some());
        }
        Ok(count)
    }
}

/// The secrets of a store as they lie there.
#[derive(Default)]
pub struct Found {
    /// The entries, and the key that sealed each; `None` for clear ones.
    pub sealed: Vec<(Entry, Option<SealingKeyId>)>,
    /// How many have not come to this node yet.
    pub unseen: usize,
}

/// Returns the secrets of a store and how they are sealed. One of an unknown format is reported and
/// left alone.
pub async fn secrets_of(beneath: &dyn Store) -> Result<Found, StoreError> {
    let mut found = Found::default();
    for root in SECRET_ROOTS {
        let prefix: Prefix = root.parse().expect("a well-formed prefix");
        for key in beneath.keys(&prefix).await? {
            if sealed_for(&key).is_none() {
                continue;
            }
            let Some(entry) = beneath.lookup(&key).await? else { continue };
            if matches!(entry.value, Value::Away { .. }) {
                found.unseen += 1;
                continue;
            }
            if entry.value.size() > RECORD_BYTES_MAX {
                continue;
            }
            let bytes = match whole(entry.value.clone()).await {
                Ok(bytes) => bytes,
                Err(StoreError::Away(_)) => {
                    found.unseen += 1;
                    continue;
                }
                Err(error) => return Err(error),
            };
            match sealed::key_of(&bytes) {
                Ok(of) => found.sealed.push((entry, of)),
                Err(error) => tracing::warn!(%key, %error, "secrets.unknown_format"),
            }
        }
    }
    Ok(found)
}

/// Returns the event with its value opened; what does not open stays as it is, and is read as a
/// record that cannot be read until the key is there.
fn seen(keys: &Keys, event: WatchEvent) -> WatchEvent {
    let WatchEvent::Changed { cursor, key, value: Some(value), expired } = event else {
        return event;
    };
    let opened = key_for(&key).and_then(|of| {
        let bytes = value.read(RECORD_BYTES_MAX).ok()?;
        keys.ring().open(&of, &bytes).ok()?
    });
    let value = match opened {
        Some(clear) => Value::Inline(Bytes::from(clear.to_vec())),
        None => value,
    };
    WatchEvent::Changed { cursor, key, value: Some(value), expired }
}

#[async_trait]
impl Store for SealedStore {
    async fn submit(
        &self,
        write: Submission,
        urgency: Urgency,
        reply: Reply,
    ) -> Result<(), StoreError> {
        let write = self.sealed(write).await?;
        self.beneath.submit(write, urgency, reply).await
    }

    fn submit_at_once(&self, write: Submission, reply: Reply) -> Option<(Submission, Reply)> {
        if may_be_secret(&write.key) {
            return Some((write, reply));
        }
        self.beneath.submit_at_once(write, reply)
    }

    fn hurry(&self) {
        self.beneath.hurry();
    }

    async fn writer(&self) -> Result<ValueWriter, StoreError> {
        self.beneath.writer().await
    }

    async fn expire(&self, key: &Key, expires: Option<Timestamp>) -> Result<bool, StoreError> {
        self.beneath.expire(key, expires).await
    }

    async fn count(&self) -> Result<usize, StoreError> {
        self.beneath.count().await
    }

    async fn lookup(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        let found = self.beneath.lookup(key).await?;
        let entry = match found {
            Some(entry) if may_be_secret(key) => entry,
            found => return Ok(found),
        };
        let mut opened = self.open(entry.clone()).await?;
        if let Err(OpenError::NoKey(id)) = opened
            && self.wait_for(id).await
        {
            opened = self.open(entry).await?;
        }
        opened.map(Some).map_err(|error| self.refused(key, error))
    }

    fn lookup_at_once(&self, key: &Key) -> Option<Option<Entry>> {
        if may_be_secret(key) { None } else { self.beneath.lookup_at_once(key) }
    }

    /// Returns the hash of the value as it lies there, the same on all nodes.
    async fn lookup_hash(&self, key: &Key) -> Result<Option<[u8; 20]>, StoreError> {
        self.beneath.lookup_hash(key).await
    }

    async fn prefix(&self, prefix: &Prefix) -> Result<Vec<Entry>, StoreError> {
        let mut entries = self.beneath.prefix(prefix).await?;
        if !may_hold_secrets(prefix) {
            return Ok(entries);
        }
        for entry in &mut entries {
            match self.open(entry.clone()).await? {
                Ok(opened) => *entry = opened,
                // One that does not open must not hide the others.
                Err(error) => tracing::warn!(key = %entry.key, %error, "secrets.does_not_open"),
            }
        }
        Ok(entries)
    }

    async fn keys(&self, prefix: &Prefix) -> Result<Vec<Key>, StoreError> {
        self.beneath.keys(prefix).await
    }

    async fn keys_after(
        &self,
        prefix: &Prefix,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Key>, StoreError> {
        self.beneath.keys_after(prefix, after, limit).await
    }

    async fn watch(&self, prefix: Prefix, from: Option<Cursor>) -> Result<Watch, StoreError> {
        let holds_secrets = may_hold_secrets(&prefix);
        let watch = self.beneath.watch(prefix, from).await?;
        if !holds_secrets {
            return Ok(watch);
        }
        let keys = self.keys.clone();
        let renewed = keys.renewed();
        Ok(watch.seen_through(move |event| seen(&keys, event), renewed))
    }

    async fn history(
        &self,
        prefix: &Prefix,
        limit: usize,
    ) -> Result<Vec<HistoryEntry>, StoreError> {
        self.beneath.history(prefix, limit).await
    }

    async fn head(&self) -> Result<String, StoreError> {
        self.beneath.head().await
    }

    async fn squash(&self, before: Timestamp) -> Result<(), StoreError> {
        self.beneath.squash(before).await
    }

    fn beneath(&self) -> Option<&SharedStore> {
        Some(&self.beneath)
    }

    fn replication(&self) -> Option<Replication> {
        self.beneath.replication()
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.beneath.close().await
    }
}

#[cfg(test)]
mod tests;
