//! Datagrams, by flow: what a client sends goes to one endpoint for as long as either speaks, and
//! answers go back from the address that the client sent to. Each thread has its own socket; the
//! kernel gives a client to the same one each time. The router's threads and `cortex proxy` use it.

use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as StdSocket};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use router_core::flows::Flows;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::moved::{Direction, Moved};
use super::permit::Permit;
use super::rarely::Rarely;
use super::streams::TransferEnd;
use metrics::ports::PortCounters;
use os::shared_port::is_short;

#[cfg(test)]
mod tests;

/// Flows of all threads together; each takes a descriptor and some 2 KiB.
pub const FLOWS_MAX: usize = 16_384;
/// The size of the largest datagram that there is, in bytes.
pub const DATAGRAM_BYTES_MAX: usize = 65_536;
/// Datagrams after which others have their turn.
pub const DATAGRAMS_AT_ONCE: u32 = 64;
/// Datagrams on their way to another node; while its router is asked, a few are there at once.
const CARRIED_MAX: usize = 64;
pub const EXPIRY_INTERVAL: Duration = Duration::from_millis(250);
/// The bytes that the kernel keeps for each thread's socket while the thread is busy.
const SOCKET_BYTES: usize = 1 << 20;

/// The endpoints behind a socket, which also hear of its flows.
pub trait FlowEndpoints {
    fn now_ms(&self) -> u64;
    /// Returns the silence, in milliseconds, after which a flow is over.
    fn idle_ms(&self) -> u64;
    /// Admits a client's flow; `None` if there is no room anywhere.
    fn enter(&self, client: SocketAddr) -> Option<Admitted>;
    /// Records that nothing listens at the endpoint.
    fn failed(&self, permit: &Permit);
    fn ended(&self, flow: &Flow, how: TransferEnd);
    /// Passes datagrams on to an endpoint that has no address here, and answers back.
    fn carry(&self, gate: Rc<Gate>, flow: Rc<Flow>, datagrams: Datagrams) -> Carrying;
}

/// The right to begin a flow.
pub struct Admitted {
    /// The right to send to an endpoint.
    pub permit: Permit,
    /// The counters of the application's own port, if the flow came to one.
    pub port: Option<Arc<PortCounters>>,
}

pub type Datagrams = mpsc::Receiver<Vec<u8>>;
pub type Carrying = Pin<Box<dyn Future<Output = ()>>>;

enum Way {
    Near(Rc<UdpSocket>),
    Carried(mpsc::Sender<Vec<u8>>),
}

pub struct Flow {
    way: Way,
    pub permit: Permit,
    pub client: SocketAddr,
    pub started: Instant,
    pub moved: Moved,
    refused: Cell<bool>,
    answering: RefCell<Option<AbortHandle>>,
    _room: Room,
}

/// The number of flows that a thread has on all its sockets.
#[derive(Clone)]
pub struct Rooms {
    taken: Rc<Cell<usize>>,
    max: usize,
    /// The clients for whom there was no room, or no descriptor.
    refused: Rc<Rarely>,
}

impl Rooms {
    pub fn new(max: usize) -> Rooms {
        Rooms { taken: Rc::default(), max, refused: Rc::default() }
    }

    fn take(&self, client: SocketAddr) -> Option<Room> {
        let (taken, max) = (self.taken.get(), self.max);
        if taken < max {
            self.taken.set(taken + 1);
            return Some(Room(self.taken.clone()));
        }
        self.refuse(client, "the thread has as many flows as it may");
        None
    }

    /// Records a refused client; a flood comes with a datagram for each flow that it would have.
    fn refuse(&self, client: SocketAddr, why: &str) {
        self.refused.saw(client.ip());
        if let Some((datagrams, client)) = self.refused.tell() {
            tracing::warn!(%client, datagrams, why, "datagrams.flows_refused");
        }
    }
}

struct Room(Rc<Cell<usize>>);

impl Drop for Room {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// One socket, and the flows of the clients that send to it.
pub struct Gate {
    site: Box<dyn FlowEndpoints>,
    rooms: Rooms,
    socket: UdpSocket,
    flows: RefCell<Flows<SocketAddr, Rc<Flow>>>,
    buffer: RefCell<Vec<u8>>,
}

/// Binds one socket per thread to the same address. The first is bound alone, so that a port that
/// another program has is noticed.
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

impl Gate {
    pub fn new(
        socket: StdSocket,
        site: Box<dyn FlowEndpoints>,
        rooms: Rooms,
    ) -> std::io::Result<Rc<Gate>> {
        let flows = Flows::new(site.idle_ms(), rooms.max);
        Ok(Rc::new(Gate {
            site,
            rooms,
            socket: UdpSocket::from_std(socket)?,
            flows: RefCell::new(flows),
            buffer: RefCell::new(vec![0; DATAGRAM_BYTES_MAX]),
        }))
    }

    /// Passes datagrams on for as long as it is polled; flows are there after that, too.
    pub async fn serve(self: &Rc<Gate>) {
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
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.flows.borrow().is_empty()
    }

    pub fn is_answer_awaited(&self) -> bool {
        self.flows.borrow().is_answer_awaited(self.now_ms())
    }

    /// Ends the flows that are left.
    pub fn close(&self) {
        let left = self.flows.borrow_mut().drain();
        left.into_iter().for_each(|(_, flow)| self.end(&flow, TransferEnd::Closed));
    }

    fn take(self: &Rc<Gate>) {
        for _ in 0..DATAGRAMS_AT_ONCE {
            let mut buffer = self.buffer.borrow_mut();
            let (count, client) = match self.socket.try_recv_from(&mut buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The failure of an earlier answer is no concern of the other clients.
                Err(error) => {
                    tracing::debug!(%error, "datagrams.unread");
                    continue;
                }
            };
            self.pass(client, &buffer[..count]);
        }
    }

    fn now_ms(&self) -> u64 {
        self.site.now_ms()
    }

    fn pass(self: &Rc<Gate>, client: SocketAddr, datagram: &[u8]) {
        let known = self.flows.borrow_mut().asked(&client, self.now_ms()).cloned();
        if let Some(flow) = known {
            match flow.send(datagram) {
                Ok(()) => return,
                // An earlier datagram was refused: the back end is gone, and another may do.
                Err(_) => self.refused(&flow),
            }
        }
        let Some(flow) = self.open(client) else { return };
        if flow.send(datagram).is_err() {
            self.refused(&flow);
        }
    }

    /// Opens a flow. If there is no room anywhere, the datagram is lost, as datagrams are.
    fn open(self: &Rc<Gate>, client: SocketAddr) -> Option<Rc<Flow>> {
        let Admitted { permit, port } = self.site.enter(client)?;
        let flow = self.begin(client, permit);
        match (&flow, port) {
            (None, Some(port)) => port.refuse(),
            // For a flow that is carried it is not known yet whether anybody takes it.
            (Some(flow), Some(port)) if matches!(flow.way, Way::Near(_)) => {
                flow.moved.goes_through(port.take());
            }
            _ => {}
        }
        flow
    }

    fn begin(self: &Rc<Gate>, client: SocketAddr, permit: Permit) -> Option<Rc<Flow>> {
        let room = self.rooms.take(client)?;
        let (way, datagrams) = match permit.endpoint.address() {
            Some(address) => (Way::Near(self.connect(client, &permit, address)?), None),
            None => {
                let (sender, receiver) = mpsc::channel(CARRIED_MAX);
                (Way::Carried(sender), Some(receiver))
            }
        };
        let flow = Rc::new(Flow {
            way,
            permit,
            client,
            started: Instant::now(),
            moved: Moved::default(),
            refused: Cell::new(false),
            answering: RefCell::new(None),
            _room: room,
        });
        // The gate has room wherever the thread has some.
        self.flows.borrow_mut().insert(client, flow.clone(), self.now_ms()).ok()?;
        let task = match (&flow.way, datagrams) {
            (Way::Near(back_end), _) => {
                let answering = answer(self.clone(), flow.clone(), back_end.clone());
                tokio::task::spawn_local(answering)
            }
            (Way::Carried(_), datagrams) => {
                let carrying = self.site.carry(self.clone(), flow.clone(), datagrams?);
                tokio::task::spawn_local(carrying)
            }
        };
        *flow.answering.borrow_mut() = Some(task.abort_handle());
        Some(flow)
    }

    fn connect(
        &self,
        client: SocketAddr,
        permit: &Permit,
        address: SocketAddr,
    ) -> Option<Rc<UdpSocket>> {
        match connect(address) {
            Ok(connected) => return Some(Rc::new(connected)),
            // This is no fault of the endpoint.
            Err(error) if is_short(&error) => self.rooms.refuse(client, "out of descriptors"),
            Err(error) => {
                tracing::warn!(%address, %error, "datagrams.flow_failed");
                self.site.failed(permit);
            }
        }
        None
    }

    pub fn expire(&self) {
        let expired = {
            let mut flows = self.flows.borrow_mut();
            flows.set_idle(self.site.idle_ms());
            flows.expire(self.now_ms())
        };
        expired.into_iter().for_each(|(_, flow)| self.end(&flow, TransferEnd::Idle));
    }

    /// Ends a flow where nothing listens: the client's next datagram goes elsewhere.
    fn refused(&self, flow: &Rc<Flow>) {
        if flow.refused.replace(true) {
            return;
        }
        self.site.failed(&flow.permit);
        self.forget(flow);
        self.end(flow, TransferEnd::BackEndReset);
    }

    /// Ends a flow whose carrier has come to an end.
    pub fn over(&self, flow: &Rc<Flow>) {
        self.forget(flow);
        self.end(flow, TransferEnd::Closed);
    }

    /// Sends a datagram to the client; one that cannot be sent now is lost.
    pub fn answer(&self, flow: &Flow, datagram: &[u8]) {
        if self.socket.try_send_to(datagram, flow.client).is_ok() {
            flow.moved.add(Direction::ToClient, datagram.len());
        }
        self.flows.borrow_mut().answered(&flow.client, self.now_ms());
    }

    /// Returns the address that clients send to.
    pub fn address(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()
    }

    /// Forgets a flow, unless another one has taken its place.
    fn forget(&self, flow: &Rc<Flow>) {
        let mut flows = self.flows.borrow_mut();
        if flows.get(&flow.client).is_some_and(|one| Rc::ptr_eq(one, flow)) {
            flows.remove(&flow.client);
        }
    }

    fn end(&self, flow: &Rc<Flow>, how: TransferEnd) {
        if let Some(answering) = flow.answering.borrow_mut().take() {
            answering.abort();
        }
        self.site.ended(flow, how);
    }
}

impl Flow {
    /// Sends a datagram; an error means that an earlier one was refused.
    fn send(&self, datagram: &[u8]) -> std::io::Result<()> {
        // The runtime is passed by: it has not heard yet that a new socket can be written to.
        match &self.way {
            Way::Near(back_end) => match SockRef::from(&**back_end).send(datagram) {
                Ok(_) => self.moved.add(Direction::FromClient, datagram.len()),
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Err(error),
                // The datagram is too long for the way, or there is no room: it is lost.
                Err(_) => {}
            },
            // The carrier counts it.
            Way::Carried(carrier) => drop(carrier.try_send(datagram.to_vec())),
        }
        Ok(())
    }
}

/// Connects a socket, so that only that address can answer and its errors are reported.
pub fn connect(address: SocketAddr) -> std::io::Result<UdpSocket> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = StdSocket::bind(any)?;
    socket.connect(address)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

/// Sends the back end's answers to the client until the flow ends.
async fn answer(gate: Rc<Gate>, flow: Rc<Flow>, back_end: Rc<UdpSocket>) {
    loop {
        if back_end.readable().await.is_err() {
            return;
        }
        for _ in 0..DATAGRAMS_AT_ONCE {
            let mut buffer = gate.buffer.borrow_mut();
            match back_end.try_recv(&mut buffer) {
                Ok(count) => {
                    flow.permit.endpoint.succeeded(|| gate.now_ms());
                    gate.answer(&flow, &buffer[..count]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    return gate.refused(&flow);
                }
                Err(error) => {
                    tracing::debug!(%error, "datagrams.answer_unread");
                    break;
                }
            }
        }
        tokio::task::yield_now().await;
    }
}
