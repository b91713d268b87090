//! The number of connections that each client has on one thread, so that nobody takes all of them.
//! It knows addresses only; what waits for an instance is shared out by `queue.rs`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;

use router_core::request_key;

/// The divisor of a thread's connections that gives one client's share: a flood from one address
/// leaves room for everybody else. The address may be a proxy or a company, so the share is large.
const SHARE_DIVISOR: usize = 2;

#[derive(Debug)]
pub struct Clients {
    connections_max: usize,
    counts: RefCell<HashMap<u64, usize>>,
}

/// One connection of a client, which counts until it is dropped.
#[derive(Debug)]
pub struct HeldConnection {
    clients: Rc<Clients>,
    client: u64,
}

impl Clients {
    /// Creates the counts for a thread that takes this many connections in all.
    pub fn new(connections_max: usize) -> Clients {
        let connections_max = (connections_max / SHARE_DIVISOR).max(1);
        Clients { connections_max, counts: RefCell::default() }
    }

    /// Counts a connection; `None` if this client has enough.
    pub fn hold(self: &Rc<Clients>, address: IpAddr) -> Option<HeldConnection> {
        let client = request_key::of_address(address);
        let mut counts = self.counts.borrow_mut();
        let count = counts.entry(client).or_insert(0);
        if *count >= self.connections_max {
            return None;
        }
        *count += 1;
        Some(HeldConnection { clients: self.clone(), client })
    }
}

impl Drop for HeldConnection {
    fn drop(&mut self) {
        let mut counts = self.clients.counts.borrow_mut();
        if let Some(count) = counts.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests;
