//! The relay's loop: it waits for its doors, its connections and its flows, looks from time to time
//! at what the program listens at, and ends once the program has and all that it said is passed on.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::Context;
use model::port::Transport;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, SocketType, sockopt};

use super::flows::Flows;
use super::inside::Inside;
use super::pair::{CHUNK_BYTES, Pair, Passed};
use super::sockets;
use super::watch::{self, Looks};
use super::way_out;
use crate::network::Network;

/// The maximum number of connections at a time; more wait until one ends. With what may wait for
/// each, it bounds the memory.
const PAIRS_MAX: usize = 4096;
/// The number of events that are taken at once.
const EVENTS: usize = 256;
/// The maximum number of connections that are taken in a row at one door.
const ACCEPTED_IN_A_ROW: usize = 16;
/// The time after which a door is tried again that could take nobody, for want of descriptors.
const FULL_PAUSE: Duration = Duration::from_millis(100);
/// The time for what the program said before its end.
const DRAIN: Duration = Duration::from_millis(1500);

/// The place behind a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    /// The program, at this port of its loopback.
    Program(u16),
    /// A service of the machine.
    Service(SocketAddr),
    /// The machine's resolver of names.
    Resolver,
}

/// A place where connections or datagrams come in.
struct Door {
    kind: SocketType,
    behind: Behind,
    /// The socket; datagrams have one only while the program has.
    socket: Option<OwnedFd>,
    /// Whether somebody is behind it.
    open: bool,
    watched: bool,
}

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Link,
    Door(usize),
    Side(usize, usize),
    Flow(u64),
}

impl Source {
    fn data(self) -> EventData {
        EventData::new_u64(match self {
            Source::Link => 0,
            Source::Door(door) => 1 | (door as u64) << 2,
            Source::Side(pair, side) => 2 | (pair as u64) << 3 | (side as u64) << 2,
            Source::Flow(number) => 3 | number << 2,
        })
    }

    fn of(data: EventData) -> Source {
        let word = data.u64();
        let index = |shift: u32| usize::try_from(word >> shift).unwrap_or(usize::MAX);
        match word & 3 {
            0 => Source::Link,
            1 => Source::Door(index(2)),
            2 => Source::Side(index(3), usize::from(word & 4 != 0)),
            _ => Source::Flow(word >> 2),
        }
    }
}

pub struct Turn {
    epoll: OwnedFd,
    inside: Inside,
    doors: Vec<Door>,
    pairs: Vec<Option<Pair>>,
    free: Vec<usize>,
    flows: Flows,
    looks: Looks,
    chunk: Vec<u8>,
    full_until: Option<Instant>,
    /// The time at which it ends at the latest, once the program has.
    end: Option<Instant>,
}

impl Turn {
    pub fn new(network: &Network, mut inside: Inside) -> anyhow::Result<Turn> {
        let mut doors = Vec::new();
        for port in &network.tcp {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
            let socket = sockets::bound(SocketType::STREAM, address)
                .with_context(|| format!("port {port} of this machine"))?;
            doors.push(Door::new(SocketType::STREAM, Behind::Program(*port), Some(socket)));
        }
        for port in &network.udp {
            doors.push(Door::new(SocketType::DGRAM, Behind::Program(*port), None));
        }
        for (service, socket) in network.services.iter().zip(inside.services.drain(..)) {
            let behind = Behind::Service(service.at);
            let door = Door::new(SocketType::STREAM, behind, Some(socket));
            doors.push(Door { open: true, ..door });
        }
        let kinds = [SocketType::STREAM, SocketType::DGRAM];
        for (kind, socket) in kinds.into_iter().zip(inside.resolver.take().into_iter().flatten()) {
            let door = Door::new(kind, Behind::Resolver, Some(socket));
            doors.push(Door { open: true, ..door });
        }
        Ok(Turn {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            inside,
            doors,
            pairs: Vec::new(),
            free: Vec::new(),
            flows: Flows::default(),
            looks: Looks::new(Instant::now()),
            chunk: vec![0; CHUNK_BYTES],
            full_until: None,
            end: None,
        })
    }

    /// Runs until the other end of `link` is closed and what was said before is passed on.
    pub fn run(mut self, link: UnixStream) -> anyhow::Result<()> {
        epoll::add(&self.epoll, &link, Source::Link.data(), EventFlags::IN)?;
        self.watch_doors();
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
        loop {
            let now = Instant::now();
            if self.end.is_some_and(|end| end <= now || self.free.len() == self.pairs.len()) {
                return Ok(());
            }
            self.look(now);
            let wait = self.deadline(now);
            let wait = wait.map(|at| at.saturating_duration_since(now));
            let wait = wait.map(|wait| Timespec::try_from(wait + Duration::from_micros(100)));
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), wait.transpose()?.as_ref())
            {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait for events"),
            }
            for event in &events {
                match Source::of(event.data) {
                    Source::Link => {
                        self.end = Some(Instant::now() + DRAIN);
                        epoll::delete(&self.epoll, &link)?;
                        self.close_doors();
                        (0..self.pairs.len()).for_each(|index| self.pass(index));
                    }
                    Source::Door(door) => self.enter(door),
                    Source::Side(pair, _) => self.pass(pair),
                    Source::Flow(number) => self.back(number),
                }
            }
        }
    }

    fn deadline(&mut self, now: Instant) -> Option<Instant> {
        let watches = self.doors.iter().any(|door| matches!(door.behind, Behind::Program(_)));
        let look = (watches && self.end.is_none()).then(|| self.looks.next());
        let flows = self.flows.prune(now);
        look.into_iter().chain(flows).chain(self.full_until).chain(self.end).min()
    }

    /// Looks at what the program listens at, where that is due, and opens and closes doors.
    fn look(&mut self, now: Instant) {
        if self.full_until.is_some_and(|until| until <= now) {
            self.full_until = None;
            self.watch_doors();
        }
        if self.end.is_some() || self.looks.next() > now {
            return;
        }
        let (mut changed, mut complete) = (false, true);
        let mut listening: [Option<BTreeSet<u16>>; 2] = [None, None];
        for index in 0..self.doors.len() {
            let Behind::Program(port) = self.doors[index].behind else { continue };
            let (place, transport) = match self.doors[index].kind {
                SocketType::DGRAM => (1, Transport::Udp),
                _ => (0, Transport::Tcp),
            };
            let ports = listening[place]
                .get_or_insert_with(|| watch::listening(&self.inside.tables, transport));
            let open = ports.contains(&port);
            if open != self.doors[index].open {
                changed |= if open { self.open(index) } else { self.close(index) };
            }
            complete &= self.doors[index].open;
        }
        self.looks.looked(now, changed, complete);
    }

    /// Begins to listen; false if the machine does not let it now.
    fn open(&mut self, index: usize) -> bool {
        let door = &mut self.doors[index];
        match (&door.socket, door.behind) {
            (Some(socket), _) => door.open = sockets::listen(socket).is_ok(),
            (None, Behind::Program(port)) => {
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
                door.socket = sockets::bound(SocketType::DGRAM, address).ok();
                door.open = door.socket.is_some();
            }
            (None, Behind::Service(_) | Behind::Resolver) => {}
        }
        self.watch_doors();
        self.doors[index].open
    }

    fn close(&mut self, index: usize) -> bool {
        let door = &mut self.doors[index];
        door.open = false;
        if let Some(socket) = door.socket.as_ref().filter(|_| door.watched) {
            let _ = epoll::delete(&self.epoll, socket);
            door.watched = false;
        }
        if door.kind == SocketType::DGRAM {
            door.socket = None;
            self.flows.close(index);
        } else if let Some(socket) = &door.socket {
            // It keeps its port and is asked no more, until it listens again.
            let _ = rustix::net::shutdown(socket, Shutdown::Read);
        }
        true
    }

    fn close_doors(&mut self) {
        for index in 0..self.doors.len() {
            self.close(index);
            self.doors[index].socket = None;
        }
    }

    fn watch_doors(&mut self) {
        for (index, door) in self.doors.iter_mut().enumerate() {
            if let Some(socket) = door.socket.as_ref().filter(|_| door.open && !door.watched) {
                let data = Source::Door(index).data();
                door.watched = epoll::add(&self.epoll, socket, data, EventFlags::IN).is_ok();
            }
        }
    }

    /// Takes nobody for a moment.
    fn pause(&mut self) {
        self.full_until = Some(Instant::now() + FULL_PAUSE);
        for door in self.doors.iter_mut().filter(|door| door.kind == SocketType::STREAM) {
            if let Some(socket) = door.socket.as_ref().filter(|_| door.watched) {
                let _ = epoll::delete(&self.epoll, socket);
                door.watched = false;
            }
        }
    }

    fn enter(&mut self, index: usize) {
        let Some(door) = self.doors.get(index).filter(|door| door.open) else { return };
        let (kind, behind) = (door.kind, door.behind);
        let Some(socket) = &door.socket else { return };
        if kind == SocketType::DGRAM {
            let (epoll, inside, now) = (&self.epoll, &self.inside, Instant::now());
            self.flows.outward((index, socket), &mut self.chunk, now, |number| {
                let made = connect(inside, kind, behind)?;
                let data = Source::Flow(number).data();
                epoll::add(epoll, &made, data, EventFlags::IN).ok().map(|()| made)
            });
            return;
        }
        for _ in 0..ACCEPTED_IN_A_ROW {
            if self.pairs.len() - self.free.len() >= PAIRS_MAX {
                return self.pause();
            }
            let Some(socket) = &self.doors[index].socket else { return };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(socket, flags) {
                Ok(accepted) => self.join(accepted, kind, behind),
                Err(Errno::AGAIN) => return,
                // Who asked is gone already.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(_) => return self.pause(),
            }
        }
    }

    fn join(&mut self, accepted: OwnedFd, kind: SocketType, behind: Behind) {
        let _ = sockopt::set_tcp_nodelay(&accepted, true);
        let Some(made) = connect(&self.inside, kind, behind) else {
            // Nobody is there, which is to be seen.
            let _ = sockopt::set_socket_linger(&accepted, Some(Duration::ZERO));
            return;
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.pairs.push(None);
            self.pairs.len() - 1
        });
        let program = usize::from(matches!(behind, Behind::Program(_)));
        self.pairs[index] = Some(Pair::new(accepted, made, program));
        self.watch_pair(index);
    }

    fn pass(&mut self, index: usize) {
        let Some(Some(pair)) = self.pairs.get_mut(index) else { return };
        let passed = match std::mem::take(&mut pair.connecting) {
            true => match sockopt::socket_error(&pair.sides[1].socket) {
                Ok(Ok(())) => pair.pass(&mut self.chunk),
                _ => {
                    // The door may be open though nobody is behind it any more.
                    self.looks.doubt(Instant::now());
                    Passed::Broken
                }
            },
            false => pair.pass(&mut self.chunk),
        };
        let over = self.end.is_some() && pair.program_has_ended();
        if passed == Passed::Open && !over {
            return self.watch_pair(index);
        }
        let pair = self.pairs[index].take();
        self.free.push(index);
        if passed == Passed::Broken {
            pair.into_iter().for_each(Pair::reset);
        }
    }

    /// Asks for the events that a pair waits for. A side of which nothing is wanted is not watched
    /// at all, as its end would be told again and again.
    fn watch_pair(&mut self, index: usize) {
        let Some(Some(pair)) = self.pairs.get_mut(index) else { return };
        for number in [0, 1] {
            let wanted = Some(pair.wants(number)).filter(|wanted| !wanted.is_empty());
            let data = Source::Side(index, number).data();
            let side = &mut pair.sides[number];
            let socket = side.socket.as_fd();
            let done = match (side.watched, wanted) {
                (before, wanted) if before == wanted => Ok(()),
                (None, Some(wanted)) => epoll::add(&self.epoll, socket, data, wanted),
                (Some(_), Some(wanted)) => epoll::modify(&self.epoll, socket, data, wanted),
                (_, None) => epoll::delete(&self.epoll, socket),
            };
            side.watched = wanted.filter(|_| done.is_ok());
        }
    }

    fn back(&mut self, number: u64) {
        let door = self.flows.door(number).and_then(|door| self.doors.get(door));
        if let Some(near) = door.and_then(|door| door.socket.as_ref()) {
            self.flows.back(number, near, &mut self.chunk, Instant::now());
        }
    }
}

impl Door {
    fn new(kind: SocketType, behind: Behind, socket: Option<OwnedFd>) -> Door {
        Door { kind, behind, socket, open: false, watched: false }
    }
}

/// Makes a socket on the side that is behind a door and begins to connect it.
fn connect(inside: &Inside, kind: SocketType, behind: Behind) -> Option<OwnedFd> {
    let (socket, address) = match behind {
        Behind::Program(port) => {
            (inside.socket(kind)?, SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        }
        Behind::Service(address) => (sockets::new(kind).ok()?, address),
        Behind::Resolver => (sockets::new(kind).ok()?, way_out::resolver()?),
    };
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Some(socket),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_event_is_about_is_read_back() {
        let sources = [
            Source::Link,
            Source::Door(0),
            Source::Door(7),
            Source::Side(0, 1),
            Source::Side(4095, 0),
            Source::Flow(1 << 40),
        ];
        for source in sources {
            assert_eq!(Source::of(source.data()), source);
        }
    }
}
