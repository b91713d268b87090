//! Ports across nodes: a connection goes through the router of the node that has an instance, in a
//! sealed connection of its own. That router answers before a byte is passed on, so that another
//! node may have it.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use model::port::Transport;
use router_core::breaker::Failure;
use router_core::far::{Ask, Outcome, Reply, Room, Through};
use tokio::net::TcpStream;

use super::tcp::{self, announcement};
use super::udp;
use crate::buffer::Buffer;
use crate::choice::Wants;
use crate::connection::{After, Connection};
use crate::endpoint::FarSite;
use crate::entry;
use crate::entry::{Attempt, Entered};
use crate::far::outcome::{room, send_back};
use crate::far::{ask, dial};
use crate::moved::{Direction, Moved};
use crate::permit::Permit;
use crate::plain::Plain;
use crate::stream::{fill, write_all};
use crate::streams;
use crate::streams::Ended;
use crate::table::Service;
use crate::thread::Thread;
use crate::tunnel;
use crate::tunnel::Limits;
use crate::wire::Wire;

/// For the other router's answer, beyond what it may wait: it connects to an instance first.
const REPLY_TIME_MAX: Duration = Duration::from_secs(10);

/// A connection to an instance of another node, and what came together with its beginning.
pub struct Tunnel {
    pub wire: Wire,
    pub first: Buffer,
}

/// Asks the other node's router to pass something on.
pub async fn call(
    thread: &Thread,
    service: &Service,
    site: &FarSite,
    permit: &Permit,
    through: Through,
) -> Attempt<Tunnel> {
    let endpoint = &permit.endpoint;
    match asked(thread, service, site, through).await {
        Ok((reply, tunnel)) => {
            let now_ms = || thread.shared.clock.now().0;
            endpoint.heard_from(reply, now_ms());
            match reply.outcome {
                Outcome::Taken => {
                    endpoint.succeeded(now_ms);
                    return Attempt::Stands(tunnel);
                }
                Outcome::Busy => {}
                Outcome::Absent => failed(thread, service, permit, "no instance"),
            }
            thread.pool.give_back(tunnel.first);
        }
        Err(error) => {
            tracing::debug!(node = %site.peer.node, %error, "router.far_unasked");
            failed(thread, service, permit, "no answer");
        }
    }
    Attempt::Failed
}

fn failed(thread: &Thread, service: &Service, permit: &Permit, why: &'static str) {
    thread.failed(&service.application, &permit.endpoint, Failure::Refused, why);
}

async fn asked(
    thread: &Thread,
    service: &Service,
    site: &FarSite,
    through: Through,
) -> io::Result<(Reply, Tunnel)> {
    let wire = dial::connect(&thread.shared, &site.peer).await?;
    let wait = ask::wait(&service.application);
    let (application, process) = (service.application.name.clone(), service.recipe.process.clone());
    let wait_ms = u16::try_from(wait.as_millis()).unwrap_or(u16::MAX);
    let mut out = Vec::new();
    Ask { wait_ms, application, process, through: Some(through) }.write(&mut out);
    write_all(&wire, &out, REPLY_TIME_MAX).await?;
    let mut first = thread.pool.buffer();
    loop {
        let reply = Reply::parse(first.filled());
        if let Some(reply) = reply.map_err(|error| io::Error::other(error.to_string()))? {
            first.consume(router_core::far::REPLY_BYTES);
            return Ok((reply, Tunnel { wire, first }));
        }
        if fill(&wire, &mut first, wait + REPLY_TIME_MAX).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// A client's connection, once an instance of another node has it.
pub async fn relay(
    thread: &Thread,
    client: TcpStream,
    tunnel: Tunnel,
    idle: Duration,
    moved: &Moved,
) {
    let Tunnel { wire, first } = tunnel;
    let Ok(client) = plain(client) else { return wire.cut() };
    let early = write_all(&client, first.filled(), idle).await;
    if early.is_ok() {
        moved.add(Direction::ToClient, first.filled().len());
    }
    thread.pool.give_back(first);
    let limits = Limits { idle, write: tcp::IDLE_NEVER };
    let ended = match early {
        Ok(()) => tunnel::relay(&thread.pool, &client, &wire, limits, moved).await,
        Err(_) => Ended::ClientReset,
    };
    if ended != Ended::Closed {
        return wire.cut();
    }
    if let Wire::Plain(client) = &client {
        streams::uncut(client);
    }
}

fn plain(stream: TcpStream) -> io::Result<Wire> {
    stream.into_std().map(|stream| Plain::from(stream).into())
}

/// What the router of another member sends here. None when it is none any more, or speaks
/// otherwise.
pub async fn host(
    connection: &Connection,
    ask: &Ask,
    through: &Through,
    buffer: &Buffer,
) -> Option<After> {
    let (caller, thread) = (connection.caller.as_ref()?, &connection.thread);
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
        send_back(connection, Outcome::Absent, Room::default(), false).await.ok()?;
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
    ask: &Ask,
    through: &Through,
) -> Option<After> {
    let (thread, queue): (&Rc<Thread>, _) = (&connection.thread, &service.application.queue);
    let client = through.addresses.client.ip();
    let attempt = async |permit: &Permit| match permit.endpoint.address() {
        Some(address) => tcp::connect(thread, service, permit, address).await,
        None => Attempt::Failed,
    };
    let (current, wants) = (|| queue.current.load_full(), Wants::near(client));
    let wait = Duration::from_millis(ask.wait_ms.into());
    let entered = entry::enter(queue, current, wants, client, wait, attempt).await;
    let now_ms = thread.shared.clock.now().0;
    let Some(Entered { permit, connection: instance, .. }) = entered else {
        let room = room(&service.application, now_ms, 0);
        send_back(connection, Outcome::Busy, room, false).await.ok()?;
        return Some(After::Close);
    };
    let room = room(&service.application, now_ms, 1);
    send_back(connection, Outcome::Taken, room, false).await.ok()?;
    streams::cut(&instance);
    let instance = plain(instance).ok()?;
    let limits = Limits { idle: tcp::idle(service), write: tcp::IDLE_NEVER };
    let header = announcement(service, through.addresses);
    let ended = match write_all(&instance, &header, REPLY_TIME_MAX).await {
        Ok(()) => {
            // The router that the client came to counts it.
            let moved = Moved::default();
            tunnel::relay(&thread.pool, &connection.stream, &instance, limits, &moved).await
        }
        Err(_) => Ended::BackEndReset,
    };
    if ended != Ended::Closed {
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
    let wants = Wants::near(through.addresses.client.ip());
    // Nobody waits for datagrams.
    let permit = application.queue.try_enter(application, wants, None);
    let room = room(application, thread.shared.clock.now().0, u32::from(permit.is_some()));
    let outcome = if permit.is_some() { Outcome::Taken } else { Outcome::Busy };
    send_back(connection, outcome, room, false).await.ok()?;
    if let Some(permit) = permit {
        // Any end of it is one: datagrams have none.
        udp::host(connection, service, &permit).await.ok();
    }
    Some(After::Close)
}
