//! Ports across nodes: a connection goes through the router of the node that has an instance, in a
//! sealed connection of its own. That router answers before a byte is passed on, so that another
//! node may have it.

use std::io;
use std::time::Duration;

use router_core::breaker::Failure;
use router_core::far::{FarOutcome, FarReply, FarRequest, Through};
use tokio::net::TcpStream;

use super::idle::IDLE_NEVER;
use crate::buffer::Buffer;
use crate::endpoint::FarSite;
use crate::entry::Attempt;
use crate::far::{ask, dial};
use crate::moved::{Direction, Moved};
use crate::permit::Permit;
use crate::plain::Plain;
use crate::stream::{fill, write_all};
use crate::streams;
use crate::streams::TransferEnd;
use crate::table::Service;
use crate::thread::Thread;
use crate::tunnel;
use crate::tunnel::TunnelLimits;
use crate::wire::Wire;

/// The time for the other router's answer, beyond what it may wait: it connects to an instance
/// first.
pub const REPLY_TIME_MAX: Duration = Duration::from_secs(10);

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
                FarOutcome::Taken => {
                    endpoint.succeeded(now_ms);
                    return Attempt::Stands(tunnel);
                }
                FarOutcome::Busy => {}
                FarOutcome::Absent => failed(thread, service, permit, "no instance"),
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
) -> io::Result<(FarReply, Tunnel)> {
    let wire = dial::connect(&thread.shared, &site.peer).await?;
    let wait = ask::wait(&service.application);
    let (application, process) = (service.application.name.clone(), service.recipe.process.clone());
    let wait_ms = u16::try_from(wait.as_millis()).unwrap_or(u16::MAX);
    let mut out = Vec::new();
    FarRequest { wait_ms, application, process, through: Some(through) }.write(&mut out);
    write_all(&wire, &out, REPLY_TIME_MAX).await?;
    let mut first = thread.pool.buffer();
    loop {
        let reply = FarReply::parse(first.filled());
        if let Some(reply) = reply.map_err(|error| io::Error::other(error.to_string()))? {
            first.consume(router_core::far::REPLY_BYTES);
            return Ok((reply, Tunnel { wire, first }));
        }
        if fill(&wire, &mut first, wait + REPLY_TIME_MAX).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Relays a client's connection, once an instance of another node has it.
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
    let limits = TunnelLimits { idle, write: IDLE_NEVER };
    let ended = match early {
        Ok(()) => tunnel::relay(&thread.pool, &client, &wire, limits, moved).await,
        Err(_) => TransferEnd::ClientReset,
    };
    if ended != TransferEnd::Closed {
        return wire.cut();
    }
    if let Wire::Plain(client) = &client {
        streams::uncut(client);
    }
}

/// Turns a stream into the form that sealed connections are relayed to.
pub fn plain(stream: TcpStream) -> io::Result<Wire> {
    stream.into_std().map(|stream| Plain::from(stream).into())
}
