//! Many seeded histories. `SIM_SEEDS` says how many, `SIM_SEED` replays one and prints it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sim::fault::{Counts, Fault, Weather};
use sim::users;
use sim::world::World;

const SEEDS: u64 = 300;

fn weather(seed: u64) -> Weather {
    if seed.is_multiple_of(3) { Weather::Fair } else { Weather::Storm }
}

/// One history; what broke, if anything did.
fn history(seed: u64, tracing: bool) -> Result<Counts, String> {
    let mut world = World::new(seed, weather(seed));
    world.tracing = tracing;
    let result = catch_unwind(AssertUnwindSafe(|| users::live(&mut world)));
    if tracing {
        println!("{}", world.trace.join("\n"));
    }
    result.map(|()| world.counts.clone()).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into()))
            .unwrap_or_else(|| "a panic without a message".into())
    })
}

/// Every history of one thread; the first that broke.
fn part(first: u64, step: u64, seeds: u64) -> Result<Counts, String> {
    let mut counts = Counts::new();
    for seed in (first..seeds).step_by(usize::try_from(step).unwrap_or(1)) {
        let history = history(seed, false).map_err(|error| format!("SIM_SEED={seed}: {error}"))?;
        for (fault, count) in history {
            *counts.entry(fault).or_default() += count;
        }
    }
    Ok(counts)
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn every_history_ends_well() {
    if let Some(seed) = variable("SIM_SEED") {
        history(seed, true).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        return;
    }
    let seeds = variable("SIM_SEEDS").unwrap_or(SEEDS);
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let mut counts = Counts::new();
    std::thread::scope(|scope| {
        let parts: Vec<_> =
            (0..threads).map(|first| scope.spawn(move || part(first, threads, seeds))).collect();
        for part in parts {
            let part = part.join().expect("a part returns").unwrap_or_else(|error| {
                panic!("{error}\nreplay: cargo test -p sim --test sweep -- --nocapture")
            });
            for (fault, count) in part {
                *counts.entry(fault).or_default() += count;
            }
        }
    });
    println!("{counts:?}");
    for fault in Fault::ALL {
        assert!(counts.contains_key(&fault), "{fault:?} never happened: the sweep tests nothing");
    }
}

/// The machines of one thread make one mistake; some history must not end well.
#[cfg(feature = "mutants")]
fn check_mutant(mutant: u8) {
    agent::mutants::activate(mutant);
    let caught = (0..SEEDS).find_map(|seed| history(seed, false).err().map(|error| (seed, error)));
    agent::mutants::activate(0);
    let (seed, error) = caught.expect("the sweep did not notice the mistake");
    println!("noticed by seed {seed}: {error}");
}

#[cfg(feature = "mutants")]
#[test]
fn no_backoff_is_noticed() {
    check_mutant(agent::mutants::NO_BACKOFF);
}

#[cfg(feature = "mutants")]
#[test]
fn draining_before_the_successor_is_ready_is_noticed() {
    check_mutant(agent::mutants::DRAIN_BEFORE_READY);
}

#[cfg(feature = "mutants")]
#[test]
fn switching_before_all_are_healthy_is_noticed() {
    check_mutant(agent::mutants::SWITCH_BEFORE_ALL_HEALTHY);
}

#[cfg(feature = "mutants")]
#[test]
fn starting_before_the_claim_is_written_is_noticed() {
    check_mutant(agent::mutants::START_BEFORE_CLAIM);
}

#[cfg(feature = "mutants")]
#[test]
fn leaving_strays_alone_is_noticed() {
    check_mutant(agent::mutants::FORGET_STRAYS);
}

#[cfg(feature = "mutants")]
#[test]
fn using_a_generation_twice_is_noticed() {
    check_mutant(agent::mutants::REUSE_GENERATIONS);
}
