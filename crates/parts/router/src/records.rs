//! The router's view of the keeper of the cluster's records: it hears of them and leaves notes on
//! this node's board. A node joins it to its store.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use model::key::BoardKey;
use model::{Key, Prefix};
use tokio::sync::mpsc;

pub type SharedRecords = Arc<dyn Records>;

/// Changes that wait for the control task; the follower waits when there are more.
pub const CHANGES_MAX: usize = 1024;

#[derive(Clone, Debug)]
pub enum RecordChange {
    /// A record is new, or gone if there are no bytes; they are empty unless `Book::wants` it.
    One(Key, Option<Bytes>),
    /// Changes may have been missed: everything is read again.
    ReadAgain,
}

#[async_trait]
pub trait Records: Send + Sync + 'static {
    /// Tells all changes under these prefixes, beginning with `ReadAgain` once they are watched.
    /// Ends when the store does.
    async fn follow(
        &self,
        prefixes: Vec<Prefix>,
        changes: mpsc::Sender<RecordChange>,
    ) -> anyhow::Result<()>;
    /// Returns what can be read under a prefix now, as in `RecordChange::One`.
    async fn read(&self, prefix: &Prefix) -> anyhow::Result<Vec<(Key, Bytes)>>;
    async fn note(&self, board: BoardKey, text: &'static str) -> anyhow::Result<()>;
    async fn forget(&self, board: BoardKey) -> anyhow::Result<()>;
}
