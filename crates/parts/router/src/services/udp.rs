//! Datagrams that are passed on by flow: each flow counts as in flight at its instance until it has
//! been silent for long enough.

use std::io;
use std::net::{SocketAddr, UdpSocket as StdSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use model::PortId;
use router_core::breaker::Failure;
use router_core::far::Through;
use router_core::proxy_protocol::Addresses;
use socket2::SockRef;

use super::far::{self, Tunnel};
use crate::choice::{Demands, Reaches};
use crate::connection::Connection;
use crate::datagrams;
use crate::datagrams::{
    Admitted, Carrying, DATAGRAM_BYTES_MAX, Datagrams, Flow, FlowEndpoints, Gate,
};
use crate::entry::Attempt;
use crate::moved::Direction;
use crate::pace::WRITE_TIME_MAX;
use crate::permit::Permit;
use crate::stream::{fill, write_all};
use crate::streams::TransferEnd;
use crate::table::Service;
use crate::thread::Thread;
use crate::wire::Wire;

/// The silence, in milliseconds, that ends a flow if the release says nothing: what most routers of
/// homes and offices give it.
const IDLE_MS_DEFAULT: u64 = 60_000;
/// The time to wait when a part of a sealed piece has come and the rest is on its way.
const QUIET_MAX: Duration = Duration::from_secs(60);

struct Behind {
    thread: Rc<Thread>,
    id: PortId,
}

/// Serves a port until it is dropped.
pub async fn serve(thread: Rc<Thread>, port: u16, socket: StdSocket) {
    let (rooms, id) = (thread.rooms.clone(), PortId::udp(port));
    match Gate::new(socket, Box::new(Behind { thread, id }), rooms) {
        Ok(gate) => Closing(gate).0.serve().await,
        Err(error) => tracing::error!(%error, port, "router.receive_failed"),
    }
}

/// A gate whose flows end with it; their instances hear no more.
struct Closing(Rc<Gate>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Behind {
    /// Returns the service as the snapshot has it at this moment.
    fn service(&self) -> Option<Arc<Service>> {
        self.thread.shared.table.load().service(self.id).cloned()
    }
}

impl FlowEndpoints for Behind {
    fn now_ms(&self) -> u64 {
        self.thread.shared.clock.now().0
    }

    fn idle_ms(&self) -> u64 {
        self.service().and_then(|service| service.recipe.idle_ms).unwrap_or(IDLE_MS_DEFAULT)
    }

    fn enter(&self, client: SocketAddr) -> Option<Admitted> {
        let service = self.service()?;
        let application = &service.application;
        let wants = Demands { reaches: Reaches::Anywhere, ..Demands::near(client.ip()) };
        let port = service.counters.clone();
        let Some(permit) = application.queue.try_enter(application, wants, None) else {
            port.refuse();
            return None;
        };
        Some(Admitted { permit, port: Some(port) })
    }

    fn failed(&self, permit: &Permit) {
        let Some(service) = self.service() else { return };
        let (application, why) = (&service.application, "datagram refused");
        self.thread.failed(application, &permit.endpoint, Failure::Refused, why);
    }

    fn ended(&self, flow: &Flow, how: TransferEnd) {
        let (client, port) = (flow.client, self.id);
        tracing::debug!(%client, %port, ?how, "router.flow_ended");
    }

    fn carry(&self, gate: Rc<Gate>, flow: Rc<Flow>, datagrams: Datagrams) -> Carrying {
        let (thread, service) = (self.thread.clone(), self.service());
        Box::pin(async move {
            if let Some(service) = service {
                carry(&thread, &service, &gate, &flow, datagrams).await;
            }
            gate.over(&flow);
        })
    }
}

/// Carries a flow to the router of the node that has an instance, until either side ends it.
async fn carry(
    thread: &Thread,
    service: &Service,
    gate: &Gate,
    flow: &Flow,
    mut datagrams: Datagrams,
) {
    let Some(site) = flow.permit.endpoint.site() else { return };
    let destination = gate.address().unwrap_or(flow.client);
    let addresses = Addresses { client: flow.client, destination };
    let through = Through { id: service.recipe.id, addresses };
    let called = far::call(thread, service, site, &flow.permit, through).await;
    let Attempt::Stands(Tunnel { wire, first }) = called else { return service.counters.refuse() };
    flow.moved.goes_through(service.counters.take());
    let mut come = first.filled().to_vec();
    thread.pool.give_back(first);
    let up = async {
        while let Some(datagram) = datagrams.recv().await {
            send(&wire, &datagram).await?;
            flow.moved.add(Direction::FromClient, datagram.len());
        }
        io::Result::Ok(())
    };
    let down = async {
        loop {
            each(&mut come, |datagram| gate.answer(flow, datagram));
            more(thread, &wire, &mut come).await?;
        }
    };
    let ended: io::Result<()> = tokio::select! {
        ended = up => ended,
        ended = down => ended,
    };
    tracing::debug!(client = %flow.client, ?ended, "router.far_flow_ended");
}

/// Serves a flow that another router carries here.
pub async fn host(connection: &Connection, service: &Service, permit: &Permit) -> io::Result<()> {
    let thread = &connection.thread;
    let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
    let instance = datagrams::connect(permit.endpoint.address().ok_or_else(refused)?)?;
    let mut come = Vec::new();
    let up = async {
        loop {
            // A datagram that cannot be sent now is lost.
            each(&mut come, |datagram| drop(SockRef::from(&instance).send(datagram)));
            more(thread, &connection.stream, &mut come).await?;
        }
    };
    let down = async {
        let mut datagram = vec![0; DATAGRAM_BYTES_MAX];
        loop {
            let count = instance.recv(&mut datagram).await?;
            permit.endpoint.succeeded(|| thread.shared.clock.now().0);
            send(&connection.stream, &datagram[..count]).await?;
        }
    };
    let ended: io::Result<()> = tokio::select! {
        ended = up => ended,
        ended = down => ended,
    };
    if ended.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        let why = "datagram refused";
        thread.failed(&service.application, &permit.endpoint, Failure::Refused, why);
    }
    ended
}

async fn send(wire: &Wire, datagram: &[u8]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(2 + datagram.len());
    router_core::far::write_datagram(datagram, &mut bytes);
    write_all(wire, &bytes, WRITE_TIME_MAX).await
}

/// Takes whole datagrams off the front.
fn each(come: &mut Vec<u8>, mut take: impl FnMut(&[u8])) {
    let mut rest = &come[..];
    while let Some((datagram, behind)) = router_core::far::datagram(rest) {
        take(datagram);
        rest = behind;
    }
    let used = come.len() - rest.len();
    come.drain(..used);
}

/// Waits for more bytes without holding a buffer.
async fn more(thread: &Thread, wire: &Wire, come: &mut Vec<u8>) -> io::Result<()> {
    wire.readable().await?;
    let mut buffer = thread.pool.buffer();
    let count = fill(wire, &mut buffer, QUIET_MAX).await;
    come.extend_from_slice(buffer.filled());
    thread.pool.give_back(buffer);
    match count? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}
