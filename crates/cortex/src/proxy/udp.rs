//! Datagrams, by flow: what a client sends goes to one back end for as long as either speaks, and
//! answers go back from the address that the client sent to. Threads of their own, each with its
//! own socket; the kernel gives a client to the same one each time.

use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as StdSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use router::flows::Flows;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::task::{AbortHandle, LocalSet};
use tokio::time::Instant;

use super::back_ends::BackEnds;
use super::records::{Entry, Recorder, Status};
use super::{Phase, until_phase_changes};
use crate::driver::Clock;
use crate::router::choice::Wants;
use crate::router::endpoint::Permit;

/// A descriptor and some 2 KiB each; of all threads together.
pub const FLOWS_MAX: usize = 16_384;
/// The largest datagram that there is.
const DATAGRAM_BYTES_MAX: usize = 65_536;
/// Others have their turn after so many.
const DATAGRAMS_AT_ONCE: u32 = 64;
const EXPIRY_INTERVAL: Duration = Duration::from_millis(250);
/// For answers, when nobody goes on here: no flow says that it has ended, so the longest wait is
/// for clients that expect none.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);
/// Meanwhile.
const ANSWER_CHECK: Duration = Duration::from_millis(10);
/// What the kernel keeps for each thread while it is busy.
const SOCKET_BYTES: usize = 1 << 20;

#[derive(Clone)]
pub struct Settings {
    pub idle: Duration,
    pub flows_max: usize,
    pub clock: Clock,
}

struct Flow {
    back_end: Rc<UdpSocket>,
    permit: Permit,
    client: SocketAddr,
    started: Instant,
    bytes_in: Cell<u64>,
    bytes_out: Cell<u64>,
    refused: Cell<bool>,
    answering: RefCell<Option<AbortHandle>>,
}

struct Thread {
    back_ends: Arc<BackEnds>,
    settings: Settings,
    recorder: Recorder,
    socket: UdpSocket,
    flows: RefCell<Flows<SocketAddr, Rc<Flow>>>,
    buffer: RefCell<Vec<u8>>,
}

/// One socket per thread on the same address; the first is bound alone, so that a port that
/// somebody has is noticed.
pub fn bind(address: SocketAddr, threads: usize) -> anyhow::Result<Vec<StdSocket>> {
    let socket = |address: SocketAddr, shared: bool| -> std::io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_reuse_port(shared)?;
        socket.set_nonblocking(true)?;
        socket.set_recv_buffer_size(SOCKET_BYTES)?;
        socket.bind(&address.into())?;
        Ok(socket)
    };
    let first = socket(address, false).with_context(|| {
        format!(
            "UDP port {} on {} cannot be used: another program has it, or it needs root; stop \
             that program or choose another port",
            address.port(),
            address.ip()
        )
    })?;
    first.set_reuse_port(true)?;
    let bound = first.local_addr()?.as_socket().context("a socket of another family")?;
    let mut sockets: Vec<StdSocket> = vec![first.into()];
    for _ in 1..threads {
        sockets.push(socket(bound, true)?.into());
    }
    Ok(sockets)
}

/// Runs until it is told to end. Flows of one that leaves go on until they are quiet.
pub fn run(
    back_ends: Arc<BackEnds>,
    settings: Settings,
    recorder: Recorder,
    socket: StdSocket,
    phase: watch::Receiver<Phase>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let idle_ms = u64::try_from(settings.idle.as_millis()).unwrap_or(u64::MAX);
        let thread = Rc::new(Thread {
            back_ends,
            recorder,
            socket: UdpSocket::from_std(socket)?,
            flows: RefCell::new(Flows::new(idle_ms, settings.flows_max)),
            buffer: RefCell::new(vec![0; DATAGRAM_BYTES_MAX]),
            settings,
        });
        thread.serve(phase).await;
        let left = thread.flows.borrow_mut().drain();
        left.into_iter().for_each(|(_, flow)| thread.end(&flow, Status::CLOSED));
        Ok(())
    })
}

impl Thread {
    async fn serve(self: &Rc<Thread>, mut phase: watch::Receiver<Phase>) {
        let mut expiry = tokio::time::interval(EXPIRY_INTERVAL);
        expiry.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                readable = self.socket.readable() => {
                    if readable.is_ok() {
                        self.take();
                    }
                    tokio::task::yield_now().await;
                }
                _ = expiry.tick() => self.expire(),
                () = until_phase_changes(&mut phase) => break,
            }
        }
        // What clients say from now on goes to the process that has taken over, or to nobody; what
        // is still being answered comes from here.
        let answered = Instant::now() + ANSWER_TIME_MAX;
        loop {
            let now = *phase.borrow();
            let (deadline, check, ended) = match now {
                Phase::Serving => return,
                Phase::Leaving(limit) => (limit, EXPIRY_INTERVAL, self.flows.borrow().is_empty()),
                Phase::Ending(limit) => {
                    let awaited = self.flows.borrow().is_answer_awaited(self.now_ms());
                    (limit.min(answered), ANSWER_CHECK, !awaited)
                }
            };
            if ended || Instant::now() >= deadline {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(check) => self.expire(),
                () = until_phase_changes(&mut phase) => {}
            }
        }
    }

    fn take(self: &Rc<Thread>) {
        for _ in 0..DATAGRAMS_AT_ONCE {
            let mut buffer = self.buffer.borrow_mut();
            let (count, client) = match self.socket.try_recv_from(&mut buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // What an earlier answer ran into is no concern of the others.
                Err(error) => {
                    tracing::debug!(%error, "proxy.datagram_unread");
                    continue;
                }
            };
            self.pass(client, &buffer[..count]);
        }
    }

    fn now_ms(&self) -> u64 {
        self.settings.clock.now().0
    }

    fn pass(self: &Rc<Thread>, client: SocketAddr, datagram: &[u8]) {
        let known = self.flows.borrow_mut().asked(&client, self.now_ms()).cloned();
        if let Some(flow) = known {
            match flow.send(datagram) {
                Ok(()) => return,
                // An earlier one was refused: its back end is gone, and another may do.
                Err(_) => self.refused(&flow),
            }
        }
        let Some(flow) = self.open(client) else { return };
        if flow.send(datagram).is_err() {
            self.refused(&flow);
        }
    }

    /// Without room anywhere the datagram is lost, as datagrams are.
    fn open(self: &Rc<Thread>, client: SocketAddr) -> Option<Rc<Flow>> {
        let service = self.back_ends.services.first()?;
        let (application, wants) = (service.application(), Wants::near(client.ip()));
        // Nobody waits here, so nobody has to wait for somebody's share.
        let permit = service.queue.try_enter(&application, wants, None)?;
        let address = permit.endpoint.address()?;
        let any: SocketAddr = match address {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let connected = || -> std::io::Result<UdpSocket> {
            let socket = StdSocket::bind(any)?;
            // So that only it can answer, and its errors are told.
            socket.connect(address)?;
            socket.set_nonblocking(true)?;
            UdpSocket::from_std(socket)
        };
        let back_end = match connected() {
            Ok(socket) => Rc::new(socket),
            Err(error) => {
                tracing::warn!(%address, %error, "proxy.flow_failed");
                permit.endpoint.failed(self.now_ms());
                return None;
            }
        };
        let flow = Rc::new(Flow {
            back_end,
            permit,
            client,
            started: Instant::now(),
            bytes_in: Cell::new(0),
            bytes_out: Cell::new(0),
            refused: Cell::new(false),
            answering: RefCell::new(None),
        });
        let inserted = self.flows.borrow_mut().insert(client, flow.clone(), self.now_ms());
        if inserted.is_err() {
            tracing::warn!(max = self.settings.flows_max, "proxy.too_many_flows");
            return None;
        }
        let answering = tokio::task::spawn_local(answer(self.clone(), flow.clone()));
        *flow.answering.borrow_mut() = Some(answering.abort_handle());
        Some(flow)
    }

    fn expire(&self) {
        let expired = self.flows.borrow_mut().expire(self.now_ms());
        expired.into_iter().for_each(|(_, flow)| self.end(&flow, Status::IDLE));
    }

    /// Nothing listens there: the next datagram goes elsewhere.
    fn refused(&self, flow: &Rc<Flow>) {
        if flow.refused.replace(true) {
            return;
        }
        flow.permit.endpoint.failed(self.now_ms());
        let mut flows = self.flows.borrow_mut();
        let current = flows.get(&flow.client).is_some_and(|one| Rc::ptr_eq(one, flow));
        if current {
            flows.remove(&flow.client);
        }
        drop(flows);
        self.end(flow, Status::BACK_END_RESET);
    }

    fn end(&self, flow: &Rc<Flow>, status: Status) {
        if let Some(answering) = flow.answering.borrow_mut().take() {
            answering.abort();
        }
        self.recorder.record(Entry {
            started: flow.started.into_std(),
            total: flow.started.elapsed(),
            queue: Duration::ZERO,
            client: flow.client,
            back_end: flow.permit.endpoint.address(),
            method: None,
            status,
            bytes_in: flow.bytes_in.get(),
            bytes_out: flow.bytes_out.get(),
        });
    }
}

impl Flow {
    /// An error means that an earlier datagram was refused.
    fn send(&self, datagram: &[u8]) -> std::io::Result<()> {
        // Not by way of the runtime, which has not heard yet that a new socket can be written to.
        match SockRef::from(&*self.back_end).send(datagram) {
            Ok(_) => {
                self.bytes_in.set(self.bytes_in.get() + datagram.len() as u64);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => Err(error),
            // Too long for the way, or the kernel has no room: lost.
            Err(_) => Ok(()),
        }
    }
}

/// What the back end says goes to the client until the flow ends.
async fn answer(thread: Rc<Thread>, flow: Rc<Flow>) {
    let back_end = flow.back_end.clone();
    loop {
        if back_end.readable().await.is_err() {
            return;
        }
        for _ in 0..DATAGRAMS_AT_ONCE {
            let mut buffer = thread.buffer.borrow_mut();
            match back_end.try_recv(&mut buffer) {
                Ok(count) => {
                    flow.permit.endpoint.succeeded(|| thread.now_ms());
                    // One that cannot be sent now is lost.
                    thread.socket.try_send_to(&buffer[..count], flow.client).ok();
                    flow.bytes_out.set(flow.bytes_out.get() + count as u64);
                    thread.flows.borrow_mut().answered(&flow.client, thread.now_ms());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    return thread.refused(&flow);
                }
                Err(error) => {
                    tracing::debug!(%error, "proxy.answer_unread");
                    break;
                }
            }
        }
        tokio::task::yield_now().await;
    }
}
