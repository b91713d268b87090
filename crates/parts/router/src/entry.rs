//! The entry of a whole connection to an endpoint: the right to be there, and a connection that
//! stands. If one endpoint does not answer, the next is tried, as nothing was sent. The router's
//! threads and `cortex proxy` use it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::choice::Demands;
use super::permit::Permit;
use super::queue::{Place, Queue};
use super::table::RoutedApplication;
use os::shared_port::is_short;

/// The time to connect: a back end on this machine connects at once, one on another within a lost
/// packet's time.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// The time to enter: with all endpoints gone or busy, a client that waits longer is better told.
pub const ENTRY_TIME_MAX: Duration = Duration::from_secs(10);

/// The outcome of one attempt.
pub enum Attempt<C> {
    Stands(C),
    /// It failed; another endpoint may do.
    Failed,
    /// It failed, and no other endpoint would do better.
    Hopeless,
}

/// A connection to an endpoint.
pub struct Entered<C> {
    pub permit: Permit,
    pub connection: C,
    /// The time for which there was no room.
    pub queue: Duration,
}

/// Connects to an endpoint; `None` if none took the connection within `limit`.
pub async fn enter<C>(
    queue: &Arc<Queue>,
    current: impl Fn() -> Option<Arc<RoutedApplication>>,
    wants: Demands,
    client: IpAddr,
    limit: Duration,
    attempt: impl AsyncFn(&Permit) -> Attempt<C>,
) -> Option<Entered<C>> {
    let place = Place::of(client);
    let started = Instant::now();
    let mut queued = Duration::ZERO;
    loop {
        let now = Instant::now();
        let application = current()?;
        let whose = application.is_scarce.then_some(place);
        let permit = match queue.try_enter(&application, wants, whose) {
            Some(permit) => permit,
            None => {
                let left = limit.saturating_sub(started.elapsed());
                queue.enter(wants, place, left).await.ok()?
            }
        };
        queued += now.elapsed();
        match attempt(&permit).await {
            Attempt::Stands(connection) => {
                return Some(Entered { permit, connection, queue: queued });
            }
            Attempt::Hopeless => return None,
            Attempt::Failed if started.elapsed() >= limit => return None,
            Attempt::Failed => {}
        }
    }
}

pub async fn connect(address: SocketAddr) -> Attempt<TcpStream> {
    let connected: io::Result<TcpStream> =
        match timeout(CONNECT_TIME_MAX, TcpStream::connect(address)).await {
            Ok(connected) => connected,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
    match connected {
        Ok(stream) => {
            stream.set_nodelay(true).ok();
            Attempt::Stands(stream)
        }
        Err(error) if is_short(&error) => Attempt::Hopeless,
        Err(_) => Attempt::Failed,
    }
}
