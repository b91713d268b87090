//! A request that an instance is asked for at once, and whose answer is passed on as soon as it can
//! be read: the lane's part of forwarding. Where there is more to it, a task goes on from there.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use model::application::InstanceProtocol;
use router_core::http::body::Body;
use router_core::http::request::RequestHead;
use router_core::http::response;

use super::answer;
use super::call::Call;
use super::exchange::{Counts, Exchange};
use super::long::long_rest;
use super::rest::{LONG_BYTES, Passed, Rest};
use crate::buffer::{BUFFER_BYTES, Buffer};
use crate::connection::{Connection, Owed};
use crate::endpoint::Endpoint;
use crate::lane::entrant::may_hold;
use crate::lane::registrations::UpstreamRegistrations;
use crate::permit::Permit;
use crate::presence::Busy;
use crate::table::RoutedApplication;
use crate::wire::Wire;
use metrics::Record;

/// A request that has its place at an instance.
pub struct Underway {
    pub(super) application: Arc<RoutedApplication>,
    pub(super) head: RequestHead,
    /// The head as the instance gets it.
    pub(super) out: Vec<u8>,
    /// The length of the head without its last line.
    pub(super) head_length: usize,
    pub(super) started: Instant,
    pub(super) session: Option<u64>,
    pub(super) permit: Permit,
    pub(super) call: Option<Call>,
    pub(super) _busy: Busy,
}

/// The part of an answer that can be read.
enum Came {
    /// All of it has come, and nothing behind it; it is in `out`, for the client.
    Whole {
        status: u16,
    },
    /// Its head and some of its body have come, in `out` as well.
    Begun(Box<Rest>),
    Other,
}

/// The progress of a request.
pub enum Step {
    Waits,
    Passed,
    /// The client is gone.
    Gone,
    /// The client has no room for the rest of the answer.
    Owes(Box<Owed>),
    /// There is more to it.
    Further,
}

impl Underway {
    /// Begins a request; `None` if there is no room at once. `client` is the lane's key of the
    /// client.
    pub fn begin(
        exchange: Exchange<'_>,
        registrations: &mut UpstreamRegistrations,
        client: usize,
    ) -> Option<Underway> {
        let permit = exchange.permit_now()?;
        let thread = &exchange.connection.thread;
        thread.budget.borrow_mut().deposit();
        let head_length = exchange.out.len();
        exchange.out.extend_from_slice(b"\r\n");
        let session = exchange.session.get();
        let call = match session {
            None => exchange.call_now(&permit.endpoint, registrations, client),
            // Its answer has a cookie to carry.
            Some(_) => None,
        };
        Some(Underway {
            application: exchange.application,
            head: exchange.head,
            out: thread.pool.head(exchange.out),
            head_length,
            started: exchange.started,
            session,
            permit,
            call,
            _busy: Busy::begin(thread),
        })
    }

    pub fn is_asked(&self) -> bool {
        self.call.is_some()
    }

    /// Returns the time by which there must be an answer, or more of it.
    pub fn until(&self) -> Instant {
        match &self.call {
            None => self.started + self.application.limits.answer,
            Some(Call { rest: Some(rest), .. }) => rest.until(&self.application.limits),
            Some(call) => call.at + self.application.limits.answer,
        }
    }

    /// Reads from the instance's connection, which is readable. Bytes passed on through a pipe are
    /// added to `passed`.
    pub fn step(
        &mut self,
        client: &Connection,
        buffer: &mut Buffer,
        out: &mut Vec<u8>,
        passed: &mut usize,
    ) -> Step {
        let Some(call) = &mut self.call else { return Step::Further };
        if call.rest.is_some() {
            return self.pass_on(client, &[], passed);
        }
        client.thread.pool.fill_out(buffer);
        match call.upstream.read_now(buffer) {
            Ok(1..) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Step::Waits,
            // The next read sees it again.
            Ok(0) | Err(_) => return Step::Further,
        }
        // In that case little was read, behind a long answer.
        let was_brief = matches!(&call.upstream, Wire::Plain(from) if from.expect_any());
        let mut came = self.look(client, buffer, out);
        if was_brief
            && !matches!(came, Came::Begun(_))
            && let Some(call) = &self.call
            && call.upstream.read_now(buffer).is_ok_and(|count| count > 0)
        {
            came = self.look(client, buffer, out);
        }
        let Some(call) = &mut self.call else { return Step::Further };
        match came {
            Came::Whole { status } => {
                buffer.consume(usize::MAX / 2);
                self.heard(client);
                let bytes_out = out.len() as u64;
                let Wire::Plain(to) = &client.stream else { return Step::Gone };
                let sent = match to.try_write(out) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => Some(0),
                    sent => sent.ok(),
                };
                let unsent = sent.map(|count| Bytes::copy_from_slice(&out[count..]));
                self.conclude(client, status, bytes_out, unsent)
            }
            Came::Begun(rest) => {
                buffer.consume(usize::MAX / 2);
                call.rest = Some(rest);
                self.heard(client);
                self.pass_on(client, out, passed)
            }
            Came::Other => {
                call.answer = std::mem::take(buffer);
                Step::Further
            }
        }
    }

    fn look(&self, client: &Connection, buffer: &Buffer, out: &mut Vec<u8>) -> Came {
        let bytes = buffer.filled();
        let Ok(Some(head)) = response::parse(bytes, answer::asked(client, &self.head), out) else {
            return Came::Other;
        };
        let (content, mut body) = (&bytes[head.length..], head.body);
        let is_valid = body.accept(content) == Ok(content.len());
        if !is_valid || head.status < 200 || !head.keep_alive || !head.client_keeps_alive {
            return Came::Other;
        }
        out.extend_from_slice(content);
        match long_rest(body) {
            // More may follow for which there was no room.
            None if body.is_done() && !buffer.is_full() => Came::Whole { status: head.status },
            None => Came::Other,
            Some(left) => Came::Begun(Box::new(Rest::new(&head, left, out.len() as u64))),
        }
    }

    /// Records that the instance answers.
    fn heard(&self, client: &Connection) {
        let (thread, endpoint) = (&client.thread, &self.permit.endpoint);
        endpoint.succeeded(|| thread.shared.clock.now().0);
        if let Some(call) = &self.call
            && self.application.balance.learns()
        {
            let now_ms = thread.shared.clock.now().0;
            endpoint.learn(self.application.balance, call.at.elapsed(), now_ms);
        }
    }

    /// Concludes an answer that has come whole; `unsent` is what the client has not taken, `None`
    /// if the client is gone.
    fn conclude(
        &mut self,
        client: &Connection,
        status: u16,
        bytes_out: u64,
        unsent: Option<Bytes>,
    ) -> Step {
        let Some(call) = self.call.take() else { return Step::Further };
        self.permit.served();
        let (thread, endpoint) = (&client.thread, &self.permit.endpoint);
        let ended = Instant::now();
        thread.pool.keep(endpoint, call.end().upstream, ended);
        thread.pool.give_back_scratch(std::mem::take(&mut self.out));
        let mut record = self.record(client, status, bytes_out);
        record.ended(ended);
        let step = match unsent {
            Some(rest) if rest.is_empty() => Step::Passed,
            Some(rest) => return Step::Owes(Box::new(Owed { rest, record })),
            None => {
                record.abandoned();
                Step::Gone
            }
        };
        thread.recorder.record(record);
        step
    }

    fn record(&self, client: &Connection, status: u16, bytes_out: u64) -> Record {
        let by = &self.permit.endpoint.labels;
        client.record_of(by, &self.head, status, bytes_out, self.started)
    }

    fn pass_on(&mut self, client: &Connection, begun: &[u8], bytes: &mut usize) -> Step {
        let Some(Call { upstream: Wire::Plain(from), rest: Some(rest), .. }) = &mut self.call
        else {
            return Step::Further;
        };
        let before = rest.left;
        let passed = rest.pass(from, client, begun);
        *bytes += (before - rest.left) as usize;
        let (status, bytes_out) = (rest.status, rest.bytes_out);
        match passed {
            Passed::Waits => Step::Waits,
            Passed::Further => Step::Further,
            Passed::Whole => self.conclude(client, status, bytes_out, Some(Bytes::new())),
            Passed::Gone => {
                let mut record = self.record(client, status, bytes_out);
                record.ended(Instant::now());
                record.abandoned();
                client.thread.recorder.record(record);
                // What comes of it is nobody's.
                self.call = None;
                Step::Gone
            }
        }
    }
}

impl Exchange<'_> {
    /// Sends the request on a connection that is kept. Returns `None` if there is no such
    /// connection, or not all of the head was taken: then nothing that was sent is a request.
    fn call_now(
        &self,
        endpoint: &Endpoint,
        registrations: &mut UpstreamRegistrations,
        client: usize,
    ) -> Option<Call> {
        let at = self.started;
        if !is_simple(endpoint) {
            return None;
        }
        let kept = self.connection.thread.pool.take(endpoint, !self.head.idempotent, at)?;
        let Wire::Plain(mut upstream) = kept else { return None };
        if !registrations.register(&mut upstream, client) {
            return None;
        }
        let is_sent = upstream.try_write(self.out).is_ok_and(|count| count == self.out.len());
        is_sent.then(|| Call {
            upstream: upstream.into(),
            at,
            answer: Buffer::default(),
            rest: None,
        })
    }

    /// Returns whether the lane could have done it.
    pub(super) fn was_quick(&self, endpoint: &Endpoint, body: Body, counts: &Counts) -> bool {
        let is_long = || {
            matches!(body, Body::Length(_))
                && LONG_BYTES.contains(&counts.bytes_out)
                && !counts.pace.has_waited()
        };
        may_hold(self.connection)
            && may_be_underway(&self.application, &self.head)
            && is_simple(endpoint)
            && (counts.bytes_out < BUFFER_BYTES as u64 || is_long())
    }
}

/// Returns whether nothing but the head has to be sent, and one instance is asked.
pub fn may_be_underway(application: &RoutedApplication, head: &RequestHead) -> bool {
    let wants_more = head.upgrade || head.expects_continue || application.hedge_after.is_some();
    head.body == Body::Empty && head.keep_alive && head.modern && !wants_more
}

/// Returns whether its connections are kept, and carry one request at a time.
fn is_simple(endpoint: &Endpoint) -> bool {
    endpoint.site().is_none() && endpoint.protocol == InstanceProtocol::Http1 && !endpoint.closes()
}
