//! The benchmark of work that keeps a processor busy, on one instance and on several: together they
//! should do as many times the work as there are of them, up to the cores of the machine, and no
//! less beyond. Two threads of one core do less than twice the work of one, so they are compared
//! with the same work without anybody in between.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::task::JoinSet;

use super::client::Client;
use super::front::{Fronts, HaproxyQueues, SERIAL};
use super::instances::{Instances, steps_in, work, working};
use crate::interrupted::Interrupted;
use crate::process;

/// The work of one request: as much as a page of a web application takes.
const WORK: Duration = Duration::from_millis(10);
const COUNTS: [usize; 3] = [1, 2, 4];
/// The number of clients per instance, so that one that has answered always finds the next request.
const CLIENTS_PER_INSTANCE: usize = 2;

#[derive(Clone, Debug, Serialize)]
pub struct Computing {
    pub instances: usize,
    pub cores: usize,
    pub requests_per_second: f64,
    /// The rate of as many threads that only compute.
    pub alone_per_second: f64,
    /// The rate as a fraction of one instance's, times the instances that have a core.
    pub efficiency: f64,
    /// The gain over one instance as a fraction of what as many threads gain that only compute.
    pub of_gain: f64,
    pub failed: usize,
}

pub fn run(
    directory: &Path,
    time: Duration,
    interrupted: &Interrupted,
) -> anyhow::Result<Vec<Computing>> {
    let (cores, steps) = (process::cores()?.len(), steps_in(WORK));
    let mut all: Vec<Computing> = Vec::new();
    for count in COUNTS {
        eprintln!("computing on {count}");
        let instances = Instances::start(count)?;
        let fronts = Fronts {
            directory,
            instances: &instances.ports,
            configurations: SERIAL,
            haproxy_queues: HaproxyQueues::Nowhere,
            interrupted,
        };
        let front = fronts.cortex()?;
        let (requests, failed) = ask(front.port, count, &working(steps), time)?;
        interrupted.check()?;
        let alone_per_second = alone(count, steps, time / 2);
        let requests_per_second = requests as f64 / time.as_secs_f64();
        let first = all.first().map(|one| (one.requests_per_second, one.alone_per_second));
        let (one, one_alone) = first.unwrap_or((requests_per_second, alone_per_second));
        let gain = requests_per_second / one;
        all.push(Computing {
            instances: count,
            cores,
            requests_per_second,
            alone_per_second,
            efficiency: gain / count.min(cores) as f64,
            of_gain: gain / (alone_per_second / one_alone),
            failed,
        });
    }
    Ok(all)
}

/// Returns how often so many threads together do the work each second.
fn alone(threads: usize, steps: u64, time: Duration) -> f64 {
    let started = Instant::now();
    let compute = || {
        let mut count = 0_u64;
        while started.elapsed() < time {
            work(steps);
            count += 1;
        }
        count
    };
    let count: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(compute)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).sum()
    });
    count as f64 / started.elapsed().as_secs_f64()
}

/// Returns the number of requests answered within that time, and of those that failed.
fn ask(port: u16, instances: usize, path: &str, time: Duration) -> anyhow::Result<(usize, usize)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut clients, deadline) = (JoinSet::new(), Instant::now() + time);
        for _ in 0..CLIENTS_PER_INSTANCE * instances {
            let path = path.to_owned();
            clients.spawn(async move {
                let (mut client, mut counts) = (Client::new(port, Ipv4Addr::LOCALHOST), (0, 0));
                loop {
                    let answered = client.ask(&path).await;
                    match answered {
                        _ if Instant::now() >= deadline => return counts,
                        Ok(200) => counts.0 += 1,
                        _ => counts.1 += 1,
                    }
                }
            });
        }
        let mut sum = (0, 0);
        while let Some(counts) = clients.join_next().await {
            let counts = counts?;
            sum = (sum.0 + counts.0, sum.1 + counts.1);
        }
        Ok(sum)
    })
}
