//! The thesis's test of reliability (its section 6.2): four nodes run twelve instances, and `ab`
//! asks for a page 10,000 times; then it does the same while nodes are killed and started again.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::anyhow;
use serde::Serialize;

use super::ab::{self, Run, Served};
use super::cluster::{Cluster, project};
use super::kills::{ENTRY, Kill, Killer};
use super::{AGENTS, Plan};
use crate::interrupted::Interrupted;

pub const INSTANCES: usize = 12;
const NAME: &str = "page";

/// The figures at one number of requests at a time.
#[derive(Debug, Serialize)]
pub struct Level {
    pub concurrency: usize,
    pub calm: Served,
    /// The figures while nodes were killed: complete runs, until the last node was back.
    pub killed: Served,
    pub kills: Vec<Kill>,
}

pub fn measure(
    plan: &Plan,
    directory: &Path,
    interrupted: &Interrupted,
) -> anyhow::Result<Vec<Level>> {
    let program = ab::program()?;
    let mut cluster = Cluster::start(&directory.join("thesis"), &AGENTS, interrupted)?;
    let project = project(directory, NAME, INSTANCES, std::time::Duration::ZERO)?;
    cluster.push(ENTRY, &project)?;
    cluster.await_quiet(NAME, INSTANCES)?;
    let (host, times) = (format!("{NAME}.localhost"), directory.join("times.tsv"));
    let address = cluster.http(ENTRY);
    let mut levels = Vec::new();
    for (place, concurrency) in plan.concurrency.iter().copied().enumerate() {
        let requests = plan.requests;
        let run =
            Run { program: &program, address, host: &host, requests, concurrency, times: &times };
        eprintln!("{requests} requests by ab, {concurrency} at a time");
        let calm = run.perform(interrupted)?;
        eprintln!("the same, while nodes are killed {} times", plan.kills);
        let seed = plan.seed.wrapping_add(place as u64);
        let mut killer = Killer::new(&mut cluster, NAME, INSTANCES, seed);
        let (killed, kills) = under_kills(&run, plan.kills, &mut killer, interrupted)?;
        levels.push(Level { concurrency, calm, killed, kills });
    }
    Ok(levels)
}

fn under_kills(
    run: &Run<'_>,
    count: u32,
    killer: &mut Killer<'_>,
    interrupted: &Interrupted,
) -> anyhow::Result<(Served, Vec<Kill>)> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut all = Served::default();
            loop {
                all.add(run.perform(interrupted)?);
                if done.load(Ordering::Relaxed) {
                    return anyhow::Ok(all);
                }
            }
        });
        let kills: anyhow::Result<Vec<Kill>> = (0..count).map(|_| killer.lose_node(None)).collect();
        done.store(true, Ordering::Relaxed);
        let served = load.join().map_err(|_| anyhow!("the load panicked"))?;
        let kills = kills?;
        Ok((served?, kills))
    })
}
