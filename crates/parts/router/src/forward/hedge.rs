//! A second attempt while the first is silent (Dean and Barroso, "The Tail at Scale", 2013): for
//! requests that may be sent twice, where the release asks for it, out of the budget for retries.
//! The instance that answers first has the request; the other is let go, and that counts as no
//! failure.

use std::sync::Arc;
use std::time::{Duration, Instant};

use router_core::breaker::Failure;

use super::attempt::connect;
use super::exchange::Exchange;
use crate::endpoint::Endpoint;
use crate::pace::WRITE_TIME_MAX;
use crate::permit::Permit;
use crate::stream::write_all;
use crate::wire::Wire;
use os::shared_port::is_short;
use router_core::http::body::Body;

/// The second attempt, if that is the one to go on with.
pub(super) struct Second {
    pub permit: Permit,
    pub upstream: Wire,
    pub asked: Instant,
}

impl Exchange<'_> {
    /// Returns whether the request may be sent twice: all of it is sent, and its bytes are still
    /// here.
    pub(super) fn may_hedge(&self, endpoint: &Endpoint, body: &Body) -> bool {
        self.head.idempotent && !self.head.upgrade && body.is_done() && endpoint.site().is_none()
    }

    /// Returns when one of the two has begun to answer, or the first one is all there is.
    pub(super) async fn hedge(
        &mut self,
        after: Duration,
        first: &Arc<Endpoint>,
        upstream: &Wire,
    ) -> Option<Second> {
        if tokio::time::timeout(after, upstream.readable()).await.is_ok() {
            return None;
        }
        let second = tokio::select! {
            biased;
            _ = upstream.readable() => return None,
            second = self.ask_another(first) => second?,
        };
        loop {
            // A read behind this one learns that the client is gone.
            let watch = !self.buffer.is_full();
            tokio::select! {
                biased;
                _ = upstream.readable() => match upstream.peek() {
                    Some(0) => {}
                    Some(_) => return None,
                    None => {
                        self.was_silent(first);
                        return Some(second);
                    }
                },
                _ = second.upstream.readable() => match second.upstream.peek() {
                    Some(0) => {}
                    Some(_) => return Some(second),
                    None => {
                        self.was_silent(&second.permit.endpoint);
                        return None;
                    }
                },
                gone = self.client_gone(), if watch => if gone { return None },
            }
        }
    }

    /// Sends the request to another endpoint; `None` if no other has room, or too much was sent
    /// twice already.
    async fn ask_another(&self, first: &Arc<Endpoint>) -> Option<Second> {
        let thread = &self.connection.thread;
        let (application, whose) = (&self.application, self.whose());
        let permit = application.queue.try_enter_beside(application, first, whose)?;
        // The head that is sent says whether the connection is kept.
        if permit.endpoint.closes() != first.closes() || !thread.budget.borrow_mut().withdraw() {
            return None;
        }
        let asked = Instant::now();
        let upstream = match connect(thread, &permit.endpoint).await {
            Ok(upstream) => upstream,
            Err(error) if is_short(&error) => return None,
            Err(_) => {
                let why = "connection refused";
                thread.failed(&self.application, &permit.endpoint, Failure::Refused, why);
                return None;
            }
        };
        let sent = write_all(&upstream, self.out, WRITE_TIME_MAX).await;
        sent.ok().map(|()| Second { permit, upstream, asked })
    }

    fn was_silent(&self, endpoint: &Arc<Endpoint>) {
        let (thread, why) = (&self.connection.thread, "reset without an answer");
        thread.failed(&self.application, endpoint, Failure::Silent, why);
    }
}
