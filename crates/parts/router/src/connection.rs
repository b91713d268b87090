//! One client's connection: requests one after the other, each routed by the snapshot of its time.
//! Holds buffers only while a request is under way.

mod own;
mod patience;

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use router_core::book::Processes;

use self::patience::close_patiently;
use super::buffer::Buffer;
use super::closing::close_gently;
use super::far::host::{self, Caller};
use super::forward::{self, Exchange, Underway};
use super::h2;
use super::h2::client::Job;
use super::h2::workers::Workers;
use super::limits::Limits;
use super::pace::Pace;
use super::pages::{self, Page};
use super::scope::Scope;
use super::stream::{fill, write_paced};
use super::table::Application;
use super::thread::Thread;
use super::wire::Wire;
use metrics::{Labels, Record};
use router_core::http::body::Body;
use router_core::http::request::{self, Origin, Refusal, RequestHead};
use router_core::http::{HEAD_BYTES_ADDED_MAX, HEAD_BYTES_MAX};

/// Then the client goes on in the lane. Who often wants something else pays for the way there and
/// back: with four, a body in every sixth request made each an eighth dearer.
pub(super) const QUICK_IN_A_ROW: u32 = 16;

/// What becomes of the connection after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    KeepAlive,
    /// The same, behind an answer that the lane could have given as well.
    Quick,
    /// The client may still be sending.
    Close,
    /// The client asked for the end, and nothing more is expected of it.
    End,
    /// The answer is incomplete and must look so.
    Cut,
}

impl After {
    /// Once the answer to this request is sent. Old clients send a stray line after a body, and
    /// closing before that is read would destroy the answer.
    pub fn close(head: &RequestHead, rest: &Buffer) -> After {
        let ended = !head.keep_alive && head.body == Body::Empty && rest.filled().is_empty();
        if ended { After::End } else { After::Close }
    }
}

/// Why there are no more requests of a connection.
enum Ended {
    /// None came, or no other one.
    NoRequest,
    /// It speaks HTTP/2, and began so.
    Http2(Buffer),
    /// Its last one was answered, or could not be.
    Request(Option<After>, Buffer),
    /// It goes on in the lane.
    Quick(Limits),
}

/// Where a connection's task begins.
pub enum Start {
    New,
    /// After the lane, as all that follow. The limits are those of the application that was asked
    /// last.
    Waiting(Limits),
    /// With what came there.
    Asked(Buffer, Limits),
    /// With what found no room.
    Owing(Box<Owed>, Limits),
    /// With a request that has its place at an instance.
    Underway(Box<Underway>, Limits),
}

/// The rest of an answer.
pub struct Owed {
    pub rest: Bytes,
    /// As it is when all of it is sent, but for the time that takes.
    pub record: Record,
}

/// What becomes of a request.
enum Begun {
    Ended(Option<After>),
    /// An instance is asked.
    Forward(Arc<Application>, RequestHead, Instant),
}

pub struct Connection {
    pub thread: Rc<Thread>,
    pub stream: Wire,
    pub peer: SocketAddr,
    pub scope: Scope,
    /// The router of another member; none for a client.
    pub caller: Option<Caller>,
}

/// Counts a request as under way for as long as it lives.
pub struct Busy(Rc<Thread>);

impl Busy {
    pub fn begin(thread: &Rc<Thread>) -> Busy {
        thread.busy.set(thread.busy.get() + 1);
        Busy(thread.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.set(self.0.busy.get() - 1);
    }
}

impl Connection {
    /// What is awaited here has its room in every connection, idle or not, and a place in memory is
    /// found for it with each: what is long or rare is awaited apart.
    /// Returned is one that goes on in the lane.
    #[expect(clippy::manual_async_fn, reason = "an async fn has what it takes in its future twice")]
    pub fn run(
        self,
        start: Start,
        workers: Rc<Workers<Job>>,
    ) -> impl Future<Output = Option<(Connection, Limits)>> {
        async move {
            match self.requests(start).await {
                Ended::NoRequest => self.leave().await,
                Ended::Http2(first) => h2::serve::serve(self, workers, Some(first)).await,
                Ended::Request(after, buffer) => self.end(after, buffer).await,
                Ended::Quick(limits) => return Some((self, limits)),
            }
            None
        }
    }

    /// One after the other, until there is to be no other.
    async fn requests(&self, start: Start) -> Ended {
        let (mut is_new, mut underway) = (false, None);
        let (first, mut limits) = match start {
            Start::New => {
                let limits = self.first_limits();
                // Most bring a request along.
                let come = match &self.caller {
                    None => self.bytes_now(),
                    Some(_) => Some(None),
                };
                let first = match come {
                    Some(None) => self.first_bytes(limits.idle).await,
                    come => come.flatten(),
                };
                is_new = true;
                (first, limits)
            }
            Start::Asked(buffer, limits) => (Some(buffer), limits),
            Start::Waiting(limits) => (self.first_bytes(limits.idle).await, limits),
            Start::Underway(begun, limits) => {
                underway = Some(begun);
                (Some(Buffer::default()), limits)
            }
            Start::Owing(owed, limits) => {
                if !Box::pin(self.pay(*owed)).await {
                    return Ended::Request(Some(After::Cut), Buffer::default());
                }
                (self.first_bytes(limits.idle).await, limits)
            }
        };
        let Some(mut buffer) = first else { return Ended::NoRequest };
        if is_new
            && self.may_speak_h2()
            && h2::serve::may_be_spoken(&buffer)
            && Box::pin(h2::serve::is_spoken(&self.stream, &mut buffer)).await
        {
            return Ended::Http2(buffer);
        }
        let mut quick = 0;
        loop {
            let after = match underway.take() {
                Some(begun) => Box::pin(forward::go_on(self, *begun, &mut buffer)).await,
                None => {
                    let busy = Busy::begin(&self.thread);
                    let mut out = self.thread.pool.scratch();
                    let after = self.one(&mut buffer, &mut out, &mut limits).await;
                    self.thread.pool.give_back_scratch(out);
                    drop(busy);
                    after
                }
            };
            let keeps = matches!(after, Some(After::KeepAlive | After::Quick));
            if !keeps || !self.may_ask_again() {
                return Ended::Request(after, buffer);
            }
            quick = if after == Some(After::Quick) { quick + 1 } else { 0 };
            if buffer.filled().is_empty() {
                self.thread.pool.give_back(std::mem::take(&mut buffer));
                if quick >= QUICK_IN_A_ROW {
                    return Ended::Quick(limits);
                }
                match self.first_bytes(limits.idle).await {
                    Some(next) => buffer = next,
                    None => return Ended::NoRequest,
                }
            }
        }
    }

    /// Until it is known which application is meant.
    fn first_limits(&self) -> Limits {
        let own = match self.scope {
            Scope::Port(_) => self.thread.application(&self.scope, b""),
            Scope::Host | Scope::Secure | Scope::Datagrams(_) => None,
        };
        own.map(|own| own.limits).unwrap_or_default()
    }

    /// What the lane could not send at once. False where the client does not take it.
    async fn pay(&self, owed: Owed) -> bool {
        let _busy = Busy::begin(&self.thread);
        let sent = write_paced(&self.stream, &owed.rest, &Pace::default()).await.is_ok();
        let mut record = owed.record;
        record.ended(Instant::now());
        if !sent {
            record.abandoned();
        }
        self.thread.recorder.record(record);
        sent
    }

    /// A stream of HTTP/2: the head of its only request is in `buffer`.
    pub async fn run_once(self, mut buffer: Buffer) {
        let thread = self.thread.clone();
        let _busy = Busy::begin(&thread);
        let mut out = thread.pool.scratch();
        let after = self.one(&mut buffer, &mut out, &mut Limits::default()).await;
        thread.pool.give_back_scratch(out);
        match after {
            // The end of the request came, too.
            Some(After::KeepAlive) if self.stream.peek().is_none() => {
                thread.pool.give_back(buffer);
            }
            after => self.end(after, buffer).await,
        }
    }

    async fn end(self, after: Option<After>, buffer: Buffer) {
        let thread = self.thread.clone();
        let _busy = Busy::begin(&thread);
        let buffer = match after {
            Some(After::End) if self.caller.is_none() => {
                self.stream.sign_end();
                buffer
            }
            Some(After::Close) => Box::pin(close_patiently(self.stream, buffer, &thread)).await,
            // Another router wants the end signed, too.
            Some(After::KeepAlive | After::Quick | After::End) => {
                Box::pin(close_gently(self.stream, buffer)).await
            }
            Some(After::Cut) => {
                self.stream.cut();
                buffer
            }
            None => buffer,
        };
        thread.pool.give_back(buffer);
    }

    /// A transparent router that leaves cannot tell its clients to connect again: it stays until
    /// they do.
    pub fn goes_on(&self) -> bool {
        !self.thread.is_stopping()
            || (self.thread.shared.is_transparent() && self.thread.is_leaving())
    }

    /// A client that was told so: closing now would lose what it is about to ask. Its next answer
    /// says that the connection ends, where the router leaves.
    fn may_ask_again(&self) -> bool {
        self.goes_on() || (self.caller.is_none() && self.thread.is_leaving())
    }

    /// A client, on a connection that carries nothing else yet.
    fn may_speak_h2(&self) -> bool {
        self.caller.is_none() && !matches!(self.stream, Wire::Stream(_))
    }

    /// No request came.
    async fn leave(self) {
        if self.thread.is_stopping() {
            Box::pin(host::leave(self)).await;
        }
    }

    /// Waits for a request without holding a buffer. None when none came.
    async fn first_bytes(&self, limit: Duration) -> Option<Buffer> {
        loop {
            match &self.caller {
                None => self.stream.readable_within(limit).await.ok()?,
                Some(_) => Box::pin(host::readable(self, limit)).await?,
            }
            // Readable may be an old tale; then the wait goes on.
            if let Some(buffer) = self.bytes_now()? {
                return Some(buffer);
            }
        }
    }

    /// What has come. None at the end, Some(None) where nothing came yet.
    fn bytes_now(&self) -> Option<Option<Buffer>> {
        let mut buffer = self.thread.pool.buffer();
        match self.stream.read_now(&mut buffer) {
            Ok(1..) => Some(Some(buffer)),
            result => {
                self.thread.pool.give_back(buffer);
                let vain = result.err()?.kind() == std::io::ErrorKind::WouldBlock;
                vain.then_some(None)
            }
        }
    }

    /// None when the client is gone. The limits of the application hold for what follows, too.
    async fn one(
        &self,
        buffer: &mut Buffer,
        out: &mut Vec<u8>,
        limits: &mut Limits,
    ) -> Option<After> {
        if self.caller.is_some() {
            return Box::pin(host::one(self, buffer, out, limits.head)).await;
        }
        match self.begin(buffer, out, limits).await {
            Begun::Ended(after) => after,
            Begun::Forward(application, head, started) => {
                let exchange = Exchange::new(self, application, head, buffer, out, started);
                Box::pin(forward::forward(exchange)).await
            }
        }
    }

    async fn begin(&self, buffer: &mut Buffer, out: &mut Vec<u8>, limits: &mut Limits) -> Begun {
        let head = match self.head(buffer, out, limits.head).await {
            Some(Ok(head)) => head,
            Some(Err(page)) => {
                return Begun::Ended(Box::pin(self.page(page, out, false, false)).await);
            }
            None => return Begun::Ended(None),
        };
        if head.is_for_router {
            return self.refused(pages::FOR_ROUTER, &head, buffer, out).await;
        }
        let started = Instant::now();
        let application = self.thread.application(&self.scope, &buffer.filled()[head.host.clone()]);
        let Some(application) = application else {
            return self.refused(pages::NO_APPLICATION, &head, buffer, out).await;
        };
        *limits = application.limits;
        if let Wire::Stream(stream) = &self.stream {
            stream.may_idle(limits.idle);
        }
        if matches!(head.body, Body::Length(length) if length > limits.body_bytes_max) {
            self.record_own(
                &application,
                &head,
                pages::BODY_TOO_LARGE.status,
                0,
                started,
                Instant::now(),
            );
            return self.refused(pages::BODY_TOO_LARGE, &head, buffer, out).await;
        }
        if application.may_have(&head)
            && let Some(after) = self.file(&application, &head, buffer, out, started).await
        {
            return Begun::Ended(after);
        }
        let missing = match application.processes {
            Processes::Expected => None,
            _ if !application.endpoints.is_empty() || !application.far.is_empty() => None,
            Processes::Stopped => Some(pages::STOPPED),
            Processes::NoRelease => Some(pages::NO_RELEASE),
            Processes::FilesOnly if application.is_only_read(&head) => Some(pages::FILES_ONLY),
            Processes::FilesOnly => Some(pages::NO_FILE),
        };
        if let Some(page) = missing {
            self.record_own(&application, &head, page.status, 0, started, Instant::now());
            return self.refused(page, &head, buffer, out).await;
        }
        Begun::Forward(application, head, started)
    }

    /// Most come in one piece.
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

    /// None where there is more to come.
    pub fn parse(&self, buffer: &Buffer, out: &mut Vec<u8>) -> Option<Result<RequestHead, Page>> {
        if buffer.filled().is_empty() {
            return None;
        }
        let origin = Origin {
            peer: self.peer.ip(),
            request_id: self.thread.next_request_id(),
            is_router: self.caller.is_some(),
            is_secure: self.stream.is_secure(),
            telling: self.thread.shared.telling,
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
        let added = if self.caller.is_some() { HEAD_BYTES_ADDED_MAX } else { 0 };
        let bytes_max = HEAD_BYTES_MAX + added;
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
            // Reading again what has no further line would let slow senders cost much.
            let further = seen == 0 || buffer.filled()[seen..].contains(&b'\n');
            if further && let Some(parsed) = self.parse(buffer, out) {
                return Some(parsed);
            }
        }
    }

    pub fn record_own(
        &self,
        application: &Arc<Application>,
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

    /// Before it has ended.
    pub fn record_of(
        &self,
        by: &Arc<Labels>,
        head: &RequestHead,
        status: u16,
        bytes_out: u64,
        started: Instant,
    ) -> Record {
        Record {
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
