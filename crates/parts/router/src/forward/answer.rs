//! The head of an instance's answer, and the interim ones before it. Part of one request.

use std::io;
use std::time::{Duration, Instant};

use router_core::http::HEAD_BYTES_MAX;
use router_core::http::body::Body;
use router_core::http::request::RequestHead;
use router_core::http::response::{self, AnsweredRequest, BadResponse, ResponseHead, fault};
use router_core::retry::AttemptProgress;

use super::exchange::Exchange;
use super::failed::Failed;
use crate::buffer::Buffer;
use crate::connection::Connection;
use crate::pace::WRITE_TIME_MAX;
use crate::stream::write_all;
use crate::wire::Wire;

/// Interim answers before the one that counts; more are a mistake or an attack.
const INTERIMS_MAX: u32 = 64;
/// The time before which nobody looks whether the client is still there: most answers come sooner
/// than anybody gives up, and this spares a place in two lists for each request.
const CLIENT_UNWATCHED: Duration = Duration::from_millis(200);

/// The wait for the head of an answer.
pub(super) struct Wait {
    /// The start of the time that counts.
    pub since: Instant,
    /// The number of interim answers so far.
    pub interims: u32,
}

impl Exchange<'_> {
    /// Reads the head of the answer; interim ones are passed on or dropped. Returns `None` after an
    /// interim one while the client's body is not sent yet.
    pub(super) async fn answer_head(
        &mut self,
        upstream: &Wire,
        answer: &mut Buffer,
        body: &Body,
        progress: AttemptProgress,
        wait: &mut Wait,
        out: &mut Vec<u8>,
    ) -> Result<Option<ResponseHead>, Failed> {
        let deadline = wait.since + self.application.limits.answer;
        let mut now = Some(wait.since);
        let asked = asked(self.connection, &self.head);
        // Nobody reads the rest of a body that is not all sent by now, unless both go on at once.
        let keep_alive = asked.keep_alive && (body.is_done() || upstream.is_duplex());
        let asked = AnsweredRequest { of_router: upstream.far().is_some(), keep_alive, ..asked };
        let thread = self.connection.thread.clone();
        loop {
            if !answer.filled().is_empty() {
                if out.capacity() == 0 {
                    *out = thread.pool.scratch();
                }
                let parsed = response::parse(answer.filled(), asked, out);
                match parsed.map_err(Failed::Malformed)? {
                    Some(head) if head.status == 101 && !self.head.upgrade => {
                        return Err(malformed("status 101, which nobody asked for"));
                    }
                    Some(head) if head.status == 101 || head.status >= 200 => {
                        answer.consume(head.length);
                        self.give_session(out);
                        self.give_hsts(out);
                        return Ok(Some(head));
                    }
                    Some(_) if wait.interims == INTERIMS_MAX => {
                        return Err(malformed("no end of answers with a status below 200"));
                    }
                    Some(head) => {
                        wait.interims += 1;
                        answer.consume(head.length);
                        if (head.status != 100 || self.is_transparent()) && self.head.modern {
                            self.admit()?;
                            write_all(&self.connection.stream, out, WRITE_TIME_MAX)
                                .await
                                .map_err(|_| Failed::ClientGone)?;
                        }
                        if !body.is_done() && answer.filled().is_empty() {
                            return Ok(None);
                        }
                        continue;
                    }
                    None => {}
                }
                if answer.is_full() {
                    if answer.filled().len() >= HEAD_BYTES_MAX {
                        return Err(Failed::Malformed(fault::too_large(answer.filled())));
                    }
                    answer.grow(HEAD_BYTES_MAX);
                }
            }
            let begun = !answer.filled().is_empty();
            let watch = body.is_done() && !self.buffer.is_full();
            let now = now.take().unwrap_or_else(Instant::now);
            let watched_from = self.started + CLIENT_UNWATCHED;
            let filled = if now < watched_from {
                thread.fill_late(upstream, answer, watched_from.min(deadline)).await
            } else {
                tokio::select! {
                    biased;
                    filled = thread.fill_late(upstream, answer, deadline) => filled,
                    gone = self.client_gone(), if watch => {
                        if gone { return Err(Failed::ClientGone) }
                        continue;
                    }
                }
            };
            match filled {
                Ok(0) if begun => return Err(malformed("it ended within its head")),
                Ok(0) => return Err(Failed::Instance(progress, "closed without an answer")),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    if Instant::now() < deadline {
                        continue;
                    }
                    return Err(Failed::TimedOut);
                }
                Err(_) if begun => return Err(malformed("it was reset within its head")),
                Err(_) => return Err(Failed::Instance(progress, "reset without an answer")),
            }
        }
    }
}

fn malformed(rule: &'static str) -> Failed {
    Failed::Malformed(BadResponse::new(rule))
}

/// Returns what must be known of this request to read its answer.
pub(super) fn asked(connection: &Connection, head: &RequestHead) -> AnsweredRequest {
    AnsweredRequest {
        head: head.is_head(),
        modern: head.modern,
        keep_alive: head.keep_alive && connection.goes_on(),
        transparent: connection.thread.shared.is_transparent(),
        of_router: false,
    }
}
