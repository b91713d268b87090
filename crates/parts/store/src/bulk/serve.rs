//! The serving side: says which values are here and sends their bytes. A file whose content no
//! longer matches its name is not given away.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::frame::{BulkFrameKind, BulkRequest, Framed, WantedGroups, encode_bits};
use super::outline::Outline;
use super::{BUFFER_BYTES, BulkError, GROUP_BYTES, SPAN_GROUPS, ValueName};
use crate::values::{ValueFiles, suspect};
use runtime::members::Stream;
use runtime::task::spawn_blocking;

/// The number of streams at a time, with some 100 KiB each; a peer needs a few.
const STREAMS_MAX: usize = 64;
/// The number of files hashed at a time, so that many requests do not fill the disk's queue.
const HASHING_MAX: usize = 2;
/// The time after which an idle peer's stream is closed; the peer opens another.
const IDLE_MAX: Duration = Duration::from_secs(300);
/// The time that a peer has to take what it is sent; it may write that to its disk first.
const SEND_MAX: Duration = Duration::from_secs(60);
/// The time between two `Wait` frames, well below what the asking side waits for.
const WAIT_INTERVAL: Duration = Duration::from_secs(5);

pub struct BulkServer {
    values: Arc<ValueFiles>,
    streams: Semaphore,
    hashing: Semaphore,
}

/// The reason why a request gets no value; the stream goes on.
enum Unmet {
    Lacks,
    Unable(String),
}

impl Unmet {
    fn disk(error: io::Error) -> Unmet {
        Unmet::Unable(format!("its disk: {error}"))
    }
}

impl BulkServer {
    pub fn new(values: Arc<ValueFiles>) -> BulkServer {
        let (streams, hashing) = (Semaphore::new(STREAMS_MAX), Semaphore::new(HASHING_MAX));
        BulkServer { values, streams, hashing }
    }

    /// Serves a stream until the peer closes it, is silent for too long or breaks the rules.
    pub async fn serve(&self, stream: impl Stream) -> Result<(), BulkError> {
        let Ok(_permit) = self.streams.try_acquire() else {
            return Err(BulkError::Unable("too many streams are being served".into()));
        };
        let mut framed = Framed::new(stream);
        let mut body = Vec::new();
        // The file of the last request; the next is mostly for the same one.
        let mut open: Option<(ValueName, Arc<File>)> = None;
        loop {
            body.clear();
            let received = timeout(IDLE_MAX, framed.receive(&mut body)).await;
            let Some((kind, _)) = received.map_err(|_| BulkError::Stalled)?? else {
                return Ok(());
            };
            let request = BulkRequest::decode(kind, &body)?;
            match request {
                BulkRequest::Held(hashes) => {
                    let held = self.held(hashes).await?;
                    send(&mut framed, BulkFrameKind::Held, &encode_bits(&held)).await?;
                }
                BulkRequest::Spans(value) => match self.outline(&mut framed, value).await? {
                    Ok(outline) => {
                        let spans = outline.spans().concat();
                        send(&mut framed, BulkFrameKind::Spans, &spans).await?;
                    }
                    Err(unmet) => refuse(&mut framed, unmet).await?,
                },
                BulkRequest::Groups(wanted) => {
                    let answered = match self.outline(&mut framed, wanted.value).await? {
                        Ok(outline) => {
                            self.groups(&mut framed, wanted, &outline, &mut open).await?
                        }
                        Err(unmet) => Err(unmet),
                    };
                    if let Err(unmet) = answered {
                        refuse(&mut framed, unmet).await?;
                    }
                }
            }
            timeout(SEND_MAX, framed.flush()).await.map_err(|_| BulkError::Stalled)??;
        }
    }

    async fn held(&self, hashes: Vec<[u8; 32]>) -> io::Result<Vec<bool>> {
        let values = self.values.clone();
        let look = move || hashes.iter().map(|hash| values.path(hash).is_file()).collect();
        Ok(spawn_blocking(look).await?)
    }

    /// Returns the outline of a value. Reads the file through unless that was done lately, and
    /// keeps the peer waiting meanwhile.
    async fn outline(
        &self,
        framed: &mut Framed<impl Stream>,
        value: ValueName,
    ) -> Result<Result<Arc<Outline>, Unmet>, BulkError> {
        if let Some(outline) = self.known(&value) {
            return Ok(Ok(outline));
        }
        let mut made = std::pin::pin!(self.make_outline(value));
        loop {
            match timeout(WAIT_INTERVAL, &mut made).await {
                Ok(made) => return Ok(made),
                Err(_) => {
                    send(framed, BulkFrameKind::Wait, &[]).await?;
                    timeout(SEND_MAX, framed.flush()).await.map_err(|_| BulkError::Stalled)??;
                }
            }
        }
    }

    fn known(&self, value: &ValueName) -> Option<Arc<Outline>> {
        self.values.outlines.get(&value.hash).filter(|outline| outline.shape.size == value.size)
    }

    async fn make_outline(&self, value: ValueName) -> Result<Arc<Outline>, Unmet> {
        let _turn = self.hashing.acquire().await.map_err(|_| Unmet::Lacks)?;
        // Another stream may have asked for the same while this one waited.
        if let Some(outline) = self.known(&value) {
            return Ok(outline);
        }
        let values = self.values.clone();
        let make = move || {
            let file = values.open_value(&value).map_err(Unmet::disk)?.ok_or(Unmet::Lacks)?;
            let outline = Arc::new(Outline::read(file).map_err(Unmet::disk)?);
            if outline.hash() != value.hash {
                suspect(&values.path(&value.hash), &value);
                return Err(Unmet::Unable("its file is damaged".into()));
            }
            values.outlines.put(value.hash, outline.clone());
            Ok(outline)
        };
        spawn_blocking(make).await.unwrap_or_else(|error| Err(Unmet::Unable(error.to_string())))
    }

    async fn groups(
        &self,
        framed: &mut Framed<impl Stream>,
        wanted: WantedGroups,
        outline: &Outline,
        open: &mut Option<(ValueName, Arc<File>)>,
    ) -> Result<Result<(), Unmet>, BulkError> {
        let WantedGroups { value, span, from, until } = wanted;
        let page = outline.page(span).filter(|page| until <= page.len());
        let page = page.ok_or(BulkError::False("a request beyond the value's end"))?;
        let file = match open {
            Some((name, file)) if *name == value => file.clone(),
            _ => match self.open(value).await {
                Ok(file) => open.insert((value, file)).1.clone(),
                Err(unmet) => return Ok(Err(unmet)),
            },
        };
        send(framed, BulkFrameKind::Page, &page.concat()).await?;
        let first = span * SPAN_GROUPS as u64;
        let end = (first + until as u64) * GROUP_BYTES as u64;
        let mut at = (first + from as u64) * GROUP_BYTES as u64;
        let end = end.min(value.size);
        let mut buffer = Vec::with_capacity(BUFFER_BYTES);
        while at < end {
            let file = file.clone();
            let count = (end - at).min(BUFFER_BYTES as u64) as usize;
            let told = page[((at / GROUP_BYTES as u64) - first) as usize..].to_vec();
            let (shape, values) = (outline.shape, self.values.clone());
            let read = move || {
                buffer.resize(count, 0);
                file.read_exact_at(&mut buffer, at)?;
                let groups = (at / GROUP_BYTES as u64..).zip(buffer.chunks(GROUP_BYTES)).zip(told);
                for ((group, bytes), told) in groups {
                    if shape.hash_group(group, bytes) != told {
                        // The file was whole when its outline was made.
                        suspect(&values.path(&value.hash), &value);
                        return Err(io::Error::from(io::ErrorKind::InvalidData));
                    }
                }
                Ok(buffer)
            };
            // An error amid an answer ends the stream, so that the peer sees that the rest does not
            // come.
            buffer = spawn_blocking(read).await.map_err(io::Error::other)??;
            for group in buffer.chunks(GROUP_BYTES) {
                send(framed, BulkFrameKind::Group, group).await?;
            }
            at += count as u64;
        }
        Ok(Ok(()))
    }

    async fn open(&self, value: ValueName) -> Result<Arc<File>, Unmet> {
        let values = self.values.clone();
        let opened = spawn_blocking(move || values.open_value(&value)).await;
        let opened = opened.map_err(|error| Unmet::Unable(error.to_string()))?;
        opened.map_err(Unmet::disk)?.map(Arc::new).ok_or(Unmet::Lacks)
    }
}

async fn send(
    framed: &mut Framed<impl Stream>,
    kind: BulkFrameKind,
    body: &[u8],
) -> Result<(), BulkError> {
    Ok(timeout(SEND_MAX, framed.send(kind, body)).await.map_err(|_| BulkError::Stalled)??)
}

async fn refuse(framed: &mut Framed<impl Stream>, unmet: Unmet) -> Result<(), BulkError> {
    match unmet {
        Unmet::Lacks => send(framed, BulkFrameKind::Lacks, &[]).await,
        Unmet::Unable(why) => send(framed, BulkFrameKind::Unable, why.as_bytes()).await,
    }
}
