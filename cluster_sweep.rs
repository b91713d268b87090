//! Many seeded histories of clusters. `SIM_SEEDS` says how many, `CLUSTER_SEED` replays one and
//! prints it step by step.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use sim::cluster::fault::{Counts, Fault};
use sim::cluster::operator;
use sim::cluster::world::World;

const SEEDS: u64 = 2000;

/// One history; what broke, if anything did.
fn history(seed: u64, tracing: bool) -> Result<Counts, String> {
    let mut world = World::new(seed);
    world.tracing = tracing;
    let result = catch_unwind(AssertUnwindSafe(|| operator::live(&mut world)));
    if tracing {
        println!("{}", world.trace.join("\n"));
    }
    result.map(|()| world.counts.clone()).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into()))
            .unwrap_or_else(|| "a panic without a message".into())
    })
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// The first history that breaks, or what went wrong in all of them.
fn sweep(seeds: u64, prepare: impl Fn() + Sync) -> Result<Counts, (u64, String)> {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let (next, broken_at) = (AtomicU64::new(0), AtomicU64::new(seeds));
    let part = || {
        prepare();
        let mut counts = Counts::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= broken_at.load(Ordering::Relaxed) {
                return Ok(counts);
            }
            match history(seed, false) {
                Ok(history) => history
                    .into_iter()
                    .for_each(|(fault, count)| *counts.entry(fault).or_default() += count),
                Err(error) => {
                    broken_at.fetch_min(seed, Ordering::Relaxed);
                    return Err((seed, error));
                }
            }
        }
    };
    let mut counts = Counts::new();
    let mut broken: Option<(u64, String)> = None;
    std::thread::scope(|scope| {
        let parts: Vec<_> = (0..threads).map(|_| scope.spawn(part)).collect();
        for part in parts {
            match part.join().expect("a part returns") {
                Ok(part) => part
                    .into_iter()
                    .for_each(|(fault, count)| *counts.entry(fault).or_default() += count),
                Err((seed, error)) if broken.as_ref().is_none_or(|(first, _)| seed < *first) => {
                    broken = Some((seed, error));
                }
                Err(_) => {}
            }
        }
    });
    broken.map_or(Ok(counts), Err)
}

/// The build's commit, so that a seed can be replayed with the same machines.
fn commit() -> String {
    let git = std::process::Command::new("git").args(["rev-parse", "--short", "HEAD"]).output();
    let text = git.ok().filter(|output| output.status.success());
    text.and_then(|output| String::from_utf8(output.stdout).ok())
        .map_or("unknown".into(), |text| text.trim().into())
}

#[test]
fn every_history_of_a_cluster_ends_well() {
    if let Some(seed) = variable("CLUSTER_SEED") {
        history(seed, true).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        return;
    }
    let seeds = variable("SIM_SEEDS").unwrap_or(SEEDS);
    let counts = sweep(seeds, || ()).unwrap_or_else(|(seed, error)| {
        panic!(
            "seed {seed} at commit {}: {error}\nreplay: CLUSTER_SEED={seed} \
             cargo test -p sim --test cluster_sweep every_history -- --nocapture",
            commit()
        )
    });
    for (fault, count) in &counts {
        println!("{count:>9} {fault:?}");
    }
    for fault in Fault::ALL {
        assert!(counts.contains_key(&fault), "{fault:?} never happened: the sweep tests nothing");
    }
}
