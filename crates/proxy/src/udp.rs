//! Datagrams in front of back ends: `router::datagrams` on threads of their own, until they are
//! told to leave or to end.

use std::net::{SocketAddr, UdpSocket as StdSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::watch;
use tokio::time::Instant;

use super::back_ends::BackEnds;
use super::records::{RecordEntry, Recorder};
use super::{ProxyPhase, until_phase_changes};
use router::choice::Demands;
use router::datagrams::{
    Admitted, Carrying, Datagrams, EXPIRY_INTERVAL, Flow, FlowEndpoints, Gate, Rooms,
};
use router::moved::Direction;
use router::permit::Permit;
use router::streams::TransferEnd;
use runtime::driver::Clock;

/// The maximum wait for answers when nobody goes on here: no flow says that it has ended, so even
/// clients that expect no answer are waited for.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);
/// The interval at which awaited answers are checked.
const ANSWER_CHECK: Duration = Duration::from_millis(10);

#[derive(Clone)]
pub struct UdpSettings {
    pub idle: Duration,
    pub flows_max: usize,
    pub clock: Clock,
}

struct Behind {
    back_ends: Arc<BackEnds>,
    settings: UdpSettings,
    recorder: Recorder,
}

/// Runs until it is told to end. When it is told to leave, its flows go on until they are quiet.
pub fn run(
    back_ends: Arc<BackEnds>,
    settings: UdpSettings,
    recorder: Recorder,
    socket: StdSocket,
    phase: watch::Receiver<ProxyPhase>,
) -> anyhow::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
    runtime.block_on(async {
        let rooms = Rooms::new(settings.flows_max);
        let gate = Gate::new(socket, Box::new(Behind { back_ends, settings, recorder }), rooms)?;
        serve(&gate, phase).await;
        gate.close();
        Ok(())
    })
}

async fn serve(gate: &Rc<Gate>, mut phase: watch::Receiver<ProxyPhase>) {
    tokio::select! {
        () = gate.serve() => {}
        () = until_phase_changes(&mut phase) => {}
    }
    // The words of clients from now on go to the process that has taken over, or to nobody; what is
    // still being answered comes from here.
    let answered = Instant::now() + ANSWER_TIME_MAX;
    loop {
        let now = *phase.borrow();
        let (deadline, check, ended) = match now {
            ProxyPhase::Serving => return,
            ProxyPhase::Leaving(limit) => (limit, EXPIRY_INTERVAL, gate.is_empty()),
            ProxyPhase::Ending(limit) => {
                (limit.min(answered), ANSWER_CHECK, !gate.is_answer_awaited())
            }
        };
        if ended || Instant::now() >= deadline {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(check) => gate.expire(),
            () = until_phase_changes(&mut phase) => {}
        }
    }
}

impl FlowEndpoints for Behind {
    fn now_ms(&self) -> u64 {
        self.settings.clock.now().0
    }

    fn idle_ms(&self) -> u64 {
        u64::try_from(self.settings.idle.as_millis()).unwrap_or(u64::MAX)
    }

    fn enter(&self, client: SocketAddr) -> Option<Admitted> {
        let service = self.back_ends.services.first()?;
        let (application, wants) = (service.application(), Demands::near(client.ip()));
        // Nobody waits here, so nobody has to wait for somebody's share.
        let permit = service.queue.try_enter(&application, wants, None)?;
        Some(Admitted { permit, port: None })
    }

    fn failed(&self, permit: &Permit) {
        permit.endpoint.failed(self.now_ms());
    }

    fn ended(&self, flow: &Flow, how: TransferEnd) {
        self.recorder.record(RecordEntry {
            started: flow.started.into_std(),
            total: flow.started.elapsed(),
            queue: Duration::ZERO,
            client: flow.client,
            back_end: flow.permit.endpoint.address(),
            method: None,
            status: how.into(),
            bytes_in: flow.moved.get(Direction::FromClient),
            bytes_out: flow.moved.get(Direction::ToClient),
        });
    }

    /// Ends the flow: all back ends have addresses, so there is nothing to carry.
    fn carry(&self, gate: Rc<Gate>, flow: Rc<Flow>, _: Datagrams) -> Carrying {
        Box::pin(async move { gate.over(&flow) })
    }
}
