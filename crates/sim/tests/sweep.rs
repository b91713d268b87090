//! Many seeded histories. `SIM_SEEDS` says how many, `SIM_SEED` replays one and prints it.

use sim::fault::{Counts, Fault, Weather};
use sim::sweep::{caught, check_all_happened, sweep, variable};
use sim::users;
use sim::world::World;

const SEEDS: u64 = 300;

fn world(seed: u64) -> World {
    World::new(seed, if seed.is_multiple_of(3) { Weather::Fair } else { Weather::Storm })
}

fn history(seed: u64) -> Counts {
    let mut world = world(seed);
    users::live(&mut world);
    world.counts
}

#[test]
fn every_history_ends_well() {
    if let Some(seed) = variable("SIM_SEED") {
        let mut world = world(seed);
        world.tracing = true;
        let lived = caught(|| users::live(&mut world));
        println!("{}", world.trace.join("\n"));
        lived.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        return;
    }
    let seeds = variable("SIM_SEEDS").unwrap_or(SEEDS);
    let counts = sweep(seeds, || (), history).unwrap_or_else(|(seed, error)| {
        panic!(
            "seed {seed}: {error}\nreplay: SIM_SEED={seed} cargo test -p sim --test sweep -- \
             --nocapture"
        )
    });
    check_all_happened(&counts, Fault::ALL);
}

/// Lets the machines make one mistake, which must break some history.
#[cfg(feature = "mutants")]
fn check_mutant(mutant: u8) {
    sim::sweep::check_noticed(sweep(SEEDS, || agent_core::mutants::activate(mutant), history));
}

#[cfg(feature = "mutants")]
#[test]
fn no_backoff_is_noticed() {
    check_mutant(agent_core::mutants::NO_BACKOFF);
}

#[cfg(feature = "mutants")]
#[test]
fn draining_before_the_successor_is_ready_is_noticed() {
    check_mutant(agent_core::mutants::DRAIN_BEFORE_READY);
}

#[cfg(feature = "mutants")]
#[test]
fn switching_before_all_are_healthy_is_noticed() {
    check_mutant(agent_core::mutants::SWITCH_BEFORE_ALL_HEALTHY);
}

#[cfg(feature = "mutants")]
#[test]
fn starting_before_the_claim_is_written_is_noticed() {
    check_mutant(agent_core::mutants::START_BEFORE_CLAIM);
}

#[cfg(feature = "mutants")]
#[test]
fn leaving_strays_alone_is_noticed() {
    check_mutant(agent_core::mutants::FORGET_STRAYS);
}

#[cfg(feature = "mutants")]
#[test]
fn using_a_generation_twice_is_noticed() {
    check_mutant(agent_core::mutants::REUSE_GENERATIONS);
}

#[cfg(feature = "mutants")]
#[test]
fn first_starts_beside_each_other_are_noticed() {
    check_mutant(agent_core::mutants::FIRST_STARTS_AT_ONCE);
}

#[cfg(feature = "mutants")]
#[test]
fn never_taking_back_what_dies_is_noticed() {
    check_mutant(agent_core::mutants::NEVER_TAKE_BACK);
}

#[cfg(feature = "mutants")]
#[test]
fn taking_back_what_took_another_back_is_noticed() {
    check_mutant(agent_core::mutants::TAKE_BACK_AGAIN);
}
