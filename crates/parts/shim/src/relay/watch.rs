//! Whether the program listens, as the kernel's table of its network says, and how often to look:
//! nothing tells of a socket that begins to listen.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use model::port::Transport;
use os::observe::ports_in;

use super::inside::Tables;

/// The interval between two looks when something has just changed: the most that a quick start
/// loses.
const INTERVAL_MIN: Duration = Duration::from_millis(2);
/// The interval when nothing has changed for long: a port that is let go of is seen at the next
/// connection anyway.
const INTERVAL_MAX: Duration = Duration::from_secs(1);
/// The part of the time since the last change after which to look again: a start that takes long
/// loses no more than that part of it.
const PART: u32 = 50;
/// The number of bytes of a table that are read: listening sockets come first, and a row has 150.
const TABLE_BYTES_MAX: usize = 64 << 10;

/// The times to look at.
pub struct Looks {
    changed: Instant,
    next: Instant,
}

impl Looks {
    pub fn new(now: Instant) -> Looks {
        Looks { changed: now, next: now }
    }

    pub fn next(&self) -> Instant {
        self.next
    }

    /// Notes a look, and whether everything listens that is to.
    pub fn looked(&mut self, now: Instant, changed: bool, complete: bool) {
        if changed {
            self.changed = now;
        }
        let since = now.saturating_duration_since(self.changed) / PART;
        let interval =
            if complete { INTERVAL_MAX } else { since.clamp(INTERVAL_MIN, INTERVAL_MAX) };
        self.next = now + interval;
    }

    /// Asks for a look at once, as something is not as it was seen last.
    pub fn doubt(&mut self, now: Instant) {
        self.next = now;
    }
}

/// Returns the ports that are listened at within.
pub fn listening(tables: &Tables, transport: Transport) -> BTreeSet<u16> {
    let tables = if transport == Transport::Tcp { &tables.tcp } else { &tables.udp };
    tables.iter().flat_map(|table| ports_in(&read(table), transport)).collect()
}

fn read(table: &File) -> String {
    let (mut bytes, mut length) = (vec![0; TABLE_BYTES_MAX], 0);
    // The kernel hands out a page at a time.
    while let Ok(count @ 1..) = table.read_at(&mut bytes[length..], length as u64) {
        length += count;
    }
    bytes.truncate(length);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_start_loses_little_and_a_quiet_network_costs_little() {
        let start = Instant::now();
        let mut looks = Looks::new(start);
        let (mut now, mut count) = (looks.next(), 0);
        while now < start + Duration::from_secs(10) {
            looks.looked(now, false, false);
            let interval = looks.next() - now;
            let elapsed = now - start;
            assert!(interval <= (elapsed / PART).max(INTERVAL_MIN), "{interval:?} at {elapsed:?}");
            (now, count) = (looks.next(), count + 1);
        }
        assert!(count < 400, "{count} looks in ten seconds");
        looks.looked(now, true, true);
        assert_eq!(looks.next(), now + INTERVAL_MAX);
        looks.doubt(now);
        assert_eq!(looks.next(), now);
        // A port that was let go of is about to come back.
        looks.looked(now, true, false);
        assert_eq!(looks.next(), now + INTERVAL_MIN);
    }

    #[test]
    fn a_table_that_is_held_open_is_read_anew() {
        let open = |name: &str| File::open(format!("/proc/self/net/{name}")).unwrap();
        let tables = Tables { tcp: vec![open("tcp")], udp: vec![open("udp")] };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let ports = [
            (Transport::Tcp, listener.local_addr().unwrap().port()),
            (Transport::Udp, datagrams.local_addr().unwrap().port()),
        ];
        for (transport, port) in ports {
            assert!(listening(&tables, transport).contains(&port));
        }
        drop((listener, datagrams));
        for (transport, port) in ports {
            assert!(!listening(&tables, transport).contains(&port));
        }
    }
}
