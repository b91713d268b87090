//! Work that keeps a processor busy, on one instance and on several: together they should do as
//! many times the work as there are of them, up to the cores of the machine, and no less beyond.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::task::JoinSet;

use super::client::Client;
use super::front::{Fronts, HaproxyQueues};
use super::instances::{Instances, steps_in, working};
use crate::bench::interrupted::Interrupted;
use crate::bench::process;

/// Of one request: what a page of a web application takes.
const WORK: Duration = Duration::from_millis(10);
const COUNTS: [usize; 3] = [1, 2, 4];
/// So that an instance that has answered always finds the next request.
const CLIENTS_PER_INSTANCE: usize = 2;

#[derive(Clone, Debug, Serialize)]
pub struct Computing {
    pub instances: usize,
    pub cores: usize,
    pub requests_per_second: f64,
    /// Of one instance's, times the instances that have a core.
    pub efficiency: f64,
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
            haproxy_queues: HaproxyQueues::Nowhere,
            interrupted,
        };
        let front = fronts.cortex()?;
        let (requests, failed) = ask(front.port, count, &working(steps), time)?;
        interrupted.check()?;
        let requests_per_second = requests as f64 / time.as_secs_f64();
        let one = all.first().map_or(requests_per_second, |one| one.requests_per_second);
        let efficiency = requests_per_second / (one * count.min(cores) as f64);
        let instances = count;
        all.push(Computing { instances, cores, requests_per_second, efficiency, failed });
    }
    Ok(all)
}

/// Requests answered within that time, and those that failed.
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
