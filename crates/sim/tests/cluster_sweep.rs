//! Many seeded histories of clusters. `SIM_SEEDS` says how many, `SIM_FROM` from which on;
//! `CLUSTER_SEED` replays one and prints it step by step.

use sim::cluster::course;
use sim::cluster::fault::{Counts, Fault};
use sim::cluster::world::World;
use sim::sweep::{caught, check_all_happened, sweep, variable};

const SEEDS: u64 = 2000;
/// Further seeds, whose histories showed a mistake once.
const ONCE_BROKEN: [u64; 4] = [14_357, 14_431, 17_067, 37_892];

fn history(seed: u64) -> Counts {
    let mut world = World::new(seed);
    course::live(&mut world);
    world.counts
}

/// Returns the build's commit, so that a seed can be replayed with the same machines.
fn commit() -> String {
    let git = std::process::Command::new("git").args(["rev-parse", "--short", "HEAD"]).output();
    let text = git.ok().filter(|output| output.status.success());
    text.and_then(|output| String::from_utf8(output.stdout).ok())
        .map_or("unknown".into(), |text| text.trim().into())
}

#[test]
fn every_history_of_a_cluster_ends_well() {
    if let Some(seed) = variable("CLUSTER_SEED") {
        let mut world = World::new(seed);
        world.tracing = true;
        let lived = caught(|| course::live(&mut world));
        println!("{}", world.trace.join("\n"));
        lived.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        return;
    }
    let seeds = variable("SIM_SEEDS").unwrap_or(SEEDS);
    let counts = sweep(seeds, || (), history).unwrap_or_else(|(seed, error)| {
        panic!(
            "seed {seed} at commit {}: {error}\nreplay: CLUSTER_SEED={seed} \
             cargo test -p sim --test cluster_sweep every_history -- --nocapture",
            commit()
        )
    });
    check_all_happened(&counts, Fault::ALL);
}

#[test]
fn histories_that_once_ended_badly_end_well() {
    for seed in ONCE_BROKEN {
        caught(|| history(seed)).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

/// Lets the machines make one mistake, which must break some history of the same sweep.
#[cfg(feature = "mutants")]
fn check_mutant(mutant: u8) {
    sim::sweep::check_noticed(sweep(SEEDS, || store_core::mutants::activate(mutant), history));
}

#[cfg(feature = "mutants")]
macro_rules! noticed {
    ($($name:ident: $mutant:ident,)*) => {
        $(#[test]
        fn $name() {
            check_mutant(store_core::mutants::$mutant);
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
