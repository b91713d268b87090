//! Many seeded histories of clusters. `SIM_SEEDS` says how many, `CLUSTER_SEED` replays one and
//! prints it step by step.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use sim::cluster::course;
use sim::cluster::fault::{Counts, Fault};
use sim::cluster::world::World;

const SEEDS: u64 = 2000;

/// One history; what broke, if anything did.
fn history(seed: u64, tracing: bool) -> Result<Counts, String> {
    let mut world = World::new(seed);
    world.tracing = tracing;
    let result = catch_unwind(AssertUnwindSafe(|| course::live(&mut world)));
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

/// The machines make one mistake; some history of the same sweep must not end well.
#[cfg(feature = "mutants")]
fn check_mutant(mutant: u8) {
    let caught = sweep(SEEDS, || store::mutants::activate(mutant));
    let Err((seed, error)) = caught else { panic!("the sweep did not notice the mistake") };
    println!("noticed by seed {seed}: {error}");
}

#[cfg(feature = "mutants")]
macro_rules! noticed {
    ($($name:ident: $mutant:ident,)*) => {
        $(#[test]
        fn $name() {
            check_mutant(store::mutants::$mutant);
        })*
    };
}

#[cfg(feature = "mutants")]
noticed! {
    garbage_that_ignores_dead_members_is_noticed: G_IGNORES_DEAD,
    garbage_by_timeout_is_noticed: G_BY_TIMEOUT,
    horizons_that_are_not_exchanged_are_noticed: HORIZONS_NOT_EXCHANGED,
    a_vector_advanced_before_commits_are_durable_is_noticed: V_BEFORE_DURABLE,
    clocks_that_nobody_compares_are_noticed: NO_SKEW_CHECK,
    a_node_that_missed_garbage_and_does_not_copy_is_noticed: NO_RULE_B,
    a_promise_right_after_a_restart_is_noticed: PROMISE_AFTER_RESTART,
    garbage_right_after_an_eviction_is_noticed: EVICTION_UNSETTLED,
    a_vector_told_before_it_is_kept_is_noticed: V_BEFORE_KEPT,
    a_copy_from_one_who_knows_an_earlier_stay_is_noticed: JOIN_UNLISTED,
}
