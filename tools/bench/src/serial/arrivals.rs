//! Requests that arrive when they are due, whether or not earlier ones were answered, so that no
//! wait hides another (coordinated omission). Latency counts from when a request was due.

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::client::Client;
use super::instances::{sleeping, sleeping_about};
use crate::interrupted::Interrupted;
use crate::poisson::{Poisson, chance};
use crate::statistics::Latencies;

/// How long requests may still take after the end; those that take longer count as failed.
const OVERTIME_MAX: Duration = Duration::from_secs(60);
/// The pause between two checks for an interruption.
const POLL: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub struct Mix {
    pub quick: Duration,
    pub slow: Duration,
    pub slow_fraction: f64,
    pub instances: usize,
    /// The part that is asked of what all instances could do.
    pub load: f64,
    pub time: Duration,
    pub seed: u64,
    /// Whether each request has a target of its own, which does not tell quick ones from slow.
    pub alike: bool,
}

#[derive(Debug, Default)]
pub struct Seen {
    pub quick: Latencies,
    pub slow: Latencies,
    pub failed: usize,
}

/// The time at which a request arrives, and whether it is slow.
type Arrival = (Duration, bool);

impl Mix {
    /// Returns the requests per second.
    pub fn rate(&self) -> f64 {
        let slow = self.slow.as_secs_f64() * self.slow_fraction;
        let mean = slow + self.quick.as_secs_f64() * (1.0 - self.slow_fraction);
        self.load * self.instances as f64 / mean
    }

    fn target(&self, number: usize, is_slow: bool) -> String {
        let time = if is_slow { self.slow } else { self.quick };
        match self.alike {
            true => format!("{}/{number}", sleeping_about(time, 0)),
            false => sleeping(time),
        }
    }

    fn arrivals(&self) -> impl Iterator<Item = Arrival> + use<> {
        let Mix { time, slow_fraction, seed, .. } = *self;
        let within = Poisson::new(seed, self.rate()).take_while(move |at| *at < time);
        // Another seed is used: which requests are slow must not depend on when they arrive.
        let is_slow = move |number| chance(!seed, number) < slow_fraction;
        within.zip(0..).map(move |(at, number)| (at, is_slow(number)))
    }
}

pub fn run(mix: &Mix, port: u16, interrupted: &Interrupted) -> anyhow::Result<Seen> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let seen = Rc::new(RefCell::new(Seen::default()));
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let mut asked = JoinSet::new();
        let start = Instant::now();
        for (number, (due, is_slow)) in mix.arrivals().enumerate() {
            let due = start + due;
            while Instant::now() < due {
                interrupted.check()?;
                tokio::time::sleep_until(due.min(Instant::now() + POLL)).await;
            }
            let (path, seen) = (mix.target(number, is_slow), seen.clone());
            asked.spawn_local(async move {
                let answered = Client::new(port, Ipv4Addr::LOCALHOST).ask(&path).await;
                let mut seen = seen.borrow_mut();
                match answered {
                    Ok(200) if is_slow => seen.slow.add(due.elapsed()),
                    Ok(200) => seen.quick.add(due.elapsed()),
                    _ => seen.failed += 1,
                }
            });
        }
        let last = start + mix.time + OVERTIME_MAX;
        while !asked.is_empty() && Instant::now() < last {
            interrupted.check()?;
            tokio::time::timeout(POLL, asked.join_next()).await.ok();
        }
        seen.borrow_mut().failed += asked.len();
        asked.shutdown().await;
        Ok::<_, anyhow::Error>(())
    })?;
    Ok(seen.take())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_as_many_and_as_slow_as_asked_for_and_the_same_each_time() {
        let mix = Mix {
            quick: Duration::from_millis(5),
            slow: Duration::from_secs(1),
            slow_fraction: 0.05,
            instances: 10,
            load: 0.7,
            time: Duration::from_secs(100),
            seed: 7,
            alike: false,
        };
        assert_eq!(mix.target(0, true), "/sleep/1000000");
        assert_eq!(Mix { alike: true, ..mix.clone() }.target(9, false), "/sleep/5000/0/9");
        // The rate of 7 instances with requests of 54.75 ms each.
        assert_eq!(mix.rate().round(), 128.0);
        let arrivals: Vec<_> = mix.arrivals().collect();
        assert!(mix.arrivals().eq(arrivals.iter().copied()));
        assert!((12_000..13_600).contains(&arrivals.len()), "{}", arrivals.len());
        let slow = arrivals.iter().filter(|(_, is_slow)| *is_slow).count();
        assert!((500..780).contains(&slow), "{slow}");
        assert!(arrivals.is_sorted_by_key(|(at, _)| *at));
        let other = Mix { seed: 8, ..mix };
        assert!(!other.arrivals().eq(arrivals));
    }
}
