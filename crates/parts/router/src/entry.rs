//! How a whole connection gets to an endpoint: the right to be there, and a connection that stands.
//! Where one endpoint does not answer the next is tried, as nothing was sent. Used by the router's
//! threads and by `cortex proxy`.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::choice::Wants;
use super::permit::Permit;
use super::queue::{Place, Queue};
use super::table::RoutedApplication;
use os::shared_port::is_short;

/// A back end on this machine connects at once, one on another within a lost packet's time.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// With all endpoints gone or busy, somebody who waits longer is better told.
pub const ENTRY_TIME_MAX: Duration = Duration::from_secs(10);

/// What became of one attempt.
pub enum Attempt<C> {
    Stands(C),
    /// Another endpoint may do.
    Failed,
    /// No other would do better.
    Hopeless,
}

/// A connection to an endpoint.
pub struct Entered<C> {
    pub permit: Permit,
    pub connection: C,
    /// For so long there was no room.
    pub queue: Duration,
}

/// None where no endpoint took it within `limit`.
pub async fn enter<C>(
    queue: &Arc<Queue>,
    current: impl Fn() -> Option<Arc<RoutedApplication>>,
    wants: Wants,
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
