//! The trait `Store` over requests to another node, with this node's own notes added.

use async_trait::async_trait;
use bytes::Bytes;
use model::hex::from_hex;
use model::secrets::sealed_for;
use model::{Key, Prefix, Timestamp};
use sha1::{Digest, Sha1};
use store_core::{Position, Stamp};
use tokio::sync::oneshot;

use super::Shared;
use super::ledger::{self, closed};
use super::wire::{self, AnswerPart, StoreRequest, WireEntry};
use store::board::Note;
use store::reply::Reply;
use store::values::ValueWriter;
use store::{
    CommitId, Cursor, Entry, HistoryEntry, INLINE_VALUE_MAX, RECORD_BYTES_MAX, Store, StoreError,
    Submission, Submitted, Urgency, Value, Version, Watch, Written,
};

impl Shared {
    async fn ask(&self, what: StoreRequest) -> Result<Vec<(AnswerPart, Bytes)>, StoreError> {
        let answer = self.ledger.ask(what, Bytes::new())?;
        checked(answer.await.unwrap_or_else(|_| Err(closed())))
    }

    async fn ask_one(&self, what: StoreRequest) -> Result<AnswerPart, StoreError> {
        self.ask(what).await?.pop().map(|(part, _)| part).ok_or_else(strange)
    }

    async fn entries(&self, what: StoreRequest) -> Result<Vec<Entry>, StoreError> {
        let mut entries = Vec::new();
        for (part, mut bytes) in self.ask(what).await? {
            let AnswerPart::Entries(told) = part else { return Err(strange()) };
            for WireEntry { key, value, set_at, node, expires, version } in told {
                let value = self.value(value, &mut bytes).map_err(|_| strange())?;
                entries.push(Entry { key, value, set_at, node, expires, version: version.into() });
            }
        }
        Ok(entries)
    }

    async fn keys_of(&self, what: StoreRequest) -> Result<Vec<Key>, StoreError> {
        let mut keys = Vec::new();
        for (part, _) in self.ask(what).await? {
            let AnswerPart::Keys(some) = part else { return Err(strange()) };
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
}

/// Returns the parts of an answer, or its error, which is one of the parts.
fn checked(answer: ledger::RequestResult) -> ledger::RequestResult {
    let failed = answer?.into_iter().map(|(part, bytes)| match part {
        AnswerPart::Failed(failure) => Err(failure.into()),
        part => Ok((part, bytes)),
    });
    failed.collect()
}

pub(super) fn written(part: AnswerPart) -> Written {
    match part {
        AnswerPart::Written(None) => Ok(None),
        AnswerPart::Written(Some(id)) => wire::id_of(&id).map(Some).ok_or_else(strange),
        AnswerPart::Failed(failure) => Err(failure.into()),
        _ => Err(strange()),
    }
}

pub(super) fn strange() -> StoreError {
    StoreError::Unavailable(
        "the node that keeps the store answers what was not asked: start the same version of \
         Cortex on both"
            .into(),
    )
}

/// Returns whether a value goes with its request. A secret does whatever its size: it is sealed by
/// who keeps it, and no file is to hold it before.
fn travels_whole(key: &Key, value: &Bytes) -> bool {
    let is_secret = sealed_for(key).is_some() && value.len() as u64 <= RECORD_BYTES_MAX;
    value.len() <= INLINE_VALUE_MAX || is_secret
}

fn note_id(key: &Key, stamp: Stamp) -> CommitId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(key.as_str().as_bytes()).update(&stamp.0.to_be_bytes());
    CommitId(*hasher.finalize().as_bytes())
}

#[async_trait]
impl Store for Shared {
    async fn writer(&self) -> Result<ValueWriter, StoreError> {
        self.values.writer().await
    }

    /// Sends a write. Requests travel as they come, so none waits for others.
    async fn submit(&self, write: Submission, _: Urgency, reply: Reply) -> Result<(), StoreError> {
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
                let what = StoreRequest::Delete { key, only_over: place };
                hand_on(self.ledger.ask(what, Bytes::new())?, reply);
                return Ok(());
            }
            Submitted::Set { value, expires } if travels_whole(&key, &value) => {
                let what = StoreRequest::Set { key, expires, only_over: place };
                hand_on(self.ledger.ask(what, value)?, reply);
                return Ok(());
            }
            Submitted::Set { value, expires } => (self.values.keep(value).await?, expires),
            Submitted::File { file, expires } => (file, expires),
        };
        if let Some(value) = self.values.renew_or_read(&file).await? {
            let what = StoreRequest::Set { key, expires, only_over: place };
            hand_on(self.ledger.ask(what, value)?, reply);
            return Ok(());
        }
        // Large values are written one after the other, and each caller waits for its own.
        reply.say(self.put(key, &file, expires, only_over).await);
        Ok(())
    }

    async fn expire(&self, key: &Key, expires: Option<Timestamp>) -> Result<bool, StoreError> {
        if key.is_local() {
            return Err(StoreError::Refused("notes under 'local' have no expiry".into()));
        }
        match self.ask_one(StoreRequest::Expire { key: key.clone(), expires }).await? {
            AnswerPart::Changed(changed) => Ok(changed),
            _ => Err(strange()),
        }
    }

    async fn count(&self) -> Result<usize, StoreError> {
        match self.ask_one(StoreRequest::Count).await? {
            AnswerPart::Count(count) => Ok(usize::try_from(count)
                .unwrap_or(usize::MAX)
                .saturating_add(self.hub.count_notes())),
            _ => Err(strange()),
        }
    }

    async fn lookup(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        if key.is_local() {
            return Ok(self.hub.note(key).map(|note| self.note_entry(key.clone(), note)));
        }
        Ok(self.entries(StoreRequest::Lookup { key: key.clone() }).await?.pop())
    }

    async fn lookup_hash(&self, key: &Key) -> Result<Option<[u8; 20]>, StoreError> {
        if key.is_local() {
            return Ok(self.hub.note(key).map(|note| Sha1::digest(&note.value).into()));
        }
        match self.ask_one(StoreRequest::Hash { key: key.clone() }).await? {
            AnswerPart::Hash(None) => Ok(None),
            AnswerPart::Hash(Some(hash)) => from_hex(&hash).map(Some).ok_or_else(strange),
            _ => Err(strange()),
        }
    }

    async fn prefix(&self, prefix: &Prefix) -> Result<Vec<Entry>, StoreError> {
        let mut entries = Vec::new();
        if !is_local(prefix) {
            entries = self.entries(StoreRequest::Prefix { prefix: prefix.as_str().into() }).await?;
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
            keys = self.keys_of(StoreRequest::Keys { prefix: prefix.as_str().into() }).await?;
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
            keys = self.keys_of(StoreRequest::KeysAfter { prefix, after, limit }).await?;
        }
        // The other node's order is kept; notes come after all its keys.
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
        let what = StoreRequest::History { prefix: prefix.as_str().into(), limit };
        let mut history = Vec::new();
        for (part, _) in self.ask(what).await? {
            let AnswerPart::History(some) = part else { return Err(strange()) };
            for past in some {
                history.push(past.entry().ok_or_else(strange)?);
            }
        }
        Ok(history)
    }

    async fn head(&self) -> Result<String, StoreError> {
        match self.ask_one(StoreRequest::Head).await? {
            AnswerPart::Text(head) => Ok(head),
            _ => Err(strange()),
        }
    }

    async fn squash(&self, before: Timestamp) -> Result<(), StoreError> {
        self.ask_one(StoreRequest::Squash { before }).await.map(drop)
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.ledger.close();
        self.hub.close();
        self.large.stop();
        self.closing.send_replace(true);
        runtime::lock::locked(&self.lock).take();
        Ok(())
    }
}

/// Passes the answer to the reply when it comes; answers come in any order.
fn hand_on(answer: oneshot::Receiver<ledger::RequestResult>, reply: Reply) {
    runtime::task::spawn(async move {
        let answer = checked(answer.await.unwrap_or_else(|_| Err(closed())));
        let part = answer.and_then(|mut parts| parts.pop().ok_or_else(strange));
        reply.say(part.and_then(|(part, _)| written(part)));
    });
}

fn is_local(prefix: &Prefix) -> bool {
    prefix.tokens().next() == Some(Key::LOCAL)
}
