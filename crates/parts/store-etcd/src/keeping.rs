//! Recurring work: watchers are told of values that end, value files that no record names are
//! removed, and etcd drops history older than a day.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use model::{Prefix, Timestamp};
use tokio::time::{Instant, sleep};

use super::feed::Feed;
use super::link::LinkError;
use super::reading::{Projection, read_range};
use store::StoreError;
use store::values::{ValueFiles, blocking};

/// The time within which the end of a value is noticed.
const ENDS_INTERVAL: Duration = Duration::from_millis(50);
const KEEPING_INTERVAL: Duration = Duration::from_secs(3600);
/// The age up to which history is kept: a watcher may be away for a day and resume.
const HISTORY_KEPT: Duration = Duration::from_secs(24 * 3600);

pub struct Keeping {
    pub feed: Feed,
    pub values: Arc<ValueFiles>,
}

impl Keeping {
    /// Runs until the future is dropped.
    pub async fn run(self) {
        let mut kept = Instant::now();
        loop {
            sleep(ENDS_INTERVAL).await;
            let now = self.feed.clock.now();
            if self.feed.hub.next_end().is_some_and(|end| end <= now) {
                self.feed.hub.notice_ends(now);
            }
            if kept.elapsed() >= KEEPING_INTERVAL {
                kept = Instant::now();
                if let Err(error) = self.collect().await {
                    tracing::warn!(%error, "etcd.collect_failed");
                }
                let before = Timestamp(now.0.saturating_sub(millis(HISTORY_KEPT)));
                if let Err(error) = self.feed.squash(before).await {
                    tracing::warn!(%error, "etcd.squash_failed");
                }
            }
        }
    }

    /// Removes aged value files that no record names; returns how many.
    pub async fn collect(&self) -> Result<usize, StoreError> {
        let mut referred = BTreeSet::new();
        read_range(&self.feed, &Prefix::all(), Projection::Values, |key, kv| {
            match self.feed.record(&key, kv.value()) {
                Some(record) if record.inline.is_none() => drop(referred.insert(record.hash)),
                _ => {}
            }
        })
        .await
        .map_err(LinkError::into_store)?;
        let values = self.values.clone();
        let removed = blocking(move || {
            let removed = values.collect(|hash| referred.contains(hash));
            removed.map_err(|source| StoreError::Io {
                what: format!("value files cannot be collected: {source}"),
                source,
            })
        })
        .await?;
        tracing::debug!(removed, "etcd.collected");
        Ok(removed)
    }
}

impl Feed {
    /// Compacts etcd to the newest revision that is known to be older than `before`. All users of
    /// the cluster share one history. That revision is never a delete: etcd, at least as old as
    /// Debian's, forgets the delete to which it compacts and lets a watcher go on from there.
    pub async fn squash(&self, before: Timestamp) -> Result<(), LinkError> {
        let now = self.clock.now();
        if before > now {
            let (_, revision) = self.link.put(&self.space.squashed(), &now.0.to_string()).await?;
            return self.link.compact(revision).await;
        }
        match self.hub.revision_before(before) {
            Some(revision) => self.link.compact(revision).await,
            None => Ok(()),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
