//! The frames of a stream between nodes: a length, a kind and a payload. The first one says which
//! versions its sender reads. Must not know what a payload means to the store.

use std::io;
use std::str::FromStr;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use model::NodeId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use store_core::sync::message::Message;
use store_core::sync::wire::{self, Decoded, MESSAGE_BYTES_MAX};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use runtime::members::{VERSION_HIGHEST, VERSION_LOWEST};
use store::bus;

/// The size in bytes of a published message; a larger one stays on its node, since streams are for
/// the store first.
pub const PUBLISHED_BYTES_MAX: usize = bus::TRAVELLING_BYTES_MAX;
/// The size of a greeting in bytes; little is read before the sender is known.
pub const GREETING_BYTES_MAX: usize = 16 << 10;
/// The largest frame that is read, in bytes: a message of the store and its kind.
pub const FRAME_BYTES_MAX: usize = MESSAGE_BYTES_MAX + 1;
/// The size of a liveness message in bytes; foca keeps within what a datagram would carry.
pub const LIVENESS_BYTES_MAX: usize = 1400;

const SYNC: u8 = 1;
const LIVENESS: u8 = 2;
const PUBLISHED: u8 = 3;
const ALIVE: u8 = 4;

/// The versions of the protocol that a node speaks, lowest and highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    pub lowest: u16,
    pub highest: u16,
}

/// The first frame of each side, in JSON, so that later versions can add to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Greeting {
    pub node: NodeId,
    #[serde(flatten)]
    pub versions: Versions,
    /// The reason why the other side is refused, after which nothing follows; `None` if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<GreetingRefused>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GreetingRefused {
    /// The node was a member once.
    Removed,
    /// The node is not known.
    Unknown,
}

impl Default for Versions {
    fn default() -> Versions {
        Versions { lowest: VERSION_LOWEST, highest: VERSION_HIGHEST }
    }
}

impl FromStr for Versions {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Versions> {
        let (lowest, highest) = text.split_once('-').context("it is LOWEST-HIGHEST")?;
        Ok(Versions { lowest: lowest.parse()?, highest: highest.parse()? })
    }
}

impl Versions {
    /// Returns the highest version that a node that speaks these and one that speaks `theirs`
    /// share.
    pub fn agree(self, theirs: Versions) -> anyhow::Result<u16> {
        let version = self.highest.min(theirs.highest);
        ensure!(
            version >= self.lowest.max(theirs.lowest),
            "it speaks versions {} to {} of the protocol and this node {} to {}: bring the older \
             of the two nodes up to date (`cortex upgrade`)",
            theirs.lowest,
            theirs.highest,
            self.lowest,
            self.highest
        );
        Ok(version)
    }
}

impl Greeting {
    pub fn of(node: NodeId, versions: Versions) -> Greeting {
        Greeting { node, versions, refused: None }
    }
}

#[derive(Debug)]
pub enum LinkFrame {
    Sync(Bytes),
    Liveness(Bytes),
    Published(bus::Message),
    /// Nothing else was to be sent for a while.
    Alive,
}

pub fn sync(message: &Message, values: &[Option<Bytes>]) -> Option<Bytes> {
    let values: Vec<Option<&[u8]>> = values.iter().map(|value| value.as_deref()).collect();
    let mut out = begin(SYNC);
    wire::encode(message, &values, &mut out);
    (out.len() - 4 <= FRAME_BYTES_MAX).then(|| end(out))
}

pub fn liveness(datagram: &[u8]) -> Bytes {
    let mut out = begin(LIVENESS);
    out.extend_from_slice(datagram);
    end(out)
}

/// Encodes a published message; `None` if it is too large to travel.
pub fn published(message: &bus::Message) -> Option<Bytes> {
    let bus::Message { channel, payload } = message;
    if channel.len() + payload.len() > PUBLISHED_BYTES_MAX {
        return None;
    }
    let mut out = begin(PUBLISHED);
    out.extend_from_slice(&(channel.len() as u32).to_le_bytes());
    out.extend_from_slice(channel);
    out.extend_from_slice(payload);
    Some(end(out))
}

pub fn alive() -> Bytes {
    end(begin(ALIVE))
}

fn begin(kind: u8) -> Vec<u8> {
    vec![0, 0, 0, 0, kind]
}

fn end(mut out: Vec<u8>) -> Bytes {
    let length = (out.len() - 4) as u32;
    out[..4].copy_from_slice(&length.to_le_bytes());
    out.into()
}

/// Reads the next frame; its bytes come from outside.
pub async fn read(from: &mut (impl AsyncRead + Unpin)) -> anyhow::Result<LinkFrame> {
    let mut frame = read_bytes(from, FRAME_BYTES_MAX).await?;
    ensure!(!frame.is_empty(), "it sent an empty frame");
    let payload = frame.split_off(1);
    match frame[0] {
        SYNC => Ok(LinkFrame::Sync(payload)),
        LIVENESS if payload.len() <= LIVENESS_BYTES_MAX => Ok(LinkFrame::Liveness(payload)),
        PUBLISHED => parse_published(payload),
        ALIVE if payload.is_empty() => Ok(LinkFrame::Alive),
        kind => bail!("it sent a frame of kind {kind} that is not understood"),
    }
}

fn parse_published(mut payload: Bytes) -> anyhow::Result<LinkFrame> {
    ensure!((4..=4 + PUBLISHED_BYTES_MAX).contains(&payload.len()), "it published too much");
    let length = payload.split_to(4);
    let length = u32::from_le_bytes(length[..].try_into()?) as usize;
    ensure!(length <= payload.len(), "it published to a channel whose name ends early");
    let channel = payload.split_to(length);
    Ok(LinkFrame::Published(bus::Message { channel, payload }))
}

/// A message and its commits' values, which may be held long after the frame is gone.
#[derive(Debug)]
pub struct OwnedMessage {
    pub message: Message,
    pub values: Vec<Option<Bytes>>,
}

pub fn decode(payload: &[u8]) -> anyhow::Result<OwnedMessage> {
    let Decoded { message, values } = wire::decode(payload)?;
    let values = values.into_iter().map(|value| value.map(Bytes::copy_from_slice));
    Ok(OwnedMessage { message, values: values.collect() })
}

async fn read_bytes(from: &mut (impl AsyncRead + Unpin), max: usize) -> anyhow::Result<Bytes> {
    let length = from.read_u32_le().await? as usize;
    ensure!(length <= max, "it announced a frame of {length} bytes; {max} are the limit");
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes).await?;
    Ok(bytes.into())
}

/// Writes one JSON object in a frame without a kind, as streams begin.
pub async fn write_json(
    to: &mut (impl AsyncWrite + Unpin),
    object: &impl Serialize,
) -> io::Result<()> {
    let bytes = serde_json::to_vec(object)?;
    to.write_u32_le(bytes.len() as u32).await?;
    to.write_all(&bytes).await?;
    to.flush().await
}

pub async fn read_json<T: DeserializeOwned>(
    from: &mut (impl AsyncRead + Unpin),
    max: usize,
) -> anyhow::Result<T> {
    Ok(serde_json::from_slice(&read_bytes(from, max).await?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use store_core::sync::message::Body;

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn frames_are_read_back() {
        let message = Message { session: 7, body: Body::Durable { batch: 3 } };
        let published = bus::Message { channel: "c".into(), payload: "p".into() };
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&sync(&message, &[]).unwrap());
        bytes.extend_from_slice(&super::published(&published).unwrap());
        bytes.extend_from_slice(&liveness(b"ping"));
        bytes.extend_from_slice(&alive());
        let mut from = &bytes[..];
        run(async {
            let LinkFrame::Sync(payload) = read(&mut from).await.unwrap() else { panic!() };
            assert_eq!(decode(&payload).unwrap().message, message);
            let LinkFrame::Published(read_back) = read(&mut from).await.unwrap() else { panic!() };
            assert_eq!(read_back, published);
            assert!(
                matches!(read(&mut from).await.unwrap(), LinkFrame::Liveness(d) if d == "ping")
            );
            assert!(matches!(read(&mut from).await.unwrap(), LinkFrame::Alive));
            assert!(read(&mut from).await.is_err());
        });
        let large = bus::Message { channel: "c".into(), payload: vec![0; 1 << 20].into() };
        assert!(super::published(&large).is_none());
    }

    #[test]
    fn versions_that_do_not_meet_are_refused() {
        let own = Versions { lowest: 2, highest: 3 };
        let agreed = |lowest, highest| own.agree(Versions { lowest, highest });
        assert_eq!(agreed(1, 9).unwrap(), 3);
        assert_eq!(agreed(1, 2).unwrap(), 2);
        assert_eq!(agreed(3, 4).unwrap(), 3);
        assert!(agreed(4, 9).unwrap_err().to_string().contains("up to date"));
        assert!(agreed(0, 1).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut from = &bytes[..];
            run(async {
                while let Ok(frame) = read(&mut from).await {
                    if let LinkFrame::Sync(payload) = frame {
                        let _ = decode(&payload);
                    }
                }
                let _ = read_json::<Greeting>(&mut &bytes[..], GREETING_BYTES_MAX).await;
            });
        }
    }
}
