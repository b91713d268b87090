//! Ports for instances: on loopback, outside what the kernel gives to outgoing connections.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::bail;
use model::ProcessType;
use model::port::{InstancePorts, PortRecipe};

use super::launcher::Held;

/// The ports that instances get: outside 32768 to 60999, which Linux gives to outgoing connections.
pub const INSTANCE_PORTS: RangeInclusive<u16> = 20_000..=29_999;

/// The distance between the ports at which nodes of several users on one machine begin, so that
/// they seldom look at the same free port at once: an instance binds its port only a while after it
/// was chosen.
const NODES_APART: u32 = 97;

/// The ports that this node has given to instances.
#[derive(Clone, Default)]
pub struct Ports {
    shared: Arc<Mutex<Given>>,
}

#[derive(Default)]
struct Given {
    ports: BTreeSet<u16>,
    /// The port given last. Ports are given in turn, so that late requests do not meet a port that
    /// was just let go of.
    last: Option<u16>,
}

impl Ports {
    /// Takes a port that nobody listens on now.
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

    /// Takes all ports that one process needs.
    pub fn take_for(
        &self,
        recipes: &[PortRecipe],
        process: &ProcessType,
    ) -> anyhow::Result<ReservedPorts> {
        let mut taken = ReservedPorts {
            from: self.clone(),
            port: None,
            ports: InstancePorts::new(),
            kept: false,
        };
        if process.is_web() {
            taken.port = Some(self.take()?);
        }
        let mut numbers: BTreeMap<&str, u16> = BTreeMap::new();
        for recipe in of_process(recipes, process) {
            // A variable for both transports stands for one number.
            let number = match numbers.get(recipe.env.as_str()) {
                Some(number) => *number,
                None => self.take()?,
            };
            numbers.insert(&recipe.env, number);
            taken.ports.insert(recipe.id, number);
        }
        Ok(taken)
    }

    /// Keeps the ports of an adopted instance.
    pub fn keep(&self, held: &dyn Held) {
        let mut given = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        given.ports.extend(held.port().into_iter().chain(held.ports().values().copied()));
    }

    pub fn release(&self, port: Option<u16>, ports: &InstancePorts) {
        let mut given = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        for port in port.into_iter().chain(ports.values().copied()) {
            given.ports.remove(&port);
        }
    }
}

/// Returns the ports that a release asks for, beside HTTP, for processes of this type.
pub fn of_process<'a>(
    recipes: &'a [PortRecipe],
    process: &'a ProcessType,
) -> impl Iterator<Item = &'a PortRecipe> {
    recipes.iter().filter(move |recipe| recipe.process == *process)
}

/// The ports of a process that is about to start; they go back if it does not.
pub struct ReservedPorts {
    from: Ports,
    pub port: Option<u16>,
    pub ports: InstancePorts,
    kept: bool,
}

impl ReservedPorts {
    pub fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for ReservedPorts {
    fn drop(&mut self) {
        if !self.kept {
            self.from.release(self.port, &self.ports);
        }
    }
}

fn is_free(port: u16) -> bool {
    // Binding also fails for a port that is bound on all addresses.
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
        && UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::PortId;

    #[test]
    fn a_port_is_given_once_and_never_a_taken_one() {
        let ports = Ports::default();
        let first = ports.take().unwrap();
        let second = ports.take().unwrap();
        assert_ne!(first, second);
        ports.release(Some(first), &InstancePorts::new());
        let next =
            if second == *INSTANCE_PORTS.end() { *INSTANCE_PORTS.start() } else { second + 1 };
        let _squatter = TcpListener::bind((Ipv4Addr::LOCALHOST, next));
        let third = ports.take().unwrap();
        assert_ne!(third, next);
        let next = if third == *INSTANCE_PORTS.end() { *INSTANCE_PORTS.start() } else { third + 1 };
        let _squatter = UdpSocket::bind((Ipv4Addr::LOCALHOST, next));
        assert_ne!(ports.take().unwrap(), next);
    }

    #[test]
    fn a_process_gets_what_its_release_asks_for_and_gives_it_back() {
        let recipe = |id: PortId, process: &str, env: &str| PortRecipe {
            id,
            process: process.parse().unwrap(),
            env: env.into(),
            proxy_protocol: None,
            idle_ms: None,
        };
        let recipes = [
            recipe(PortId::tcp(53), "dns", "DNS_PORT"),
            recipe(PortId::udp(53), "dns", "DNS_PORT"),
            recipe(PortId::tcp(853), "dns", "TLS_PORT"),
            recipe(PortId::tcp(22), "web", "SSH_PORT"),
        ];
        let ports = Ports::default();
        let given = |ports: &Ports| ports.shared.lock().unwrap().ports.len();
        let web = ports.take_for(&recipes, &ProcessType::web()).unwrap();
        assert!(web.port.is_some() && web.ports.keys().eq([&PortId::tcp(22)]));
        let dns = ports.take_for(&recipes, &"dns".parse().unwrap()).unwrap();
        assert_eq!((dns.port, dns.ports.len()), (None, 3));
        assert_eq!(dns.ports[&PortId::tcp(53)], dns.ports[&PortId::udp(53)]);
        assert_ne!(dns.ports[&PortId::tcp(53)], dns.ports[&PortId::tcp(853)]);
        assert_eq!(given(&ports), 4);
        drop(web);
        assert_eq!(given(&ports), 2);
        dns.keep();
        assert_eq!(given(&ports), 2);
        let worker = ports.take_for(&recipes, &"worker".parse().unwrap()).unwrap();
        assert!(worker.port.is_none() && worker.ports.is_empty());
    }
}
