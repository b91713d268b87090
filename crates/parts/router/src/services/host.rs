//! Ports across nodes, the side that is asked: a connection or a flow that the router of another
//! member sends here goes to an instance of this node, or back.

use std::rc::Rc;
use std::time::Duration;

use model::port::Transport;
use router_core::far::{FarOutcome, FarRequest, Room, Through};

use super::far::{REPLY_TIME_MAX, plain};
use super::idle::{IDLE_NEVER, idle};
use super::{tcp, udp};
use crate::buffer::Buffer;
use crate::choice::Demands;
use crate::connection::{After, Connection};
use crate::entry;
use crate::entry::{Attempt, Entered};
use crate::far::outcome::{room, send_back};
use crate::moved::Moved;
use crate::permit::Permit;
use crate::stream::write_all;
use crate::streams;
use crate::streams::TransferEnd;
use crate::table::Service;
use crate::thread::Thread;
use crate::tunnel;
use crate::tunnel::TunnelLimits;
use crate::wire::Wire;

/// Serves what the router of another member sends here; `None` if it is no member any more, or
/// speaks otherwise.
pub async fn serve(
    connection: &Connection,
    ask: &FarRequest,
    through: &Through,
    buffer: &Buffer,
) -> Option<After> {
    let (caller, thread) = (connection.asker.router()?, &connection.thread);
    if !thread.shared.members.borrow().contains(caller.node()) || !buffer.filled().is_empty() {
        tracing::warn!(node = %caller.node(), "router.caller_misspoke");
        return None;
    }
    let application = thread.named(&ask.application);
    let service = application.and_then(|one| one.services.get(&through.id).cloned());
    let service = service.filter(|service| {
        let here = !service.application.endpoints.is_empty() && !thread.is_stopping();
        here && service.recipe.process == ask.process
    });
    let Some(service) = service else {
        send_back(connection, FarOutcome::Absent, Room::default(), false).await.ok()?;
        return Some(After::Close);
    };
    match through.id.transport {
        Transport::Tcp => host_connection(connection, &service, ask, through).await,
        Transport::Udp => host_flow(connection, &service, through).await,
    }
}

async fn host_connection(
    connection: &Connection,
    service: &Service,
    ask: &FarRequest,
    through: &Through,
) -> Option<After> {
    let (thread, queue): (&Rc<Thread>, _) = (&connection.thread, &service.application.queue);
    let client = through.addresses.client.ip();
    let attempt = async |permit: &Permit| match permit.endpoint.address() {
        Some(address) => tcp::connect(thread, service, permit, address).await,
        None => Attempt::Failed,
    };
    let (current, wants) = (|| queue.current.load_full(), Demands::near(client));
    let wait = Duration::from_millis(ask.wait_ms.into());
    let entered = entry::enter(queue, current, wants, client, wait, attempt).await;
    let now_ms = thread.shared.clock.now().0;
    let Some(Entered { permit, connection: instance, .. }) = entered else {
        let room = room(&service.application, now_ms, 0);
        send_back(connection, FarOutcome::Busy, room, false).await.ok()?;
        return Some(After::Close);
    };
    let room = room(&service.application, now_ms, 1);
    send_back(connection, FarOutcome::Taken, room, false).await.ok()?;
    streams::cut(&instance);
    let instance = plain(instance).ok()?;
    let limits = TunnelLimits { idle: idle(service), write: IDLE_NEVER };
    let header = tcp::announcement(service, through.addresses);
    let ended = match write_all(&instance, &header, REPLY_TIME_MAX).await {
        Ok(()) => {
            // The router that the client came to counts it.
            let moved = Moved::default();
            tunnel::relay(&thread.pool, &connection.stream, &instance, limits, &moved).await
        }
        Err(_) => TransferEnd::BackEndReset,
    };
    if ended != TransferEnd::Closed {
        return Some(After::Cut);
    }
    if let Wire::Plain(instance) = &instance {
        streams::uncut(instance);
    }
    drop((instance, permit));
    Some(After::Close)
}

async fn host_flow(connection: &Connection, service: &Service, through: &Through) -> Option<After> {
    let (thread, application) = (&connection.thread, &service.application);
    let wants = Demands::near(through.addresses.client.ip());
    // Nobody waits for datagrams.
    let permit = application.queue.try_enter(application, wants, None);
    let room = room(application, thread.shared.clock.now().0, u32::from(permit.is_some()));
    let outcome = if permit.is_some() { FarOutcome::Taken } else { FarOutcome::Busy };
    send_back(connection, outcome, room, false).await.ok()?;
    if let Some(permit) = permit {
        // Any end of it counts as its end: datagrams have none.
        udp::host(connection, service, &permit).await.ok();
    }
    Some(After::Close)
}
