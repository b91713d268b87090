//! Many seeded histories of clusters. `SIM_SEEDS` says how many, `SIM_SEED` replays one and prints
//! it.

use std::collections::BTreeMap;

use sim::placement::apart::steps_apart;
use sim::placement::apart::{Anew, Late, Trouble, destroyed_apart};
use sim::placement::fault::FAULTS;
use sim::placement::life::{history, is_calm, live, world};
use sim::sweep::{caught, check_all_happened, sweep, variable};

const SEEDS: u64 = 60;
/// The most seeds; a thousand take minutes.
const SEEDS_MAX: u64 = 2_000;
/// The number of seeds for each kind of histories of a network that is cut in two.
const APART_SEEDS: u64 = 12;
/// The seed of the large cluster, whose history has faults.
const LARGE_SEED: u64 = 1;

fn counts(seed: u64) -> BTreeMap<&'static str, u64> {
    live(seed, None, None).counts
}

#[test]
fn every_cluster_ends_well() {
    if let Some(seed) = variable("SIM_SEED") {
        let mut world = world(seed, None);
        world.tracing = true;
        let lived = caught(|| history(&mut world, is_calm(seed), None));
        println!("{}", world.trace.join("\n"));
        lived.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        return;
    }
    let seeds = variable("SIM_SEEDS").map_or(SEEDS, |seeds| seeds.min(SEEDS_MAX));
    let counts = sweep(seeds, || (), counts).unwrap_or_else(|(seed, error)| {
        panic!(
            "seed {seed}: {error}\nreplay: SIM_SEED={seed} cargo test -p sim --test placement -- \
             --nocapture"
        )
    });
    check_all_happened(&counts, FAULTS);
}

/// Runs one history of as many nodes as a cluster is meant to have; with more seeds, of as many
/// slots, too.
#[test]
fn a_large_cluster_ends_well() {
    let slots = if variable("SIM_SEEDS").is_some() { 500 } else { 150 };
    let counts = live(LARGE_SEED, Some(50), Some(slots)).counts;
    println!("{counts:?}");
}

fn apart_seeds() -> u64 {
    variable("SIM_SEEDS").map_or(APART_SEEDS, |seeds| seeds.min(SEEDS_MAX))
}

/// Lives through one history of each kind, as one seed of a sweep.
fn destroyed(seed: u64) -> BTreeMap<&'static str, u64> {
    for late in [Late::Rollout, Late::PushBefore, Late::PushAfter, Late::Scale, Late::Variables] {
        for anew in [Anew::OnceHealed, Anew::WhileApart] {
            let trouble = Trouble::ALL[(seed % 4) as usize];
            caught(|| destroyed_apart(seed, late, anew, trouble))
                .unwrap_or_else(|error| panic!("{late:?}, {anew:?}, {trouble:?}: {error}"));
        }
    }
    BTreeMap::new()
}

#[test]
fn nothing_that_comes_late_of_a_destroyed_application_brings_it_back() {
    sweep(apart_seeds(), || (), destroyed)
        .unwrap_or_else(|(seed, error)| panic!("seed {seed}: {error}"));
}

#[test]
fn release_steps_that_end_otherwise_on_each_side_of_a_cut_have_one_outcome() {
    let mut both = [0, 0];
    for coordinator_fails in [false, true] {
        for seed in 0..2 * apart_seeds() {
            let freezes = seed % 4 == 3;
            let steps = caught(|| steps_apart(seed, coordinator_fails, freezes));
            let steps = steps.unwrap_or_else(|error| {
                panic!("coordinator fails: {coordinator_fails}, seed {seed}: {error}")
            });
            both[usize::from(coordinator_fails)] += u32::from(steps.served && steps.failed);
        }
    }
    assert!(
        both.iter().all(|count| *count > 0),
        "one never served what the other gave up: {both:?}"
    );
}

/// Lets the machines make one mistake, which must break some history.
#[cfg(feature = "mutants")]
fn check_mutant(mutant: u8) {
    sim::sweep::check_noticed(sweep(SEEDS, || agent_core::mutants::activate(mutant), counts));
}

/// Does the same to the checkers in the same clusters.
#[cfg(feature = "mutants")]
fn check_checkers_mutant(mutant: u8) {
    sim::sweep::check_noticed(sweep(SEEDS, || checker_core::mutants::activate(mutant), counts));
}

#[cfg(feature = "mutants")]
mod mutants {
    use sim::sweep::sweep;

    use super::{APART_SEEDS, check_checkers_mutant, check_mutant, destroyed};

    #[test]
    fn taking_silence_for_a_verdict_is_noticed() {
        check_checkers_mutant(checker_core::mutants::SILENCE_IS_GONE);
    }

    #[test]
    fn believing_one_witness_is_noticed() {
        check_checkers_mutant(checker_core::mutants::ONE_SUFFICES);
    }

    #[test]
    fn keeping_duplicates_is_noticed() {
        check_mutant(agent_core::mutants::KEEP_DUPLICATES);
    }

    #[test]
    fn giving_way_before_the_winner_is_ready_is_noticed() {
        check_mutant(agent_core::mutants::GIVE_WAY_BEFORE_READY);
    }

    #[test]
    fn taking_the_dead_for_alive_is_noticed() {
        check_mutant(agent_core::mutants::IGNORE_DEATHS);
    }

    #[test]
    fn moving_without_hysteresis_is_noticed() {
        check_mutant(agent_core::mutants::NO_HYSTERESIS);
    }

    #[test]
    fn taking_slots_while_drained_is_noticed() {
        check_mutant(agent_core::mutants::DRAINED_TAKES);
    }

    #[test]
    fn leaving_files_behind_is_noticed() {
        check_mutant(agent_core::mutants::DATA_STAYS_BEHIND);
    }

    #[test]
    fn shims_without_a_lease_are_noticed() {
        check_mutant(agent_core::mutants::NO_LEASE);
    }

    #[test]
    fn draining_before_the_successor_is_ready_is_noticed() {
        check_mutant(agent_core::mutants::DRAIN_BEFORE_READY);
    }

    #[test]
    fn switching_before_all_are_healthy_is_noticed() {
        check_mutant(agent_core::mutants::SWITCH_BEFORE_ALL_HEALTHY);
    }

    #[test]
    fn taking_a_late_specification_for_an_application_is_noticed() {
        let late = || agent_core::mutants::activate(agent_core::mutants::LATE_SPECIFICATION_COUNTS);
        sim::sweep::check_noticed(sweep(APART_SEEDS, late, destroyed));
    }

    #[test]
    fn letting_an_old_coordinator_switch_back_is_noticed() {
        check_mutant(agent_core::mutants::UNFENCED_RELEASES);
    }

    #[test]
    fn running_release_steps_again_is_noticed() {
        check_mutant(agent_core::mutants::RELEASE_STEPS_AGAIN);
    }
}
