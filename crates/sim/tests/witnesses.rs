//! Many seeded histories of checkers that testify. `SIM_SEEDS` says how many.

use std::collections::BTreeMap;

use sim::sweep::{check_all_happened, sweep, variable};
use sim::witnesses::{FAULTS, live};

const SEEDS: u64 = 300;

fn counts(seed: u64) -> BTreeMap<&'static str, u64> {
    live(seed).counts
}

#[test]
fn nodes_come_to_believe_what_is_true() {
    let seeds = variable("SIM_SEEDS").unwrap_or(SEEDS);
    let counts =
        sweep(seeds, || (), counts).unwrap_or_else(|(seed, error)| panic!("seed {seed}: {error}"));
    check_all_happened(&counts, FAULTS);
}

#[cfg(feature = "mutants")]
mod mutants {
    use super::{SEEDS, counts, sweep};

    fn check(mutant: u8) {
        sim::sweep::check_noticed(sweep(SEEDS, || checker_core::mutants::activate(mutant), counts));
    }

    #[test]
    fn taking_silence_for_a_verdict_is_noticed() {
        check(checker_core::mutants::SILENCE_IS_GONE);
    }

    #[test]
    fn believing_one_witness_is_noticed() {
        check(checker_core::mutants::ONE_SUFFICES);
    }

    #[test]
    fn hearing_the_dead_is_noticed() {
        check(checker_core::mutants::THE_DEAD_SPEAK);
    }
}
