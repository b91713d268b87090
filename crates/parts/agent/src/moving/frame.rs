//! The protocol between the two nodes while files move: frames of a length, a kind and a payload.
//! Must not know what becomes of the files.

use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use model::{ApplicationName, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// The maximum number of bytes of a file in one frame.
pub const DATA_BYTES_MAX: usize = 64 << 10;
/// The maximum length of a frame in bytes: its kind and a full payload. Also enough for an entry
/// with two paths of 4096 bytes, each byte a number in JSON.
const FRAME_BYTES_MAX: usize = DATA_BYTES_MAX + 1;
/// The maximum silence of a peer: its disk may be busy, or the line slow. A peer that waits for
/// something says so.
const STALL_MAX: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MoveRequest {
    pub v: u32,
    pub application: ApplicationName,
    /// The time of the request, so that no other one is meant.
    pub asked_at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileEntry {
    /// The path below the persistent directory, as bytes: names need not be text.
    pub path: Vec<u8>,
    pub mode: u32,
    pub kind: EntryKind,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    Directory,
    Link(Vec<u8>),
    /// A file whose bytes follow, then their hash.
    File,
    /// A file that is as it was sent before.
    Same,
}

#[derive(Clone, Debug, PartialEq)]
pub enum MoveFrame {
    Ask(MoveRequest),
    /// Asks for a copy of the files, which stay.
    Copy(MoveRequest),
    Entry(FileEntry),
    Data(Vec<u8>),
    /// The BLAKE3 hash of the file that ends.
    FileEnd([u8; 32]),
    PassEnd,
    /// Asks the holder to stop the application and to send what changed.
    Last,
    /// Says that all is here and durable.
    Taken,
    /// Says that the files belong to the caller now.
    Yours,
    /// Says that it takes a while longer.
    Wait,
    Fault(String),
}

pub struct MoveStream<S> {
    stream: S,
}

impl<S: AsyncRead + AsyncWrite + Unpin> MoveStream<S> {
    pub fn new(stream: S) -> MoveStream<S> {
        MoveStream { stream }
    }

    pub async fn send(&mut self, frame: &MoveFrame) -> anyhow::Result<()> {
        let (kind, payload) = encode(frame)?;
        let mut out = Vec::with_capacity(payload.len() + 5);
        out.extend_from_slice(&(payload.len() as u32 + 1).to_le_bytes());
        out.push(kind);
        out.extend_from_slice(&payload);
        let sending = async {
            self.stream.write_all(&out).await?;
            self.stream.flush().await
        };
        let sent = timeout(STALL_MAX, sending).await;
        sent.map_err(|_| silent())?.context("the connection broke")
    }

    pub async fn receive(&mut self) -> anyhow::Result<MoveFrame> {
        let receiving = async {
            let length = self.stream.read_u32_le().await.context("the connection broke")? as usize;
            ensure!((1..=FRAME_BYTES_MAX).contains(&length), "a frame of {length} bytes");
            let mut frame = vec![0; length];
            self.stream.read_exact(&mut frame).await.context("the connection broke")?;
            decode(frame[0], &frame[1..])
        };
        timeout(STALL_MAX, receiving).await.map_err(|_| silent())?
    }
}

fn silent() -> anyhow::Error {
    anyhow!("the other node said nothing for {} s", STALL_MAX.as_secs())
}

pub fn encode(frame: &MoveFrame) -> anyhow::Result<(u8, Vec<u8>)> {
    Ok(match frame {
        MoveFrame::Ask(ask) => (1, serde_json::to_vec(ask)?),
        MoveFrame::Copy(ask) => (11, serde_json::to_vec(ask)?),
        MoveFrame::Entry(entry) => (2, serde_json::to_vec(entry)?),
        MoveFrame::Data(bytes) => (3, bytes.clone()),
        MoveFrame::FileEnd(hash) => (4, hash.to_vec()),
        MoveFrame::PassEnd => (5, Vec::new()),
        MoveFrame::Last => (6, Vec::new()),
        MoveFrame::Taken => (7, Vec::new()),
        MoveFrame::Yours => (8, Vec::new()),
        MoveFrame::Wait => (9, Vec::new()),
        MoveFrame::Fault(why) => (10, why.as_bytes()[..why.len().min(DATA_BYTES_MAX)].to_vec()),
    })
}

pub fn decode(kind: u8, payload: &[u8]) -> anyhow::Result<MoveFrame> {
    Ok(match kind {
        1 => MoveFrame::Ask(serde_json::from_slice(payload)?),
        2 => MoveFrame::Entry(serde_json::from_slice(payload)?),
        3 => MoveFrame::Data(payload.to_vec()),
        4 => MoveFrame::FileEnd(payload.try_into().context("a hash of another length")?),
        5 => MoveFrame::PassEnd,
        6 => MoveFrame::Last,
        7 => MoveFrame::Taken,
        8 => MoveFrame::Yours,
        9 => MoveFrame::Wait,
        10 => MoveFrame::Fault(String::from_utf8_lossy(payload).into_owned()),
        11 => MoveFrame::Copy(serde_json::from_slice(payload)?),
        _ => anyhow::bail!("a frame of unknown kind {kind}: bring the older node up to date"),
    })
}
