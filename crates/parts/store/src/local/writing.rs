//! The way of a write from its caller to the committer: brings its value to its place, gets a place
//! in the queue and passes the condition on.

use bytes::Bytes;
use model::Key;
use model::value::ContentHash;
use sha1::{Digest, Sha1};
use store_core::event::Change;
use store_core::{CommitAction, Expiry};

use super::LocalStore;
use crate::command::Command;
use crate::reply::Reply;
use crate::{INLINE_VALUE_MAX, StoreError, Submission, Submitted, ValueFile, Version, Written};

/// Prepares a change that needs no file for the committer; hands any other one back.
pub(super) fn small(change: Submitted) -> Result<(Change, Bytes), Submitted> {
    match change {
        Submitted::Delete => Ok((Change::Delete, Bytes::new())),
        Submitted::Set { value, expires } if value.len() <= INLINE_VALUE_MAX => {
            let (hash, sha1) = (*blake3::hash(&value).as_bytes(), Sha1::digest(&value).into());
            let (size, expires) = (value.len() as u64, expires.map(Expiry::at));
            Ok((Change::SetInline { hash, sha1, size, expires }, value))
        }
        large => Err(large),
    }
}

impl LocalStore {
    pub(super) async fn command(
        &self,
        write: Submission,
        reply: Reply,
    ) -> Result<Command, StoreError> {
        let Submission { key, change, only_over } = write;
        let (change, value) = self.prepare(change).await?;
        let place = match self.queue.enter_at_once(&key) {
            Some(place) => place,
            None => {
                // The writes that hold the places may be waiting for a `hurry` that only comes
                // later.
                self.commands.hurry();
                self.queue.enter(&key).await
            }
        };
        let only_over = only_over.map(|Version(at)| at);
        Ok(Command::Write { key, change, only_over, value, reply, place })
    }

    pub(super) fn submit_note(&self, write: Submission) -> Written {
        match write.change {
            Submitted::Set { expires: Some(_), .. } => Err(StoreError::Refused(
                "notes under 'local' are in memory only and have no expiry; delete it in time"
                    .into(),
            )),
            Submitted::Set { value, .. } if value.len() <= INLINE_VALUE_MAX => {
                Ok(Some(self.set_note(write.key, value)))
            }
            Submitted::Set { .. } | Submitted::File { .. } => {
                Err(StoreError::TooLarge { max: INLINE_VALUE_MAX as u64 })
            }
            Submitted::Delete => Ok(self.remove_note(write.key)),
        }
    }

    /// Brings a value to where its commit will find it.
    pub(super) async fn prepare(&self, change: Submitted) -> Result<(Change, Bytes), StoreError> {
        let change = match small(change) {
            Ok(prepared) => return Ok(prepared),
            Err(change) => change,
        };
        let (file, expires) = match change {
            Submitted::Set { value, expires } => (self.shared.values.keep(value).await?, expires),
            Submitted::File { file, expires } => (file, expires),
            Submitted::Delete => return Ok((Change::Delete, Bytes::new())),
        };
        let expires = expires.map(Expiry::at);
        let small = self.shared.values.renew_or_read(&file).await?;
        let ValueFile { hash: ContentHash(hash), sha1, size, .. } = file;
        Ok(match small {
            Some(value) => (Change::SetInline { hash, sha1, size, expires }, value),
            None => (Change::SetFile { hash, sha1, size, expires }, Bytes::new()),
        })
    }

    /// Returns the file of a large value, as `set_file` needs it; `None` if the key has another
    /// version.
    pub(super) fn file_at(&self, key: &Key, version: Version) -> Option<ValueFile> {
        let machine = self.shared.machine();
        let commit = machine.replica().get(key.as_str(), self.clock.now())?;
        let CommitAction::Set { hash, sha1, size, .. } = commit.action else { return None };
        let path = self.shared.values.path(&hash);
        let file = ValueFile { hash: ContentHash(hash), sha1, size, path };
        (commit.at == version.0).then_some(file)
    }
}
