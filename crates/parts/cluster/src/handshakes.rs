//! The handshakes that are under way at the node port, which anybody on the network can begin: a
//! number in all, and fewer for each address, so that one stranger does not keep the others out.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use runtime::lock::locked;

/// The number of callers whose handshake is under way; the rest wait in the kernel's queue.
pub const HANDSHAKES_MAX: usize = 64;
/// The most of them from one address: a node opens many streams at once when it starts.
const HANDSHAKES_EACH_MAX: usize = 32;

#[derive(Clone, Debug, Default)]
pub struct Handshakes(Arc<Mutex<BTreeMap<IpAddr, usize>>>);

/// One handshake, which is over when this is dropped.
#[derive(Debug)]
pub struct Handshake {
    all: Handshakes,
    from: IpAddr,
}

impl Handshakes {
    /// Returns `None` if too many from that address are under way.
    pub fn begin(&self, from: IpAddr) -> Option<Handshake> {
        let mut under_way = locked(&self.0);
        let count = under_way.entry(from).or_default();
        if *count >= HANDSHAKES_EACH_MAX {
            return None;
        }
        *count += 1;
        Some(Handshake { all: self.clone(), from })
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        let mut under_way = locked(&self.all.0);
        if let Some(count) = under_way.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                under_way.remove(&self.from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_leaves_room_for_others() {
        let handshakes = Handshakes::default();
        let from = |ip: &str| ip.parse().unwrap();
        let mut held: Vec<_> = (0..HANDSHAKES_EACH_MAX)
            .map(|_| handshakes.begin(from("192.0.2.1")).unwrap())
            .collect();
        assert!(held.len() < HANDSHAKES_MAX);
        assert!(handshakes.begin(from("192.0.2.1")).is_none());
        assert!(handshakes.begin(from("192.0.2.2")).is_some());
        held.pop();
        held.push(handshakes.begin(from("192.0.2.1")).expect("one has ended"));
        held.clear();
        assert!(locked(&handshakes.0).is_empty(), "nothing is kept of those that are over");
    }
}
