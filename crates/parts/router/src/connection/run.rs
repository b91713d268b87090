//! The task of a connection: its requests one after the other. It holds buffers only while a
//! request is under way.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::{After, Connection, Owed};
use crate::buffer::Buffer;
use crate::far::host;
use crate::forward;
use crate::forward::underway::Underway;
use crate::h2;
use crate::h2::client::Job;
use crate::h2::workers::Workers;
use crate::limits::Limits;
use crate::pace::Pace;
use crate::presence::Busy;
use crate::scope::Scope;
use crate::stream::write_paced;

/// Quick requests after which the client goes on in the lane. A client that often wants something
/// else pays for the way there and back: with four, a body in every sixth request made each an
/// eighth dearer.
pub const QUICK_IN_A_ROW: u32 = 16;

/// The reason why there are no more requests of a connection.
enum RequestsEnd {
    /// No request came, or no other one.
    NoRequest,
    /// The client speaks HTTP/2, and began so.
    Http2(Buffer),
    /// The last request was answered, or could not be.
    Request(Option<After>, Buffer),
    /// The connection goes on in the lane.
    Quick(Limits),
}

/// The point where a connection's task begins.
pub enum ConnectionStart {
    New,
    /// After the lane, like all that follow. The limits are those of the application that was asked
    /// last.
    Waiting(Limits),
    /// With what came in the lane.
    Asked(Buffer, Limits),
    /// With the rest of an answer, which the client had no room for.
    Owing(Box<Owed>, Limits),
    /// With a request that has its place at an instance.
    Underway(Box<Underway>, Limits),
}

impl Connection {
    /// Serves the connection, and returns one that goes on in the lane. What is awaited here has
    /// its room in every connection, idle or not, and a place in memory is found for it with each:
    /// what is long or rare is awaited apart.
    #[expect(clippy::manual_async_fn, reason = "an async fn has what it takes in its future twice")]
    pub fn run(
        self,
        start: ConnectionStart,
        workers: Rc<Workers<Job>>,
    ) -> impl Future<Output = Option<(Connection, Limits)>> {
        async move {
            match self.requests(start).await {
                RequestsEnd::NoRequest => self.leave().await,
                RequestsEnd::Http2(first) => h2::serve::serve(self, workers, Some(first)).await,
                RequestsEnd::Request(after, buffer) => self.end(after, buffer).await,
                RequestsEnd::Quick(limits) => return Some((self, limits)),
            }
            None
        }
    }

    /// Serves the requests one after the other, until there is to be no other.
    async fn requests(&self, start: ConnectionStart) -> RequestsEnd {
        let (mut is_new, mut underway) = (false, None);
        let (first, mut limits) = match start {
            ConnectionStart::New => {
                let limits = self.first_limits();
                // Most clients bring a request along.
                let come = match self.asker.asks_at_once() {
                    true => self.bytes_now(),
                    false => Some(None),
                };
                let first = match come {
                    Some(None) => self.first_bytes(limits.idle).await,
                    come => come.flatten(),
                };
                is_new = true;
                (first, limits)
            }
            ConnectionStart::Asked(buffer, limits) => (Some(buffer), limits),
            ConnectionStart::Waiting(limits) => (self.first_bytes(limits.idle).await, limits),
            ConnectionStart::Underway(begun, limits) => {
                underway = Some(begun);
                (Some(Buffer::default()), limits)
            }
            ConnectionStart::Owing(owed, limits) => {
                if !Box::pin(self.pay(*owed)).await {
                    return RequestsEnd::Request(Some(After::Cut), Buffer::default());
                }
                (self.first_bytes(limits.idle).await, limits)
            }
        };
        let Some(mut buffer) = first else { return RequestsEnd::NoRequest };
        if underway.is_none() && self.thread.idlers.are_over() {
            return RequestsEnd::NoRequest;
        }
        if is_new
            && self.asker.may_speak_h2()
            && h2::serve::may_be_spoken(&buffer)
            && Box::pin(h2::serve::is_spoken(&self.stream, &mut buffer)).await
        {
            return RequestsEnd::Http2(buffer);
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
            self.tunnel().await;
            let keeps = matches!(after, Some(After::KeepAlive | After::Quick));
            if !keeps || !self.may_ask_again() {
                return RequestsEnd::Request(after, buffer);
            }
            quick = if after == Some(After::Quick) { quick + 1 } else { 0 };
            if buffer.filled().is_empty() {
                self.thread.pool.give_back(std::mem::take(&mut buffer));
                if quick >= QUICK_IN_A_ROW {
                    return RequestsEnd::Quick(limits);
                }
                match self.first_bytes(limits.idle).await {
                    Some(next) => buffer = next,
                    None => return RequestsEnd::NoRequest,
                }
            }
        }
    }

    /// Returns the limits until it is known which application is meant.
    fn first_limits(&self) -> Limits {
        let own = match self.scope {
            Scope::Port(_) => self.thread.application(&self.scope, b""),
            Scope::Host | Scope::Secure | Scope::Datagrams(_) => None,
        };
        own.map(|own| own.limits).unwrap_or_default()
    }

    /// Sends what the lane could not send at once; returns false if the client does not take it.
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

    /// Returns whether a client may ask again. When it was told to connect again, closing at once
    /// would lose what it is about to ask; its next answer says that the connection ends, where the
    /// router leaves.
    fn may_ask_again(&self) -> bool {
        let may = self.asker.may_ask_before_it_hears() && self.thread.is_leaving();
        (self.goes_on() || may) && !self.thread.idlers.are_over()
    }

    /// Leaves a connection on which no request came.
    async fn leave(self) {
        if self.thread.is_stopping() {
            Box::pin(host::leave(self)).await;
        }
    }

    /// Waits for a request without holding a buffer; `None` if none came.
    async fn first_bytes(&self, limit: Duration) -> Option<Buffer> {
        loop {
            match self.asker.is_router() {
                false => {
                    let mut readable = pin!(self.stream.readable_within(limit));
                    let mut idler = self.thread.idlers.wait();
                    poll_fn(|cx| idler.poll(cx, readable.as_mut())).await?.ok()?;
                }
                true => Box::pin(host::readable(self, limit)).await?,
            }
            // The socket may only have been readable before; then the wait goes on.
            if let Some(buffer) = self.bytes_now()? {
                return Some(buffer);
            }
        }
    }

    /// Returns what has come; `None` at the end, `Some(None)` if nothing came yet.
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
}
