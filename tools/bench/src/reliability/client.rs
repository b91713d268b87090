//! The outside client: callers in a closed loop that number their requests. Each number must get
//! exactly one right answer. A caller that knows one address repeats nothing; one that knows
//! several goes to the next when its connection is cut or refused, and asks the same again there.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use serde::Serialize;

use super::connection::{Answer, Connection, Fault};
use crate::statistics::Latencies;

/// The number of connections for each known address after which a number is given up.
const TRIES_PER_ADDRESS_MAX: usize = 3;
/// The number of failures that are kept, enough to tell what went wrong; all are counted.
const FAILURES_KEPT: usize = 1000;
const FAILURES_SHOWN: usize = 20;

pub struct Load {
    shared: Arc<Shared>,
    started: Instant,
    callers: Vec<JoinHandle<Latencies>>,
}

struct Shared {
    host: String,
    targets: Vec<SocketAddr>,
    stopped: AtomicBool,
    next: AtomicU64,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    answered: u64,
    repeated: u64,
    failed: u64,
    failures: Vec<Failure>,
    first_answers: BTreeMap<String, Instant>,
}

#[derive(Clone, Debug)]
struct Failure {
    number: u64,
    sent: Instant,
    ended: Instant,
    why: String,
}

/// The outcome of all numbered requests.
#[derive(Clone, Debug, Serialize)]
pub struct Window {
    pub requests: u64,
    pub answered: u64,
    pub failed: u64,
    /// The number of failed requests that were under way at the moment when something was killed.
    pub failed_on_the_wire: u64,
    /// The number of connections that were cut or refused, after which the same was asked
    /// elsewhere.
    pub repeated: u64,
    pub seconds: f64,
    pub per_second: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub failures: Vec<String>,
}

impl Load {
    pub fn start(host: &str, targets: &[SocketAddr], callers: usize) -> Load {
        let shared = Arc::new(Shared {
            host: host.into(),
            targets: targets.into(),
            stopped: AtomicBool::new(false),
            next: AtomicU64::new(0),
            seen: Mutex::default(),
        });
        let started = Instant::now();
        let callers = (0..callers).map(|caller| {
            let shared = shared.clone();
            std::thread::spawn(move || shared.call(caller))
        });
        Load { started, callers: callers.collect(), shared }
    }

    /// Returns when that process first answered.
    pub fn first_answer(&self, process: &str) -> Option<Instant> {
        self.shared.seen().first_answers.get(process).copied()
    }

    pub fn answered(&self) -> u64 {
        self.shared.seen().answered
    }

    /// Stops the callers and sums up; `kills` are the moments at which something was killed.
    pub fn finish(mut self, kills: &[Instant]) -> Window {
        self.shared.stopped.store(true, Ordering::Relaxed);
        let mut latencies = Latencies::default();
        for caller in self.callers.drain(..) {
            latencies.append(caller.join().unwrap_or_default());
        }
        let seconds = self.started.elapsed().as_secs_f64();
        let seen = self.shared.seen();
        let [p50_ms, p99_ms] = latencies.percentiles_ms([0.5, 0.99]).unwrap_or([f64::NAN; 2]);
        let on_the_wire =
            |failure: &&Failure| kills.iter().any(|at| failure.sent <= *at && *at <= failure.ended);
        Window {
            requests: self.shared.next.load(Ordering::Relaxed),
            answered: seen.answered,
            failed: seen.failed,
            failed_on_the_wire: seen.failures.iter().filter(on_the_wire).count() as u64,
            repeated: seen.repeated,
            seconds,
            per_second: seen.answered as f64 / seconds,
            p50_ms,
            p99_ms,
            failures: seen
                .failures
                .iter()
                .take(FAILURES_SHOWN)
                .map(|failure| {
                    let at = failure.sent.saturating_duration_since(self.started).as_secs_f64();
                    format!("request {} at {at:.3} s: {}", failure.number, failure.why)
                })
                .collect(),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        for caller in self.callers.drain(..) {
            caller.join().ok();
        }
    }
}

impl Window {
    /// Returns the number of failures that no kill explains.
    pub fn unexplained(&self) -> u64 {
        self.failed - self.failed_on_the_wire.min(self.failed)
    }
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(&self, caller: usize) -> Latencies {
        let mut latencies = Latencies::default();
        let (mut at, mut connection) = (caller % self.targets.len(), None);
        while !self.stopped.load(Ordering::Relaxed) {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let sent = Instant::now();
            match self.ask(number, &mut at, &mut connection) {
                Ok(answer) => {
                    latencies.add(sent.elapsed());
                    let mut seen = self.seen();
                    seen.answered += 1;
                    seen.first_answers.entry(answer.process).or_insert_with(Instant::now);
                }
                Err(why) => {
                    connection = None;
                    let mut seen = self.seen();
                    seen.failed += 1;
                    if seen.failures.len() < FAILURES_KEPT {
                        let ended = Instant::now();
                        seen.failures.push(Failure { number, sent, ended, why });
                    }
                }
            }
        }
        latencies
    }

    fn ask(
        &self,
        number: u64,
        at: &mut usize,
        connection: &mut Option<Connection>,
    ) -> Result<Answer, String> {
        let tries = match self.targets.len() {
            1 => 1,
            several => several * TRIES_PER_ADDRESS_MAX,
        };
        let mut faults = Vec::new();
        for _ in 0..tries {
            let target = self.targets[*at];
            match Connection::ask(connection, target, &self.host, number) {
                Ok(answer) => return Ok(answer),
                Err(Fault::Wrong(why)) => return Err(format!("{target}: {why}")),
                Err(Fault::Cut(why)) => {
                    *connection = None;
                    faults.push(format!("{target}: {why}"));
                    if self.targets.len() > 1 {
                        *at = (*at + 1) % self.targets.len();
                        self.seen().repeated += 1;
                    }
                }
            }
        }
        Err(faults.join("; "))
    }
}
