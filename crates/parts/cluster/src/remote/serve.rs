//! The serving side, on the node that keeps the store: answers one node that keeps none, on one
//! stream. Notes of its own board are hidden from that node. The node port drives it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use model::hex::to_hex;
use model::{Key, Prefix, TypedKey};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::wire::{
    self, AnswerPart, At, FromStore, PART_BYTES, PastCommit, StoreRequest, ToStore, WireEntry,
    WireValue,
};
use crate::apart;
use model::value::VALUE_BYTES_MAX;
use runtime::members::BoxedStream;
use store::reply::Reply;
use store::values::blocking;
use store::{
    Entry, INLINE_VALUE_MAX, RECORD_BYTES_MAX, SharedStore, StoreError, Submission, Submitted,
    Urgency, Value, Watch, WatchEvent, Written,
};

/// The number of requests of one stream under way; the rest waits in the kernel.
const REQUESTS_MAX: usize = 256;
/// The number of frames that wait to be written.
const FRAMES_MAX: usize = 64;
/// The time after which a silent guest is gone; a living one sends something more often.
const IDLE_MAX: Duration = Duration::from_secs(20);
/// The time after which a guest that takes in nothing is gone.
const WRITE_MAX: Duration = Duration::from_secs(10);
/// The size in bytes of a piece of an uploaded value, and the number of pieces that wait for the
/// disk.
const PIECE_BYTES: usize = 64 << 10;
const PIECES_MAX: usize = 16;

/// Serves a stream until it ends.
pub async fn serve(store: SharedStore, stream: BoxedStream) -> anyhow::Result<()> {
    let (mut reader, writer) = tokio::io::split(stream);
    let first = timeout(IDLE_MAX, wire::read::<ToStore>(&mut reader));
    let (head, value) = first.await.map_err(|_| anyhow!("it asked nothing"))??;
    if let ToStore::Put { key, size, expires, only_over } = head {
        let only_over = only_over.map(Into::into);
        let written = receive(&store, &mut reader, size).await;
        let written = match written {
            Ok(file) => {
                let change = Submitted::File { file, expires };
                store.write(Submission { key, change, only_over }).await
            }
            Err(error) => Err(error),
        };
        return finish(writer, written).await;
    }
    let (out, frames) = mpsc::channel(FRAMES_MAX);
    let mut session = GuestSession {
        store,
        out,
        room: Arc::new(Semaphore::new(REQUESTS_MAX)),
        tasks: JoinSet::new(),
        follower: None,
    };
    let reading = async {
        session.take(head, value).await?;
        loop {
            let next = timeout(IDLE_MAX, wire::read::<ToStore>(&mut reader)).await;
            let (head, value) = next.map_err(|_| anyhow!("it said nothing for long"))??;
            session.take(head, value).await?;
        }
    };
    tokio::select! {
        ended = reading => ended,
        ended = write(writer, frames) => ended,
    }
}

async fn write(
    mut writer: impl AsyncWrite + Unpin,
    mut frames: mpsc::Receiver<Bytes>,
) -> anyhow::Result<()> {
    while let Some(frame) = frames.recv().await {
        wire::write(&mut writer, &frame, frames.is_empty(), WRITE_MAX).await?;
    }
    Ok(())
}

async fn finish(mut writer: impl AsyncWrite + Unpin, written: Written) -> anyhow::Result<()> {
    let frame = answer(0, of_written(written), true, &[]);
    timeout(WRITE_MAX, writer.write_all(&frame)).await.context("it takes nothing in")??;
    Ok(writer.shutdown().await?)
}

/// Receives a value that is larger than a frame into a file.
async fn receive(
    store: &SharedStore,
    reader: &mut (impl AsyncRead + Unpin),
    size: u64,
) -> Result<store::ValueFile, StoreError> {
    if size > VALUE_BYTES_MAX {
        return Err(StoreError::TooLarge { max: VALUE_BYTES_MAX });
    }
    let mut writer = store.writer().await?;
    let (pieces, mut waiting) = mpsc::channel::<Bytes>(PIECES_MAX);
    let disk = runtime::task::spawn(blocking(move || {
        while let Some(piece) = waiting.blocking_recv() {
            writer.write(&piece)?;
        }
        if writer.size == size { writer.finish().map(Some) } else { Ok(None) }
    }));
    let mut rest = size;
    while rest > 0 {
        let mut piece = vec![0; usize::try_from(rest).unwrap_or(PIECE_BYTES).min(PIECE_BYTES)];
        match timeout(IDLE_MAX, reader.read_exact(&mut piece)).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => break,
        }
        rest -= piece.len() as u64;
        if pieces.send(piece.into()).await.is_err() {
            break;
        }
    }
    drop(pieces);
    let cut = || StoreError::Unavailable("the value was cut off on its way".into());
    disk.await.map_err(|_| cut())??.ok_or_else(cut)
}

struct GuestSession {
    store: SharedStore,
    out: mpsc::Sender<Bytes>,
    room: Arc<Semaphore>,
    /// The tasks of the session, which end with it.
    tasks: JoinSet<()>,
    /// The queue behind the changes: once changes are sent, answers to writes go there, so that
    /// they follow the changes they made.
    follower: Option<mpsc::Sender<Bytes>>,
}

impl GuestSession {
    async fn take(&mut self, head: ToStore, value: Bytes) -> anyhow::Result<()> {
        while self.tasks.try_join_next().is_some() {}
        match head {
            ToStore::Ping => {
                self.out.send(wire::frame(&FromStore::Pong, b"")).await?;
            }
            ToStore::Watch { from } if self.follower.is_none() => {
                let watch = self.store.watch(Prefix::all(), from.map(Into::into)).await?;
                let (follower, answers) = mpsc::channel(FRAMES_MAX);
                self.follower = Some(follower);
                let out = self.out.clone();
                self.tasks.spawn(async move { follow(watch, answers, out).await });
            }
            ToStore::Watch { .. } | ToStore::Put { .. } => bail!("it spoke out of turn"),
            ToStore::Ask { id, what } => {
                let permit = self.room.clone().acquire_owned().await?;
                self.ask(id, what, value, permit).await;
            }
        }
        Ok(())
    }

    /// Queues writes here, in the order in which they came; all other requests may take their time.
    async fn ask(
        &mut self,
        id: u64,
        what: StoreRequest,
        value: Bytes,
        permit: OwnedSemaphorePermit,
    ) {
        let out = self.out.clone();
        let (key, change, only_over) = match what {
            StoreRequest::Set { key, expires, only_over } => {
                (key, Submitted::Set { value, expires }, only_over)
            }
            StoreRequest::Delete { key, only_over } => (key, Submitted::Delete, only_over),
            what => {
                let store = self.store.clone();
                self.tasks.spawn(async move {
                    if let Err(error) = read(&*store, id, what, &out).await {
                        let failed = AnswerPart::Failed(error.into());
                        out.send(answer(id, failed, true, &[])).await.ok();
                    }
                    drop(permit);
                });
                return;
            }
        };
        let (reply, written) = oneshot::channel();
        let queued = if key.is_local() {
            Err(StoreError::Refused("notes under 'local' stay on their node".into()))
        } else {
            let write = Submission { key, change, only_over: only_over.map(Into::into) };
            let reply = Reply::to(move |result| drop(reply.send(result)));
            self.store.submit(write, Urgency::Now, reply).await
        };
        let behind = self.follower.clone().unwrap_or_else(|| self.out.clone());
        self.tasks.spawn(async move {
            let stopped = || Err(StoreError::Stopped("it was closed".into()));
            let written = match queued {
                Ok(()) => written.await.unwrap_or_else(|_| stopped()),
                Err(error) => Err(error),
            };
            behind.send(answer(id, of_written(written), true, &[])).await.ok();
            drop(permit);
        });
    }
}

fn of_written(written: Written) -> AnswerPart {
    match written {
        Ok(id) => AnswerPart::Written(id.map(|id| to_hex(&id.0))),
        Err(error) => AnswerPart::Failed(error.into()),
    }
}

fn answer(id: u64, part: AnswerPart, last: bool, bytes: &[u8]) -> Bytes {
    wire::frame(&FromStore::Answer { id, part, last }, bytes)
}

/// Sends changes and answers. The store announces a change before it answers the writer; they stay
/// in that order here.
async fn follow(mut watch: Watch, mut answers: mpsc::Receiver<Bytes>, out: mpsc::Sender<Bytes>) {
    loop {
        let frame = tokio::select! {
            biased;
            event = watch.next() => match event {
                Some(event) => told_of(event).await,
                None => return,
            },
            Some(answer) = answers.recv() => Some(answer),
        };
        let Some(frame) = frame else { continue };
        if out.send(frame).await.is_err() {
            return;
        }
    }
}

/// Encodes an event; `None` if it concerns this node's own notes.
async fn told_of(event: WatchEvent) -> Option<Bytes> {
    let head = match event {
        WatchEvent::Resync { cursor } => FromStore::Resync { at: At::from(cursor) },
        WatchEvent::Changed { key, .. } if key.is_local() => return None,
        WatchEvent::Changed { cursor, key, value: None, expired } => {
            FromStore::Changed { at: At::from(cursor), key, value: None, expired }
        }
        WatchEvent::Changed { cursor, key, value: Some(value), expired } => {
            let (shape, bytes) = shape(&key, value).await;
            let value = Some(shape);
            let head = FromStore::Changed { at: At::from(cursor), key, value, expired };
            return Some(wire::frame(&head, &bytes));
        }
    };
    Some(wire::frame(&head, b""))
}

/// Returns how a value is sent. The other side reads Cortex's own records whole, so they are sent
/// whole, even if they are files here.
async fn shape(key: &Key, value: Value) -> (WireValue, Bytes) {
    let is_record = !matches!(TypedKey::parse(key), None | Some(TypedKey::Source(..)));
    match value {
        Value::Inline(bytes) => (WireValue::Inline(bytes.len()), bytes),
        Value::File { hash, size, path } => {
            if is_record && size <= RECORD_BYTES_MAX {
                let file = Value::File { hash, size, path };
                let read = blocking(move || file.read(RECORD_BYTES_MAX)).await;
                if let Ok(bytes) = read {
                    return (WireValue::Inline(bytes.len()), bytes);
                }
            }
            (WireValue::Large { hash, size }, Bytes::new())
        }
        Value::Away { hash, size, .. } => (WireValue::Large { hash, size }, Bytes::new()),
    }
}

async fn told(entry: Entry) -> (WireEntry, Bytes) {
    let Entry { key, value, set_at, node, expires, version } = entry;
    let (value, bytes) = shape(&key, value).await;
    (WireEntry { key, value, set_at, node, expires, version: version.into() }, bytes)
}

async fn read(
    store: &dyn store::Store,
    id: u64,
    what: StoreRequest,
    out: &mpsc::Sender<Bytes>,
) -> Result<(), StoreError> {
    let prefix = |text: String| {
        text.parse::<Prefix>().map_err(|error| StoreError::Refused(error.to_string()))
    };
    let part = match what {
        StoreRequest::Lookup { key } => {
            // Of this node's notes, one is for those that use its store.
            let theirs = |key: &Key| !key.is_local() || *key == apart::note();
            let entry = store.lookup(&key).await?.filter(|entry| theirs(&entry.key));
            return entries(entry.into_iter().collect(), id, out).await;
        }
        StoreRequest::Prefix { prefix: text } => {
            let mut found = store.prefix(&prefix(text)?).await?;
            found.retain(|entry| !entry.key.is_local());
            return entries(found, id, out).await;
        }
        StoreRequest::Keys { prefix: text } => {
            return keys(store.keys(&prefix(text)?).await?, id, out).await;
        }
        StoreRequest::KeysAfter { prefix: text, after, limit } => {
            let page = keys_after(store, &prefix(text)?, after, limit).await?;
            return keys(page, id, out).await;
        }
        StoreRequest::Hash { key } => {
            let hash = store.lookup_hash(&key).await?;
            AnswerPart::Hash(hash.map(|hash| to_hex(&hash)))
        }
        StoreRequest::History { prefix: text, limit } => {
            let history = store.history(&prefix(text)?, limit).await?;
            return pasts(history.into_iter().map(PastCommit::of).collect(), id, out).await;
        }
        StoreRequest::Head => AnswerPart::Text(store.head().await?),
        StoreRequest::Count => AnswerPart::Count(store.count().await? as u64),
        StoreRequest::Squash { before } => {
            store.squash(before).await?;
            AnswerPart::Changed(true)
        }
        StoreRequest::Expire { key, expires } => {
            AnswerPart::Changed(store.expire(&key, expires).await?)
        }
        StoreRequest::Set { .. } | StoreRequest::Delete { .. } => {
            return Err(StoreError::Refused("writes go another way".into()));
        }
    };
    send(out, answer(id, part, true, &[])).await
}

/// Returns a page that is not only notes, since an empty page is the end.
async fn keys_after(
    store: &dyn store::Store,
    prefix: &Prefix,
    mut after: Option<Key>,
    limit: usize,
) -> Result<Vec<Key>, StoreError> {
    loop {
        let page = store.keys_after(prefix, after.as_ref(), limit).await?;
        if page.is_empty() || page.iter().any(|key| !key.is_local()) {
            return Ok(page);
        }
        after = page.into_iter().next_back();
    }
}

async fn send(out: &mpsc::Sender<Bytes>, frame: Bytes) -> Result<(), StoreError> {
    let gone = |_| StoreError::Unavailable("whoever asked is gone".into());
    out.send(frame).await.map_err(gone)
}

async fn entries(
    entries: Vec<Entry>,
    id: u64,
    out: &mpsc::Sender<Bytes>,
) -> Result<(), StoreError> {
    let (mut part, mut bytes) = (Vec::new(), Vec::new());
    let mut length = 0;
    for entry in entries {
        let (told, value) = told(entry).await;
        length += told.key.as_str().len() + value.len() + INLINE_VALUE_MAX / 16;
        part.push(told);
        bytes.extend_from_slice(&value);
        if length >= PART_BYTES {
            let full = AnswerPart::Entries(std::mem::take(&mut part));
            send(out, answer(id, full, false, &bytes)).await?;
            bytes.clear();
            length = 0;
        }
    }
    send(out, answer(id, AnswerPart::Entries(part), true, &bytes)).await
}

/// The number of keys per part: this many of the longest fit.
const KEYS_PER_PART: usize = PART_BYTES / model::key::KEY_LENGTH_MAX;

async fn keys(keys: Vec<Key>, id: u64, out: &mpsc::Sender<Bytes>) -> Result<(), StoreError> {
    let keys: Vec<Key> = keys.into_iter().filter(|key| !key.is_local()).collect();
    for some in keys.chunks(KEYS_PER_PART) {
        send(out, answer(id, AnswerPart::Keys(some.to_vec()), false, &[])).await?;
    }
    send(out, answer(id, AnswerPart::Keys(Vec::new()), true, &[])).await
}

async fn pasts(all: Vec<PastCommit>, id: u64, out: &mpsc::Sender<Bytes>) -> Result<(), StoreError> {
    for some in all.chunks(KEYS_PER_PART) {
        send(out, answer(id, AnswerPart::History(some.to_vec()), false, &[])).await?;
    }
    send(out, answer(id, AnswerPart::History(Vec::new()), true, &[])).await
}
