//! One request on its way to an instance and its answer back: waits for its turn, tries one
//! instance after another where that is safe, and never lets a truncated answer look whole.

mod answer;
mod attempt;
mod client;
mod complaint;
mod hedge;
mod relay;
mod reply;
mod sending;
mod turn;
mod underway;

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use router_core::breaker::{Failure, pause_ms};
use router_core::retry::{Progress, may_retry};

use self::complaint::Fault;
pub use self::relay::TURN_BYTES;
use self::underway::Begun;
pub use self::underway::{Step, Underway, go_on, may_be_underway};
use super::buffer::Buffer;
use super::connection::{After, Connection};
use super::endpoint::Endpoint;
use super::far::host;
use super::pace::Pace;
use super::pages::{self, Page};
use super::table::Application;
use metrics::{CLIENT_GONE, micros};
use router_core::http::body::{BadChunks, Body};
use router_core::http::request::RequestHead;
use router_core::http::response::BadResponse;
use router_core::http::trailers::Trailers;

const BAD_BODY: Page = pages::bad_request(400, "The body of the request is malformed.");

/// All that one request needs.
pub struct Exchange<'a> {
    pub connection: &'a Connection,
    pub application: Arc<Application>,
    pub head: RequestHead,
    /// What the client sent: the head, then what followed it.
    pub buffer: &'a mut Buffer,
    /// The head as an instance gets it, without its last line.
    pub out: &'a mut Vec<u8>,
    /// Of the client's body, as far as they have come.
    pub trailers: Trailers,
    pub started: Instant,
    pub client_end: Cell<ClientEnd>,
    /// The cookie that the client is given, which keeps its requests together.
    pub session: Cell<Option<u64>>,
}

/// Of what a client sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientEnd {
    #[default]
    Open,
    /// It will send no more, and reads on.
    Half,
    /// It broke off. Said once by the socket, which then looks half closed.
    Both,
}

/// Why an attempt ended without an answer.
enum Failed {
    /// The client is gone.
    ClientGone,
    /// The client's body is malformed, or too large.
    BadBody(Page),
    Instance(Progress, &'static str),
    /// Its answer breaks a rule, and none of it was passed on.
    Malformed(BadResponse),
    TimedOut,
    /// This machine can make no connection.
    Short,
    /// The instances of that node have no room.
    Busy,
    /// The answer had begun; what was wrong with the rest.
    Truncated(&'static str),
}

#[derive(Default)]
struct Counts {
    queue: Duration,
    /// For the client's body.
    waited: Duration,
    bytes_in: u64,
    bytes_out: u64,
    status: u16,
    /// How the client takes its answer.
    pace: Pace,
}

/// Its future is made anew for each request, and moved to where it stays: what is rare is awaited
/// apart. Of an `async fn`'s the exchange would be a part twice.
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
        // Without memory until there is an answer.
        let mut sent = Vec::new();
        let begun = None;
        let result =
            exchange.attempts(begun, &mut body, early, head_length, &mut sent, &mut counts).await;
        exchange.connection.thread.pool.give_back_scratch(sent);
        result
    }
}

impl<'a> Exchange<'a> {
    pub fn new(
        connection: &'a Connection,
        application: Arc<Application>,
        head: RequestHead,
        buffer: &'a mut Buffer,
        out: &'a mut Vec<u8>,
        started: Instant,
    ) -> Exchange<'a> {
        Exchange {
            connection,
            application,
            head,
            buffer,
            out,
            trailers: Trailers::default(),
            started,
            client_end: Cell::default(),
            session: Cell::default(),
        }
    }
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
                    Err(_) if self.connection.caller.is_some() => {
                        let whole = body.is_done();
                        self.buffer.consume(early);
                        let busy = host::busy(self.connection, &self.application, whole);
                        return Box::pin(busy).await;
                    }
                    Err(page) => return self.fail(page, None, counts).await,
                },
            };
            let mut endpoint = begun.permit.endpoint.clone();
            // The head and the body so far, in one write. The body's bytes stay in the buffer for
            // another attempt until more of it has to be read.
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
                        Progress::NotConnected => Failure::Refused,
                        Progress::NoAnswer { .. } | Progress::Answering => Failure::Silent,
                    };
                    let is_out = thread.failed(&self.application, &endpoint, failure, why);
                    let again = may_retry(progress, self.head.idempotent, retries);
                    let paid =
                        progress == Progress::NotConnected || thread.budget.borrow_mut().withdraw();
                    if !again || !paid {
                        self.complain(&endpoint, &Fault::None(why));
                        let detail = format!("it gave no answer: {why}");
                        return self.no_answer(&endpoint, &detail, counts).await;
                    }
                    retries += u32::from(progress != Progress::NotConnected);
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

    /// Tells the router that sent this request, if one did, that its answer follows.
    fn admit(&self) -> Result<(), Failed> {
        self.connection.admit(&self.application).map_err(|_| Failed::ClientGone)
    }

    fn is_transparent(&self) -> bool {
        self.connection.thread.shared.is_transparent()
    }

    async fn fail(
        &mut self,
        page: Page,
        endpoint: Option<&Arc<Endpoint>>,
        counts: &mut Counts,
    ) -> Option<After> {
        self.fail_with(page, None, endpoint, counts).await
    }

    /// `detail` is for whoever reads the page.
    async fn fail_with(
        &mut self,
        page: Page,
        detail: Option<&str>,
        endpoint: Option<&Arc<Endpoint>>,
        counts: &mut Counts,
    ) -> Option<After> {
        counts.status = page.status;
        self.record(endpoint.filter(|endpoint| endpoint.site().is_none()), counts);
        self.admit().ok()?;
        let head_only = self.head.is_head();
        // Its body may be half read: the connection ends.
        self.connection.page_with(page, detail, self.out, head_only, false).await
    }

    async fn bad_body(&mut self, page: Page, counts: &mut Counts) -> Option<After> {
        counts.status = page.status;
        self.record(None, counts);
        self.admit().ok()?;
        self.connection.page(page, self.out, false, false).await
    }

    fn record(&self, endpoint: Option<&Arc<Endpoint>>, counts: &Counts) {
        if endpoint.is_some_and(|endpoint| endpoint.site().is_some()) {
            // The node that runs the instance has counted it.
            return;
        }
        let by = match endpoint {
            Some(endpoint) => &endpoint.labels,
            None => &self.application.labels,
        };
        let (status, bytes_out) = (counts.status, counts.bytes_out);
        let mut record = self.connection.record_of(by, &self.head, status, bytes_out, self.started);
        record.bytes_in = counts.bytes_in;
        record.queue_us = micros(counts.queue);
        record.ended(Instant::now());
        if endpoint.is_none() {
            record.service_us = record.total_us.saturating_sub(record.queue_us);
        }
        self.connection.thread.recorder.record(record);
    }
}
