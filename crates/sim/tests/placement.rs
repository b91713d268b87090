//! Many seeded histories of clusters. `SIM_SEEDS` says how many, `SIM_SEED` replays one and prints
//! it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use sim::placement::life::{history, live};
use sim::placement::world::World;

const SEEDS: u64 = 30;

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
        let mut world = World::new(seed, sim::placement::life::size(seed));
        world.tracing = true;
        let lived = catch_unwind(AssertUnwindSafe(|| {
            history(&mut world, sim::placement::life::is_calm(seed), None);
        }));
        println!("{}", world.trace.join("\n"));
        lived.unwrap_or_else(|panic| panic!("seed {seed}: {}", said(&*panic)));
        return;
    }
    let seeds = variable("SIM_SEEDS").map_or(SEEDS, |seeds| seeds.min(2_000));
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
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
                let counted = outcome.unwrap_or_else(|error| {
                    panic!("SIM_SEED={seed}: {error}\nreplay: cargo test -p sim --test placement")
                });
                for (fault, count) in counted {
                    *counts.entry(fault).or_default() += count;
                }
            }
        }
    });
    println!("{counts:?}");
    for fault in [
        "machine lost",
        "node process killed",
        "machine frozen",
        "cut one way",
        "cut both ways",
        "drained",
        "load",
        "push",
        "broken release",
        "scale",
    ] {
        assert!(counts.contains_key(fault), "{fault}: it never happened");
    }
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
}
