//! Sweeps: many histories, one for each seed, on all cores. A history breaks by a panic; its counts
//! say afterwards whether every fault happened at all.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns what a history ends with, or what broke it.
pub fn caught<T>(history: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(history)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into()))
            .unwrap_or_else(|| "a panic without a message".into())
    })
}

/// Returns a number from the environment.
pub fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Returns what all histories counted, or the first seed whose history breaks and why. Each thread
/// is prepared before its first one. `SIM_FROM` names the first seed, so that a long sweep can be
/// run in portions.
pub fn sweep<F: Ord + Send>(
    seeds: u64,
    prepare: impl Fn() + Sync,
    history: impl Fn(u64) -> BTreeMap<F, u64> + Sync,
) -> Result<BTreeMap<F, u64>, (u64, String)> {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let from = variable("SIM_FROM").unwrap_or(0);
    let (next, broken_at) = (AtomicU64::new(from), AtomicU64::new(from.saturating_add(seeds)));
    let part = || {
        prepare();
        let mut counts = BTreeMap::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= broken_at.load(Ordering::Relaxed) {
                return Ok(counts);
            }
            match caught(|| history(seed)) {
                Ok(counted) => add(&mut counts, counted),
                Err(error) => {
                    broken_at.fetch_min(seed, Ordering::Relaxed);
                    return Err((seed, error));
                }
            }
        }
    };
    let mut counts = BTreeMap::new();
    let mut broken: Option<(u64, String)> = None;
    std::thread::scope(|scope| {
        let parts: Vec<_> = (0..threads).map(|_| scope.spawn(part)).collect();
        for part in parts {
            match part.join().expect("a part returns") {
                Ok(counted) => add(&mut counts, counted),
                Err((seed, error)) if broken.as_ref().is_none_or(|(first, _)| seed < *first) => {
                    broken = Some((seed, error));
                }
                Err(_) => {}
            }
        }
    });
    broken.map_or(Ok(counts), Err)
}

/// Asserts that each fault happened: a sweep in which one never happens tests nothing.
pub fn check_all_happened<F: Ord + Debug>(
    counts: &BTreeMap<F, u64>,
    faults: impl IntoIterator<Item = F>,
) {
    for (fault, count) in counts {
        println!("{count:>9} {fault:?}");
    }
    for fault in faults {
        assert!(counts.contains_key(&fault), "{fault:?} never happened: the sweep tests nothing");
    }
}

/// Asserts that machines that make a mistake break some history.
pub fn check_noticed<F>(swept: Result<BTreeMap<F, u64>, (u64, String)>) {
    let Err((seed, error)) = swept else { panic!("the sweep did not notice the mistake") };
    println!("noticed by seed {seed}: {error}");
}

fn add<F: Ord>(counts: &mut BTreeMap<F, u64>, more: BTreeMap<F, u64>) {
    for (fault, count) in more {
        *counts.entry(fault).or_default() += count;
    }
}
