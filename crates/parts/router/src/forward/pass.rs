//! An answer on its way to the client, as its task drives it, or as a tunnel. Part of one request.

use std::io;
use std::sync::Arc;

use super::exchange::{Counts, Exchange};
use super::failed::Failed;
use super::relay::{Chunks, Next, RESET, Relay};
use crate::buffer::Buffer;
use crate::connection::After;
use crate::endpoint::Endpoint;
use crate::limits::Limits;
use crate::pace::WRITE_TIME_MAX;
use crate::permit::Permit;
use crate::pool::Pool;
use crate::presence::Busy;
use crate::stream::{fill, write_all, write_paced};
use crate::tunnel::Upgraded;
use crate::wire::Wire;
use router_core::http::body::Body;
use router_core::http::response::ResponseHead;
use router_core::http::trailers::Trailers;

const LATE: &str = "it stopped before its end, for longer than the limit 'answer'";

impl Exchange<'_> {
    /// Begins to pass on an answer whose head is in `out`.
    pub(super) fn begin(
        &self,
        upstream: &Wire,
        head: &ResponseHead,
        answer: Buffer,
        out: &mut Vec<u8>,
    ) -> Result<Relay, Failed> {
        if let Wire::Plain(from) = upstream {
            from.expect_any();
        }
        let chunks = match self.head.modern || self.is_transparent() {
            true => Chunks::AsTheyCome,
            false => Chunks::Content,
        };
        let client = self.connection.peer.ip();
        let relay = Relay::begin(head, answer.filled(), std::mem::take(out), chunks, client);
        self.connection.thread.pool.give_back(answer);
        relay
    }

    /// Passes on all of the answer but its end.
    pub(super) async fn take_all(
        &self,
        upstream: &Wire,
        relay: &mut Relay,
        counts: &mut Counts,
    ) -> Result<(), Failed> {
        let connection = self.connection;
        loop {
            let next = relay.step(upstream, &connection.stream, &connection.thread.pool);
            counts.bytes_out = relay.bytes_out();
            match next? {
                Next::End => return Ok(()),
                Next::More => Box::pin(self.until_more(upstream, relay)).await?,
                Next::Room => {
                    until_room(&connection.stream, relay, &connection.thread.pool).await?
                }
                Next::Turn => tokio::task::yield_now().await,
            }
        }
    }

    /// Sends the end of the answer. The instance is free meanwhile.
    pub(super) async fn send_end(
        &self,
        relay: &mut Relay,
        counts: &mut Counts,
    ) -> Result<(), Failed> {
        let connection = self.connection;
        loop {
            let is_sent = relay.send(&connection.stream, &connection.thread.pool);
            counts.bytes_out = relay.bytes_out();
            if is_sent? {
                return Ok(());
            }
            until_room(&connection.stream, relay, &connection.thread.pool).await?;
        }
    }

    /// Waits until more of the answer, or its end, can be read, while the client waits for it.
    async fn until_more(&self, upstream: &Wire, relay: &mut Relay) -> Result<(), Failed> {
        let awaited = relay.awaited_since.take().map(|since| since.elapsed());
        let limit = self.application.limits.answer_idle.saturating_sub(awaited.unwrap_or_default());
        tokio::select! {
            biased;
            waited = upstream.readable_within(limit) => waited.map_err(|error| {
                let is_late = error.kind() == io::ErrorKind::TimedOut;
                Failed::Truncated(if is_late { LATE } else { RESET })
            }),
            () = self.client_left() => Err(Failed::ClientGone),
        }
    }

    /// Goes on with an answer that the lane has begun to pass on.
    pub(super) async fn finish(
        &mut self,
        upstream: Wire,
        mut relay: Relay,
        permit: Permit,
        endpoint: &Arc<Endpoint>,
        counts: &mut Counts,
    ) -> Result<After, Failed> {
        counts.status = relay.status;
        self.take_all(&upstream, &mut relay, counts).await?;
        self.free(relay.is_clean().then_some(upstream), permit);
        self.send_end(&mut relay, counts).await?;
        self.record(Some(endpoint), counts);
        Ok(if self.was_quick(endpoint, &relay) { After::Quick } else { After::KeepAlive })
    }

    /// Passes on the answer while the rest of the request goes on: a conversation.
    pub(super) async fn take_both_ways(
        &mut self,
        upstream: &Wire,
        relay: &mut Relay,
        body: &mut Body,
        counts: &mut Counts,
    ) -> Result<(), Failed> {
        let mut rest = std::mem::take(&mut *self.buffer);
        let (limits, mut bytes_in) = (self.application.limits, 0);
        let mut anew = (!self.is_transparent())
            .then(|| (std::mem::take(&mut *self.out), std::mem::take(&mut self.trailers)));
        let result = {
            let client = &self.connection.stream;
            let asking =
                pass_request(client, &mut rest, upstream, body, &mut anew, limits, &mut bytes_in);
            let answering = async {
                self.take_all(upstream, relay, &mut *counts).await?;
                // Meanwhile the client may go on with its request.
                self.send_end(relay, &mut *counts).await
            };
            tokio::pin!(asking, answering);
            let mut asks = true;
            loop {
                tokio::select! {
                    biased;
                    result = &mut answering => break result,
                    () = &mut asking, if asks => asks = false,
                }
            }
        };
        counts.bytes_in += bytes_in;
        *self.buffer = rest;
        result
    }

    pub(super) async fn upgrade(
        &mut self,
        permit: Permit,
        upstream: Wire,
        mut answer: Buffer,
        out: &mut Vec<u8>,
        counts: &mut Counts,
    ) -> Result<After, Failed> {
        if let Wire::Plain(from) = &upstream {
            from.expect_any();
        }
        out.extend_from_slice(answer.filled());
        answer.consume(answer.filled().len());
        let client = &self.connection.stream;
        let thread = &self.connection.thread;
        thread.pool.give_back(answer);
        let written = write_all(client, out, WRITE_TIME_MAX).await;
        written.map_err(|_| Failed::ClientGone)?;
        let early = write_all(&upstream, self.buffer.filled(), WRITE_TIME_MAX).await;
        self.record(Some(&permit.endpoint), counts);
        // A tunnel is idle for most of its life, and there may be thousands.
        thread.pool.give_back(std::mem::take(self.buffer));
        thread.pool.give_back_scratch(std::mem::take(out));
        if early.is_ok() {
            // The request ends here, with all that it needed.
            let busy = Busy::begin(thread);
            let upgraded = Upgraded { upstream, permit, busy };
            self.connection.upgraded.set(Some(Box::new(upgraded)));
        }
        Ok(After::Close)
    }
}

/// Waits until the client takes more. What it takes no part of is sent whole.
pub(super) async fn until_room(
    client: &Wire,
    relay: &mut Relay,
    pool: &Pool,
) -> Result<(), Failed> {
    if let Wire::Plain(to) = client {
        let waited = Box::pin(relay.pace.wait(WRITE_TIME_MAX, to.writable())).await;
        return waited.map_err(|_| Failed::ClientGone);
    }
    let mut count = 0;
    for bytes in relay.unsent().into_iter().filter(|bytes| !bytes.is_empty()) {
        let sent = write_paced(client, bytes, &relay.pace).await;
        sent.map_err(|_| Failed::ClientGone)?;
        count += bytes.len();
    }
    relay.sent(count, pool);
    Ok(())
}

/// The memory for chunks that are written anew, and the trailers so far.
type Anew = (Vec<u8>, Trailers);

/// Passes the request on until its end, or until one side wants no more of it; the answer's end
/// says what became of it.
async fn pass_request(
    client: &Wire,
    buffer: &mut Buffer,
    upstream: &Wire,
    body: &mut Body,
    anew: &mut Option<Anew>,
    limits: Limits,
    bytes: &mut u64,
) {
    while !body.is_done() {
        if buffer.filled().is_empty() {
            match fill(client, buffer, limits.body).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => return,
            }
        }
        let taken = match anew {
            Some((out, trailers)) => {
                out.clear();
                body.reframe(buffer.filled(), out, trailers)
            }
            None => body.accept(buffer.filled()),
        };
        let Ok(taken) = taken else { return };
        if body.content() > limits.body_bytes_max {
            return;
        }
        let passed = match anew {
            Some((out, _)) => out.as_slice(),
            None => &buffer.filled()[..taken],
        };
        let sent = write_all(upstream, passed, limits.body).await;
        buffer.consume(taken);
        *bytes += taken as u64;
        if sent.is_err() {
            return;
        }
    }
}
