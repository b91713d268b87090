//! The keys of the store for people and scripts: any key, any value, streamed both ways.

use axum::Json;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::StreamExt;
use model::secrets::sealed_for;
use model::{Key, Prefix};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::mpsc;

use super::problem::Problem;
use super::progress::ndjson;
use super::records::rfc3339;
use api_types::store::{Committed, StoreHead, ValueHash};
use api_types::{HistoryRow, StoreChange, StoredKey};
use store::{INLINE_VALUE_MAX, SharedStore, ValueWriter, WatchEvent};

/// The largest value; sources of applications have the same limit.
const VALUE_BYTES_MAX: u64 = api_types::ARCHIVE_BYTES_MAX;
/// Changes that wait between the store and a socket.
const CHUNKS_WAITING_MAX: usize = 16;
const HISTORY_DEFAULT: usize = 100;
/// The most entries of a history in one answer, which keeps it at some megabytes.
const HISTORY_MAX: usize = 10_000;
/// Values up to this size are shown in a watch; for larger ones only the size.
const WATCH_VALUE_MAX: usize = INLINE_VALUE_MAX;

#[derive(Debug, Deserialize, JsonSchema)]
pub struct KeyQuery {
    key: String,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
pub struct PrefixQuery {
    #[serde(default)]
    pub prefix: String,
    #[serde(default)]
    limit: Option<usize>,
}

fn key(text: &str) -> Result<Key, Problem> {
    text.parse()
        .map_err(|error: model::key::KeyError| Problem::invalid("invalid_key", error.to_string()))
}

pub fn prefix(text: &str) -> Result<Prefix, Problem> {
    text.parse()
        .map_err(|error: model::key::KeyError| Problem::invalid("invalid_key", error.to_string()))
}

/// Returns the store whose values are as they lie there: secrets are sealed.
fn as_kept(store: &SharedStore) -> &SharedStore {
    store.beneath().unwrap_or(store)
}

/// Whether a value must not be shown here: the store that keeps it has opened it for this node.
fn is_open_secret(store: &SharedStore, key: &Key) -> bool {
    store.beneath().is_none() && sealed_for(key).is_some()
}

fn no_value(key: &Key) -> Problem {
    Problem::missing("no_value", format!("no value is stored under '{key}'"))
        .hint("`cortex store ls PREFIX` lists the keys there are")
}

pub async fn get(
    State(store): State<SharedStore>,
    Query(query): Query<KeyQuery>,
) -> Result<Response, Problem> {
    let key = key(&query.key)?;
    if is_open_secret(&store, &key) {
        let what = format!("the value of '{key}' is a secret and is not shown");
        return Err(Problem::invalid("secret", what)
            .hint("`cortex config get` prints one variable of an application"));
    }
    let entry = as_kept(&store).lookup(&key).await?.ok_or_else(|| no_value(&key))?;
    let kind = [(header::CONTENT_TYPE, "application/octet-stream")];
    match (entry.value.reader().await?, entry.value) {
        (Some(reader), _) => {
            let length = [(header::CONTENT_LENGTH, reader.size().to_string())];
            Ok((kind, length, Body::from_stream(reader.into_stream())).into_response())
        }
        (None, value) => Ok((kind, value.inline().cloned().unwrap_or_default()).into_response()),
    }
}

/// Stores a value. A small one goes into the commit itself; one that is larger than fits there goes
/// into a file.
pub async fn set(
    State(store): State<SharedStore>,
    Query(query): Query<KeyQuery>,
    body: Body,
) -> Result<Json<Committed>, Problem> {
    let key = key(&query.key)?;
    let mut body = body.into_data_stream();
    let mut head = Vec::new();
    while head.len() <= INLINE_VALUE_MAX {
        match body.next().await {
            None => {
                let commit = store.set(key, head.into()).await?;
                return Ok(stored(&commit.0));
            }
            Some(chunk) => head.extend_from_slice(&chunk.map_err(cut)?),
        }
    }
    let writer = store.writer().await?;
    let rest = futures_util::stream::once(async { Ok(Bytes::from(head)) }).chain(body);
    let file = write(writer, rest).await?;
    let commit = store.set_file(key, file).await?;
    Ok(stored(&commit.0))
}

fn stored(id: &[u8; 32]) -> Json<Committed> {
    Json(Committed { commit: hex(id) })
}

fn cut(error: axum::Error) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "upload_cut", format!("the upload was cut: {error}"))
}

async fn write(
    mut writer: ValueWriter,
    body: impl futures_util::Stream<Item = Result<Bytes, axum::Error>>,
) -> Result<store::ValueFile, Problem> {
    let mut body = std::pin::pin!(body);
    while let Some(chunk) = body.next().await {
        let chunk = chunk.map_err(cut)?;
        if writer.size + chunk.len() as u64 > VALUE_BYTES_MAX {
            return Err(store::StoreError::TooLarge { max: VALUE_BYTES_MAX }.into());
        }
        let written = runtime::task::spawn_blocking(move || writer.write(&chunk).map(|()| writer));
        writer = written.await.map_err(|error| Problem::internal(error.to_string()))??;
    }
    let finished = runtime::task::spawn_blocking(move || writer.finish());
    Ok(finished.await.map_err(|error| Problem::internal(error.to_string()))??)
}

pub async fn delete(
    State(store): State<SharedStore>,
    Query(query): Query<KeyQuery>,
) -> Result<Json<Committed>, Problem> {
    let key = key(&query.key)?;
    match store.delete(key.clone()).await? {
        Some(commit) => Ok(stored(&commit.0)),
        None => Err(no_value(&key)),
    }
}

pub async fn hash(
    State(store): State<SharedStore>,
    Query(query): Query<KeyQuery>,
) -> Result<Json<ValueHash>, Problem> {
    let key = key(&query.key)?;
    let hash = store.lookup_hash(&key).await?.ok_or_else(|| no_value(&key))?;
    Ok(Json(ValueHash { hash: hex(&hash) }))
}

pub async fn list(
    State(store): State<SharedStore>,
    Query(query): Query<PrefixQuery>,
) -> Result<Json<Vec<StoredKey>>, Problem> {
    let entries = as_kept(&store).prefix(&prefix(&query.prefix)?).await?;
    let rows = entries.into_iter().map(|entry| StoredKey {
        key: entry.key.to_string(),
        size: entry.value.size(),
        set_at: rfc3339(entry.set_at),
        node: entry.node.to_string(),
    });
    Ok(Json(rows.collect()))
}

pub async fn history(
    State(store): State<SharedStore>,
    Query(query): Query<PrefixQuery>,
) -> Result<Json<Vec<HistoryRow>>, Problem> {
    let limit = query.limit.unwrap_or(HISTORY_DEFAULT).min(HISTORY_MAX);
    let entries = store.history(&prefix(&query.prefix)?, limit).await?;
    let rows = entries.into_iter().map(|entry| HistoryRow {
        id: hex(&entry.id.0),
        key: entry.key.to_string(),
        set_at: rfc3339(entry.set_at),
        node: entry.node.to_string(),
        deleted: entry.deleted,
        size: entry.size,
    });
    Ok(Json(rows.collect()))
}

pub async fn watch(
    State(store): State<SharedStore>,
    Query(query): Query<PrefixQuery>,
) -> Result<Response, Problem> {
    let mut watch = as_kept(&store).watch(prefix(&query.prefix)?, None).await?;
    let (sender, receiver) = mpsc::channel(CHUNKS_WAITING_MAX);
    runtime::task::spawn(async move {
        loop {
            let event = tokio::select! {
                event = watch.next() => event,
                () = sender.closed() => return,
            };
            let Some(event) = event else { return };
            if sender.send(change(&store, event)).await.is_err() {
                return;
            }
        }
    });
    Ok(ndjson(receiver))
}

fn change(store: &SharedStore, event: WatchEvent) -> StoreChange {
    match event {
        WatchEvent::Resync { .. } => StoreChange::Resync,
        WatchEvent::Changed { key, value: None, .. } => StoreChange::Deleted { key: key.into() },
        WatchEvent::Changed { key, value: Some(value), .. } => {
            let text = value
                .inline()
                .filter(|bytes| bytes.len() <= WATCH_VALUE_MAX && !is_open_secret(store, &key))
                .and_then(|bytes| String::from_utf8(bytes.to_vec()).ok());
            StoreChange::Set { key: key.into(), size: value.size(), value: text }
        }
    }
}

pub async fn head(State(store): State<SharedStore>) -> Result<Json<StoreHead>, Problem> {
    Ok(Json(StoreHead { head: store.head().await? }))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
