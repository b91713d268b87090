//! Fetches one value from the nodes that have it: when a stream fails, it goes on with the next
//! holder at the last proven group.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use model::NodeId;
use tokio::time::sleep;

use super::frame::{BulkFrameKind, BulkRequest, WantedGroups, decode_hashes};
use super::links::{AskingStream, BulkLinks, answer, ask};
use super::partial::Partial;
use super::{BUFFER_BYTES, BulkError, GROUP_BYTES, SPAN_GROUPS, StatedHash, ValueName};
use crate::values::ValueFiles;
use runtime::task::spawn_blocking;

/// The number of spans asked for ahead, so that the next answer is on its way while one is written.
const SPANS_AHEAD: usize = 2;
/// The number of fruitless attempts per holder before the value is put off.
const ROUNDS_MAX: usize = 2;
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Fetches a value until it is whole and durable, or no holder brings it any further. `progress` is
/// called with the number of bytes that are proven and can be read from the partial file. If there
/// are any `claims`, one of them has to be true.
pub async fn fetch(
    values: &Arc<ValueFiles>,
    links: &BulkLinks,
    value: ValueName,
    holders: &[NodeId],
    claims: Vec<StatedHash>,
    progress: &(dyn Fn(u64) + Send + Sync),
) -> Result<(), BulkError> {
    let mut holders: VecDeque<NodeId> = holders.iter().cloned().collect();
    let mut slot = None;
    let mut fruitless = 0;
    let mut last = BulkError::Lacks;
    while fruitless < ROUNDS_MAX * holders.len() {
        let Some(peer) = holders.pop_front() else { break };
        let before = slot.as_ref().map_or(0, Partial::bytes);
        let error = match attempt(values, links, value, &peer, &mut slot, progress).await {
            Ok(()) => return finish(slot, claims).await,
            Err(error) => error,
        };
        let proven = slot.as_ref().map_or(0, Partial::bytes);
        tracing::debug!(value = value.text(), %peer, proven, %error, "bulk.interrupted");
        match error {
            BulkError::Disk(_) => return Err(error),
            BulkError::False(_) => {
                tracing::warn!(
                    value = value.text(), %peer, %error,
                    "bulk.false_peer: nothing of it is kept; look after that node's disk"
                );
            }
            BulkError::Lacks | BulkError::Unable(_) | BulkError::Claimed(_) => {}
            BulkError::Cut(_) | BulkError::Stalled | BulkError::Damaged => holders.push_back(peer),
        }
        last = error;
        fruitless = if proven > before { 0 } else { fruitless + 1 };
        if fruitless > 0 && !holders.is_empty() {
            sleep((PAUSE_FIRST * (1 << (fruitless - 1).min(8))).min(PAUSE_MAX)).await;
        }
    }
    Err(last)
}

async fn finish(slot: Option<Partial>, claims: Vec<StatedHash>) -> Result<(), BulkError> {
    let Some(partial) = slot else { return Err(lost()) };
    let finish = move || {
        if let Some(false_claim) = claims.first() {
            let sha1 = partial.sha1()?;
            if claims.iter().all(|claim| claim.sha1 != sha1) {
                partial.discard();
                return Err(BulkError::Claimed(false_claim.clone()));
            }
        }
        partial.finish()
    };
    spawn_blocking(finish).await.map_err(|_| lost())?
}

/// Returns the error of a task that panicked or was cancelled with the runtime.
fn lost() -> BulkError {
    BulkError::Disk(io::Error::other("the runtime is shutting down"))
}

/// Runs disk and hashing work away from the streams.
async fn on_disk<T: Send + 'static>(
    slot: &mut Option<Partial>,
    work: impl FnOnce(&mut Partial) -> Result<T, BulkError> + Send + 'static,
) -> Result<T, BulkError> {
    let mut partial = slot.take().ok_or_else(lost)?;
    let both = spawn_blocking(move || {
        let result = work(&mut partial);
        (partial, result)
    });
    let (partial, result) = both.await.map_err(|_| lost())?;
    *slot = Some(partial);
    result
}

async fn attempt(
    values: &Arc<ValueFiles>,
    links: &BulkLinks,
    value: ValueName,
    peer: &NodeId,
    slot: &mut Option<Partial>,
    progress: &(dyn Fn(u64) + Send + Sync),
) -> Result<(), BulkError> {
    if slot.is_none() {
        let values = values.clone();
        let opened = spawn_blocking(move || Partial::open(&values, value)).await;
        *slot = Some(opened.map_err(|_| lost())??);
    }
    let mut link = links.to(peer).await?;
    transfer(&mut link, value, slot, progress).await?;
    links.put_back(peer, link);
    Ok(())
}

/// Transfers everything that is missing, over one stream.
async fn transfer(
    link: &mut AskingStream,
    value: ValueName,
    slot: &mut Option<Partial>,
    progress: &(dyn Fn(u64) + Send + Sync),
) -> Result<(), BulkError> {
    if !slot.as_ref().is_some_and(Partial::knows_spans) {
        ask(link, &BulkRequest::Spans(value)).await?;
        let spans = hashes(link, BulkFrameKind::Spans).await?;
        let accept = |partial: &mut Partial| partial.accept_spans(spans).map(|()| partial.bytes());
        progress(on_disk(slot, accept).await?);
    }
    let mut next = slot.as_ref().map_or(0, Partial::resume_at);
    let mut asked: VecDeque<WantedGroups> = VecDeque::new();
    loop {
        while asked.len() < SPANS_AHEAD
            && let Some(wanted) = slot.as_ref().and_then(|partial| partial.wanted_after(next))
        {
            ask(link, &BulkRequest::Groups(wanted)).await?;
            next = wanted.span * SPAN_GROUPS as u64 + wanted.until as u64;
            asked.push_back(wanted);
        }
        let Some(WantedGroups { span, from, until, .. }) = asked.pop_front() else { return Ok(()) };
        let page = hashes(link, BulkFrameKind::Page).await?;
        on_disk(slot, move |partial| partial.accept_page(span, page)).await?;
        let mut missing = until - from;
        while missing > 0 {
            let count = missing.min(BUFFER_BYTES / GROUP_BYTES);
            let (groups, received) = receive_groups(link, slot, count).await;
            let accept = move |partial: &mut Partial| {
                let accepted = partial.accept_groups(&groups);
                Ok((partial.bytes(), accepted))
            };
            let (proven, accepted) = on_disk(slot, accept).await?;
            progress(proven);
            accepted.and(received)?;
            missing -= count;
        }
    }
}

/// Receives the next groups, whole ones only: those that came before a cut are kept.
async fn receive_groups(
    link: &mut AskingStream,
    slot: &Option<Partial>,
    count: usize,
) -> (Vec<u8>, Result<(), BulkError>) {
    let mut groups = Vec::with_capacity(BUFFER_BYTES);
    for ahead in 0..count as u64 {
        let whole = groups.len();
        let due = slot.as_ref().map_or(0, |partial| partial.next_bytes(ahead));
        let received = match answer(link, BulkFrameKind::Group, &mut groups).await {
            Ok(length) if length == due => continue,
            Ok(_) => Err(BulkError::False("a group of another length")),
            Err(error) => Err(error),
        };
        groups.truncate(whole);
        return (groups, received);
    }
    (groups, Ok(()))
}

async fn hashes(link: &mut AskingStream, kind: BulkFrameKind) -> Result<Vec<[u8; 32]>, BulkError> {
    let mut body = Vec::new();
    answer(link, kind, &mut body).await?;
    decode_hashes(&body).ok_or(BulkError::False("hashes that are not whole"))
}
