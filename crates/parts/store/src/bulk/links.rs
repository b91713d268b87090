//! Streams to peers, which are reused: a thousand values of a few kilobytes need no thousand
//! handshakes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model::NodeId;
use tokio::time::{Instant, timeout};

use super::frame::{BulkFrameKind, BulkRequest, Framed, decode_bits, reason};
use super::{ASKED_MAX, BulkError, BulkPeers, STALL_MAX};
use runtime::members::BoxedStream;

const CONNECT_MAX: Duration = Duration::from_secs(10);
/// The time that an idle stream is kept: shorter than the other side waits for a request.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// The number of idle streams kept per peer: as many as values are fetched at a time.
const IDLE_PER_PEER_MAX: usize = 4;
/// How many times a peer may say that it is still reading the file: ten minutes, which suffice for
/// 4 GiB on a slow disk.
const WAITS_MAX: usize = 120;

pub struct BulkLinks {
    pub peers: Arc<dyn BulkPeers>,
    idle: Mutex<BTreeMap<NodeId, Vec<(Instant, AskingStream)>>>,
}

/// The asking end of a stream.
pub type AskingStream = Framed<BoxedStream>;

impl BulkLinks {
    pub fn new(peers: Arc<dyn BulkPeers>) -> BulkLinks {
        BulkLinks { peers, idle: Mutex::default() }
    }

    pub async fn to(&self, peer: &NodeId) -> Result<AskingStream, BulkError> {
        if let Some(link) = self.take_idle(peer) {
            return Ok(link);
        }
        let connected = timeout(CONNECT_MAX, self.peers.connect(peer)).await;
        Ok(Framed::new(connected.map_err(|_| BulkError::Stalled)??))
    }

    fn take_idle(&self, peer: &NodeId) -> Option<AskingStream> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|_, links| {
            links.retain(|(since, _)| since.elapsed() < IDLE_MAX);
            !links.is_empty()
        });
        idle.get_mut(peer)?.pop().map(|(_, link)| link)
    }

    /// Keeps a stream for the next request; every request on it must have got its whole answer.
    pub fn put_back(&self, peer: &NodeId, link: AskingStream) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let links = idle.entry(peer.clone()).or_default();
        if links.len() < IDLE_PER_PEER_MAX {
            links.push((Instant::now(), link));
        }
    }

    /// Asks which of these values the peer has, at most `ASKED_MAX`. If the stream was cut while
    /// idle, it is asked on another one.
    pub async fn held(&self, peer: &NodeId, hashes: &[[u8; 32]]) -> Result<Vec<bool>, BulkError> {
        let hashes = &hashes[..hashes.len().min(ASKED_MAX)];
        let mut attempts = IDLE_PER_PEER_MAX;
        loop {
            let mut link = self.to(peer).await?;
            match ask_held(&mut link, hashes).await {
                Ok(held) => {
                    self.put_back(peer, link);
                    return Ok(held);
                }
                Err(BulkError::Cut(_)) if attempts > 0 => attempts -= 1,
                Err(error) => return Err(error),
            }
        }
    }
}

async fn ask_held(link: &mut AskingStream, hashes: &[[u8; 32]]) -> Result<Vec<bool>, BulkError> {
    ask(link, &BulkRequest::Held(hashes.to_vec())).await?;
    let mut body = Vec::new();
    answer(link, BulkFrameKind::Held, &mut body).await?;
    decode_bits(&body, hashes.len()).ok_or(BulkError::False("an answer of another length"))
}

pub async fn ask(link: &mut AskingStream, request: &BulkRequest) -> Result<(), BulkError> {
    Ok(timeout(STALL_MAX, link.ask(request)).await.map_err(|_| BulkError::Stalled)??)
}

/// Receives the answer that is due: appends its body and returns the length.
pub async fn answer(
    link: &mut AskingStream,
    due: BulkFrameKind,
    into: &mut Vec<u8>,
) -> Result<usize, BulkError> {
    for _ in 0..WAITS_MAX {
        let start = into.len();
        let received = timeout(STALL_MAX, link.receive(into)).await;
        let ended = || BulkError::Cut(std::io::ErrorKind::UnexpectedEof.into());
        let (kind, length) = received.map_err(|_| BulkError::Stalled)??.ok_or_else(ended)?;
        match kind {
            BulkFrameKind::Wait => into.truncate(start),
            BulkFrameKind::Lacks => return Err(BulkError::Lacks),
            BulkFrameKind::Unable => return Err(BulkError::Unable(reason(&into[start..]))),
            kind if kind == due => return Ok(length),
            _ => return Err(BulkError::False("an answer to something else")),
        }
    }
    Err(BulkError::Stalled)
}
