//! The traffic of applications' own ports, counted while it moves by the threads that pass it on;
//! they share the counters of a port. Counters live as long as somebody holds them: a snapshot that
//! has the port, or something that is open on it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use model::{ApplicationName, PortId};

use super::text::heading;

/// The minimum number of counters at which those that nobody holds are swept; so few cost nothing.
/// The next sweep comes at twice the number that was left: one at each new port would take long
/// where there are thousands.
const SWEEP_FROM: usize = 64;

/// The counters of one application and public port.
#[derive(Debug, Default)]
pub struct PortCounters {
    taken: AtomicU64,
    open: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    refused: AtomicU64,
}

/// The values of the counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub connections: u64,
    pub open: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub refused: u64,
}

/// A connection or flow that an instance has, until it is dropped.
#[derive(Debug)]
pub struct CountedFlow(Arc<PortCounters>);

impl PortCounters {
    pub fn take(self: &Arc<PortCounters>) -> CountedFlow {
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
        CountedFlow(self.clone())
    }

    /// Counts a connection that no instance takes.
    pub fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub fn traffic(&self) -> Traffic {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Traffic {
            connections: count(&self.taken),
            open: count(&self.open),
            bytes_in: count(&self.bytes_in),
            bytes_out: count(&self.bytes_out),
            refused: count(&self.refused),
        }
    }
}

impl CountedFlow {
    pub fn bytes_in(&self, count: u64) {
        self.0.bytes_in.fetch_add(count, Ordering::Relaxed);
    }

    pub fn bytes_out(&self, count: u64) {
        self.0.bytes_out.fetch_add(count, Ordering::Relaxed);
    }
}

impl Drop for CountedFlow {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A series: its name, its kind, its help text, and how to read its value.
type Series = (&'static str, &'static str, &'static str, fn(&Traffic) -> u64);

const SERIES: [Series; 5] = [
    (
        "cortex_port_connections_total",
        "counter",
        "Connections, or flows of datagrams, that an instance has taken",
        |traffic| traffic.connections,
    ),
    ("cortex_port_connections_open", "gauge", "Those that are there", |traffic| traffic.open),
    ("cortex_port_bytes_in_total", "counter", "Bytes from clients", |traffic| traffic.bytes_in),
    ("cortex_port_bytes_out_total", "counter", "Bytes to clients", |traffic| traffic.bytes_out),
    (
        "cortex_port_refused_total",
        "counter",
        "Connections that no instance took, and datagrams without a flow",
        |traffic| traffic.refused,
    ),
];

/// All counters that somebody holds.
#[derive(Default)]
pub struct PortCounterTable {
    counters: BTreeMap<(ApplicationName, PortId), Weak<PortCounters>>,
    /// The number of counters at which the next sweep comes.
    sweep_at: usize,
}

impl PortCounterTable {
    /// Returns the existing counters, or new ones.
    pub fn counters(&mut self, application: &ApplicationName, id: PortId) -> Arc<PortCounters> {
        let key = (application.clone(), id);
        if let Some(counters) = self.counters.get(&key).and_then(Weak::upgrade) {
            return counters;
        }
        if self.counters.len() >= self.sweep_at {
            self.counters.retain(|_, counters| counters.strong_count() > 0);
            self.sweep_at = (2 * self.counters.len()).max(SWEEP_FROM);
        }
        let counters = Arc::default();
        self.counters.insert(key, Arc::downgrade(&counters));
        counters
    }

    /// Returns the counters in the text format of Prometheus.
    pub fn prometheus(&self) -> String {
        let mut out = String::new();
        // Writing to memory cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let held = self.counters.iter().filter_map(|(key, counters)| {
            let traffic = counters.upgrade()?.traffic();
            Some((key, traffic))
        });
        let held: Vec<_> = held.collect();
        for (name, kind, help, value) in SERIES {
            heading(out, name, kind, help)?;
            for ((app, PortId { port, transport }), traffic) in &held {
                let value = value(traffic);
                writeln!(
                    out,
                    "{name}{{application=\"{app}\",port=\"{port}\",protocol=\"{transport}\"}} \
                     {value}"
                )?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shop() -> ApplicationName {
        "shop".parse().unwrap()
    }

    #[test]
    fn what_moves_counts_at_once_and_what_is_open_until_it_ends() {
        let mut ports = PortCounterTable::default();
        let counters = ports.counters(&shop(), PortId::tcp(1883));
        let (one, other) = (counters.take(), counters.take());
        one.bytes_in(3);
        other.bytes_in(4);
        one.bytes_out(5);
        counters.refuse();
        let there = Traffic { connections: 2, open: 2, bytes_in: 7, bytes_out: 5, refused: 1 };
        assert_eq!(counters.traffic(), there);
        drop(one);
        assert_eq!(counters.traffic(), Traffic { open: 1, ..there });
        let labels = "{application=\"shop\",port=\"1883\",protocol=\"tcp\"}";
        let expected = format!(
            "# HELP cortex_port_connections_total Connections, or flows of datagrams, that an \
             instance has taken\n\
             # TYPE cortex_port_connections_total counter\n\
             cortex_port_connections_total{labels} 2\n\
             # HELP cortex_port_connections_open Those that are there\n\
             # TYPE cortex_port_connections_open gauge\n\
             cortex_port_connections_open{labels} 1\n\
             # HELP cortex_port_bytes_in_total Bytes from clients\n\
             # TYPE cortex_port_bytes_in_total counter\n\
             cortex_port_bytes_in_total{labels} 7\n\
             # HELP cortex_port_bytes_out_total Bytes to clients\n\
             # TYPE cortex_port_bytes_out_total counter\n\
             cortex_port_bytes_out_total{labels} 5\n\
             # HELP cortex_port_refused_total Connections that no instance took, and datagrams \
             without a flow\n\
             # TYPE cortex_port_refused_total counter\n\
             cortex_port_refused_total{labels} 1\n"
        );
        assert_eq!(ports.prometheus(), expected);
    }

    #[test]
    fn counters_are_those_of_before_for_as_long_as_somebody_holds_them() {
        let mut ports = PortCounterTable::default();
        let (tcp, udp) = (PortId::tcp(53), PortId::udp(53));
        let (release, other) = (ports.counters(&shop(), tcp), ports.counters(&shop(), udp));
        let open = release.take();
        drop(release);
        let next = ports.counters(&shop(), tcp);
        assert_eq!((next.traffic().connections, other.traffic().connections), (1, 0));
        // The application is gone, and one of its connections is not.
        drop((next, other));
        let text = ports.prometheus();
        assert!(
            text.contains("connections_open{application=\"shop\",port=\"53\",protocol=\"tcp\"} 1")
        );
        assert!(!text.contains("udp"), "{text}");
        drop(open);
        assert!(!ports.prometheus().contains("shop"));
        assert_eq!(ports.counters(&shop(), tcp).traffic(), Traffic::default(), "they begin anew");
    }

    #[test]
    fn ports_that_come_and_go_leave_nothing_behind() {
        let mut ports = PortCounterTable::default();
        let held: Vec<_> =
            (1..=100).map(|port| ports.counters(&shop(), PortId::tcp(port))).collect();
        for port in 101..=10_000 {
            ports.counters(&shop(), PortId::tcp(port));
        }
        assert!(ports.counters.len() <= 2 * held.len(), "{}", ports.counters.len());
        assert_eq!(ports.prometheus().lines().count(), SERIES.len() * (2 + held.len()));
    }
}
