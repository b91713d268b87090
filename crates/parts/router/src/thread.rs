//! The state of one thread of the router, for all that it serves: buffers, connections to
//! instances, counts, and its view of the shared snapshot. It knows no listener and no client.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use model::{ApplicationName, PortId, hash};
use router_core::breaker::{Failure, ejects};
use router_core::h2::connection::Scratch;
use router_core::retry::Budget;
use router_core::routes;
use tokio::sync::Notify;

use super::buffer::Buffer;
use super::clients::{Clients, HeldConnection};
use super::command::DrainScope;
use super::datagrams::{FLOWS_MAX, Rooms};
use super::endpoint::Endpoint;
use super::files::recent::RecentTargets;
use super::h2::call::CallConnections;
use super::idlers::Idlers;
use super::pool::Pool;
use super::rarely::Rarely;
use super::scope::Scope;
use super::shared::Shared;
use super::streams::Means;
use super::table::{RoutedApplication, Service};
use super::wire::Wire;
use metrics::Recorder;

/// Busy connections up to which a thread is not crowded: each may hold 64 KiB while it waits, half
/// a MiB in all.
const BUSY_FEW: usize = 8;

/// Whether clients without TLS are sent there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirect {
    No,
    Yes,
    /// If there is a certificate for the very host, which is one of a family.
    IfCovered,
}

pub struct Thread {
    pub shared: Arc<Shared>,
    pub pool: Pool,
    /// Connections to instances that take many requests at once on each.
    pub lines: CallConnections,
    pub recent: RecentTargets,
    pub budget: RefCell<Budget>,
    pub recorder: Recorder,
    /// The number of connections with a request under way.
    pub busy: Cell<usize>,
    /// The number of connections of any kind.
    pub connections: Cell<usize>,
    clients: Rc<Clients>,
    /// Clients that had too many connections.
    refused: Rarely,
    /// Proxies that did not say whose connection it is.
    pub unannounced: Rarely,
    /// The condition that is awaited before the thread ends; set once it stops.
    stopping: Cell<Option<DrainScope>>,
    /// The number of requests of clients that speak HTTP/2.
    pub streams: Rc<Cell<usize>>,
    /// Memory for reading what they send.
    pub scratch_h2: RefCell<Scratch>,
    /// Wakes those that wait for other routers' requests, or read what nobody wants.
    pub leaving: Notify,
    /// Those who wait for a client's next request.
    pub idlers: Idlers,
    request_id: Cell<u64>,
    /// The buffer and pipes of connections that are passed on whole.
    pub means: Means,
    /// The room for flows of datagrams.
    pub rooms: Rooms,
}

impl Thread {
    /// Creates the thread's state; its ids of requests begin at `seed`.
    pub fn new(shared: Arc<Shared>, recorder: Recorder, seed: u64) -> Thread {
        let clients = Rc::new(Clients::new(shared.connections_max));
        let rooms = Rooms::new(FLOWS_MAX / shared.threads.len().max(1));
        Thread {
            shared,
            pool: Pool::default(),
            lines: CallConnections::default(),
            recent: RecentTargets::default(),
            budget: RefCell::default(),
            recorder,
            busy: Cell::new(0),
            connections: Cell::new(0),
            clients,
            refused: Rarely::default(),
            unannounced: Rarely::default(),
            stopping: Cell::new(None),
            streams: Rc::default(),
            scratch_h2: RefCell::default(),
            leaving: Notify::new(),
            idlers: Idlers::default(),
            request_id: Cell::new(seed),
            means: Means::default(),
            rooms,
        }
    }

    /// Lets go of what nobody has used for long.
    pub fn sweep(&self) {
        self.lines.sweep();
        self.pool.sweep();
        self.recent.sweep();
    }

    /// Makes the thread end once nothing is left of what is awaited.
    pub fn begin_to_stop(&self, awaits: DrainScope) {
        self.stopping.set(Some(awaits));
    }

    /// Returns whether so many clients wait that what they hold is more than the processor's cache.
    pub fn is_crowded(&self) -> bool {
        self.busy.get() > BUSY_FEW
    }

    /// Reads what is there now, like `Wire::read_now`. In a crowd a buffer has no memory while it
    /// waits.
    pub fn read_now(&self, stream: &Wire, buffer: &mut Buffer) -> io::Result<usize> {
        self.pool.fill_out(buffer);
        let result = stream.read_now(buffer);
        if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            self.hollow(buffer);
        }
        result
    }

    /// Reads at least one byte, like `fill`, for places where many wait without memory until there
    /// is something to be read.
    pub async fn fill_late(
        &self,
        stream: &Wire,
        buffer: &mut Buffer,
        deadline: Instant,
    ) -> io::Result<usize> {
        loop {
            match self.read_now(stream, buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    stream.readable_by(deadline).await?;
                }
                result => return result,
            }
        }
    }

    /// Gives up the buffer's memory before a wait: the next reader has it, still in the cache.
    pub fn hollow(&self, buffer: &mut Buffer) {
        if self.is_crowded() && buffer.filled().is_empty() {
            self.pool.give_back(std::mem::take(buffer));
        }
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.get().is_some()
    }

    /// Returns whether another process goes on where this one ends.
    pub fn is_leaving(&self) -> bool {
        self.stopping.get() == Some(DrainScope::Connections)
    }

    pub fn application(&self, scope: &Scope, host: &[u8]) -> Option<Arc<RoutedApplication>> {
        self.route(scope, host).map(|(application, _)| application)
    }

    /// Returns the application that a request is for, and whether it may have to be redirected.
    pub fn route(&self, scope: &Scope, host: &[u8]) -> Option<(Arc<RoutedApplication>, Redirect)> {
        if let Some(only) = &self.shared.only {
            return Some((only.load_full()?, Redirect::No));
        }
        let table = self.shared.table.load();
        match scope {
            Scope::Host => {
                let route = table.route(host)?;
                let redirect = match route.is_redirected {
                    false => Redirect::No,
                    true if route.is_of_family => Redirect::IfCovered,
                    true => Redirect::Yes,
                };
                Some((route.application.clone(), redirect))
            }
            Scope::Secure => Some((table.by_host(host)?.clone(), Redirect::No)),
            Scope::Port(port) => Some((table.by_port(*port)?.clone(), Redirect::No)),
            Scope::Datagrams(_) => None,
        }
    }

    /// Returns the service of a port of its own, if that is not HTTP.
    pub fn service(&self, scope: Scope) -> Option<Arc<Service>> {
        match scope {
            Scope::Port(port) => self.shared.table.load().service(PortId::tcp(port)).cloned(),
            Scope::Host | Scope::Secure | Scope::Datagrams(_) => None,
        }
    }

    pub fn named(&self, name: &ApplicationName) -> Option<Arc<RoutedApplication>> {
        let table = self.shared.table.load();
        table.by_host(routes::default_host(name).as_bytes()).cloned()
    }

    /// Returns an id unlike any other in the cluster, which need not be kept secret.
    pub fn next_request_id(&self) -> u64 {
        let mut state = self.request_id.get();
        let drawn = hash::draw(&mut state);
        self.request_id.set(state);
        drawn
    }

    /// Takes the endpoint out for a moment, unless too few would be left, and tells the checker.
    /// Returns whether it is out.
    pub fn failed(
        &self,
        application: &RoutedApplication,
        endpoint: &Arc<Endpoint>,
        failure: Failure,
        why: &'static str,
    ) -> bool {
        let now_ms = self.shared.clock.now().0;
        let others = application.others_admitting(endpoint, now_ms);
        let goes = others.is_none_or(|(admitting, all)| ejects(failure, admitting, all));
        if !goes {
            self.suspect(endpoint, why);
            return false;
        }
        if endpoint.failed(now_ms) {
            match endpoint.site() {
                Some(site) => {
                    let application = &endpoint.instance.application;
                    tracing::warn!(node = %site.peer.node, %application, why, "router.far_failed");
                }
                None => self.suspect(endpoint, why),
            }
        }
        true
    }

    /// Counts a connection of a client; `None` if this client has enough.
    pub fn hold(&self, client: IpAddr) -> Option<HeldConnection> {
        let held = self.clients.hold(client);
        if held.is_none() {
            self.recorder.connection_refused();
            self.refused.saw(client);
        }
        held
    }

    pub fn log_refused(&self) {
        if let Some((connections, client)) = self.refused.tell() {
            tracing::warn!(%client, connections, "router.connections_refused");
        }
        if let Some((connections, proxy)) = self.unannounced.tell() {
            tracing::warn!(%proxy, connections, "router.bad_proxy_header");
        }
    }

    pub fn is_full(&self) -> bool {
        self.connections.get() >= self.shared.connections_max
    }

    /// Tells the checker of an endpoint; a full queue means that it is told of others already.
    pub fn suspect(&self, endpoint: &Arc<Endpoint>, why: &'static str) {
        // The checkers of other nodes look after what those run.
        if endpoint.site().is_none() {
            self.shared.suspects.try_send((endpoint.clone(), why)).ok();
        }
    }
}
