//! Requests that become more and more frequent, whether or not earlier ones were answered. Latency
//! counts from when a request was due, so that no wait hides another.

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::interrupted::Interrupted;
use crate::poisson::Poisson;
use crate::serial::client::Client;
use crate::statistics::Latencies;

/// The parts of a ramp that are told apart.
pub const SLICES: usize = 10;
/// The time limit for an answer: nobody waits longer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// The time for which a connection is kept for another request: servers keep them longer.
const KEPT_MAX: Duration = Duration::from_secs(1);
/// The pause between two checks for an interruption.
const POLL: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub struct Ramp {
    /// The requests per second at its end; there are none at its beginning.
    pub peak: f64,
    pub time: Duration,
    pub seed: u64,
}

/// A part of the ramp, as its clients saw it.
#[derive(Clone, Debug, Default)]
struct Slice {
    /// Requests that were due in it.
    asked: usize,
    /// Answers that came in it, whenever they were asked for.
    came: usize,
    /// Latencies of the requests that were due in it.
    latencies: Latencies,
    failed: usize,
}

/// What is reported of a part of the ramp.
#[derive(Clone, Debug, Serialize)]
pub struct SliceFigures {
    /// The requests per second that were due, on average.
    pub asked_per_second: f64,
    /// The answers per second that came meanwhile.
    pub answered_per_second: f64,
    /// `None` without answers.
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    /// Requests without an answer, or another one than 200, or none in time.
    pub failed: usize,
}

#[derive(Clone, Debug, Serialize)]
pub struct Seen {
    pub slices: Vec<SliceFigures>,
    asked: usize,
    answered: usize,
}

impl Seen {
    #[cfg(test)]
    pub fn of(slices: Vec<SliceFigures>) -> Seen {
        Seen { slices, asked: 0, answered: 0 }
    }

    pub fn answered(&self) -> usize {
        self.answered
    }
}

impl Ramp {
    /// Yields the times at which requests are due: as independent users make them, ever more often.
    fn arrivals(&self) -> impl Iterator<Item = Duration> + use<> {
        let (peak, time) = (self.peak, self.time);
        // With a rate that rises in proportion to time, their number rises with its square.
        let due = move |number: Duration| {
            let seconds = 2.0 * time.as_secs_f64() * number.as_secs_f64() / peak;
            Duration::from_secs_f64(seconds.sqrt())
        };
        Poisson::new(self.seed, 1.0).map(due).take_while(move |at| *at < time)
    }

    fn slice(&self, at: Duration) -> usize {
        let slice = at.as_secs_f64() / self.time.as_secs_f64() * SLICES as f64;
        (slice as usize).min(SLICES - 1)
    }

    fn figures(&self, slices: Vec<Slice>) -> Seen {
        let seconds = self.time.as_secs_f64() / SLICES as f64;
        let asked = slices.iter().map(|slice| slice.asked).sum();
        let answered = slices.iter().map(|slice| slice.latencies.len()).sum();
        let figures = slices.into_iter().map(|slice| {
            let found = slice.latencies.percentiles_ms([0.5, 0.99]);
            SliceFigures {
                asked_per_second: slice.asked as f64 / seconds,
                answered_per_second: slice.came as f64 / seconds,
                p50_ms: found.map(|[p50, _]| p50),
                p99_ms: found.map(|[_, p99]| p99),
                failed: slice.failed,
            }
        });
        Seen { slices: figures.collect(), asked, answered }
    }
}

/// Connections that nobody uses at the moment, the one that was used last at the end.
#[derive(Default)]
struct Kept(Vec<(Client, Instant)>);

impl Kept {
    fn take(&mut self, port: u16) -> Client {
        match self.0.pop() {
            Some((client, since)) if since.elapsed() <= KEPT_MAX => client,
            // Those below were used even before.
            _ => {
                self.0.clear();
                Client::new(port, Ipv4Addr::LOCALHOST)
            }
        }
    }
}

pub fn run(
    ramp: &Ramp,
    port: u16,
    path: &'static str,
    interrupted: &Interrupted,
) -> anyhow::Result<Seen> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let slices = Rc::new(RefCell::new(vec![Slice::default(); SLICES]));
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let (mut asked, kept) = (JoinSet::new(), Rc::new(RefCell::new(Kept::default())));
        let start = Instant::now();
        for at in ramp.arrivals() {
            let due = start + at;
            while Instant::now() < due {
                interrupted.check()?;
                tokio::time::sleep_until(due.min(Instant::now() + POLL)).await;
            }
            while asked.try_join_next().is_some() {}
            let (slices, kept, ramp) = (slices.clone(), kept.clone(), ramp.clone());
            slices.borrow_mut()[ramp.slice(at)].asked += 1;
            asked.spawn_local(async move {
                let mut client = kept.borrow_mut().take(port);
                let answered = tokio::time::timeout(ANSWER_TIME_MAX, client.ask(path)).await;
                let mut slices = slices.borrow_mut();
                if !matches!(answered, Ok(Ok(200))) {
                    slices[ramp.slice(at)].failed += 1;
                    return;
                }
                kept.borrow_mut().0.push((client, Instant::now()));
                slices[ramp.slice(at)].latencies.add(due.elapsed());
                if start.elapsed() < ramp.time {
                    slices[ramp.slice(start.elapsed())].came += 1;
                }
            });
        }
        // Each ends by itself, at its time limit at the latest.
        while !asked.is_empty() {
            interrupted.check()?;
            tokio::time::timeout(POLL, asked.join_next()).await.ok();
        }
        Ok::<_, anyhow::Error>(())
    })?;
    Ok(ramp.figures(slices.take()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_become_more_frequent_in_proportion_to_time() {
        let ramp = Ramp { peak: 1_000.0, time: Duration::from_secs(20), seed: 3 };
        let mut counts = [0; SLICES];
        ramp.arrivals().for_each(|at| counts[ramp.slice(at)] += 1);
        let sum: usize = counts.iter().sum();
        assert!((9_700..10_300).contains(&sum), "{sum}");
        // Two seconds each, of 50, 150, and so on to 950 requests a second.
        for (index, count) in counts.into_iter().enumerate() {
            let expected = 100.0 + 200.0 * index as f64;
            assert!(
                (f64::from(count as u32) - expected).abs() < 0.15 * expected + 30.0,
                "{counts:?}"
            );
        }
        assert!(ramp.arrivals().is_sorted());
        assert!(ramp.arrivals().eq(ramp.arrivals()));
    }

    #[test]
    fn what_is_answered_is_counted_and_what_is_not_has_failed() {
        let remote = super::super::remote::start(Duration::from_millis(5)).unwrap();
        let ramp = Ramp { peak: 200.0, time: Duration::from_secs(1), seed: 1 };
        let seen = run(&ramp, remote.port, "/", &Interrupted::default()).unwrap();
        assert!(seen.asked > 50 && seen.answered() == seen.asked, "{seen:?}");
        assert!(seen.slices[SLICES - 1].p50_ms.unwrap() >= 5.0, "{seen:?}");
        let port = remote.port;
        drop(remote);
        let seen = run(&ramp, port, "/", &Interrupted::default()).unwrap();
        let failed: usize = seen.slices.iter().map(|slice| slice.failed).sum();
        assert_eq!((seen.answered(), failed), (0, seen.asked));
    }
}
