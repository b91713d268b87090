//! Ports for instances: on loopback, outside what the kernel gives to outgoing connections.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::bail;

/// Linux gives 32768 to 60999 to outgoing connections.
pub const INSTANCE_PORTS: RangeInclusive<u16> = 20_000..=29_999;

/// Nodes of several users on one machine begin at places this far apart, so that they seldom look
/// at the same free port at once: an instance binds its port only a while after it was chosen.
const NODES_APART: u32 = 97;

/// Which ports this node has given to instances.
#[derive(Clone, Default)]
pub struct Ports {
    shared: Arc<Mutex<Given>>,
}

#[derive(Default)]
struct Given {
    ports: BTreeSet<u16>,
    /// Ports are given in turn, so that one which was just let go of is not met by late requests.
    last: Option<u16>,
}

impl Ports {
    /// A port that nobody listens on now.
    pub fn take(&self) -> anyhow::Result<u16> {
        let mut given = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, end) = (*INSTANCE_PORTS.start(), *INSTANCE_PORTS.end());
        let mut port = given.last.unwrap_or_else(|| {
            let places = u32::from(end - first) + 1;
            let place = std::process::id().wrapping_mul(NODES_APART) % places;
            first + u16::try_from(place).unwrap_or_default()
        });
        for _ in INSTANCE_PORTS {
            port = if port >= end { first } else { port + 1 };
            if !given.ports.contains(&port) && is_free(port) {
                given.ports.insert(port);
                given.last = Some(port);
                return Ok(port);
            }
        }
        bail!(
            "no port from {first} to {end} is free on this machine: scale down, or stop what holds them"
        )
    }

    /// An adopted instance has this one.
    pub fn keep(&self, port: u16) {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).ports.insert(port);
    }

    pub fn release(&self, port: u16) {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).ports.remove(&port);
    }
}

fn is_free(port: u16) -> bool {
    // Also refuses a port that is bound on all addresses.
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_once_and_never_a_taken_one() {
        let ports = Ports::default();
        let first = ports.take().unwrap();
        let second = ports.take().unwrap();
        assert_ne!(first, second);
        ports.release(first);
        let next =
            if second == *INSTANCE_PORTS.end() { *INSTANCE_PORTS.start() } else { second + 1 };
        let _squatter = TcpListener::bind((Ipv4Addr::LOCALHOST, next));
        assert_ne!(ports.take().unwrap(), next);
    }
}
