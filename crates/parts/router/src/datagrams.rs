//! Datagrams, by flow: what a client sends goes to one endpoint for as long as either speaks, and
//! answers go back from the address that the client sent to. Each thread has its own socket; the
//! kernel gives a client to the same one each time. Used by the router's threads and by
//! `cortex proxy`.

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
use super::streams::Ended;
use metrics::ports::PortCounters;
use os::shared_port::is_short;

#[cfg(test)]
mod tests;

/// A descriptor and some 2 KiB each; of all threads together.
pub const FLOWS_MAX: usize = 16_384;
/// The largest datagram that there is.
pub const DATAGRAM_BYTES_MAX: usize = 65_536;
/// Others have their turn after so many.
pub const DATAGRAMS_AT_ONCE: u32 = 64;
/// On their way to another node; while its router is asked, a few are there at once.
const CARRIED_MAX: usize = 64;
pub const EXPIRY_INTERVAL: Duration = Duration::from_millis(250);
/// What the kernel keeps for each thread while it is busy.
const SOCKET_BYTES: usize = 1 << 20;

/// Who is behind a socket, and who hears of its flows.
pub trait Site {
    fn now_ms(&self) -> u64;
    /// After such a silence a flow is over.
    fn idle_ms(&self) -> u64;
    /// None where no room is anywhere.
    fn enter(&self, client: SocketAddr) -> Option<Admitted>;
    /// Nothing listens there.
    fn failed(&self, permit: &Permit);
    fn ended(&self, flow: &Flow, how: Ended);
    /// Passes them on to an endpoint that has no address here, and answers back.
    fn carry(&self, gate: Rc<Gate>, flow: Rc<Flow>, datagrams: Datagrams) -> Carrying;
}

/// What a flow begins with.
pub struct Admitted {
    /// The right to send to an endpoint.
    pub permit: Permit,
    /// Where it counts, on an application's own port.
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

/// How many flows a thread has on all its sockets.
#[derive(Clone)]
pub struct Rooms {
    taken: Rc<Cell<usize>>,
    max: usize,
    /// Clients for whom there was none, or no descriptor.
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

    /// A flood comes with a datagram for each flow that it would have.
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

/// One socket, and the flows of those who send to it.
pub struct Gate {
    site: Box<dyn Site>,
    rooms: Rooms,
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

impl Gate {
    pub fn new(socket: StdSocket, site: Box<dyn Site>, rooms: Rooms) -> std::io::Result<Rc<Gate>> {
        let flows = Flows::new(site.idle_ms(), rooms.max);
        Ok(Rc::new(Gate {
            site,
            rooms,
            socket: UdpSocket::from_std(socket)?,
            flows: RefCell::new(flows),
            buffer: RefCell::new(vec![0; DATAGRAM_BYTES_MAX]),
        }))
    }

    /// Goes on for as long as it is polled; flows are there after that, too.
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

    /// Whatever is left.
    pub fn close(&self) {
        let left = self.flows.borrow_mut().drain();
        left.into_iter().for_each(|(_, flow)| self.end(&flow, Ended::Closed));
    }

    fn take(self: &Rc<Gate>) {
        for _ in 0..DATAGRAMS_AT_ONCE {
            let mut buffer = self.buffer.borrow_mut();
            let (count, client) = match self.socket.try_recv_from(&mut buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // What an earlier answer ran into is no concern of the others.
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
    fn open(self: &Rc<Gate>, client: SocketAddr) -> Option<Rc<Flow>> {
        let Admitted { permit, port } = self.site.enter(client)?;
        let flow = self.begin(client, permit);
        match (&flow, port) {
            (None, Some(port)) => port.refuse(),
            // Of one that is carried it is not known yet whether anybody takes it.
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
        // There is room where the thread has some.
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
            // No fault of the endpoint.
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
        expired.into_iter().for_each(|(_, flow)| self.end(&flow, Ended::Idle));
    }

    /// Nothing listens there: the next datagram goes elsewhere.
    fn refused(&self, flow: &Rc<Flow>) {
        if flow.refused.replace(true) {
            return;
        }
        self.site.failed(&flow.permit);
        self.forget(flow);
        self.end(flow, Ended::BackEndReset);
    }

    /// Whoever carried it has come to an end.
    pub fn over(&self, flow: &Rc<Flow>) {
        self.forget(flow);
        self.end(flow, Ended::Closed);
    }

    /// To the client. One that cannot be sent now is lost.
    pub fn answer(&self, flow: &Flow, datagram: &[u8]) {
        if self.socket.try_send_to(datagram, flow.client).is_ok() {
            flow.moved.add(Direction::ToClient, datagram.len());
        }
        self.flows.borrow_mut().answered(&flow.client, self.now_ms());
    }

    /// Where clients send to.
    pub fn address(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()
    }

    /// Another one may have taken its place.
    fn forget(&self, flow: &Rc<Flow>) {
        let mut flows = self.flows.borrow_mut();
        if flows.get(&flow.client).is_some_and(|one| Rc::ptr_eq(one, flow)) {
            flows.remove(&flow.client);
        }
    }

    fn end(&self, flow: &Rc<Flow>, how: Ended) {
        if let Some(answering) = flow.answering.borrow_mut().take() {
            answering.abort();
        }
        self.site.ended(flow, how);
    }
}

impl Flow {
    /// An error means that an earlier datagram was refused.
    fn send(&self, datagram: &[u8]) -> std::io::Result<()> {
        // Not by way of the runtime, which has not heard yet that a new socket can be written to.
        match &self.way {
            Way::Near(back_end) => match SockRef::from(&**back_end).send(datagram) {
                Ok(_) => self.moved.add(Direction::FromClient, datagram.len()),
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Err(error),
                // Too long for the way, or there is no room: lost.
                Err(_) => {}
            },
            // Whoever carries it counts it.
            Way::Carried(carrier) => drop(carrier.try_send(datagram.to_vec())),
        }
        Ok(())
    }
}

/// So that only that address can answer, and its errors are told.
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

/// What the back end says goes to the client until the flow ends.
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
