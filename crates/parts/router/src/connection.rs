//! A connection on which requests come, of a client or of another router: what is known of the
//! asker, the head of a request, and what is recorded of it.

pub mod asker;
mod own;
mod patience;
pub mod platform;
mod routing;
pub mod run;
pub mod wall;

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use self::asker::Asker;
use super::buffer::Buffer;
use super::handshake::ShownCertificate;
use super::scope::Scope;
use super::stream::fill;
use super::table::RoutedApplication;
use super::thread::Thread;
use super::tunnel::{self, Upgraded};
use super::wire::Wire;
use metrics::{Labels, RequestRecord};
use router_core::http::body::Body;
use router_core::http::request::{self, Refusal, RequestHead, RequestOrigin};
use router_core::pages::{self, Page};

/// The fate of the connection after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    KeepAlive,
    /// The connection is kept, behind an answer that the lane could have given as well.
    Quick,
    /// The connection closes; the client may still be sending.
    Close,
    /// The client asked for the end, and nothing more is expected of it.
    End,
    /// The answer is incomplete and must look so.
    Cut,
}

impl After {
    /// Returns how to close once the answer to this request is sent. Old clients send a stray line
    /// after a body, and closing before that is read would destroy the answer.
    pub fn close(head: &RequestHead, rest: &Buffer) -> After {
        let ended = !head.keep_alive && head.body == Body::Empty && rest.filled().is_empty();
        if ended { After::End } else { After::Close }
    }
}

/// The rest of an answer, and its record.
pub struct Owed {
    pub rest: Bytes,
    /// The record as it is when all of it is sent, but for the time that takes.
    pub record: RequestRecord,
}

pub struct Connection {
    pub thread: Rc<Thread>,
    pub stream: Wire,
    pub peer: SocketAddr,
    pub scope: Scope,
    pub asker: Asker,
    /// What the client was shown inside TLS.
    pub shown: Option<Rc<ShownCertificate>>,
    /// What the last request made of it, if it was upgraded: it goes on once the request is gone.
    pub upgraded: Cell<Option<Box<Upgraded>>>,
}

impl Connection {
    pub fn new(
        thread: Rc<Thread>,
        stream: Wire,
        peer: SocketAddr,
        scope: Scope,
        asker: Asker,
    ) -> Connection {
        let (shown, upgraded) = (None, Cell::default());
        Connection { thread, stream, peer, scope, asker, shown, upgraded }
    }

    /// Returns it as one on which the client was shown a certificate.
    pub fn with_shown(self, shown: Option<Rc<ShownCertificate>>) -> Connection {
        Connection { shown, ..self }
    }

    /// Passes bytes on both ways if the last request upgraded the connection, until its end.
    pub async fn tunnel(&self) {
        if let Some(upgraded) = self.upgraded.take() {
            let Upgraded { upstream, permit, busy: _busy } = *upgraded;
            let client = &self.stream;
            Box::pin(tunnel::run(&self.thread.pool, client, &upstream, permit)).await;
        }
    }

    /// Returns whether it takes further requests. A transparent router that leaves cannot tell its
    /// clients to connect again: it stays until they do.
    pub fn goes_on(&self) -> bool {
        !self.thread.is_stopping()
            || (self.thread.shared.is_transparent() && self.thread.is_leaving())
    }

    /// Reads the head of a request, which mostly comes in one piece.
    pub async fn head(
        &self,
        buffer: &mut Buffer,
        out: &mut Vec<u8>,
        limit: Duration,
    ) -> Option<Result<RequestHead, Page>> {
        match self.parse(buffer, out) {
            Some(parsed) => Some(parsed),
            None => Box::pin(self.rest_of_head(buffer, out, limit)).await,
        }
    }

    /// Parses the head of a request; `None` if there is more to come.
    pub fn parse(&self, buffer: &Buffer, out: &mut Vec<u8>) -> Option<Result<RequestHead, Page>> {
        if buffer.filled().is_empty() {
            return None;
        }
        let origin = RequestOrigin {
            peer: self.peer.ip(),
            request_id: self.thread.next_request_id(),
            is_router: self.asker.is_router(),
            is_secure: self.stream.is_secure(),
            forwarded: self.thread.shared.forwarded,
        };
        match request::parse(buffer.filled(), &origin, out) {
            Ok(head) => head.map(Ok),
            Err(Refusal(status, text)) => Some(Err(pages::bad_request(status, text))),
        }
    }

    async fn rest_of_head(
        &self,
        buffer: &mut Buffer,
        out: &mut Vec<u8>,
        limit: Duration,
    ) -> Option<Result<RequestHead, Page>> {
        let started = Instant::now();
        let bytes_max = self.asker.head_bytes_max();
        loop {
            let seen = buffer.filled().len();
            if buffer.is_full() {
                if seen >= bytes_max {
                    let in_line = !buffer.filled().contains(&b'\n');
                    return Some(Err(match in_line {
                        true => {
                            pages::bad_request(414, "The address that was asked for is too long.")
                        }
                        false => pages::bad_request(431, "The head of the request is too large."),
                    }));
                }
                buffer.grow(bytes_max);
            }
            match fill(&self.stream, buffer, limit.saturating_sub(started.elapsed())).await {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                    return Some(Err(pages::REQUEST_TIMEOUT));
                }
                Err(_) => return None,
            }
            // Parsing again what has no further line would let slow senders cost much.
            let further = seen == 0 || buffer.filled()[seen..].contains(&b'\n');
            if further && let Some(parsed) = self.parse(buffer, out) {
                return Some(parsed);
            }
        }
    }

    pub fn record_own(
        &self,
        application: &Arc<RoutedApplication>,
        head: &RequestHead,
        status: u16,
        bytes_out: u64,
        started: Instant,
        ended: Instant,
    ) {
        let by = &application.labels;
        let mut record = self.record_of(by, head, status, bytes_out, started);
        record.ended(ended);
        self.thread.recorder.record(record);
    }

    /// Returns a record of a request that has not ended.
    pub fn record_of(
        &self,
        by: &Arc<Labels>,
        head: &RequestHead,
        status: u16,
        bytes_out: u64,
        started: Instant,
    ) -> RequestRecord {
        RequestRecord {
            labels: by.clone(),
            client: self.peer,
            started,
            method: head.method,
            status,
            bytes_in: head.length as u64,
            bytes_out,
            queue_us: 0,
            service_us: 0,
            total_us: 0,
        }
    }
}
