//! One request on its way to an instance and its answer back: chooses, connects, tries again where
//! that is safe, and never lets a truncated answer look whole.

mod client;
mod hedge;
mod relay;
mod reply;
mod sending;

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::application::InstanceProtocol;
use router::breaker::{Failure, pause_ms};
use router::far::Outcome;
use router::retry::{Progress, may_retry};
use tokio::net::TcpStream;

use super::choice::{Reaches, Wants};
use super::connection::{After, Connection, WRITE_TIME_MAX, micros};
use super::endpoint::{Endpoint, Permit, Reach};
use super::far::{ask, dial, host};
use super::pages::{self, Page};
use super::pool::Buffer;
use super::queue::{NoPermit, Queue};
use super::serve::Thread;
use super::stream::{self, fill_late, write_all};
use super::table::Application;
use super::wire::Wire;
use crate::metrics::{ApplicationRef, Record};
use router::http::HEAD_BYTES_MAX;
use router::http::body::{BadChunks, Body};
use router::http::request::RequestHead;
use router::http::response::{self, Asked, ResponseHead};
use router::http::trailers::Trailers;

/// Loopback connects at once, or its backlog is full.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// Interim answers before the one that counts; more are a mistake or an attack.
const INTERIMS_MAX: u32 = 64;
/// Lost instances are back on other nodes within five seconds; nobody need wait much longer.
const UNREACHABLE_TIME_MAX: Duration = Duration::from_secs(10);
/// How soon somebody who waits hears that it is in vain.
const VAIN_CHECK: Duration = Duration::from_millis(500);
const BAD_BODY: Page = pages::bad_request(400, "The body of the request is malformed.");
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

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
    TimedOut,
    /// The instances of that node have no room.
    Busy,
    /// The answer had begun.
    Truncated,
}

#[derive(Default)]
struct Counts {
    queue: Duration,
    /// For the client's body.
    waited: Duration,
    bytes_in: u64,
    bytes_out: u64,
    status: u16,
}

pub async fn forward(mut exchange: Exchange<'_>) -> Option<After> {
    let thread = exchange.connection.thread.clone();
    thread.budget.borrow_mut().deposit();
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
    // Without memory until there is an answer.
    let mut sent = Vec::new();
    let result = exchange.attempts(&mut body, early, head_length, &mut sent, &mut counts).await;
    thread.pool.give_back_scratch(sent);
    result
}

impl Exchange<'_> {
    async fn attempts(
        &mut self,
        body: &mut Body,
        early: usize,
        head_length: usize,
        sent: &mut Vec<u8>,
        counts: &mut Counts,
    ) -> Option<After> {
        let thread = self.connection.thread.clone();
        let (mut retries, mut first) = (0, true);
        loop {
            let permit = match self.permit(counts, std::mem::take(&mut first)).await? {
                Ok(permit) => permit,
                Err(_) if self.connection.caller.is_some() => {
                    let whole = body.is_done();
                    self.buffer.consume(early);
                    return Box::pin(host::busy(self.connection, &self.application, whole)).await;
                }
                Err(page) => return self.fail(page, None, counts).await,
            };
            let mut endpoint = permit.endpoint.clone();
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
            let begun = &self.buffer.filled()[..early];
            if self.is_transparent() {
                self.out.extend_from_slice(begun);
            } else {
                let mut anew = self.head.body;
                self.trailers.clear();
                if anew.reframe(begun, self.out, &mut self.trailers).is_err() {
                    return self.bad_body(BAD_BODY, counts).await;
                }
            }
            let mut left = *body;
            let failed =
                match self.attempt(permit, &mut endpoint, &mut left, early, sent, counts).await {
                    Ok(after) => return Some(after),
                    Err(failed) => failed,
                };
            match failed {
                Failed::ClientGone => {
                    counts.status = 499;
                    self.record(Some(&endpoint), counts);
                    return None;
                }
                Failed::BadBody(page) => return self.bad_body(page, counts).await,
                Failed::Busy => {}
                Failed::TimedOut => {
                    return self.fail(pages::ANSWER_TIMEOUT, Some(&endpoint), counts).await;
                }
                Failed::Truncated => {
                    thread.suspect(&endpoint, "the connection was cut during an answer");
                    self.record(Some(&endpoint), counts);
                    return Some(After::Cut);
                }
                Failed::Instance(progress, why) => {
                    let failure = match progress {
                        Progress::NotConnected => Some(Failure::Refused),
                        Progress::NoAnswer { .. } => Some(Failure::Silent),
                        Progress::Answering => None,
                    };
                    let is_out = failure.is_none_or(|failure| {
                        thread.failed(&self.application, &endpoint, failure, why)
                    });
                    let again = may_retry(progress, self.head.idempotent, retries);
                    let paid =
                        progress == Progress::NotConnected || thread.budget.borrow_mut().withdraw();
                    if !again || !paid {
                        let page = match endpoint.reach {
                            Reach::Near(_) => pages::BAD_ANSWER,
                            Reach::Far(_) => pages::NODE_LOST,
                        };
                        return self.fail(page, Some(&endpoint), counts).await;
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

    /// None when the client is gone while it waits.
    async fn permit(&mut self, counts: &mut Counts, first: bool) -> Option<Result<Permit, Page>> {
        let queue = self.application.queue.clone();
        let (reaches, limit) = match &self.connection.caller {
            Some(caller) => (Reaches::Near, caller.wait()),
            None => {
                let limit = self.application.limits.queue.unwrap_or(queue.limits.time_max);
                (Reaches::Anywhere, limit)
            }
        };
        let wants = Wants { key: self.key(), ..Wants::anything(reaches) };
        if (first || self.started.elapsed() < limit)
            && let Some(permit) = queue.try_enter(&self.application, wants)
        {
            return Some(Ok(permit));
        }
        let limit = limit.saturating_sub(self.started.elapsed());
        if limit.is_zero() {
            let vain = is_vain(&queue);
            return Some(Err(if vain { pages::UNREACHABLE } else { pages::QUEUE_TIMEOUT }));
        }
        let waiting = queue.enter(wants, self.place(), limit);
        tokio::pin!(waiting);
        let result = loop {
            tokio::select! {
                biased;
                result = &mut waiting => break result,
                gone = self.client_gone() => if gone { return None },
                () = tokio::time::sleep(VAIN_CHECK) => {
                    if is_vain(&queue) && self.started.elapsed() >= UNREACHABLE_TIME_MAX {
                        return Some(Err(pages::UNREACHABLE));
                    }
                }
            }
        };
        counts.queue = self.started.elapsed();
        Some(result.map_err(|why| match why {
            NoPermit::Full => pages::QUEUE_FULL,
            NoPermit::TimedOut if is_vain(&queue) => pages::UNREACHABLE,
            NoPermit::TimedOut => pages::QUEUE_TIMEOUT,
        }))
    }

    async fn attempt(
        &mut self,
        mut permit: Permit,
        endpoint: &mut Arc<Endpoint>,
        body: &mut Body,
        early: usize,
        out: &mut Vec<u8>,
        counts: &mut Counts,
    ) -> Result<After, Failed> {
        let thread = self.connection.thread.clone();
        let pooled = match endpoint.closes() {
            true => None,
            false => thread.pool.take(endpoint, !self.head.idempotent),
        };
        let mut upstream = match pooled {
            Some(upstream) => upstream,
            None => connect(&thread, endpoint)
                .await
                .map_err(|_| Failed::Instance(Progress::NotConnected, "connection refused"))?,
        };
        if endpoint.site().is_some() {
            ask::write(&self.application, &upstream, out)
                .map_err(|_| Failed::Instance(Progress::NotConnected, "connection lost"))?;
        }
        let mut progress = Progress::NoAnswer { body_consumed: false };
        let mut asked = self.application.balance.learns().then(Instant::now);
        let write = write_all(&upstream, self.out, WRITE_TIME_MAX).await;
        // An instance may answer before it has read everything, so its answer is looked for first.
        let mut write_failed = write.is_err();
        let mut answer = None;
        if endpoint.site().is_some() {
            let (reply, rest) = Box::pin(self.reply(&upstream)).await?;
            endpoint.heard_from(reply, thread.shared.clock.now().0);
            if reply.outcome != Outcome::Taken {
                thread.pool.give_back(rest);
                if reply.keep && body.is_done() {
                    thread.pool.keep(endpoint, upstream);
                }
                if reply.outcome == Outcome::Busy {
                    endpoint.succeeded(|| thread.shared.clock.now().0);
                }
                return Err(match reply.outcome {
                    Outcome::Absent => Failed::Instance(Progress::NotConnected, "no instance"),
                    _ => Failed::Busy,
                });
            }
            answer = Some(rest);
        }
        if !body.is_done() && !write_failed {
            progress = Progress::NoAnswer { body_consumed: true };
            self.buffer.consume(early);
            if self.connection.caller.is_some() {
                // The other router waits with the rest of the body until it hears this.
                self.admit()?;
                let told = write_all(&self.connection.stream, b"", WRITE_TIME_MAX).await;
                told.map_err(|_| Failed::ClientGone)?;
            }
            if self.head.expects_continue && early == 0 && !self.is_transparent() {
                let told = write_all(&self.connection.stream, CONTINUE, WRITE_TIME_MAX).await;
                told.map_err(|_| Failed::ClientGone)?;
            }
        }
        if let Some(after) = self.application.hedge_after
            && self.may_hedge(endpoint, body)
            && !write_failed
            && let Some(second) = Box::pin(self.hedge(after, endpoint, &upstream)).await
        {
            *endpoint = second.permit.endpoint.clone();
            (permit, upstream) = (second.permit, second.upstream);
            asked = asked.map(|_| second.asked);
        }
        let mut answer = answer.unwrap_or_default();
        self.hold_little(body);
        let mut interims = 0;
        let head = loop {
            if !body.is_done() && !write_failed && answer.filled().is_empty() {
                write_failed = !self.send_body(&upstream, body, counts).await?;
            }
            let passed = &mut interims;
            match self.answer_head(&upstream, &mut answer, body, progress, passed, out).await {
                // An interim one: now the client may go on with its body.
                Ok(None) => {}
                Ok(Some(head)) => break Ok(head),
                Err(failed) => break Err(failed),
            }
        };
        let head = match head {
            Ok(head) => head,
            Err(failed) => {
                thread.pool.give_back(answer);
                return Err(failed);
            }
        };
        endpoint.succeeded(|| thread.shared.clock.now().0);
        if let Some(asked) = asked {
            let now_ms = thread.shared.clock.now().0;
            endpoint.learn(self.application.balance, asked.elapsed(), now_ms);
        }
        self.admit()?;
        if body.is_done() && matches!(progress, Progress::NoAnswer { body_consumed: false }) {
            self.buffer.consume(early);
        }
        counts.status = head.status;
        if head.status == 101 {
            return self.upgrade(permit, upstream, answer, out, counts).await;
        }
        let clean = if body.is_done() || write_failed || !upstream.is_duplex() {
            self.relay(&upstream, answer, head, out, counts).await?
        } else {
            Box::pin(self.relay_both_ways(&upstream, answer, head, body, out, counts)).await?
        };
        let finished = body.is_done() && !write_failed;
        // What a transparent router passed on of either side, the other one heard, too.
        let closed = self.is_transparent() && !(self.head.keep_alive && head.keep_alive);
        let reusable = head.keep_alive && clean && finished && !self.head.has_odd_body();
        if reusable && !endpoint.closes() && !closed {
            thread.pool.keep(endpoint, upstream);
        } else {
            drop(upstream);
        }
        self.record(Some(endpoint), counts);
        drop(permit);
        let keeps = head.client_keeps_alive && finished && !closed;
        Ok(if keeps { After::KeepAlive } else { After::close(&self.head, self.buffer) })
    }

    /// Tells the router that sent this request, if one did, that its answer follows.
    fn admit(&self) -> Result<(), Failed> {
        self.connection.admit(&self.application).map_err(|_| Failed::ClientGone)
    }

    fn is_transparent(&self) -> bool {
        self.connection.thread.shared.transparent
    }

    /// Reads the head of the answer; interim ones are passed on or dropped. None after an interim
    /// one while the client's body is not sent yet.
    async fn answer_head(
        &mut self,
        upstream: &Wire,
        answer: &mut Buffer,
        body: &Body,
        progress: Progress,
        interims: &mut u32,
        out: &mut Vec<u8>,
    ) -> Result<Option<ResponseHead>, Failed> {
        let deadline = tokio::time::Instant::now() + self.application.limits.answer;
        let asked = Asked { of_router: upstream.far().is_some(), ..self.asked() };
        let thread = self.connection.thread.clone();
        loop {
            if !answer.filled().is_empty() {
                if out.capacity() == 0 {
                    *out = thread.pool.scratch();
                }
                let parsed = response::parse(answer.filled(), asked, out)
                    .map_err(|_| Failed::Instance(Progress::Answering, "no valid answer"))?;
                match parsed {
                    Some(head) if head.status == 101 && !self.head.upgrade => {
                        return Err(Failed::Instance(Progress::Answering, "no valid answer"));
                    }
                    Some(head) if head.status == 101 || head.status >= 200 => {
                        answer.consume(head.length);
                        self.give_session(out);
                        return Ok(Some(head));
                    }
                    Some(_) if *interims == INTERIMS_MAX => {
                        return Err(Failed::Instance(Progress::Answering, "no end of interims"));
                    }
                    Some(head) => {
                        *interims += 1;
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
                        return Err(Failed::Instance(Progress::Answering, "its head is too large"));
                    }
                    answer.grow(HEAD_BYTES_MAX);
                }
            }
            let begun = !answer.filled().is_empty();
            let watch = body.is_done() && !self.buffer.is_full();
            let left = deadline.saturating_duration_since(tokio::time::Instant::now());
            let filled = tokio::select! {
                biased;
                filled = fill_late(upstream, answer, &thread, left) => filled,
                gone = self.client_gone(), if watch => {
                    if gone { return Err(Failed::ClientGone) }
                    continue;
                }
            };
            match filled {
                Ok(0) if begun => return Err(Failed::Instance(Progress::Answering, "cut off")),
                Ok(0) => return Err(Failed::Instance(progress, "closed without an answer")),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    return Err(Failed::TimedOut);
                }
                Err(_) if begun => return Err(Failed::Instance(Progress::Answering, "cut off")),
                Err(_) => return Err(Failed::Instance(progress, "reset without an answer")),
            }
        }
    }

    /// While the instance works: no buffer, and no more than the head that another one may be asked
    /// with.
    fn hold_little(&mut self, body: &Body) {
        let thread = &self.connection.thread;
        if thread.is_crowded() && body.is_done() {
            thread.hollow(self.buffer);
            let head = self.out.as_slice().to_vec();
            thread.pool.give_back_scratch(std::mem::replace(self.out, head));
        }
    }

    fn asked(&self) -> Asked {
        Asked {
            head: self.head.is_head(),
            modern: self.head.modern,
            keep_alive: self.head.keep_alive && self.connection.goes_on(),
            transparent: self.is_transparent(),
            of_router: false,
        }
    }

    async fn fail(
        &mut self,
        page: Page,
        endpoint: Option<&Arc<Endpoint>>,
        counts: &mut Counts,
    ) -> Option<After> {
        counts.status = page.status;
        self.record(endpoint.filter(|endpoint| endpoint.site().is_none()), counts);
        self.admit().ok()?;
        let head_only = self.head.is_head();
        // Its body may be half read: the connection ends.
        self.connection.page(page, self.out, head_only, false).await
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
        let total = self.started.elapsed();
        self.connection.thread.recorder.record(Record {
            application: match endpoint {
                Some(endpoint) => ApplicationRef::Instance(endpoint.clone()),
                None => ApplicationRef::Router(self.application.clone()),
            },
            client: self.connection.peer,
            started: self.started,
            method: self.head.method,
            status: counts.status,
            bytes_in: counts.bytes_in,
            bytes_out: counts.bytes_out,
            queue_us: micros(counts.queue),
            service_us: micros(total.saturating_sub(counts.queue)),
            total_us: micros(total),
        });
    }
}

/// Nothing that answers runs it.
fn is_vain(queue: &Queue) -> bool {
    queue.current.load().as_ref().is_some_and(|current| current.unreachable)
}

async fn connect(thread: &Thread, endpoint: &Arc<Endpoint>) -> io::Result<Wire> {
    let address = match (&endpoint.reach, endpoint.protocol) {
        (Reach::Near(address), InstanceProtocol::Http1) => *address,
        (Reach::Near(address), InstanceProtocol::H2c) => {
            return Box::pin(thread.pool.lines.open(endpoint, *address)).await;
        }
        (Reach::Far(site), _) => return Box::pin(dial::connect(&thread.shared, &site.peer)).await,
    };
    let upstream = stream::within(CONNECT_TIME_MAX, TcpStream::connect(address)).await?;
    upstream.set_nodelay(true)?;
    Ok(upstream.into())
}
