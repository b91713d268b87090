//! The reply to the router that sent a request: what becomes of it, and the room that there is
//! here.

use std::io;
use std::sync::Arc;

use router_core::far::{FarOutcome, FarReply, Room};

use super::caller::CallingRouter;
use crate::connection::{After, Connection};
use crate::pace::WRITE_TIME_MAX;
use crate::stream::write_all;
use crate::table::RoutedApplication;

/// Replies that no instance had room in time. Keeps the connection if all of the request has come.
pub async fn busy(
    connection: &Connection,
    application: &RoutedApplication,
    whole: bool,
) -> Option<After> {
    let keep = whole && !connection.thread.is_stopping();
    let room = room(application, connection.thread.shared.clock.now().0, 0);
    send_back(connection, FarOutcome::Busy, room, keep).await.ok()?;
    Some(if keep { After::KeepAlive } else { After::Close })
}

pub async fn send_back(
    connection: &Connection,
    outcome: FarOutcome,
    room: Room,
    keep: bool,
) -> io::Result<()> {
    let reply = FarReply { outcome, keep, room };
    write_all(&connection.stream, &reply.to_bytes(), WRITE_TIME_MAX).await
}

impl Connection {
    /// Tells the router that called, if one did, that the answer follows; once, and together with
    /// what is written next.
    pub fn admit(&self, application: &Arc<RoutedApplication>) -> io::Result<()> {
        if !self.asker.router().is_some_and(CallingRouter::is_to_be_told) {
            return Ok(());
        }
        let room = room(application, self.thread.shared.clock.now().0, 1);
        self.stream.put(&FarReply { outcome: FarOutcome::Taken, keep: true, room }.to_bytes())
    }
}

/// Returns how busy the instances are apart from `own` requests that are about to be over.
pub fn room(application: &RoutedApplication, now_ms: u64, own: u32) -> Room {
    let (mut in_flight, mut free) = (0_u32, 0_u32);
    for endpoint in &application.endpoints {
        let candidate = endpoint.candidate(now_ms);
        in_flight = in_flight.saturating_add(candidate.in_flight);
        if candidate.admits {
            let more = candidate.concurrency.saturating_sub(candidate.in_flight);
            free = free.saturating_add(more);
        }
    }
    let short = |count: u32| u16::try_from(count).unwrap_or(u16::MAX);
    Room { in_flight: short(in_flight.saturating_sub(own)), free: short(free.saturating_add(own)) }
}
