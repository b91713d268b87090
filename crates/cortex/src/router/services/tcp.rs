//! Connections that are passed on whole: each is given to an instance when it comes, and counts as
//! in flight there until both sides have ended it.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use model::port::ProxyProtocol;
use router::breaker::Failure;
use router::proxy_protocol::{self, Addresses, Version};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::router::choice::Wants;
use crate::router::endpoint::Permit;
use crate::router::entry::{self, Attempt, ENTRY_TIME_MAX};
use crate::router::serve::Thread;
use crate::router::streams::{self, Ended, Moved};
use crate::router::table::Service;

/// Where the release sets no limit: longer than anything lives.
const IDLE_NEVER: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
/// A client that vanished without a word is noticed on a quiet connection too.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// For the header that says who asks; the kernel takes it at once.
const HEADER_TIME_MAX: Duration = Duration::from_secs(10);

pub async fn serve(thread: &Rc<Thread>, service: &Service, stream: TcpStream, client: SocketAddr) {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive).ok();
    // However this ends, it must not look as if the instance had ended it.
    streams::cut(&stream);
    let destination = stream.local_addr().unwrap_or(client);
    let queue = &service.application.queue;
    let attempt = async |permit: &Permit| connect(thread, service, permit).await;
    let (current, wants) = (|| queue.current.load_full(), Wants::near(client.ip()));
    let entered = entry::enter(queue, current, wants, client.ip(), ENTRY_TIME_MAX, attempt).await;
    let Some(entered) = entered else {
        return tracing::debug!(%client, port = %service.recipe.id, "router.no_instance");
    };
    let instance = &entered.connection;
    streams::cut(instance);
    let header = announcement(service, Addresses { client, destination });
    let until = Instant::now() + HEADER_TIME_MAX;
    if streams::write_first(instance, &header, until).await.is_err() {
        return;
    }
    let idle = service.recipe.idle_ms.map_or(IDLE_NEVER, Duration::from_millis);
    let ended = streams::relay(&thread.means, &stream, instance, idle, &Moved::default()).await;
    if ended == Ended::Closed {
        streams::uncut(&stream);
        streams::uncut(instance);
    }
}

async fn connect(thread: &Thread, service: &Service, permit: &Permit) -> Attempt<TcpStream> {
    let Some(address) = permit.endpoint.address() else { return Attempt::Failed };
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

/// What an instance that asked for it hears before the client's first byte.
fn announcement(service: &Service, addresses: Addresses) -> Vec<u8> {
    let mut header = Vec::new();
    if let Some(asked) = service.recipe.proxy_protocol {
        let version = match asked {
            ProxyProtocol::V1 => Version::V1,
            ProxyProtocol::V2 => Version::V2,
        };
        proxy_protocol::write(version, addresses, &mut header);
    }
    header
}
