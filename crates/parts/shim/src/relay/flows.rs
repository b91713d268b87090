//! Datagrams: who sends one to a door gets a socket of its own on the other side, and what comes
//! back to that goes to where the first one came from.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, SendFlags};

/// The time without a datagram after which a flow is forgotten (RFC 4787, 4.3).
pub const IDLE: Duration = Duration::from_secs(120);
/// The maximum number of flows of all doors; the one that was silent longest gives way.
const FLOWS_MAX: usize = 1024;
/// The maximum number of datagrams that are passed on in a row.
const IN_A_ROW: usize = 16;

struct Flow {
    door: usize,
    peer: SocketAddr,
    socket: OwnedFd,
    last: Instant,
}

/// The flows of all doors, by a number that is given once.
#[derive(Default)]
pub struct Flows {
    flows: BTreeMap<u64, Flow>,
    by_peer: BTreeMap<(usize, SocketAddr), u64>,
    next: u64,
}

impl Flows {
    /// Passes on what came to a door; `make` makes the socket of a new flow and has its answers
    /// watched under the number.
    pub fn outward(
        &mut self,
        (door, near): (usize, &OwnedFd),
        chunk: &mut [u8],
        now: Instant,
        mut make: impl FnMut(u64) -> Option<OwnedFd>,
    ) {
        for _ in 0..IN_A_ROW {
            let flags = RecvFlags::DONTWAIT;
            let Ok((_, count, Some(peer))) = rustix::net::recvfrom(near, &mut *chunk, flags) else {
                return;
            };
            let Ok(peer) = SocketAddr::try_from(peer) else { continue };
            let number = match self.by_peer.get(&(door, peer)) {
                Some(number) => *number,
                None => {
                    let Some(socket) = make(self.next) else { continue };
                    self.add(Flow { door, peer, socket, last: now })
                }
            };
            if let Some(flow) = self.flows.get_mut(&number) {
                flow.last = now;
                // Datagrams may be lost, as where nobody listens.
                let _ = rustix::net::send(&flow.socket, &chunk[..count], SendFlags::DONTWAIT);
            }
        }
    }

    fn add(&mut self, flow: Flow) -> u64 {
        if self.flows.len() >= FLOWS_MAX {
            let oldest = self.flows.iter().min_by_key(|(_, flow)| flow.last);
            let oldest = oldest.map(|(number, _)| *number);
            self.forget(|number, _| Some(number) == oldest);
        }
        let number = self.next;
        self.next += 1;
        self.by_peer.insert((flow.door, flow.peer), number);
        self.flows.insert(number, flow);
        number
    }

    /// Returns the door of a flow.
    pub fn door(&self, number: u64) -> Option<usize> {
        self.flows.get(&number).map(|flow| flow.door)
    }

    /// Passes on what came back to a flow.
    pub fn back(&mut self, number: u64, near: &OwnedFd, chunk: &mut [u8], now: Instant) {
        let Some(flow) = self.flows.get_mut(&number) else { return };
        flow.last = now;
        for _ in 0..IN_A_ROW {
            match rustix::net::recv(&flow.socket, &mut *chunk, RecvFlags::DONTWAIT) {
                Ok((_, count)) => {
                    let flags = SendFlags::DONTWAIT;
                    let _ = rustix::net::sendto(near, &chunk[..count], flags, &flow.peer);
                }
                Err(rustix::io::Errno::AGAIN) => return,
                // Nobody listens there; the error is taken with that.
                Err(_) => {}
            }
        }
    }

    /// Forgets the flows that were silent for long; returns when to look again.
    pub fn prune(&mut self, now: Instant) -> Option<Instant> {
        self.forget(|_, flow| flow.last + IDLE <= now);
        self.flows.values().map(|flow| flow.last + IDLE).min()
    }

    /// Forgets the flows of a door.
    pub fn close(&mut self, door: usize) {
        self.forget(|_, flow| flow.door == door);
    }

    fn forget(&mut self, which: impl Fn(u64, &Flow) -> bool) {
        self.flows.retain(|number, flow| !which(*number, flow));
        let flows = &self.flows;
        self.by_peer.retain(|_, number| flows.contains_key(number));
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    fn bound() -> UdpSocket {
        UdpSocket::bind("127.0.0.1:0").unwrap()
    }

    #[test]
    fn answers_go_to_where_the_question_came_from() {
        let (door, server) = (bound(), bound());
        let (first, second) = (bound(), bound());
        let now = Instant::now();
        let near = OwnedFd::from(door.try_clone().unwrap());
        let (mut flows, mut chunk) = (Flows::default(), vec![0; 2048]);
        let made = std::cell::Cell::new(0);
        let mut pass = |flows: &mut Flows| {
            flows.outward((0, &near), &mut chunk, now, |_| {
                let socket = bound();
                socket.connect(server.local_addr().unwrap()).unwrap();
                made.set(made.get() + 1);
                Some(socket.into())
            });
        };
        for (client, said) in [(&first, "one"), (&second, "two"), (&first, "three")] {
            client.send_to(said.as_bytes(), door.local_addr().unwrap()).unwrap();
            pass(&mut flows);
        }
        assert_eq!(made.get(), 2);
        let mut heard = [0; 16];
        for _ in 0..3 {
            let (count, flow) = server.recv_from(&mut heard).unwrap();
            server.send_to(&heard[..count].to_ascii_uppercase(), flow).unwrap();
        }
        let mut chunk = vec![0; 2048];
        for number in [0, 1] {
            assert_eq!(flows.door(number), Some(0));
            flows.back(number, &near, &mut chunk, now);
        }
        for (client, answers) in [(&first, vec!["ONE", "THREE"]), (&second, vec!["TWO"])] {
            for answer in answers {
                let count = client.recv(&mut heard).unwrap();
                assert_eq!(&heard[..count], answer.as_bytes());
            }
        }
        assert_eq!(flows.prune(now), Some(now + IDLE));
        assert_eq!(flows.prune(now + IDLE), None);
        assert!(flows.by_peer.is_empty());
    }

    #[test]
    fn the_flow_that_was_silent_longest_gives_way() {
        let mut flows = Flows::default();
        let start = Instant::now();
        for number in 0..=FLOWS_MAX {
            let peer = SocketAddr::from(([127, 0, 0, 1], u16::try_from(number).unwrap()));
            let last = start + Duration::from_millis(number as u64);
            flows.add(Flow { door: 3, peer, socket: bound().into(), last });
        }
        assert_eq!(flows.flows.len(), FLOWS_MAX);
        assert_eq!((flows.door(0), flows.door(1)), (None, Some(3)));
        flows.close(3);
        assert!(flows.flows.is_empty() && flows.by_peer.is_empty());
    }
}
