//! One client in the lane, and what becomes of it when it can be read.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use router_core::http::body::Body;
use router_core::http::request::{self, RequestHead};

use super::entrant::{LaneEntrant, takes};
use super::registrations::UpstreamRegistrations;
use crate::buffer::Buffer;
use crate::connection::Owed;
use crate::forward::exchange::Exchange;
use crate::forward::underway::{RequestStep, Underway, may_be_underway};
use crate::plain::Plain;
use crate::table::RoutedApplication;
use crate::thread::Redirect;
use crate::wire::Wire;

pub struct LaneClient {
    pub entrant: LaneEntrant,
    /// The time when it last asked, or came in.
    since: Instant,
    /// The request that an instance is asked for.
    pub underway: Option<Box<Underway>>,
    /// Whether the client has sent more meanwhile.
    pub has_more: bool,
    /// Whether an instance was asked the last time.
    asks_instances: bool,
}

/// The outcome for a client that can be read.
pub enum LaneTurn {
    Answered,
    /// An instance is asked.
    Asked,
    /// There is nothing to be read.
    Vain,
    Gone,
    /// The client wants something else.
    Leaves,
    /// The client wants something else, and has an instance to itself already.
    LeavesWith(Box<Underway>),
    /// The client has no room for the rest of the answer.
    Owes(Box<Owed>),
}

/// The state that all clients of the lane share.
pub struct LaneScratch {
    pub registrations: UpstreamRegistrations,
    /// The bytes that were read last.
    pub buffer: Buffer,
    /// A head that is written anew.
    pub out: Vec<u8>,
    /// Bytes of long answers in this turn.
    pub passed: usize,
    /// The time when the client before was served.
    pub now: Instant,
}

impl LaneClient {
    pub fn new(entrant: LaneEntrant) -> LaneClient {
        let since = Instant::now();
        LaneClient { entrant, since, underway: None, has_more: false, asks_instances: false }
    }

    /// Returns how long it waits.
    pub fn until(&self) -> Instant {
        match &self.underway {
            None => self.since + self.entrant.limits.idle,
            Some(underway) => underway.until(),
        }
    }

    /// Handles a client that can be read.
    pub fn turn(&mut self, scratch: &mut LaneScratch, key: usize) -> LaneTurn {
        let connection = &self.entrant.connection;
        connection.thread.pool.fill_out(&mut scratch.buffer);
        match connection.stream.read_now(&mut scratch.buffer) {
            Ok(1..) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return LaneTurn::Vain,
            Ok(0) | Err(_) => return LaneTurn::Gone,
        }
        self.since = scratch.now;
        let is_all = !scratch.buffer.is_full();
        let turn = is_all.then(|| self.answer(scratch, key)).flatten().unwrap_or(LaneTurn::Leaves);
        if !matches!(turn, LaneTurn::Leaves) {
            scratch.buffer.consume(usize::MAX / 2);
        }
        turn
    }

    /// Answers a request; `None` if it has to be looked at more closely.
    fn answer(&mut self, scratch: &mut LaneScratch, key: usize) -> Option<LaneTurn> {
        let connection = &self.entrant.connection;
        let (thread, started) = (&connection.thread, scratch.now);
        let bytes = scratch.buffer.filled();
        let head = match self.asks_instances {
            true => connection.parse(&scratch.buffer, &mut scratch.out)?.ok(),
            false => request::look(bytes),
        };
        let head = head.filter(|head| is_ordinary(head, bytes))?;
        let (application, redirect) = thread.route(&connection.scope, &bytes[head.host.clone()])?;
        let is_for_platform = redirect != Redirect::No || connection.may_be_challenge(&head, bytes);
        if thread.is_stopping() || is_for_platform || !application.gate.is_open() {
            return None;
        }
        if application.may_have(&head) {
            let target = &bytes[head.target.clone()];
            if !thread.recent.is_none(&application, target, started) {
                self.asks_instances = false;
                return self.file(application, head, scratch);
            }
        }
        if !may_be_underway(&application, &head) || application.endpoints.is_empty() {
            return None;
        }
        let head = match std::mem::replace(&mut self.asks_instances, true) {
            true => head,
            false => connection.parse(&scratch.buffer, &mut scratch.out)?.ok()?,
        };
        self.entrant.limits = application.limits;
        scratch.now = Instant::now();
        let LaneScratch { registrations, buffer, out, now, .. } = scratch;
        let exchange = Exchange::new(connection, application, head, buffer, out, *now);
        let underway = Box::new(Underway::begin(exchange, registrations, key)?);
        Some(match underway.is_asked() {
            true => {
                self.underway = Some(underway);
                LaneTurn::Asked
            }
            false => LaneTurn::LeavesWith(underway),
        })
    }

    /// Sends a file from memory that was asked for a moment ago.
    fn file(
        &mut self,
        application: Arc<RoutedApplication>,
        head: RequestHead,
        scratch: &mut LaneScratch,
    ) -> Option<LaneTurn> {
        let (connection, started) = (&self.entrant.connection, scratch.now);
        let (thread, Wire::Plain(client)) = (&connection.thread, &connection.stream) else {
            return None;
        };
        if head.method != "GET" || head.has_conditions {
            return None;
        }
        let target = &scratch.buffer.filled()[head.target.clone()];
        let sent =
            thread.recent.prepared(&application, target, started, |answer, content_bytes| {
                takes(connection, answer).then(|| Sent::now(client, answer, content_bytes))
            })??;
        scratch.now = Instant::now();
        self.entrant.limits = application.limits;
        let (bytes_out, turn) = match sent {
            Sent::Whole { content_bytes } => (content_bytes, LaneTurn::Answered),
            Sent::Nothing => (0, LaneTurn::Gone),
            Sent::Part { rest, content_bytes } => {
                let by = &application.labels;
                let record = connection.record_of(by, &head, 200, content_bytes, started);
                return Some(LaneTurn::Owes(Box::new(Owed { rest, record })));
            }
        };
        connection.record_own(&application, &head, 200, bytes_out, started, scratch.now);
        Some(turn)
    }

    /// Passes on what comes from the instance that was asked; `None` if none was.
    pub fn step(&mut self, scratch: &mut LaneScratch) -> Option<RequestStep> {
        let underway = self.underway.as_mut()?;
        let LaneScratch { buffer, out, passed, .. } = scratch;
        let step = underway.step(&self.entrant.connection, buffer, out, passed);
        if matches!(step, RequestStep::Passed) {
            self.underway = None;
            self.since = scratch.now;
        }
        Some(step)
    }
}

/// Returns whether a request came whole, nothing follows it, and another may.
fn is_ordinary(head: &RequestHead, bytes: &[u8]) -> bool {
    let is_whole = head.length == bytes.len() && head.body == Body::Empty;
    let wants_more = head.upgrade || head.expects_continue || head.is_for_router;
    is_whole && head.keep_alive && !wants_more
}

/// The part of an answer that was sent.
enum Sent {
    Whole { content_bytes: u64 },
    Part { rest: Bytes, content_bytes: u64 },
    Nothing,
}

impl Sent {
    fn now(client: &Plain, answer: &Bytes, content_bytes: u64) -> Sent {
        let count = match client.try_write(answer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(_) => return Sent::Nothing,
            Ok(count) => count,
        };
        match count == answer.len() {
            true => Sent::Whole { content_bytes },
            false => Sent::Part { rest: answer.slice(count..), content_bytes },
        }
    }
}
