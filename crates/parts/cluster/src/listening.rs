//! How many subscribers channels of the bus have at other nodes: one question to each node that can
//! be reached, over a stream of its own.
//!
//! A question is a number of channels, and each as its length and its bytes; the answer is a number
//! for each. All numbers are 32 bits, the most significant byte first.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use runtime::members::{BoxedStream, StreamKind};
use store::bulk::BulkPeers;
use store::bus::{Bus, CHANNEL_BYTES_MAX};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::net::Net;

/// The longest wait for a node: whoever asks counts on an answer like that of a single server.
const ANSWER_TIME_MAX: Duration = Duration::from_millis(500);
/// The longest wait for a question; it is asked at once.
const QUESTION_TIME_MAX: Duration = Duration::from_secs(5);
/// The number of channels in a question; clients ask for one or a few.
const CHANNELS_MAX: u32 = 1024;

/// Asks all nodes that can be reached. One that does not answer soon counts as one without
/// subscribers, and so does a build that does not know the question.
pub async fn ask_all(net: &Arc<Net>, channels: &[Bytes]) -> Vec<usize> {
    let mut sums = vec![0; channels.len()];
    if channels.is_empty() || channels.len() > CHANNELS_MAX as usize {
        return sums;
    }
    let mut asked = JoinSet::new();
    for peer in net.reachable() {
        let (net, channels) = (net.clone(), channels.to_vec());
        asked.spawn(async move {
            let asking = async {
                let stream = net.open(&peer, StreamKind::Listeners).await?;
                anyhow::Ok(ask(stream, &channels).await?)
            };
            match timeout(ANSWER_TIME_MAX, asking).await {
                Ok(Ok(counts)) => counts,
                Ok(Err(error)) => {
                    tracing::debug!(%peer, error = format!("{error:#}"), "peer.listeners_unknown");
                    Vec::new()
                }
                Err(_) => {
                    tracing::debug!(%peer, "peer.listeners_unknown: it did not answer in time");
                    Vec::new()
                }
            }
        });
    }
    while let Some(counts) = asked.join_next().await {
        let counts = counts.unwrap_or_default();
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count as usize);
    }
    sums
}

/// Answers a question.
pub async fn serve(bus: &Bus, stream: BoxedStream) -> io::Result<()> {
    let serving = answer(bus, stream);
    timeout(QUESTION_TIME_MAX, serving).await.map_err(|_| io::ErrorKind::TimedOut)?
}

async fn ask(mut stream: BoxedStream, channels: &[Bytes]) -> io::Result<Vec<u32>> {
    let mut question = Vec::new();
    question.extend_from_slice(&(channels.len() as u32).to_be_bytes());
    for channel in channels {
        question.extend_from_slice(&(channel.len() as u32).to_be_bytes());
        question.extend_from_slice(channel);
    }
    stream.write_all(&question).await?;
    stream.flush().await?;
    let mut counts = Vec::with_capacity(channels.len());
    for _ in channels {
        counts.push(stream.read_u32().await?);
    }
    Ok(counts)
}

async fn answer(bus: &Bus, stream: BoxedStream) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let count = stream.read_u32().await?;
    if count > CHANNELS_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut counts = Vec::new();
    for _ in 0..count {
        let length = stream.read_u32().await? as usize;
        if length > CHANNEL_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut channel = vec![0; length];
        stream.read_exact(&mut channel).await?;
        let listeners = bus.listeners(&channel.into());
        counts.extend_from_slice(&u32::try_from(listeners).unwrap_or(u32::MAX).to_be_bytes());
    }
    stream.write_all(&counts).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use store::bus::SubscriptionKind;

    use super::*;

    #[tokio::test]
    async fn a_node_tells_how_many_subscribers_each_channel_has() {
        let bus = Arc::new(Bus::default());
        let (mut one, mut other) = (bus.subscriber(), bus.subscriber());
        one.subscribe(SubscriptionKind::Channel, "a".into()).unwrap();
        other.subscribe(SubscriptionKind::Channel, "a".into()).unwrap();
        other.subscribe(SubscriptionKind::Channel, Bytes::from_static(b"\x00\xff")).unwrap();
        let (here, there) = tokio::io::duplex(64);
        let channels = ["a".into(), "none".into(), Bytes::from_static(b"\x00\xff")];
        let asking = ask(Box::new(here), &channels);
        let (counts, served) = tokio::join!(asking, serve(&bus, Box::new(there)));
        served.unwrap();
        assert_eq!(counts.unwrap(), [2, 0, 1]);
    }

    #[tokio::test]
    async fn a_question_that_is_too_long_is_not_read() {
        for lie in [&u32::MAX.to_be_bytes()[..], &[0, 0, 0, 1, 0, 1, 0, 0]] {
            let (mut here, there) = tokio::io::duplex(64);
            here.write_all(lie).await.unwrap();
            let error = serve(&Bus::default(), Box::new(there)).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }
}
