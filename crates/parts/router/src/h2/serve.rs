//! A client's connection that speaks HTTP/2: each of its streams is served as a connection of its
//! own would be. It ends idle and stalled ones, and tells clients to go elsewhere before a stop.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use router_core::h2::frame::{PREFACE, Reason};
use tokio::time::timeout;

use super::client::{H2Client, Job};
use super::workers::Workers;
use crate::buffer::Buffer;
use crate::closing::LINGER_BYTES_MAX;
use crate::connection::Connection;
use crate::pace::WRITE_TIME_MAX;
use crate::presence::Busy;
use crate::stream::fill;
use crate::wire::Wire;

/// The time from the first byte to the last of the preface, and the settings behind it.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(20);
/// The time between two looks for a connection that is idle or stalled, beyond its limit.
const LOOK_INTERVAL: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 15 });
/// The time that a client has which was told to leave and asks nothing any more.
const LEAVE_TIME_MAX: Duration = Duration::from_secs(1);

/// Returns whether nothing of what has come says otherwise.
pub fn may_be_spoken(begun: &Buffer) -> bool {
    let told = begun.filled().len().min(PREFACE.len());
    begun.filled()[..told] == PREFACE[..told]
}

/// Returns whether the client begins as HTTP/2 does.
pub async fn is_spoken(stream: &Wire, buffer: &mut Buffer) -> bool {
    let deadline = Instant::now() + HANDSHAKE_TIME_MAX;
    loop {
        if !may_be_spoken(buffer) {
            return false;
        }
        if buffer.filled().len() >= PREFACE.len() {
            return true;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if fill(stream, buffer, left).await.map_or(true, |count| count == 0) {
            return false;
        }
    }
}

/// Serves the connection until it ends. `first` is what was read of it, if anything was.
pub fn serve(
    connection: Connection,
    workers: Rc<Workers<Job>>,
    first: Option<Buffer>,
) -> Pin<Box<dyn Future<Output = ()>>> {
    Box::pin(run(connection, workers, first))
}

async fn run(connection: Connection, workers: Rc<Workers<Job>>, first: Option<Buffer>) {
    let client = H2Client::new(connection, workers);
    if let Some(first) = first {
        client.receive(first.filled());
        client.thread.pool.give_back(first);
    }
    let is_whole = greeted(&client).await && followed(&client).await;
    let failure = client.h2.borrow().failure();
    match failure {
        Some(Reason::ENHANCE_YOUR_CALM) => tracing::info!(peer = %client.peer, "router.h2_flood"),
        Some(reason) => tracing::debug!(peer = %client.peer, reason = reason.0, "router.h2_broken"),
        None => {}
    }
    client.h2.borrow_mut().close();
    if is_whole {
        timeout(LEAVE_TIME_MAX, client.close(LINGER_BYTES_MAX)).await.ok();
    }
}

/// Returns whether the client says in time that it speaks HTTP/2; one that says something else is
/// told so.
async fn greeted(client: &Rc<H2Client>) -> bool {
    let greeting = poll_fn(|cx| match client.poll_turn(cx) {
        Poll::Pending if client.h2.borrow().is_settled() => Poll::Ready(true),
        turn => turn,
    });
    timeout(HANDSHAKE_TIME_MAX, greeting).await.unwrap_or(false)
}

/// Serves the connection; returns true if all was sent before the end.
async fn followed(client: &Rc<H2Client>) -> bool {
    let leaving = client.thread.leaving.notified();
    tokio::pin!(leaving);
    leaving.as_mut().enable();
    let mut look = tokio::time::interval(LOOK_INTERVAL);
    // It is under way while it leaves: what it is sent last must get there.
    let mut busy: Option<Busy> = None;
    let mut left_at: Option<Instant> = None;
    loop {
        if client.thread.is_stopping() && busy.is_none() {
            client.h2.borrow_mut().leave();
            busy = Some(Busy::begin(&client.thread));
            look = tokio::time::interval(LEAVE_TIME_MAX);
            look.reset();
        }
        tokio::select! {
            biased;
            is_whole = poll_fn(|cx| client.poll_turn(cx)) => return is_whole,
            () = &mut leaving, if busy.is_none() => {}
            _ = look.tick() => {
                let told_for = left_at.map_or(Duration::ZERO, |at| at.elapsed());
                if is_over(client, busy.is_some(), told_for) {
                    return false;
                }
                if client.idle_for() > client.idle_max.get() && left_at.is_none() {
                    client.h2.borrow_mut().leave();
                    left_at = Some(Instant::now());
                }
            }
        }
    }
}

/// Returns whether the client takes nothing, or has nothing more to ask and was told to leave
/// `told_for` ago.
fn is_over(client: &H2Client, is_stopping: bool, told_for: Duration) -> bool {
    let has_left = is_stopping || told_for > LEAVE_TIME_MAX;
    client.stalled_for() > WRITE_TIME_MAX || (has_left && client.idle_for() > LEAVE_TIME_MAX)
}
