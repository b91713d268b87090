//! The client's part while its request is under way: it sends its body, sends more, or goes. Part
//! of one request.

use std::io;
use std::time::{Duration, Instant};

use super::exchange::{BAD_BODY, ClientEnd, Counts, Exchange};
use super::failed::Failed;
use super::long::{TURN_BYTES, long_rest};
use crate::plain::Plain;
use crate::stream::{fill, write_all};
use crate::time_limit::within;
use crate::wire::Wire;
use router_core::http::body::Body;
use router_core::pages;

/// The time within which a client may end its half and still wait for the answer, as scripts do as
/// soon as they have asked. One that does so later has given up: most clients close both halves at
/// once, and the two look alike from here.
const HALF_CLOSE_TIME_MAX: Duration = Duration::from_secs(1);

impl Exchange<'_> {
    /// Sends the body until it is sent or an answer, perhaps an interim one, has begun. Returns
    /// false if the instance takes no more.
    pub(super) async fn send_body(
        &mut self,
        upstream: &Wire,
        body: &mut Body,
        counts: &mut Counts,
    ) -> Result<bool, Failed> {
        let (limits, mut turn) = (self.application.limits, 0);
        while !body.is_done() {
            if self.buffer.filled().is_empty() {
                let Some(spliced) = self.splice_body(upstream, body).await? else {
                    return Ok(false);
                };
                counts.bytes_in += spliced as u64;
                turn += spliced;
                // There may be more at once: others have their turn first.
                if turn >= TURN_BYTES {
                    tokio::task::yield_now().await;
                    turn = 0;
                }
                if spliced > 0 || !self.buffer.filled().is_empty() {
                    continue;
                }
                let client = &self.connection.stream;
                // A conversation may be quiet for as long as each of its pieces.
                let patience = match upstream.is_duplex() {
                    true => limits.body,
                    false => limits.body_patience(counts.bytes_in).saturating_sub(counts.waited),
                };
                let asked = Instant::now();
                tokio::select! {
                    biased;
                    filled = fill(client, self.buffer, limits.body.min(patience)) => match filled {
                        Ok(0) => return Err(Failed::ClientGone),
                        Ok(_) => counts.waited += asked.elapsed(),
                        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                            return Err(Failed::BadBody(pages::REQUEST_TIMEOUT));
                        }
                        Err(_) => return Err(Failed::ClientGone),
                    },
                    () = answer_begins(upstream) => return Ok(true),
                }
            }
            let sent = match (upstream, &*body) {
                (_, Body::Chunked(_)) if !self.is_transparent() => {
                    self.send_anew(upstream, body).await?
                }
                (Wire::Plain(stream), Body::Length(left)) => {
                    let filled = self.buffer.filled();
                    let most = usize::try_from(*left).unwrap_or(usize::MAX).min(filled.len());
                    match send_until_answered(stream, &filled[..most], limits.body).await {
                        Ok(count) => Some(body.accept(&filled[..count]).unwrap_or(count)),
                        Err(_) => None,
                    }
                }
                _ => {
                    let filled = self.buffer.filled();
                    let taken = body.accept(filled).map_err(|_| Failed::BadBody(BAD_BODY))?;
                    let written = write_all(upstream, &filled[..taken], limits.body).await;
                    written.is_ok().then_some(taken)
                }
            };
            // If the instance takes no more, there may be an answer that says why.
            let Some(sent) = sent else { return Ok(false) };
            if body.content() > limits.body_bytes_max {
                return Err(Failed::BadBody(pages::BODY_TOO_LARGE));
            }
            counts.bytes_in += sent as u64;
            self.buffer.consume(sent);
            if sent == 0 {
                return Ok(true);
            }
        }
        Ok(true)
    }

    /// Passes on what has come of a long body, past this process. If an answer begins before all of
    /// that is sent, the rest is in the buffer. Returns `None` if the instance takes no more.
    async fn splice_body(
        &mut self,
        upstream: &Wire,
        body: &mut Body,
    ) -> Result<Option<usize>, Failed> {
        let connection = self.connection;
        let (Wire::Plain(from), Wire::Plain(to)) = (&connection.stream, upstream) else {
            return Ok(Some(0));
        };
        let Some(left) = long_rest(*body) else { return Ok(Some(0)) };
        let Some(pipe) = connection.thread.pool.pipe() else { return Ok(Some(0)) };
        match pipe.take(from, usize::try_from(left).unwrap_or(usize::MAX)) {
            Ok(0) => return Err(Failed::ClientGone),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Some(0)),
            Err(_) => return Err(Failed::ClientGone),
        }
        let mut sent = 0;
        loop {
            match pipe.give_now(to, |count| sent += count) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Ok(None),
            }
            match takes_more(to, self.application.limits.body).await {
                Ok(true) => {}
                Ok(false) => {
                    let read = pipe.read_back(self.buffer);
                    read.map_err(|_| Failed::ClientGone)?;
                    break;
                }
                Err(_) => return Ok(None),
            }
        }
        *body = Body::Length(left - sent as u64);
        Ok(Some(sent))
    }

    /// Sends what there is of chunks, in plain ones.
    async fn send_anew(
        &mut self,
        upstream: &Wire,
        body: &mut Body,
    ) -> Result<Option<usize>, Failed> {
        let limits = self.application.limits;
        // Nothing is sent twice once the body is read, so the head is needed no more.
        self.out.clear();
        let taken = body.reframe(self.buffer.filled(), self.out, &mut self.trailers);
        let taken = taken.map_err(|_| Failed::BadBody(BAD_BODY))?;
        if body.content() > limits.body_bytes_max {
            return Err(Failed::BadBody(pages::BODY_TOO_LARGE));
        }
        let written = write_all(upstream, self.out, limits.body).await;
        Ok(written.is_ok().then_some(taken))
    }

    /// Resolves when the client sent more (false) or is gone (true).
    pub(super) async fn client_gone(&mut self) -> bool {
        let (client, thread) = (&self.connection.stream, &self.connection.thread);
        loop {
            match self.client_end.get() {
                ClientEnd::Both => return true,
                ClientEnd::Open if !self.buffer.is_full() => {}
                ClientEnd::Open | ClientEnd::Half => std::future::pending::<()>().await,
            }
            match thread.read_now(client, self.buffer) {
                Ok(0) if self.may_half_close() => self.client_end.set(ClientEnd::Half),
                Ok(count) => return count == 0,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if client.readable().await.is_err() {
                        return true;
                    }
                }
                Err(_) => self.client_end.set(ClientEnd::Both),
            }
        }
    }

    /// Resolves when the client is gone, without reading what it may have sent.
    pub(super) async fn client_left(&self) {
        let client = &self.connection.stream;
        while self.client_end.get() == ClientEnd::Open && client.readable().await.is_ok() {
            let came = match client {
                Wire::Plain(client) => match client.first() {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => Some(0),
                    // The next read is told of an end.
                    Err(_) => return,
                    Ok(first) => first.map(|_| 1),
                },
                _ => client.peek(),
            };
            match came {
                Some(0) => {}
                None if self.may_half_close() => self.client_end.set(ClientEnd::Half),
                None => return,
                // It asks for more already.
                Some(_) => std::future::pending().await,
            }
        }
        if self.client_end.get() == ClientEnd::Half {
            std::future::pending().await
        }
    }

    /// Returns whether the client may end one half alone; TLS, HTTP/2 and other routers end both.
    fn may_half_close(&self) -> bool {
        matches!(self.connection.stream, Wire::Plain(_))
            && self.connection.asker.may_half_close()
            && self.started.elapsed() < HALF_CLOSE_TIME_MAX
    }
}

/// Sends bytes until all are sent, or an answer began: an instance that has seen enough may read no
/// further. Returns how many were sent.
async fn send_until_answered(upstream: &Plain, bytes: &[u8], limit: Duration) -> io::Result<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        match upstream.try_write(&bytes[sent..]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => sent += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !takes_more(upstream, limit).await? {
                    return Ok(sent);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}

/// Waits until the instance takes more; returns false if an answer began before.
async fn takes_more(upstream: &Plain, limit: Duration) -> io::Result<bool> {
    tokio::select! {
        biased;
        writable = within(limit, upstream.writable()) => writable.map(|()| true),
        () = plain_answer_begins(upstream) => Ok(false),
    }
}

/// Resolves when an answer, or its absence, can be read.
async fn answer_begins(upstream: &Wire) {
    while upstream.readable().await.is_ok() {
        if upstream.peek().is_none_or(|count| count > 0) {
            return;
        }
    }
}

async fn plain_answer_begins(upstream: &Plain) {
    while upstream.readable().await.is_ok() {
        if upstream.peek().is_none_or(|count| count > 0) {
            return;
        }
    }
}
