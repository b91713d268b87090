//! Values on their way into a store, one after the other: small and secret ones in memory, others
//! through a file. Many writes are under way at a time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use model::secrets::sealed_for;
use model::{ApplicationName, ApplicationSpec, Key, Timestamp, TypedKey, record};
use tokio::sync::{Semaphore, oneshot};

use api_types::Imported;
use store::reply::Reply;
use store::values::blocking;
use store::{
    INLINE_VALUE_MAX, RECORD_BYTES_MAX, SharedStore, StoreError, Submission, Submitted, Urgency,
    ValueWriter, Written,
};

/// Writes under way at a time: they share fsyncs.
const WRITES_AT_ONCE: usize = 512;
/// Bytes of one value that are gathered before they go to its file.
const WRITE_BYTES: usize = 256 * 1024;

pub struct KeyWriter {
    store: SharedStore,
    current: Option<Incoming>,
    under_way: Arc<Semaphore>,
    /// Receives the error of the first write that failed.
    failure: oneshot::Receiver<StoreError>,
    report: Arc<Mutex<Option<oneshot::Sender<StoreError>>>>,
    /// The number of keys that are written for good.
    keys: Arc<AtomicU64>,
    bytes: u64,
}

/// A value that is arriving.
struct Incoming {
    key: Key,
    ends: Option<Timestamp>,
    size: u64,
    gathered: Vec<u8>,
    writer: Option<ValueWriter>,
}

impl KeyWriter {
    pub fn new(store: SharedStore) -> KeyWriter {
        let (report, failure) = oneshot::channel();
        KeyWriter {
            store,
            current: None,
            under_way: Arc::new(Semaphore::new(WRITES_AT_ONCE)),
            failure,
            report: Arc::new(Mutex::new(Some(report))),
            keys: Arc::default(),
            bytes: 0,
        }
    }

    /// Begins a value. A secret does not touch the disk before it is sealed.
    pub async fn begin(
        &mut self,
        key: Key,
        ends: Option<Timestamp>,
        size: u64,
    ) -> Result<(), StoreError> {
        let is_secret = sealed_for(&key).is_some();
        if is_secret && size > RECORD_BYTES_MAX {
            return Err(StoreError::TooLarge { max: RECORD_BYTES_MAX });
        }
        let through_file = size > INLINE_VALUE_MAX as u64 && !is_secret;
        let writer = if through_file { Some(self.store.writer().await?) } else { None };
        self.current = Some(Incoming { key, ends, size, gathered: Vec::new(), writer });
        Ok(())
    }

    pub async fn gather(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let Some(incoming) = &mut self.current else { return Ok(()) };
        incoming.gathered.extend_from_slice(bytes);
        if incoming.gathered.len() >= WRITE_BYTES
            && let Some(mut writer) = incoming.writer.take()
        {
            let bytes = std::mem::take(&mut incoming.gathered);
            let written = blocking(move || writer.write(&bytes).map(|()| writer)).await?;
            incoming.writer = Some(written);
        }
        Ok(())
    }

    /// Writes the value that came last, without waiting until that is done.
    pub async fn write(&mut self) -> Result<(), StoreError> {
        let Some(incoming) = self.current.take() else { return Ok(()) };
        let Incoming { key, ends, size, gathered, writer } = incoming;
        if let Some(TypedKey::Spec(name)) = TypedKey::parse(&key) {
            self.forget_end(name, &gathered).await?;
        }
        let change = match writer {
            None => Submitted::Set { value: gathered.into(), expires: ends },
            Some(mut writer) => {
                let finish = move || writer.write(&gathered).and_then(|()| writer.finish());
                Submitted::File { file: blocking(finish).await?, expires: ends }
            }
        };
        self.submit(key, change).await?;
        self.bytes += size;
        Ok(())
    }

    /// Writes a small value, like `write`.
    pub async fn set(
        &mut self,
        key: Key,
        ends: Option<Timestamp>,
        value: Bytes,
    ) -> Result<(), StoreError> {
        self.bytes += value.len() as u64;
        self.submit(key, Submitted::Set { value, expires: ends }).await
    }

    async fn submit(&self, key: Key, change: Submitted) -> Result<(), StoreError> {
        let permit = self.under_way.clone().acquire_owned().await;
        let permit = permit.map_err(|error| StoreError::Refused(error.to_string()))?;
        let (report, keys) = (self.report.clone(), self.keys.clone());
        let reply = Reply::to(move |written: Written| {
            match written {
                Ok(_) => drop(keys.fetch_add(1, Ordering::Relaxed)),
                Err(error) => {
                    let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(report) = report.take() {
                        report.send(error).ok();
                    }
                }
            }
            drop(permit);
        });
        self.store.submit(Submission { key, change, only_over: None }, Urgency::Now, reply).await
    }

    /// Removes the record of an application's end: whoever brings it back this way knows of it.
    async fn forget_end(&self, name: ApplicationName, spec: &[u8]) -> Result<(), StoreError> {
        if let Ok(spec) = record::decode::<ApplicationSpec>(spec) {
            self.store.delete(TypedKey::Destroyed(name, spec.created_at).key()).await?;
        }
        Ok(())
    }

    /// Fails with the first write that failed so far.
    pub fn check(&mut self) -> Result<(), StoreError> {
        self.failure.try_recv().map_or(Ok(()), Err)
    }

    /// Waits for the writes that are under way, and returns how much is written for good.
    pub async fn settle(&mut self) -> Result<Imported, StoreError> {
        let all = u32::try_from(WRITES_AT_ONCE).unwrap_or(u32::MAX);
        let settled = self.under_way.acquire_many(all).await;
        settled.map_err(|error| StoreError::Refused(error.to_string()))?.forget();
        self.under_way.add_permits(WRITES_AT_ONCE);
        Ok(Imported { keys: self.keys.load(Ordering::Relaxed), bytes: self.bytes })
    }
}
