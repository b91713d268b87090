//! Connections to instances that speak HTTP/2 without TLS: each carries many requests at once.
//! Every thread has its own.

mod error;
mod head;
mod incoming;
mod outgoing;
mod stream;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{self, SendRequest};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use self::stream::Call;
use super::stream::{CountedStream, H2Stream};
use crate::endpoint::Endpoint;
use crate::time_limit::within;
use crate::wire::Wire;
use os::loopback;
use router_core::http::HEAD_BYTES_MAX;

/// The time that connecting may take: loopback connects at once, or its backlog is full.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// Streams on one connection, as many as most servers take; another connection is made for more.
const STREAMS_MAX: usize = 100;
/// Connections to one endpoint; beyond, requests share those that are there, and wait their turn in
/// them.
const LINES_MAX: usize = 16;
/// The time that a connection is kept idle, as long as those of HTTP/1.1.
const IDLE_TIME_MAX: Duration = Duration::from_secs(15);
/// The bytes that an instance may send before they are read, per stream and in all.
const WINDOW_BYTES: u32 = 256 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// The bytes to be sent that are kept per stream while the instance takes nothing.
const SEND_BUFFER_BYTES: usize = 64 * 1024;

/// The number of streams under way.
type Active = Rc<Cell<usize>>;

/// The connections to instances, by the endpoints' pool keys.
#[derive(Default)]
pub struct CallConnections {
    lines: RefCell<HashMap<u64, Vec<CallConnection>>>,
    /// A lock held while a connection is made: a request that wants one meanwhile may use the same.
    connecting: RefCell<HashMap<u64, Rc<Mutex<()>>>>,
}

/// One connection to an instance.
struct CallConnection {
    calls: SendRequest<Bytes>,
    active: Active,
    used: Cell<Instant>,
    endpoint: Arc<Endpoint>,
}

impl CallConnection {
    fn has_room(&self) -> bool {
        self.active.get() < STREAMS_MAX.min(self.calls.current_max_send_streams())
    }
}

impl CallConnections {
    /// Opens a stream for one request.
    pub async fn open(&self, endpoint: &Arc<Endpoint>, address: SocketAddr) -> Result<Wire> {
        if let Some(stream) = self.open_known(endpoint).await? {
            return Ok(stream);
        }
        let turn = self.connecting.borrow_mut().entry(endpoint.pool_key()).or_default().clone();
        let _turn = turn.lock().await;
        if let Some(stream) = self.open_known(endpoint).await? {
            return Ok(stream);
        }
        let (calls, active) = within(CONNECT_TIME_MAX, self.connect(endpoint, address)).await?;
        open(calls, &active).await
    }

    async fn open_known(&self, endpoint: &Endpoint) -> Result<Option<Wire>> {
        while let Some((calls, active)) = self.least_busy(endpoint) {
            match open(calls, &active).await {
                Err(error) if error.kind() != ErrorKind::TimedOut => {
                    // The instance has closed it.
                    self.forget(endpoint, &active);
                }
                result => return result.map(Some),
            }
        }
        Ok(None)
    }

    /// Returns the connection with the fewest streams; `None` if another one is to be made.
    fn least_busy(&self, endpoint: &Endpoint) -> Option<(SendRequest<Bytes>, Active)> {
        let lines = self.lines.borrow();
        let lines = lines.get(&endpoint.pool_key())?;
        let line = lines.iter().min_by_key(|line| line.active.get())?;
        line.used.set(Instant::now());
        let takes = line.has_room() || lines.len() >= LINES_MAX;
        takes.then(|| (line.calls.clone(), line.active.clone()))
    }

    fn forget(&self, endpoint: &Endpoint, active: &Active) {
        let mut lines = self.lines.borrow_mut();
        if let Some(lines) = lines.get_mut(&endpoint.pool_key()) {
            lines.retain(|line| !Rc::ptr_eq(&line.active, active));
        }
    }

    async fn connect(
        &self,
        endpoint: &Arc<Endpoint>,
        address: SocketAddr,
    ) -> Result<(SendRequest<Bytes>, Active)> {
        let tcp = TcpStream::connect(address).await?;
        loopback::ease(&tcp, address.ip());
        tcp.set_nodelay(true)?;
        let mut builder = client::Builder::new();
        builder
            .enable_push(false)
            .initial_window_size(WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX))
            .max_send_buffer_size(SEND_BUFFER_BYTES);
        let (calls, connection) = builder.handshake(tcp).await.map_err(Error::other)?;
        tokio::task::spawn_local(async move {
            // The requests that it carried have failed by themselves.
            if let Err(error) = connection.await {
                tracing::debug!(%address, %error, "router.h2_line_lost");
            }
        });
        let active = Active::default();
        let line = CallConnection {
            calls: calls.clone(),
            active: active.clone(),
            used: Cell::new(Instant::now()),
            endpoint: endpoint.clone(),
        };
        self.lines.borrow_mut().entry(endpoint.pool_key()).or_default().push(line);
        Ok((calls, active))
    }

    /// Lets go of connections that are idle or lead to an instance that is on its way out. Requests
    /// under way on them go on.
    pub fn sweep(&self) {
        self.connecting.borrow_mut().retain(|_, turn| Rc::strong_count(turn) > 1);
        self.lines.borrow_mut().retain(|_, lines| {
            lines.retain(|line| {
                let idle = line.active.get() == 0 && line.used.get().elapsed() > IDLE_TIME_MAX;
                line.endpoint.keeps_connections() && !idle
            });
            !lines.is_empty()
        });
    }
}

async fn open(calls: SendRequest<Bytes>, active: &Active) -> Result<Wire> {
    let counted = CountedStream::begin(active);
    let ready = async { calls.ready().await.map_err(Error::other) };
    let calls = within(CONNECT_TIME_MAX, ready).await?;
    Ok(Wire::Stream(Box::new(H2Stream::of_instance(Call::new(calls, counted)))))
}
