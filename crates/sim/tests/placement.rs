//! Many seeded histories of clusters. `SIM_SEEDS` says how many, `SIM_SEED` replays one and prints
//! it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use sim::placement::fault::FAULTS;
use sim::placement::life::{history, live};

const SEEDS: u64 = 60;
/// A thousand take minutes.
const SEEDS_MAX: u64 = 2_000;
/// One with faults.
#[cfg(not(feature = "mutants"))]
const LARGE_SEED: u64 = 1;

fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into())).unwrap_or_default()
}

/// One history; what broke, if anything did.
fn try_seed(seed: u64) -> Result<BTreeMap<&'static str, u64>, String> {
    let lived = catch_unwind(AssertUnwindSafe(|| live(seed, None, None)));
    lived.map(|world| world.counts).map_err(|panic| said(&*panic))
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn every_cluster_ends_well() {
    if let Some(seed) = variable("SIM_SEED") {
        let mut world = sim::placement::life::world(seed, None);
        world.tracing = true;
        let lived = catch_unwind(AssertUnwindSafe(|| {
            history(&mut world, sim::placement::life::is_calm(seed), None);
        }));
        println!("{}", world.trace.join("\n"));
        lived.unwrap_or_else(|panic| panic!("seed {seed}: {}", said(&*panic)));
        return;
    }
    let seeds = variable("SIM_SEEDS").map_or(SEEDS, |seeds| seeds.min(SEEDS_MAX));
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let mut failed = Vec::new();
    std::thread::scope(|scope| {
        let part = |first: u64| {
            (first..seeds)
                .step_by(threads as usize)
                .map(|seed| (seed, try_seed(seed)))
                .collect::<Vec<_>>()
        };
        let parts: Vec<_> = (0..threads).map(|first| scope.spawn(move || part(first))).collect();
        for part in parts {
            for (seed, outcome) in part.join().expect("a part returns") {
                match outcome {
                    Ok(counted) => counted.iter().for_each(|(fault, count)| {
                        *counts.entry(fault).or_default() += count;
                    }),
                    Err(error) => failed.push(format!("SIM_SEED={seed}: {error}")),
                }
            }
        }
    });
    println!("{counts:?}");
    let replay = "replay one: SIM_SEED=N cargo test -p sim --test placement";
    assert!(failed.is_empty(), "{}\n{replay}", failed.join("\n"));
    for fault in FAULTS {
        assert!(counts.contains_key(fault), "{fault}: it never happened");
    }
}

/// Once, as large as a cluster is meant to be.
#[cfg(not(feature = "mutants"))]
#[test]
fn a_large_cluster_ends_well() {
    let counts = live(LARGE_SEED, Some(50), Some(500)).counts;
    println!("{counts:?}");
}

/// The machines of one thread make one mistake; some history must not end well.
#[cfg(feature = "mutants")]
fn check_mutant(mutant: u8) {
    agent::mutants::activate(mutant);
    let caught = (0..SEEDS).find_map(|seed| try_seed(seed).err().map(|error| (seed, error)));
    agent::mutants::activate(0);
    let (seed, error) = caught.expect("the sweep did not notice the mistake");
    println!("noticed by seed {seed}: {error}");
}

#[cfg(feature = "mutants")]
mod mutants {
    use super::check_mutant;

    #[test]
    fn keeping_duplicates_is_noticed() {
        check_mutant(agent::mutants::KEEP_DUPLICATES);
    }

    #[test]
    fn giving_way_before_the_winner_is_ready_is_noticed() {
        check_mutant(agent::mutants::GIVE_WAY_BEFORE_READY);
    }

    #[test]
    fn taking_the_dead_for_alive_is_noticed() {
        check_mutant(agent::mutants::IGNORE_DEATHS);
    }

    #[test]
    fn moving_without_hysteresis_is_noticed() {
        check_mutant(agent::mutants::NO_HYSTERESIS);
    }

    #[test]
    fn taking_slots_while_drained_is_noticed() {
        check_mutant(agent::mutants::DRAINED_TAKES);
    }

    #[test]
    fn leaving_files_behind_is_noticed() {
        check_mutant(agent::mutants::DATA_STAYS_BEHIND);
    }

    #[test]
    fn shims_without_a_lease_are_noticed() {
        check_mutant(agent::mutants::NO_LEASE);
    }

    #[test]
    fn draining_before_the_successor_is_ready_is_noticed() {
        check_mutant(agent::mutants::DRAIN_BEFORE_READY);
    }

    #[test]
    fn switching_before_all_are_healthy_is_noticed() {
        check_mutant(agent::mutants::SWITCH_BEFORE_ALL_HEALTHY);
    }

    #[test]
    fn letting_an_old_coordinator_switch_back_is_noticed() {
        check_mutant(agent::mutants::UNFENCED_RELEASES);
    }
}
