//! Export and import of a whole store as one stream; `api_types::export` is its format.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Json;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::StreamExt;
use model::{ApplicationName, ApplicationSpec, Key, Timestamp, TypedKey, record};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::keys::PrefixQuery;
use super::problem::Problem;
use api_types::Imported;
use api_types::export::{ExportDecoder, ExportEncoder, ExportPiece, FormatError};
use store::reply::Reply;
use store::values::blocking;
use store::{
    INLINE_VALUE_MAX, SharedStore, StoreError, Submission, Submitted, Urgency, ValueWriter, Written,
};

/// Keys that are read together, in memory: some megabytes.
const PAGE_KEYS: usize = 1000;
/// Reads under way at a time; a store on another machine takes its time for each.
const READS_AT_ONCE: usize = 32;
/// Pieces that wait between the store and the socket.
const PIECES_WAITING_MAX: usize = 16;
/// Writes under way at a time: they share fsyncs.
const WRITES_AT_ONCE: usize = 512;
/// Bytes of one value that are gathered before they go to its file.
const WRITE_BYTES: usize = 256 * 1024;
/// Bytes that a client may go on sending after an error before it is cut off.
const DISCARDED_BYTES_MAX: u64 = 1 << 30;

pub async fn export(
    State(store): State<SharedStore>,
    Query(query): Query<PrefixQuery>,
) -> Result<Response, Problem> {
    let prefix = super::keys::prefix(&query.prefix)?;
    let (sender, receiver) = mpsc::channel(PIECES_WAITING_MAX);
    runtime::task::spawn(async move {
        let mut exporter = Exporter { store, sender };
        if let Err(error) = exporter.run(&prefix).await {
            tracing::warn!(%error, "api.export_failed");
            exporter.send(ExportEncoder::failure(&error.to_string()).into()).await.ok();
        }
    });
    let pieces = futures_util::stream::unfold(receiver, |mut receiver| async {
        Some((Ok::<Bytes, std::convert::Infallible>(receiver.recv().await?), receiver))
    });
    let kind = [(header::CONTENT_TYPE, "application/octet-stream")];
    Ok((kind, Body::from_stream(pieces)).into_response())
}

struct Exporter {
    store: SharedStore,
    sender: mpsc::Sender<Bytes>,
}

impl Exporter {
    /// Sends all keys of the prefix. Notes under `local` belong to this run and stay here.
    async fn run(&mut self, prefix: &model::Prefix) -> Result<(), StoreError> {
        let (mut encoder, title) = ExportEncoder::begin();
        self.send(title.into()).await?;
        let mut after: Option<Key> = None;
        loop {
            let page = self.store.keys_after(prefix, after.as_ref(), PAGE_KEYS).await?;
            let Some(last) = page.last().cloned() else { break };
            after = Some(last);
            let store = self.store.clone();
            let keys = page.into_iter().filter(|key| !key.is_local());
            let reads = keys.map(|key| {
                let store = store.clone();
                async move { store.lookup(&key).await }
            });
            let mut entries = futures_util::stream::iter(reads).buffered(READS_AT_ONCE);
            while let Some(entry) = entries.next().await {
                // A key that was deleted meanwhile is left out.
                let Some(entry) = entry? else { continue };
                // The value is opened before its key is sent, so that one that cannot be read fails
                // the export first.
                let reader = entry.value.reader().await?;
                let head = encoder.key(&entry.key, entry.expires, entry.value.size());
                self.send(head.into()).await?;
                match reader {
                    None => {
                        let bytes = entry.value.inline().cloned().unwrap_or_default();
                        encoder.value(&bytes);
                        self.send(bytes).await?;
                    }
                    Some(mut reader) => {
                        while let Some(bytes) = reader.next().await? {
                            encoder.value(&bytes);
                            self.send(bytes).await?;
                        }
                    }
                }
                self.send(encoder.check().to_vec().into()).await?;
            }
        }
        self.send(encoder.end().into()).await
    }

    async fn send(&self, bytes: Bytes) -> Result<(), StoreError> {
        let gone = |_| StoreError::Refused("whoever asked for the export has gone".into());
        self.sender.send(bytes).await.map_err(gone)
    }
}

/// Imports a stream. Each value is written once it is whole and unchanged; the client makes sure
/// that the end is there as well before it sends anything.
pub async fn import(
    State(store): State<SharedStore>,
    body: Body,
) -> Result<Json<Imported>, Problem> {
    let mut importer = Importer::new(store);
    let mut body = body.into_data_stream();
    while let Some(chunk) = body.next().await {
        let taken = match chunk {
            Ok(chunk) => importer.take(&chunk).await,
            Err(error) => Err(Problem::invalid("import_cut", format!("it was cut: {error}"))),
        };
        if let Err(problem) = taken {
            let kept = importer.settle().await.map_or(0, |imported| imported.keys);
            // The rest is read, since a client that still sends would not see the answer.
            let mut discarded = 0;
            while let Some(Ok(chunk)) = body.next().await {
                discarded += chunk.len() as u64;
                if discarded > DISCARDED_BYTES_MAX {
                    break;
                }
            }
            return Err(problem.hint(format!(
                "{kept} keys had been written and stay; importing all of it again is safe"
            )));
        }
    }
    Ok(Json(importer.finish().await?))
}

struct Importer {
    store: SharedStore,
    decoder: ExportDecoder,
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

impl Importer {
    fn new(store: SharedStore) -> Importer {
        let (report, failure) = oneshot::channel();
        Importer {
            store,
            decoder: ExportDecoder::default(),
            current: None,
            under_way: Arc::new(Semaphore::new(WRITES_AT_ONCE)),
            failure,
            report: Arc::new(Mutex::new(Some(report))),
            keys: Arc::default(),
            bytes: 0,
        }
    }

    async fn take(&mut self, chunk: &[u8]) -> Result<(), Problem> {
        let mut pieces = Vec::new();
        let taken = self.decoder.push(chunk, |piece| {
            pieces.push(piece);
            Ok::<(), FormatError>(())
        });
        for piece in pieces {
            match piece {
                ExportPiece::Key { key, ends, size } => {
                    let large = size > INLINE_VALUE_MAX as u64;
                    let writer = if large { Some(self.store.writer().await?) } else { None };
                    let gathered = Vec::new();
                    self.current = Some(Incoming { key, ends, size, gathered, writer });
                }
                ExportPiece::Value(bytes) => self.gather(&bytes).await?,
                ExportPiece::Checked => self.write().await?,
                ExportPiece::End(_) => {}
            }
        }
        taken.map_err(malformed)?;
        match self.failure.try_recv() {
            Ok(error) => Err(error.into()),
            Err(_) => Ok(()),
        }
    }

    async fn gather(&mut self, bytes: &[u8]) -> Result<(), Problem> {
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

    async fn write(&mut self) -> Result<(), Problem> {
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
        let permit = self.under_way.clone().acquire_owned().await;
        let permit = permit.map_err(|error| Problem::internal(error.to_string()))?;
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
        self.store.submit(Submission { key, change, only_over: None }, Urgency::Now, reply).await?;
        self.bytes += size;
        Ok(())
    }

    /// Removes the record of an application's end: whoever brings it back this way knows of it.
    async fn forget_end(&self, name: ApplicationName, spec: &[u8]) -> Result<(), Problem> {
        if let Ok(spec) = record::decode::<ApplicationSpec>(spec) {
            self.store.delete(TypedKey::Destroyed(name, spec.created_at).key()).await?;
        }
        Ok(())
    }

    /// Waits for the writes that are under way.
    async fn settle(&mut self) -> Result<Imported, Problem> {
        let all = u32::try_from(WRITES_AT_ONCE).unwrap_or(u32::MAX);
        let settled = self.under_way.acquire_many(all).await;
        settled.map_err(|error| Problem::internal(error.to_string()))?.forget();
        self.under_way.add_permits(WRITES_AT_ONCE);
        Ok(Imported { keys: self.keys.load(Ordering::Relaxed), bytes: self.bytes })
    }

    async fn finish(mut self) -> Result<Imported, Problem> {
        let imported = self.settle().await?;
        if let Ok(error) = self.failure.try_recv() {
            return Err(error.into());
        }
        self.decoder.finish().map_err(malformed)?;
        Ok(imported)
    }
}

fn malformed(error: FormatError) -> Problem {
    Problem::invalid("invalid_export", error.to_string())
}
