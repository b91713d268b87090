//! A request that an instance is asked for at once, and whose answer is passed on as soon as it can
//! be read: the lane's part of forwarding. Where there is more to it, a task goes on from there.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Instant;

use model::application::InstanceProtocol;
use router_core::http::body::Body;
use router_core::http::request::RequestHead;
use router_core::http::response;

use super::answer;
use super::call::Call;
use super::exchange::Exchange;
use super::failed::Failed;
use super::long::LONG_BYTES;
use super::relay::{Chunks, Next, Relay};
use crate::buffer::{BUFFER_BYTES, Buffer};
use crate::connection::Connection;
use crate::endpoint::Endpoint;
use crate::lane::entrant::may_hold;
use crate::lane::registrations::UpstreamRegistrations;
use crate::permit::Permit;
use crate::presence::Busy;
use crate::table::RoutedApplication;
use crate::wire::Wire;
use metrics::RequestRecord;

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

/// The progress of a request.
pub enum RequestStep {
    Waits,
    Passed,
    /// The client is gone.
    Gone,
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
            Some(Call { relay: Some(relay), at, .. }) => {
                relay.awaited_since.unwrap_or(*at) + self.application.limits.answer_idle
            }
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
    ) -> RequestStep {
        let Some(call) = &mut self.call else { return RequestStep::Further };
        if call.relay.is_none() {
            client.thread.pool.fill_out(buffer);
            match call.upstream.read_now(buffer) {
                Ok(1..) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return RequestStep::Waits,
                // The next read sees it again.
                Ok(0) | Err(_) => return RequestStep::Further,
            }
            call.relay = begun(client, &self.head, &call.upstream, buffer, out);
            if call.relay.is_none() {
                call.answer = std::mem::take(buffer);
                return RequestStep::Further;
            }
            buffer.consume(usize::MAX / 2);
            self.heard(client);
        }
        self.pass_on(client, out, passed)
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

    fn pass_on(
        &mut self,
        client: &Connection,
        out: &mut Vec<u8>,
        passed: &mut usize,
    ) -> RequestStep {
        let Some(Call { upstream, relay: Some(relay), .. }) = &mut self.call else {
            return RequestStep::Further;
        };
        let (to, pool, before) = (&client.stream, &client.thread.pool, relay.bytes_out());
        let next = relay.step(upstream, to, pool);
        let sent = match next {
            Ok(Next::End) => relay.send(to, pool),
            _ => Ok(false),
        };
        *passed += (relay.bytes_out() - before) as usize;
        relay.give_back(out);
        relay.awaited_since = matches!(next, Ok(Next::More)).then(Instant::now);
        match (next, sent) {
            (Ok(Next::End), Ok(true)) => self.conclude(client, RequestStep::Passed),
            (Ok(Next::End), Err(_)) | (Err(Failed::ClientGone), _) => {
                self.conclude(client, RequestStep::Gone)
            }
            (Ok(Next::More), _) if relay.is_spliced() => RequestStep::Waits,
            _ => RequestStep::Further,
        }
    }

    /// Concludes an answer of which nothing is left for the client, or whose client is gone. What
    /// is still to come of it is nobody's.
    fn conclude(&mut self, client: &Connection, step: RequestStep) -> RequestStep {
        let Some(Call { upstream, relay: Some(relay), .. }) = self.call.take().map(Call::end)
        else {
            return RequestStep::Further;
        };
        let (thread, endpoint, ended) = (&client.thread, &self.permit.endpoint, Instant::now());
        let mut record = self.record(client, relay.status, relay.bytes_out());
        record.ended(ended);
        if matches!(step, RequestStep::Gone) {
            record.abandoned();
        }
        if relay.has_come() {
            if relay.is_clean() {
                thread.pool.keep(endpoint, upstream, ended);
            }
            self.permit.served();
        }
        thread.pool.give_back_scratch(std::mem::take(&mut self.out));
        thread.recorder.record(record);
        step
    }

    fn record(&self, client: &Connection, status: u16, bytes_out: u64) -> RequestRecord {
        let by = &self.permit.endpoint.labels;
        client.record_of(by, &self.head, status, bytes_out, self.started)
    }
}

/// Begins to pass on an answer of which some can be read; `None` if there is more to it. Its head
/// is written to `out`.
fn begun(
    client: &Connection,
    head: &RequestHead,
    upstream: &Wire,
    buffer: &mut Buffer,
    out: &mut Vec<u8>,
) -> Option<Relay> {
    let asked = answer::asked(client, head);
    // In that case little was read, behind a long answer.
    let was_brief = matches!(upstream, Wire::Plain(from) if from.expect_any());
    let mut parsed = response::parse(buffer.filled(), asked, out).ok()?;
    if parsed.is_none() && was_brief && upstream.read_now(buffer).is_ok_and(|count| count > 0) {
        parsed = response::parse(buffer.filled(), asked, out).ok()?;
    }
    let answer =
        parsed.filter(|one| one.status >= 200 && one.keep_alive && one.client_keeps_alive)?;
    let (content, client) = (&buffer.filled()[answer.length..], client.peer.ip());
    let begun = Relay::begin(&answer, content, std::mem::take(out), Chunks::AsTheyCome, client);
    let mut relay = begun.ok()?;
    if was_brief || buffer.is_full() {
        relay.look_behind(upstream);
    }
    Some(relay)
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
            relay: None,
        })
    }

    /// Returns whether the lane could have done it.
    pub(super) fn was_quick(&self, endpoint: &Endpoint, relay: &Relay) -> bool {
        let bytes_out = relay.bytes_out();
        let is_long =
            || relay.has_length && LONG_BYTES.contains(&bytes_out) && !relay.pace.has_waited();
        may_hold(self.connection)
            && may_be_underway(&self.application, &self.head)
            && is_simple(endpoint)
            && (bytes_out < BUFFER_BYTES as u64 || is_long())
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
