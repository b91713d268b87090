//! Asks other nodes for the subscribers of the bus there: how many some channels have, and which
//! channels and patterns there are. One question to each node that can be reached, over a stream of
//! its own.
//!
//! A question is a number of channels, and each as its length and its bytes; the answer is a number
//! for each. In place of the number of channels stands `ALL_CHANNELS` or `ALL_PATTERNS` before the
//! length and the bytes of one pattern; the answer is the number of names that match, and each as
//! its length and its bytes, or `TOO_MANY`. All numbers are 32 bits, the most significant byte
//! first.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use runtime::members::{BoxedStream, StreamKind};
use store::bulk::BulkPeers;
use store::bus::{Bus, BusError, CHANNEL_BYTES_MAX, NAMES_BYTES_MAX, Names, SubscriptionKind};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::net::Net;

/// The longest wait for a node: whoever asks counts on an answer like that of a single server.
const ANSWER_TIME_MAX: Duration = Duration::from_millis(500);
/// The longest wait for a question; it is asked at once.
const QUESTION_TIME_MAX: Duration = Duration::from_secs(5);
/// The number of channels in a question; clients ask for one or a few.
const CHANNELS_MAX: u32 = 1024;
const ALL_CHANNELS: u32 = u32::MAX;
const ALL_PATTERNS: u32 = u32::MAX - 1;
const TOO_MANY: u32 = u32::MAX;

/// What one node is asked. A build that does not know a question ends the stream.
#[derive(Clone)]
enum Question {
    Counts(Vec<Bytes>),
    Names(SubscriptionKind, Bytes),
}

#[derive(Debug, PartialEq, Eq)]
enum Told {
    Counts(Vec<u32>),
    /// The names that match; `None` if they are too many.
    Names(Option<Names>),
}

/// Returns how many subscribers each of these channels has at the nodes that can be reached.
pub async fn count_all(net: &Arc<Net>, channels: &[Bytes]) -> Vec<usize> {
    let mut sums = vec![0; channels.len()];
    if channels.is_empty() || channels.len() > CHANNELS_MAX as usize {
        return sums;
    }
    for told in ask_all(net, &Question::Counts(channels.to_vec())).await {
        let Told::Counts(counts) = told else { continue };
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count as usize);
    }
    sums
}

/// Returns the channels or patterns that match and have subscribers at the nodes that can be
/// reached.
pub async fn name_all(
    net: &Arc<Net>,
    kind: SubscriptionKind,
    pattern: &Bytes,
) -> Result<Names, BusError> {
    let mut all = Names::new();
    if pattern.len() > CHANNEL_BYTES_MAX {
        return Err(BusError::Name);
    }
    for told in ask_all(net, &Question::Names(kind, pattern.clone())).await {
        let Told::Names(names) = told else { continue };
        all.append(&mut names.ok_or(BusError::Names)?);
    }
    Ok(all)
}

/// Asks all nodes that can be reached. One that does not answer soon is left out, and so is a build
/// that does not know the question.
async fn ask_all(net: &Arc<Net>, question: &Question) -> Vec<Told> {
    let mut asked = JoinSet::new();
    for peer in net.reachable() {
        let (net, question) = (net.clone(), question.clone());
        asked.spawn(async move {
            let asking = async {
                let stream = net.open(&peer, StreamKind::Listeners).await?;
                anyhow::Ok(ask(stream, &question).await?)
            };
            match timeout(ANSWER_TIME_MAX, asking).await {
                Ok(Ok(told)) => Some(told),
                Ok(Err(error)) => {
                    tracing::debug!(%peer, error = format!("{error:#}"), "peer.listeners_unknown");
                    None
                }
                Err(_) => {
                    tracing::debug!(%peer, "peer.listeners_unknown: it did not answer in time");
                    None
                }
            }
        });
    }
    let mut all = Vec::new();
    while let Some(told) = asked.join_next().await {
        all.extend(told.ok().flatten());
    }
    all
}

/// Answers a question.
pub async fn serve(bus: &Bus, stream: BoxedStream) -> io::Result<()> {
    let serving = answer(bus, stream);
    timeout(QUESTION_TIME_MAX, serving).await.map_err(|_| io::ErrorKind::TimedOut)?
}

async fn ask(mut stream: BoxedStream, question: &Question) -> io::Result<Told> {
    let mut text = Vec::new();
    match question {
        Question::Counts(channels) => {
            text.extend_from_slice(&(channels.len() as u32).to_be_bytes());
            channels.iter().for_each(|channel| put(&mut text, channel));
        }
        Question::Names(kind, pattern) => {
            let all = match kind {
                SubscriptionKind::Channel => ALL_CHANNELS,
                SubscriptionKind::Pattern => ALL_PATTERNS,
            };
            text.extend_from_slice(&all.to_be_bytes());
            put(&mut text, pattern);
        }
    }
    stream.write_all(&text).await?;
    stream.flush().await?;
    let mut stream = BufReader::new(stream);
    match question {
        Question::Counts(channels) => {
            let mut counts = Vec::with_capacity(channels.len());
            for _ in channels {
                counts.push(stream.read_u32().await?);
            }
            Ok(Told::Counts(counts))
        }
        Question::Names(..) => Ok(Told::Names(read_names(&mut stream).await?)),
    }
}

async fn read_names(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Names>> {
    let count = stream.read_u32().await?;
    if count == TOO_MANY {
        return Ok(None);
    }
    let mut names = Names::new();
    let mut bytes = 0;
    for _ in 0..count {
        let name = read_name(stream).await?;
        bytes += name.len();
        if bytes > NAMES_BYTES_MAX {
            return Ok(None);
        }
        names.insert(name);
    }
    Ok(Some(names))
}

async fn read_name(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Bytes> {
    let length = stream.read_u32().await? as usize;
    if length > CHANNEL_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut name = vec![0; length];
    stream.read_exact(&mut name).await?;
    Ok(name.into())
}

fn put(text: &mut Vec<u8>, name: &[u8]) {
    text.extend_from_slice(&(name.len() as u32).to_be_bytes());
    text.extend_from_slice(name);
}

async fn answer(bus: &Bus, stream: BoxedStream) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut text = Vec::new();
    match stream.read_u32().await? {
        first @ (ALL_CHANNELS | ALL_PATTERNS) => {
            let kind = match first {
                ALL_CHANNELS => SubscriptionKind::Channel,
                _ => SubscriptionKind::Pattern,
            };
            match bus.names(kind, &read_name(&mut stream).await?) {
                Ok(names) => {
                    text.extend_from_slice(&(names.len() as u32).to_be_bytes());
                    names.iter().for_each(|name| put(&mut text, name));
                }
                Err(_) => text.extend_from_slice(&TOO_MANY.to_be_bytes()),
            }
        }
        count if count <= CHANNELS_MAX => {
            for _ in 0..count {
                let listeners = bus.listeners(&read_name(&mut stream).await?);
                text.extend_from_slice(&u32::try_from(listeners).unwrap_or(u32::MAX).to_be_bytes());
            }
        }
        _ => return Err(io::ErrorKind::InvalidData.into()),
    }
    stream.write_all(&text).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn told(bus: &Bus, question: Question) -> Told {
        let (here, there) = tokio::io::duplex(64);
        let asking = ask(Box::new(here), &question);
        let (told, served) = tokio::join!(asking, serve(bus, Box::new(there)));
        served.unwrap();
        told.unwrap()
    }

    #[tokio::test]
    async fn a_node_tells_who_listens_to_what() {
        let bus = Arc::new(Bus::default());
        let (mut one, mut other) = (bus.subscriber(), bus.subscriber());
        one.subscribe(SubscriptionKind::Channel, "a".into()).unwrap();
        other.subscribe(SubscriptionKind::Channel, "a".into()).unwrap();
        other.subscribe(SubscriptionKind::Channel, Bytes::from_static(b"\x00\xff")).unwrap();
        other.subscribe(SubscriptionKind::Pattern, "a*".into()).unwrap();
        let channels = ["a".into(), "none".into(), Bytes::from_static(b"\x00\xff")];
        let counts = told(&bus, Question::Counts(channels.into())).await;
        assert_eq!(counts, Told::Counts(vec![2, 0, 1]));
        for (kind, pattern, names) in [
            (SubscriptionKind::Channel, "*", &[&b"a"[..], b"\x00\xff"][..]),
            (SubscriptionKind::Channel, "b*", &[]),
            (SubscriptionKind::Pattern, "*", &[b"a*"]),
        ] {
            let names = names.iter().map(|name| Bytes::from_static(name)).collect();
            let answer = told(&bus, Question::Names(kind, pattern.into())).await;
            assert_eq!(answer, Told::Names(Some(names)), "{kind:?} {pattern}");
        }
        for number in 0..=NAMES_BYTES_MAX / CHANNEL_BYTES_MAX {
            let name = format!("{number:0CHANNEL_BYTES_MAX$}");
            one.subscribe(SubscriptionKind::Channel, name.into()).unwrap();
        }
        let answer = told(&bus, Question::Names(SubscriptionKind::Channel, "*".into())).await;
        assert_eq!(answer, Told::Names(None));
    }

    #[tokio::test]
    async fn a_question_that_is_too_long_is_not_read() {
        let long_pattern = [&ALL_CHANNELS.to_be_bytes()[..], &[0, 1, 0, 0]].concat();
        let count = (u32::MAX - 2).to_be_bytes();
        for lie in [&count[..], &[0, 0, 0, 1, 0, 1, 0, 0], &long_pattern] {
            let (mut here, there) = tokio::io::duplex(64);
            here.write_all(lie).await.unwrap();
            let error = serve(&Bus::default(), Box::new(there)).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }

    #[tokio::test]
    async fn an_answer_that_lies_is_not_kept() {
        let question = Question::Names(SubscriptionKind::Channel, "*".into());
        let (here, mut there) = tokio::io::duplex(64);
        there.write_all(&[0, 0, 0, 1, 0, 1, 0, 0]).await.unwrap();
        let error = ask(Box::new(here), &question).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
