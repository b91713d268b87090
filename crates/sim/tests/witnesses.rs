//! Many seeded histories of checkers that testify. `SIM_SEEDS` says how many.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use sim::witnesses::{FAULTS, live};

const SEEDS: u64 = 300;

fn try_seed(seed: u64) -> Result<BTreeMap<&'static str, u64>, String> {
    let lived = catch_unwind(AssertUnwindSafe(|| live(seed).counts));
    lived.map_err(|panic| panic.downcast_ref::<String>().cloned().unwrap_or_default())
}

#[test]
fn nodes_come_to_believe_what_is_true() {
    let seeds = std::env::var("SIM_SEEDS").map_or(SEEDS, |text| text.parse().expect("a number"));
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 0..seeds {
        let counted = try_seed(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        counted.iter().for_each(|(fault, count)| *counts.entry(fault).or_default() += count);
    }
    println!("{counts:?}");
    for fault in FAULTS {
        assert!(counts.contains_key(fault), "{fault}: it never happened");
    }
}

#[cfg(feature = "mutants")]
mod mutants {
    use super::{SEEDS, try_seed};

    fn check(mutant: u8) {
        checker::mutants::activate(mutant);
        let caught = (0..SEEDS).find_map(|seed| try_seed(seed).err().map(|error| (seed, error)));
        checker::mutants::activate(0);
        let (seed, error) = caught.expect("the sweep did not notice the mistake");
        println!("noticed by seed {seed}: {error}");
    }

    #[test]
    fn taking_silence_for_a_verdict_is_noticed() {
        check(checker::mutants::SILENCE_IS_GONE);
    }

    #[test]
    fn believing_one_witness_is_noticed() {
        check(checker::mutants::ONE_SUFFICES);
    }

    #[test]
    fn hearing_the_dead_is_noticed() {
        check(checker::mutants::THE_DEAD_SPEAK);
    }
}
