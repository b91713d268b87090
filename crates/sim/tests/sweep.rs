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

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn every_history_ends_well() {
    if let Some(seed) = variable("SIM_SEED") {
        history(seed, true).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        return;
    }
    let mut counts = Counts::new();
    for seed in 0..variable("SIM_SEEDS").unwrap_or(SEEDS) {
        let history = history(seed, false);
        let history = history.unwrap_or_else(|error| {
            panic!("seed {seed}: {error}\nreplay: SIM_SEED={seed} cargo test -p sim --test sweep -- --nocapture")
        });
        for (fault, count) in history {
            *counts.entry(fault).or_default() += count;
        }
    }
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
