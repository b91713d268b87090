//! The two clients: one asks one request at a time, the other floods from a thread of its own, so
//! that the quiet one's clock does not wait for it.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::ensure;
use tokio::task::JoinSet;

use crate::interrupted::Interrupted;
use crate::serial::client::Client;
use crate::statistics::Latencies;

const QUIET: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const LOUD: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
/// The time limit for every connection of the flood to have asked.
const FLOOD_TIME_MAX: Duration = Duration::from_secs(60);
/// The pause before a client that was turned away asks again, as short as a careless program's.
const TURNED_AWAY_PAUSE: Duration = Duration::from_millis(10);
/// How long a request that is under way at the end may still take; one that takes longer has
/// failed, and its wait counts as a latency.
const LAST_TIME_MAX: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
pub struct Quiet {
    pub latencies: Latencies,
    pub failed: usize,
}

/// Asks one request after the other for `time`, and at least one.
pub fn ask_quietly(
    port: u16,
    path: &str,
    time: Duration,
    interrupted: &Interrupted,
) -> anyhow::Result<Quiet> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut client, mut quiet) = (Client::new(port, QUIET), Quiet::default());
        let end = Instant::now() + time;
        loop {
            interrupted.check()?;
            let asked = Instant::now();
            let asking = tokio::time::timeout_at((end + LAST_TIME_MAX).into(), client.ask(path));
            match asking.await {
                Ok(Ok(200)) => quiet.latencies.add(asked.elapsed()),
                Err(_) => {
                    quiet.latencies.add(asked.elapsed());
                    quiet.failed += 1;
                    return Ok(quiet);
                }
                Ok(_) => {
                    quiet.failed += 1;
                    tokio::time::sleep(TURNED_AWAY_PAUSE).await;
                }
            }
            if Instant::now() >= end {
                return Ok(quiet);
            }
        }
    })
}

#[derive(Debug, Default)]
struct Counts {
    asking: AtomicUsize,
    answered: AtomicUsize,
    turned_away: AtomicUsize,
    stopped: AtomicBool,
}

pub struct Flood {
    counts: Arc<Counts>,
    connections: usize,
    thread: JoinHandle<()>,
}

#[derive(Clone, Copy, Debug)]
pub struct Flooded {
    pub answered: usize,
    pub turned_away: usize,
}

impl Flood {
    pub fn start(port: u16, path: &str, connections: usize) -> anyhow::Result<Flood> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let counts = Arc::new(Counts::default());
        let (shared, path) = (counts.clone(), path.to_owned());
        let body = move || {
            runtime.block_on(async {
                let mut clients = JoinSet::new();
                for _ in 0..connections {
                    clients.spawn(go_on_asking(port, path.clone(), shared.clone()));
                }
                while !shared.stopped.load(Ordering::Relaxed) {
                    tokio::time::sleep(POLL).await;
                }
                clients.shutdown().await;
            });
        };
        let thread = std::thread::Builder::new().name("flood".into()).spawn(body)?;
        Ok(Flood { counts, connections, thread })
    }

    /// Waits until every connection of the flood has asked.
    pub fn reached(&self, interrupted: &Interrupted) -> anyhow::Result<()> {
        let end = Instant::now() + FLOOD_TIME_MAX;
        while self.counts.asking.load(Ordering::Relaxed) < self.connections {
            interrupted.check()?;
            ensure!(Instant::now() < end, "the flood's connections were not made in time");
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    pub fn stop(self) -> Flooded {
        self.counts.stopped.store(true, Ordering::Relaxed);
        self.thread.join().ok();
        Flooded {
            answered: self.counts.answered.load(Ordering::Relaxed),
            turned_away: self.counts.turned_away.load(Ordering::Relaxed),
        }
    }
}

async fn go_on_asking(port: u16, path: String, counts: Arc<Counts>) {
    let mut client = Client::new(port, LOUD);
    counts.asking.fetch_add(1, Ordering::Relaxed);
    loop {
        match client.ask(&path).await {
            Ok(200) => drop(counts.answered.fetch_add(1, Ordering::Relaxed)),
            _ => {
                counts.turned_away.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(TURNED_AWAY_PAUSE).await;
            }
        }
    }
}
