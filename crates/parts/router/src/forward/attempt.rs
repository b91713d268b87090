//! One attempt at an instance: it connects, sends what there is, and passes the answer on. Part of
//! one request.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::application::InstanceProtocol;
use router_core::far::FarOutcome;
use router_core::http::body::Body;
use router_core::retry::AttemptProgress;

use super::answer::Wait;
use super::call::{Begun, Call};
use super::exchange::{Counts, Exchange};
use super::failed::Failed;
use crate::connection::After;
use crate::endpoint::{Endpoint, Reach};
use crate::far::{ask, dial};
use crate::pace::WRITE_TIME_MAX;
use crate::permit::Permit;
use crate::plain::Plain;
use crate::stream::write_all;
use crate::thread::Thread;
use crate::time_limit::within;
use crate::wire::Wire;
use os::shared_port::is_short;

/// The time that connecting may take: loopback connects at once, or its backlog is full.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

impl Exchange<'_> {
    pub(super) async fn attempt(
        &mut self,
        begun: Begun,
        endpoint: &mut Arc<Endpoint>,
        body: &mut Body,
        early: usize,
        out: &mut Vec<u8>,
        counts: &mut Counts,
    ) -> Result<After, Failed> {
        let thread = self.connection.thread.clone();
        let Begun { mut permit, call } = begun;
        let is_asked = call.is_some();
        let (mut upstream, asked_at, mut came) = match call.map(|call| *call) {
            Some(Call { upstream, relay: Some(relay), .. }) => {
                return Box::pin(self.finish(upstream, relay, permit, endpoint, counts)).await;
            }
            Some(Call { upstream, at, answer, relay: None }) => (upstream, at, Some(answer)),
            None => {
                let (upstream, at) = self.reach(&thread, endpoint).await?;
                (upstream, at, None)
            }
        };
        if endpoint.site().is_some() {
            ask::write(&self.application, &upstream, out)
                .map_err(|_| Failed::Instance(AttemptProgress::NotConnected, "connection lost"))?;
        }
        let mut progress = AttemptProgress::NoAnswer { body_consumed: false };
        let mut asked = self.application.balance.learns().then_some(asked_at);
        // An instance may answer before it has read everything, so its answer is looked for first.
        let mut write_failed =
            !is_asked && write_all(&upstream, self.out, WRITE_TIME_MAX).await.is_err();
        if endpoint.site().is_some() {
            let (reply, rest) = Box::pin(self.reply(&upstream)).await?;
            endpoint.heard_from(reply, thread.shared.clock.now().0);
            if reply.outcome != FarOutcome::Taken {
                thread.pool.give_back(rest);
                if reply.keep && body.is_done() {
                    thread.pool.keep(endpoint, upstream, Instant::now());
                }
                if reply.outcome == FarOutcome::Busy {
                    endpoint.succeeded(|| thread.shared.clock.now().0);
                }
                return Err(match reply.outcome {
                    FarOutcome::Absent => {
                        Failed::Instance(AttemptProgress::NotConnected, "no instance")
                    }
                    _ => Failed::Busy,
                });
            }
            came = Some(rest);
        }
        if !body.is_done() && !write_failed {
            progress = AttemptProgress::NoAnswer { body_consumed: true };
            self.buffer.consume(early);
            if self.connection.asker.waits_with_body() {
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
        let mut answer = came.unwrap_or_default();
        if body.is_done() {
            self.hold_little();
        }
        let waited = endpoint.site().is_some() || self.application.hedge_after.is_some();
        let since = if waited { Instant::now() } else { asked_at };
        let mut wait = Wait { since, interims: 0 };
        let head = loop {
            if !body.is_done() && !write_failed && answer.filled().is_empty() {
                write_failed = !Box::pin(self.send_body(&upstream, body, counts)).await?;
                wait.since = Instant::now();
            }
            match self.answer_head(&upstream, &mut answer, body, progress, &mut wait, out).await {
                // This was an interim one: now the client may go on with its body.
                Ok(None) => wait.since = Instant::now(),
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
        if body.is_done() && matches!(progress, AttemptProgress::NoAnswer { body_consumed: false })
        {
            self.buffer.consume(early);
        }
        counts.status = head.status;
        if head.status == 101 {
            return Box::pin(self.upgrade(permit, upstream, answer, out, counts)).await;
        }
        let mut relay = self.begin(&upstream, &head, answer, out)?;
        if body.is_done() || write_failed || !upstream.is_duplex() {
            self.take_all(&upstream, &mut relay, counts).await?;
        } else {
            Box::pin(self.take_both_ways(&upstream, &mut relay, body, counts)).await?;
        }
        let finished = body.is_done() && !write_failed;
        // What either side says through a transparent router, the other one hears, too.
        let closed = self.is_transparent() && !(self.head.keep_alive && head.keep_alive);
        let reusable = head.keep_alive && relay.is_clean() && finished && !self.head.has_odd_body();
        let reusable = (reusable && !endpoint.closes() && !closed).then_some(upstream);
        self.free(reusable, permit);
        self.send_end(&mut relay, counts).await?;
        relay.give_back(out);
        self.record(Some(endpoint), counts);
        let keeps = head.client_keeps_alive && finished && !closed;
        Ok(match keeps {
            true if self.was_quick(endpoint, &relay) => After::Quick,
            true => After::KeepAlive,
            false => After::close(&self.head, self.buffer),
        })
    }

    /// Frees an instance that has sent its whole answer, whenever the client takes it: it is there
    /// for others.
    pub(super) fn free(&self, reusable: Option<Wire>, mut permit: Permit) {
        permit.served();
        if let Some(upstream) = reusable {
            self.connection.thread.pool.keep(&permit.endpoint, upstream, Instant::now());
        }
    }

    /// Returns a connection that is kept, or a new one, and since when it can be used.
    async fn reach(
        &mut self,
        thread: &Thread,
        endpoint: &Arc<Endpoint>,
    ) -> Result<(Wire, Instant), Failed> {
        let now = Instant::now();
        let pooled = match endpoint.closes() {
            true => None,
            false => thread.pool.take(endpoint, !self.head.idempotent, now),
        };
        if let Some(upstream) = pooled {
            return Ok((upstream, now));
        }
        self.hold_little();
        let connected =
            Box::pin(connect(thread, endpoint)).await.map_err(|error| match is_short(&error) {
                true => Failed::Short,
                false => Failed::Instance(AttemptProgress::NotConnected, "connection refused"),
            });
        Ok((connected?, Instant::now()))
    }

    /// Holds little while the instance works, or all are busy: no buffer, and no more than the head
    /// that an instance may be asked with.
    pub(super) fn hold_little(&mut self) {
        let thread = &self.connection.thread;
        if thread.is_crowded() {
            thread.hollow(self.buffer);
            let head = thread.pool.head(self.out);
            thread.pool.give_back_scratch(std::mem::replace(self.out, head));
        }
    }
}

pub(super) async fn connect(thread: &Thread, endpoint: &Arc<Endpoint>) -> io::Result<Wire> {
    match dial(thread, endpoint).await {
        Err(error) if is_short(&error) => {
            thread.pool.make_room();
            dial(thread, endpoint).await
        }
        result => result,
    }
}

async fn dial(thread: &Thread, endpoint: &Arc<Endpoint>) -> io::Result<Wire> {
    let address = match (&endpoint.reach, endpoint.protocol) {
        (Reach::Near(address), InstanceProtocol::Http1) => *address,
        (Reach::Near(address), InstanceProtocol::H2c) => {
            return Box::pin(thread.lines.open(endpoint, *address)).await;
        }
        (Reach::Far(site), _) => return Box::pin(dial::connect(&thread.shared, &site.peer)).await,
    };
    let upstream = within(CONNECT_TIME_MAX, Plain::connect(address)).await?;
    Ok(upstream.into())
}
