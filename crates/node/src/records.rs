//! The router's records, read from this node's store.

use async_trait::async_trait;
use bytes::Bytes;
use model::key::BoardKey;
use model::{Key, Prefix, TypedKey};
use router_core::book::Book;
use tokio::sync::mpsc;

use router::records::{RecordChange, Records};
use store::{RECORD_BYTES_MAX, SharedStore, Value, WatchEvent};
use tls::book::CertificateBook;

pub struct StoredRecords(pub SharedStore);

#[async_trait]
impl Records for StoredRecords {
    async fn follow(
        &self,
        prefixes: Vec<Prefix>,
        changes: mpsc::Sender<RecordChange>,
    ) -> anyhow::Result<()> {
        let mut watches = Vec::new();
        for prefix in prefixes {
            watches.push(self.0.watch(prefix, None).await?);
        }
        changes.send(RecordChange::ReadAgain).await?;
        let followers = watches.into_iter().map(|mut watch| {
            let changes = changes.clone();
            async move {
                while let Some(event) = watch.next().await {
                    let change = match event {
                        WatchEvent::Changed { key, value: Some(value), .. } => {
                            let Some(record) = record(&key, &value) else { continue };
                            RecordChange::One(key, Some(record))
                        }
                        WatchEvent::Changed { key, value: None, .. } => {
                            RecordChange::One(key, None)
                        }
                        WatchEvent::Resync { .. } => RecordChange::ReadAgain,
                    };
                    changes.send(change).await?;
                }
                Ok::<_, anyhow::Error>(())
            }
        });
        futures_util::future::try_join_all(followers).await.map(drop)
    }

    async fn read(&self, prefix: &Prefix) -> anyhow::Result<Vec<(Key, Bytes)>> {
        let entries = self.0.prefix(prefix).await?.into_iter();
        let read = entries.filter_map(|entry| {
            let record = record(&entry.key, &entry.value)?;
            Some((entry.key, record))
        });
        Ok(read.collect())
    }

    async fn note(&self, board: BoardKey, text: &'static str) -> anyhow::Result<()> {
        let value = Bytes::from_static(text.as_bytes());
        self.0.set(TypedKey::Board(board).key(), value).await?;
        Ok(())
    }

    async fn forget(&self, board: BoardKey) -> anyhow::Result<()> {
        self.0.delete(TypedKey::Board(board).key()).await?;
        Ok(())
    }
}

/// Returns the record's bytes, or no bytes for a key that the router does not want. A release with
/// a long recipe is a file. A record that cannot be read changes nothing, and is reported.
fn record(key: &Key, value: &Value) -> Option<Bytes> {
    if !Book::wants(key) && !CertificateBook::wants(key) && !router::is_own_name(key) {
        return Some(Bytes::new());
    }
    let record = value.read(RECORD_BYTES_MAX);
    record.inspect_err(|error| tracing::warn!(%key, %error, "router.value_unreadable")).ok()
}
