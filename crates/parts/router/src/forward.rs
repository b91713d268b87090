//! One request on its way to an instance and its answer back: it waits for its turn, tries one
//! instance after another where that is safe, and never lets a truncated answer look whole.

mod answer;
mod attempt;
mod call;
mod client;
mod complaint;
pub mod exchange;
mod failed;
mod hedge;
pub mod long;
mod pass;
mod relay;
mod reply;
mod sending;
mod turn;
pub mod underway;

use std::time::Duration;

use router_core::breaker::{Failure, pause_ms};
use router_core::retry::{AttemptProgress, may_retry};

use self::call::Begun;
use self::complaint::Fault;
use self::exchange::{BAD_BODY, Counts, Exchange};
use self::failed::Failed;
use self::underway::Underway;
use super::buffer::Buffer;
use super::connection::{After, Connection};
use super::far::outcome;
use metrics::CLIENT_GONE;
use router_core::http::body::{BadChunks, Body};
use router_core::http::response::BadResponse;
use router_core::pages;

/// Forwards a request. Its future is made anew for each one, and moved to where it stays: what is
/// rare is awaited apart. The future of an `async fn` would contain the exchange twice.
pub fn forward(mut exchange: Exchange<'_>) -> impl Future<Output = Option<After>> {
    exchange.connection.thread.budget.borrow_mut().deposit();
    async move {
        let mut counts = Counts { bytes_in: exchange.head.length as u64, ..Counts::default() };
        let mut body = exchange.head.body;
        exchange.buffer.consume(exchange.head.length);
        let head_length = exchange.out.len();
        let early = match body.accept(exchange.buffer.filled()) {
            Ok(_) if body.content() > exchange.application.limits.body_bytes_max => {
                return exchange.bad_body(pages::BODY_TOO_LARGE, &mut counts).await;
            }
            Ok(early) => early,
            Err(BadChunks) => return exchange.bad_body(BAD_BODY, &mut counts).await,
        };
        counts.bytes_in += early as u64;
        // It has no memory until there is an answer.
        let mut sent = Vec::new();
        let begun = None;
        let result =
            exchange.attempts(begun, &mut body, early, head_length, &mut sent, &mut counts).await;
        exchange.connection.thread.pool.give_back_scratch(sent);
        result
    }
}

/// Goes on in a task with a request that the lane has begun, from where it is.
pub async fn go_on(
    connection: &Connection,
    underway: Underway,
    buffer: &mut Buffer,
) -> Option<After> {
    let Underway { application, head, mut out, head_length, started, session, .. } = underway;
    let (permit, call, _busy) = (underway.permit, underway.call, underway._busy);
    let thread = &connection.thread;
    let mut counts = Counts { bytes_in: head.length as u64, ..Counts::default() };
    let mut sent = Vec::new();
    let mut exchange = Exchange::new(connection, application, head, buffer, &mut out, started);
    exchange.session.set(session);
    let begun = Begun { permit, call: call.map(|call| Box::new(call.end())) };
    let mut body = Body::Empty;
    let attempts =
        exchange.attempts(Some(begun), &mut body, 0, head_length, &mut sent, &mut counts);
    let after = attempts.await;
    thread.pool.give_back_scratch(sent);
    thread.pool.give_back_scratch(out);
    after
}

impl Exchange<'_> {
    async fn attempts(
        &mut self,
        mut begun: Option<Begun>,
        body: &mut Body,
        early: usize,
        head_length: usize,
        sent: &mut Vec<u8>,
        counts: &mut Counts,
    ) -> Option<After> {
        let thread = self.connection.thread.clone();
        let (mut retries, mut first) = (0, true);
        loop {
            let is_first = std::mem::take(&mut first);
            let begun = match begun.take() {
                Some(begun) => begun,
                None => match self.permit(counts, is_first).await? {
                    Ok(permit) => Begun { permit, call: None },
                    Err(_) if self.connection.asker.is_router() => {
                        let whole = body.is_done();
                        self.buffer.consume(early);
                        let busy = outcome::busy(self.connection, &self.application, whole);
                        return Box::pin(busy).await;
                    }
                    Err(page) => return self.fail(page, None, counts).await,
                },
            };
            let mut endpoint = begun.permit.endpoint.clone();
            // The head and the body so far go out in one write. The body's bytes stay in the buffer
            // for another attempt until more of it has to be read.
            self.out.truncate(head_length);
            if self.is_transparent() {
                // The client's own words stand.
            } else if endpoint.closes() {
                self.out.extend_from_slice(b"Connection: close\r\n");
            } else if self.head.upgrade {
                self.out.extend_from_slice(b"Connection: Upgrade\r\n");
            }
            self.out.extend_from_slice(b"\r\n");
            let came = &self.buffer.filled()[..early];
            if self.is_transparent() {
                self.out.extend_from_slice(came);
            } else {
                let mut anew = self.head.body;
                self.trailers.clear();
                if anew.reframe(came, self.out, &mut self.trailers).is_err() {
                    return self.bad_body(BAD_BODY, counts).await;
                }
            }
            let mut left = *body;
            let failed =
                match self.attempt(begun, &mut endpoint, &mut left, early, sent, counts).await {
                    Ok(after) => return Some(after),
                    Err(failed) => failed,
                };
            match failed {
                Failed::ClientGone => {
                    counts.status = CLIENT_GONE;
                    self.record(Some(&endpoint), counts);
                    return None;
                }
                Failed::BadBody(page) => return self.bad_body(page, counts).await,
                Failed::Busy => {}
                Failed::TimedOut => {
                    return self.fail(pages::ANSWER_TIMEOUT, Some(&endpoint), counts).await;
                }
                Failed::Short => return self.fail(pages::SHORT, None, counts).await,
                Failed::Truncated(why) => {
                    thread.suspect(&endpoint, "the connection was cut during an answer");
                    self.complain(&endpoint, &Fault::Malformed(&BadResponse::new(why)));
                    self.record(Some(&endpoint), counts);
                    return Some(After::Cut);
                }
                Failed::Malformed(bad) => {
                    self.complain(&endpoint, &Fault::Malformed(&bad));
                    let detail = format!("its answer is malformed: {bad}");
                    return self.no_answer(&endpoint, &detail, counts).await;
                }
                Failed::Instance(progress, why) => {
                    let failure = match progress {
                        AttemptProgress::NotConnected => Failure::Refused,
                        AttemptProgress::NoAnswer { .. } | AttemptProgress::Answering => {
                            Failure::Silent
                        }
                    };
                    let is_out = thread.failed(&self.application, &endpoint, failure, why);
                    let again = may_retry(progress, self.head.idempotent, retries);
                    let paid = progress == AttemptProgress::NotConnected
                        || thread.budget.borrow_mut().withdraw();
                    if !again || !paid {
                        self.complain(&endpoint, &Fault::None(why));
                        let detail = format!("it gave no answer: {why}");
                        return self.no_answer(&endpoint, &detail, counts).await;
                    }
                    retries += u32::from(progress != AttemptProgress::NotConnected);
                    if !is_out {
                        // The same one is asked again: not before it may have been replaced.
                        let pause_ms = pause_ms(u64::from(retries));
                        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
                        let current = self.application.queue.current.load_full();
                        self.application = current.unwrap_or(self.application.clone());
                    }
                }
            }
        }
    }
}
