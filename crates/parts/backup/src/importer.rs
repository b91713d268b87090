//! Import of a cluster into one that is empty. Applications start at the very end: until everything
//! else is written, none of them has a release that serves.

use bytes::Bytes;
use model::application::Holder;
use model::backup::ImportUnderWay;
use model::record::{RECORD_VERSION, Unknown};
use model::{
    ApplicationName, ApplicationSpec, Key, NodeId, Prefix, Rollout, RolloutPhase, Timestamp,
    TypedKey, record,
};
use thiserror::Error;

use super::BackupContext;
use super::keys::KeyWriter;
use super::selection::{Destiny, destiny, is_content};
use agent::moving::copying::FilesCopy;
use api_types::backup::{ClusterImported, FilesImported};
use api_types::export::{ExportDecoder, ExportPiece, FormatError};
use store::{StoreError, lookup_record};

/// Keys that are looked at together.
const PAGE_KEYS: usize = 1000;
/// The most rollouts that are kept back in memory: more applications than a cluster has.
const LAST_MAX: usize = 100_000;
/// The largest rollout: its message is some lines of output.
const LAST_BYTES_MAX: u64 = 256 * 1024;

#[derive(Debug, Error)]
pub enum ImportError {
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the files of {application} cannot be put in place: {why}")]
    Files { application: ApplicationName, why: String },
    #[error("this cluster is not empty: it has {0}")]
    NotEmpty(String),
    #[error("an import of another file was cut on this cluster")]
    OtherUnderWay,
    #[error("{0} cannot be brought: it is larger than any that Cortex writes")]
    TooMuch(Key),
}

/// Returns a key by which a cluster is not empty, if there is one.
pub async fn content_of(context: &BackupContext) -> Result<Option<Key>, StoreError> {
    let mut after: Option<Key> = None;
    loop {
        let page = context.store.keys_after(&Prefix::all(), after.as_ref(), PAGE_KEYS).await?;
        if let Some(found) = page.iter().find(|key| is_content(key)) {
            return Ok(Some(found.clone()));
        }
        let Some(last) = page.last().cloned() else { return Ok(None) };
        after = Some(last);
    }
}

/// Returns the record of an import that has not come to its end.
pub async fn under_way(context: &BackupContext) -> Result<Option<ImportUnderWay>, StoreError> {
    let read = lookup_record(&*context.store, TypedKey::ImportUnderWay.key()).await;
    read.map_err(|error| StoreError::Refused(format!("{error:#}")))
}

/// Says in words for people what a key is.
pub fn described(key: &Key) -> String {
    match TypedKey::parse(key) {
        Some(typed) if typed.application().is_some() => {
            format!("the application {}", typed.application().expect("just asked"))
        }
        Some(TypedKey::User(user)) => format!("the user {user}"),
        Some(TypedKey::Team(team)) => format!("the team {team}"),
        Some(TypedKey::Certificate(name)) => format!("a certificate for {name}"),
        _ => format!("the key '{key}'"),
    }
}

/// What becomes of the value that is arriving.
enum Current {
    Written,
    KeptBack(Key, Option<Timestamp>, Vec<u8>),
    LeftOut,
}

pub struct ClusterImporter {
    context: BackupContext,
    decoder: ExportDecoder,
    writer: KeyWriter,
    current: Current,
    /// What is written once all else is: it lets applications start.
    last: Vec<(Key, Option<Timestamp>, Bytes)>,
    files: Option<(ApplicationName, FilesCopy)>,
    imported: ClusterImported,
}

impl ClusterImporter {
    /// Begins the import of the export with this hash. Fails if the cluster is not empty, but for
    /// what an import of the same file left that was cut.
    pub async fn begin(context: BackupContext, hash: &str) -> Result<ClusterImporter, ImportError> {
        match under_way(&context).await? {
            Some(before) if before.export == hash => {}
            Some(_) => return Err(ImportError::OtherUnderWay),
            None => {
                if let Some(key) = content_of(&context).await? {
                    return Err(ImportError::NotEmpty(described(&key)));
                }
            }
        }
        let mark = ImportUnderWay {
            v: RECORD_VERSION,
            export: hash.to_owned(),
            began_at: context.clock.now(),
            node: context.node.clone(),
            unknown: Unknown::new(),
        };
        let value = record::encode(&mark).into();
        context.store.set(TypedKey::ImportUnderWay.key(), value).await?;
        Ok(ClusterImporter {
            decoder: ExportDecoder::of_cluster(),
            writer: KeyWriter::new(context.store.clone()),
            current: Current::LeftOut,
            last: Vec::new(),
            files: None,
            imported: ClusterImported {
                node: context.node.to_string(),
                ..ClusterImported::default()
            },
            context,
        })
    }

    pub async fn take(&mut self, chunk: &[u8]) -> Result<(), ImportError> {
        let mut pieces = Vec::new();
        let taken = self.decoder.push(chunk, |piece| {
            pieces.push(piece);
            Ok::<(), FormatError>(())
        });
        for piece in pieces {
            self.piece(piece).await?;
        }
        taken?;
        Ok(self.writer.check()?)
    }

    async fn piece(&mut self, piece: ExportPiece) -> Result<(), ImportError> {
        match piece {
            ExportPiece::Contents(contents) => self.imported.contents = Some(contents),
            ExportPiece::Key { key, ends, size } => self.key(key, ends, size).await?,
            ExportPiece::Value(bytes) => match &mut self.current {
                Current::Written => self.writer.gather(&bytes).await?,
                Current::KeptBack(_, _, gathered) => gathered.extend_from_slice(&bytes),
                Current::LeftOut => {}
            },
            ExportPiece::Checked => match std::mem::replace(&mut self.current, Current::LeftOut) {
                Current::Written => self.writer.write().await?,
                Current::KeptBack(key, ends, value) => self.last.push((key, ends, value.into())),
                Current::LeftOut => {}
            },
            ExportPiece::Files(name) => {
                let copy = FilesCopy::begin(&self.context.layout, &name).await;
                let copy = copy.map_err(|error| files_failed(&name, &error))?;
                self.files = Some((name, copy));
            }
            ExportPiece::Frame(frame) => {
                if let Some((name, copy)) = &mut self.files {
                    let taken = copy.take(&frame).await;
                    taken.map_err(|error| files_failed(name, &error))?;
                }
            }
            ExportPiece::FilesEnd(why) => self.files_end(why).await?,
            ExportPiece::End(_) => {}
        }
        Ok(())
    }

    async fn key(
        &mut self,
        key: Key,
        ends: Option<Timestamp>,
        size: u64,
    ) -> Result<(), ImportError> {
        self.current = match destiny(&key) {
            Destiny::Stays => Current::LeftOut,
            Destiny::Last if self.last.len() >= LAST_MAX || size > LAST_BYTES_MAX => {
                return Err(ImportError::TooMuch(key));
            }
            Destiny::Last => Current::KeptBack(key, ends, Vec::new()),
            Destiny::Travels => {
                match TypedKey::parse(&key) {
                    Some(TypedKey::Spec(name)) => self.imported.applications.push(name.into()),
                    Some(TypedKey::Holder(name)) => self.imported.kept_files.push(name.into()),
                    _ => {}
                }
                self.writer.begin(key, ends, size).await?;
                Current::Written
            }
        };
        Ok(())
    }

    /// Puts the files of an application in place, and makes them this node's.
    async fn files_end(&mut self, why: Option<String>) -> Result<(), ImportError> {
        let Some((name, copy)) = self.files.take() else { return Ok(()) };
        let application = name.to_string();
        if let Some(why) = why {
            copy.abandon().await;
            self.imported.files.push(FilesImported { application, left_out: Some(why) });
            return Ok(());
        }
        // The application is to be known before it has files.
        self.writer.settle().await?;
        let put = copy.put_in_place(&self.context.layout, &name).await;
        put.map_err(|error| files_failed(&name, &error))?;
        let spec: Option<ApplicationSpec> =
            lookup_record(&*self.context.store, TypedKey::Spec(name.clone()).key())
                .await
                .map_err(|error| files_failed(&name, &error))?;
        let holder = Holder {
            v: RECORD_VERSION,
            node: self.context.node.clone(),
            since: self.context.clock.now(),
            created_at: spec.map(|spec| spec.created_at),
            unknown: Unknown::new(),
        };
        let value = record::encode(&holder).into();
        self.context.store.set(TypedKey::Holder(name).key(), value).await?;
        self.imported.files.push(FilesImported { application, left_out: None });
        Ok(())
    }

    /// Waits for the writes that are under way after an error.
    pub async fn settle(&mut self) {
        self.writer.settle().await.ok();
    }

    /// Ends the import once the last byte has come: now applications may start.
    pub async fn finish(mut self) -> Result<ClusterImported, ImportError> {
        let decoder = std::mem::take(&mut self.decoder);
        decoder.finish()?;
        self.writer.settle().await?;
        self.writer.check()?;
        for (key, ends, value) in std::mem::take(&mut self.last) {
            let value = match record::decode::<Rollout>(&value) {
                Ok(rollout) => {
                    let (node, now) = (self.context.node.clone(), self.context.clock.now());
                    record::encode(&without_coordinator(rollout, node, now)).into()
                }
                Err(_) => value,
            };
            self.writer.set(key, ends, value).await?;
        }
        let written = self.writer.settle().await?;
        self.writer.check()?;
        self.context.store.delete(TypedKey::ImportUnderWay.key()).await?;
        (self.imported.keys, self.imported.bytes) = (written.keys, written.bytes);
        Ok(self.imported)
    }
}

/// Returns a rollout as it stands where its coordinator is no more: one that was under way is over
/// if there is a release that serves, and begins anew if there is none.
fn without_coordinator(mut rollout: Rollout, node: NodeId, now: Timestamp) -> Rollout {
    if matches!(rollout.phase, RolloutPhase::Done | RolloutPhase::Failed) {
        return rollout;
    }
    match (rollout.serving.is_some(), rollout.target.clone()) {
        (false, Some(target)) => rollout.request(target, node, now),
        _ => {
            rollout.phase = RolloutPhase::Failed;
            let why = "it was being rolled out when the cluster was exported: push it again";
            (rollout.message, rollout.changed_at) = (Some(why.into()), now);
        }
    }
    rollout
}

fn files_failed(application: &ApplicationName, error: &anyhow::Error) -> ImportError {
    ImportError::Files { application: application.clone(), why: format!("{error:#}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollout_that_lost_its_coordinator_is_over_or_begins_anew() {
        let (old, new): (NodeId, NodeId) = ("old".parse().unwrap(), "new".parse().unwrap());
        let check = |phase, serving: Option<&str>, expected| {
            let mut rollout = Rollout::new(old.clone(), Timestamp(1));
            rollout.target = Some("v2.old".parse().unwrap());
            rollout.serving = serving.map(|id| id.parse().unwrap());
            rollout.phase = phase;
            let after = without_coordinator(rollout.clone(), new.clone(), Timestamp(2));
            assert_eq!(after.phase, expected);
            assert_eq!((&after.serving, &after.target), (&rollout.serving, &rollout.target));
            after
        };
        check(RolloutPhase::Done, Some("v2.old"), RolloutPhase::Done);
        check(RolloutPhase::Failed, Some("v1.old"), RolloutPhase::Failed);
        let over = check(RolloutPhase::Starting, Some("v1.old"), RolloutPhase::Failed);
        assert!(over.message.unwrap().contains("push it again"));
        let anew = check(RolloutPhase::Building, None, RolloutPhase::Requested);
        assert_eq!(anew.coordinator, new);
    }
}
