//! One stream with a peer: greets, then reads and writes frames until either side ends it. What the
//! peer says is checked here; a peer that lies is cut off and left alone for a while.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use store_core::NodeTag;
use store_core::sync::message::Body;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::frame::{self, GREETING_BYTES_MAX, Greeting, GreetingRefused, LinkFrame};
use super::links::{Link, Outgoing};
use super::liveness::Heard;
use super::net::Net;
use store::command::IncomingMessage;
use store::replication::{LieError, Replication, check_value};

/// The longest time without sending anything.
const ALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// The time after which a silent peer counts as gone.
const IDLE_MAX: Duration = Duration::from_secs(20);
/// The time after which a peer that takes in nothing counts as gone too.
const WRITE_MAX: Duration = Duration::from_secs(10);
pub const GREETING_MAX: Duration = Duration::from_secs(10);
/// The number of one peer's messages that wait for the committing thread; at that many its stream
/// is not read.
const INCOMING_MAX: usize = 16;

/// The reason for the end of a stream.
#[derive(Debug, thiserror::Error)]
pub enum LinkEnd {
    #[error("{0:#}")]
    Lied(anyhow::Error),
    #[error("{0:#}")]
    Lost(anyhow::Error),
}

/// Tells the other side who this node is, and returns the greeting of that side.
pub async fn greet(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    own: &Greeting,
) -> anyhow::Result<Greeting> {
    let both = async {
        frame::write_json(stream, own).await?;
        frame::read_json::<Greeting>(stream, GREETING_BYTES_MAX).await
    };
    let theirs = timeout(GREETING_MAX, both).await.map_err(|_| anyhow!("it did not greet"))?;
    let theirs = theirs.context("its greeting")?;
    own.versions.agree(theirs.versions)?;
    Ok(theirs)
}

/// Reads the greeting of the other side before sending one; `answer` decides what to send.
pub async fn greet_back<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    answer: impl AsyncFnOnce(&Greeting) -> anyhow::Result<Greeting>,
) -> anyhow::Result<Greeting> {
    let both = async {
        let theirs = frame::read_json::<Greeting>(stream, GREETING_BYTES_MAX).await;
        let theirs = theirs.context("its greeting")?;
        let own = answer(&theirs).await?;
        frame::write_json(stream, &own).await?;
        own.versions.agree(theirs.versions)?;
        match own.refused {
            None => {}
            Some(GreetingRefused::Removed) => bail!("node {} was removed", theirs.node),
            Some(GreetingRefused::Unknown) => bail!("node {} is not on the roster", theirs.node),
        }
        Ok(theirs)
    };
    timeout(GREETING_MAX, both).await.map_err(|_| anyhow!("it did not greet"))?
}

/// Runs a stream until it ends, and returns the reason.
pub async fn run(
    net: Arc<Net>,
    link: Arc<Link>,
    outgoing: Outgoing,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> LinkEnd {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let writing = async {
        let ended = write(&link, outgoing, &mut writer).await;
        let _ = timeout(WRITE_MAX, writer.shutdown()).await;
        ended
    };
    tokio::select! {
        ended = read(&net, link.peer, &mut reader) => ended,
        error = writing => LinkEnd::Lost(error),
        () = link.cut.notified() => {
            LinkEnd::Lost(anyhow!(link.reason().unwrap_or_else(|| "it was cut".into())))
        }
    }
}

async fn write(
    link: &Link,
    mut outgoing: Outgoing,
    writer: &mut (impl AsyncWrite + Unpin),
) -> anyhow::Error {
    loop {
        let frame = match timeout(ALIVE_INTERVAL, outgoing.recv()).await {
            Ok(Some(frame)) => frame,
            Ok(None) => return anyhow!("it was closed"),
            Err(_) => frame::alive(),
        };
        let mut waits = vec![frame];
        while let Ok(frame) = outgoing.try_recv() {
            waits.push(frame);
        }
        let written = async {
            for frame in &waits {
                writer.write_all(frame).await?;
            }
            writer.flush().await
        };
        match timeout(WRITE_MAX, written).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return error.into(),
            Err(_) => return anyhow!("it took in nothing for {} s", WRITE_MAX.as_secs()),
        }
        let length: usize = waits.iter().filter(|f| **f != frame::alive()).map(Bytes::len).sum();
        link.sent(length);
    }
}

async fn read(net: &Net, peer: NodeTag, reader: &mut (impl AsyncRead + Unpin)) -> LinkEnd {
    let room = Arc::new(Semaphore::new(INCOMING_MAX));
    loop {
        let frame = match timeout(IDLE_MAX, frame::read(reader)).await {
            Ok(Ok(frame)) => frame,
            Ok(Err(error)) if error.is::<std::io::Error>() => return LinkEnd::Lost(error),
            Ok(Err(error)) => return LinkEnd::Lied(error),
            Err(_) => {
                return LinkEnd::Lost(anyhow!("nothing was heard for {} s", IDLE_MAX.as_secs()));
            }
        };
        match frame {
            LinkFrame::Alive => {}
            // Liveness and published messages are accepted only from members.
            LinkFrame::Liveness(_) | LinkFrame::Published(_) if !net.links.is_member(peer) => {}
            LinkFrame::Liveness(datagram) => net.liveness.tell(Heard::Datagram(datagram)),
            LinkFrame::Published(message) => drop(net.bus.deliver(&message)),
            LinkFrame::Sync(payload) => {
                // The sender has not heard that there is no store here.
                let Some(replication) = net.store_role.replication() else { continue };
                let Ok(permit) = room.clone().acquire_owned().await else {
                    return LinkEnd::Lost(anyhow!("it was closed"));
                };
                match incoming(replication, peer, &payload) {
                    Ok(incoming) => {
                        replication.received(IncomingMessage { room: Some(permit), ..incoming });
                    }
                    Err(error) => return LinkEnd::Lied(error),
                }
            }
        }
    }
}

/// Decodes a message; its values are taken in only if they are what their commits say.
fn incoming(
    replication: &Replication,
    peer: NodeTag,
    payload: &Bytes,
) -> anyhow::Result<IncomingMessage> {
    let frame::OwnedMessage { mut message, values } = frame::decode(payload)?;
    if let Body::Commits { commits, .. } = &mut message.body {
        if commits.len() != values.len() {
            bail!("its values are not as many as its commits");
        }
        for (carried, value) in commits.iter_mut().zip(&values) {
            check_value(&carried.commit, value.as_deref()).map_err(|lie: LieError| anyhow!(lie))?;
            replication.locate(&mut carried.commit);
        }
    }
    Ok(IncomingMessage { from: peer, message, values, room: None })
}
