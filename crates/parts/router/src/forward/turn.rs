//! The wait for a place at an instance. Part of one request.

use std::time::Duration;

use super::exchange::{Counts, Exchange};
use crate::choice::{Demands, Reaches};
use crate::permit::Permit;
use crate::queue::{NoPermit, Queue};
use router_core::pages;
use router_core::pages::Page;

/// The time that a request waits for lost instances: they are back on other nodes within five
/// seconds, and nobody need wait much longer.
const UNREACHABLE_TIME_MAX: Duration = Duration::from_secs(10);
/// The time after which somebody who waits hears that it is in vain.
const VAIN_CHECK: Duration = Duration::from_millis(500);
/// The time after which refused connections are told, without a node: nobody starts again what has
/// ended. HAProxy tries three times, a second apart.
const REFUSED_TIME_MAX: Duration = Duration::from_secs(3);

impl Exchange<'_> {
    /// Waits for a place; `None` if the client is gone meanwhile.
    pub(super) async fn permit(
        &mut self,
        counts: &mut Counts,
        first: bool,
    ) -> Option<Result<Permit, Page>> {
        let queue = self.application.queue.clone();
        let of_client = self.application.limits.queue.unwrap_or(queue.limits.time_max);
        let (reaches, limit) = self.connection.asker.patience(of_client);
        let wants = Demands { key: self.key(), ..Demands::anything(reaches) };
        if (first || self.started.elapsed() < limit)
            && let Some(permit) = queue.try_enter(&self.application, wants, self.whose())
        {
            return Some(Ok(permit));
        }
        let limit = limit.saturating_sub(self.started.elapsed());
        if limit.is_zero() {
            let vain = is_vain(&queue);
            return Some(Err(if vain { pages::UNREACHABLE } else { pages::QUEUE_TIMEOUT }));
        }
        if self.is_refused(&queue) {
            return Some(Err(pages::NO_BACK_END));
        }
        self.hold_little();
        let waiting = queue.enter(wants, self.place(), limit);
        tokio::pin!(waiting);
        let result = loop {
            tokio::select! {
                biased;
                result = &mut waiting => break result,
                gone = self.client_gone() => if gone { return None },
                () = tokio::time::sleep(VAIN_CHECK) => {
                    if self.is_refused(&queue) {
                        return Some(Err(pages::NO_BACK_END));
                    }
                    // It may be known by now what the application is.
                    if let Some(page) = queue.current.load().as_ref().and_then(|now| now.in_vain())
                    {
                        return Some(Err(page));
                    }
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

    /// Returns a place for a client's request, if nobody has to wait for it.
    pub(super) fn permit_now(&self) -> Option<Permit> {
        let wants = Demands { key: self.key(), ..Demands::anything(Reaches::Anywhere) };
        self.application.queue.try_enter(&self.application, wants, self.whose())
    }

    /// Returns whether all back ends of a proxy have refused connections just now, for as long as
    /// this one waits.
    fn is_refused(&self, queue: &Queue) -> bool {
        let shared = &self.connection.thread.shared;
        if shared.only.is_none() || self.started.elapsed() < REFUSED_TIME_MAX {
            return false;
        }
        let (now_ms, current) = (shared.clock.now().0, queue.current.load());
        current.as_ref().is_some_and(|current| {
            let mut endpoints = current.endpoints.iter();
            !current.endpoints.is_empty() && endpoints.all(|one| one.is_ejected(now_ms))
        })
    }
}

/// Returns whether every node that runs the application is out of reach.
fn is_vain(queue: &Queue) -> bool {
    queue.current.load().as_ref().is_some_and(|current| current.unreachable)
}
