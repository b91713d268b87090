//! Datagrams that are passed on by flow: each flow counts as in flight at its instance until it has
//! been silent for long enough.

use std::net::{SocketAddr, UdpSocket as StdSocket};
use std::rc::Rc;
use std::sync::Arc;

use model::PortId;
use router::breaker::Failure;

use crate::router::choice::Wants;
use crate::router::datagrams::{Flow, Gate, Site};
use crate::router::endpoint::Permit;
use crate::router::serve::Thread;
use crate::router::streams::Ended;
use crate::router::table::Service;

/// Where the release says nothing: what most routers of homes and offices give a flow.
const IDLE_MS_DEFAULT: u64 = 60_000;

struct Behind {
    thread: Rc<Thread>,
    id: PortId,
}

/// Until it is dropped.
pub async fn serve(thread: Rc<Thread>, port: u16, socket: StdSocket) {
    let (rooms, id) = (thread.rooms.clone(), PortId::udp(port));
    match Gate::new(socket, Box::new(Behind { thread, id }), rooms) {
        Ok(gate) => Closing(gate).0.serve().await,
        Err(error) => tracing::error!(%error, port, "router.receive_failed"),
    }
}

/// Its flows end with it, and their instances hear no more.
struct Closing(Rc<Gate>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Behind {
    /// As the snapshot has it at this moment.
    fn service(&self) -> Option<Arc<Service>> {
        self.thread.shared.table.load().service(self.id).cloned()
    }
}

impl Site for Behind {
    fn now_ms(&self) -> u64 {
        self.thread.shared.clock.now().0
    }

    fn idle_ms(&self) -> u64 {
        self.service().and_then(|service| service.recipe.idle_ms).unwrap_or(IDLE_MS_DEFAULT)
    }

    fn enter(&self, client: SocketAddr) -> Option<Permit> {
        let service = self.service()?;
        let application = &service.application;
        application.queue.try_enter(application, Wants::near(client.ip()), None)
    }

    fn failed(&self, permit: &Permit) {
        let Some(service) = self.service() else { return };
        let (application, why) = (&service.application, "datagram refused");
        self.thread.failed(application, &permit.endpoint, Failure::Refused, why);
    }

    fn ended(&self, flow: &Flow, how: Ended) {
        let (client, port) = (flow.client, self.id);
        tracing::debug!(%client, %port, ?how, "router.flow_ended");
    }
}
