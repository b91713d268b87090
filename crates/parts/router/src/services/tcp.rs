//! Connections that are passed on whole: each is given to an instance when it comes, and counts as
//! in flight there until both sides have ended it.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use model::port::ProxyProtocol;
use router_core::breaker::Failure;
use router_core::far::Through;
use router_core::proxy_protocol::{self, Addresses, HeaderVersion};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::far::{self, Tunnel};
use super::idle::idle;
use crate::choice::{Demands, Reaches};
use crate::endpoint::Reach;
use crate::entry;
use crate::entry::{Attempt, ENTRY_TIME_MAX, Entered};
use crate::moved::Moved;
use crate::permit::Permit;
use crate::streams;
use crate::streams::TransferEnd;
use crate::table::Service;
use crate::thread::Thread;

/// The time between probes: a client that vanished without a word is noticed on a quiet connection
/// too.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// The time for the header that says who asks; the kernel takes it at once.
const HEADER_TIME_MAX: Duration = Duration::from_secs(10);

enum Reached {
    Near(TcpStream),
    Far(Tunnel),
}

pub async fn serve(thread: &Rc<Thread>, service: &Service, stream: TcpStream, client: SocketAddr) {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive).ok();
    // However this ends, it must not look as if the instance had ended it.
    streams::cut(&stream);
    let destination = stream.local_addr().unwrap_or(client);
    let addresses = Addresses { client, destination };
    let queue = &service.application.queue;
    let attempt = async |permit: &Permit| match &permit.endpoint.reach {
        Reach::Near(address) => match connect(thread, service, permit, *address).await {
            Attempt::Stands(instance) => Attempt::Stands(Reached::Near(instance)),
            Attempt::Failed => Attempt::Failed,
            Attempt::Hopeless => Attempt::Hopeless,
        },
        Reach::Far(site) => {
            let through = Through { id: service.recipe.id, addresses };
            match far::call(thread, service, site, permit, through).await {
                Attempt::Stands(tunnel) => Attempt::Stands(Reached::Far(tunnel)),
                Attempt::Failed => Attempt::Failed,
                Attempt::Hopeless => Attempt::Hopeless,
            }
        }
    };
    let wants = Demands { reaches: Reaches::Anywhere, ..Demands::near(client.ip()) };
    let current = || queue.current.load_full();
    let entered = entry::enter(queue, current, wants, client.ip(), ENTRY_TIME_MAX, attempt).await;
    let Some(Entered { permit, connection, .. }) = entered else {
        service.counters.refuse();
        return tracing::debug!(%client, port = %service.recipe.id, "router.no_instance");
    };
    let moved = Moved::through(service.counters.take());
    match connection {
        Reached::Near(instance) => {
            relay(thread, service, &stream, &instance, addresses, &moved).await;
        }
        Reached::Far(tunnel) => far::relay(thread, stream, tunnel, idle(service), &moved).await,
    }
    drop(permit);
}

async fn relay(
    thread: &Thread,
    service: &Service,
    client: &TcpStream,
    instance: &TcpStream,
    addresses: Addresses,
    moved: &Moved,
) {
    streams::cut(instance);
    let header = announcement(service, addresses);
    let until = Instant::now() + HEADER_TIME_MAX;
    if streams::write_first(instance, &header, until).await.is_err() {
        return;
    }
    let idle = idle(service);
    if streams::relay(&thread.means, client, instance, idle, moved).await == TransferEnd::Closed {
        streams::uncut(client);
        streams::uncut(instance);
    }
}

pub async fn connect(
    thread: &Thread,
    service: &Service,
    permit: &Permit,
    address: SocketAddr,
) -> Attempt<TcpStream> {
    let attempt = entry::connect(address).await;
    match &attempt {
        Attempt::Stands(_) => permit.endpoint.succeeded(|| thread.shared.clock.now().0),
        Attempt::Failed => {
            let why = "connection refused";
            thread.failed(&service.application, &permit.endpoint, Failure::Refused, why);
        }
        Attempt::Hopeless => {}
    }
    attempt
}

/// Returns what an instance that asked for it hears before the client's first byte.
pub fn announcement(service: &Service, addresses: Addresses) -> Vec<u8> {
    let mut header = Vec::new();
    if let Some(asked) = service.recipe.proxy_protocol {
        let version = match asked {
            ProxyProtocol::V1 => HeaderVersion::V1,
            ProxyProtocol::V2 => HeaderVersion::V2,
        };
        proxy_protocol::write(version, addresses, &mut header);
    }
    header
}
