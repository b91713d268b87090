//! Uploads of values that are too large for a request, each on a stream of its own.

use std::time::Duration;

use anyhow::Context;
use futures_util::StreamExt;
use model::{Key, NodeId, Timestamp};
use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};

use super::requests::{strange, written};
use super::wire::{self, FromStore, ToStore};
use super::{Shared, calls};
use store::bulk::ValueName;
use store::bulk::reader::ValueReader;
use store::{StoreError, ValueFile, Version, Written};

/// The number of attempts at an upload; one that was cut begins anew with the next node.
const PUT_ATTEMPTS_MAX: usize = 5;
const PUT_PAUSE: Duration = Duration::from_millis(200);
/// The time without progress after which an upload is given up.
const PUT_STALL_MAX: Duration = Duration::from_secs(20);

impl Shared {
    /// Uploads a value that is too large for a request.
    pub(super) async fn put(
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
            sleep(PUT_PAUSE).await;
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
        let reader = ValueReader::of_file(opened, value, file.path.clone());
        let mut pieces = std::pin::pin!(reader.into_stream());
        while let Some(piece) = pieces.next().await {
            let piece = piece?;
            timeout(PUT_STALL_MAX, stream.write_all(&piece)).await??;
        }
        stream.flush().await?;
        let answer = timeout(PUT_STALL_MAX, wire::read::<FromStore>(&mut stream));
        match answer.await?? {
            (FromStore::Answer { part, .. }, _) => Ok(written(part)),
            _ => Ok(Err(strange())),
        }
    }
}
