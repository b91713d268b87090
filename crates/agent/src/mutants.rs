//! Deliberate mistakes, to prove that the simulator would notice them. Compiled only with the
//! feature `mutants`, which nothing that ships turns on.

/// Names of the mistakes.
pub const NO_BACKOFF: u8 = 1;
pub const DRAIN_BEFORE_READY: u8 = 2;
pub const SWITCH_BEFORE_ALL_HEALTHY: u8 = 3;
pub const START_BEFORE_CLAIM: u8 = 4;
pub const FORGET_STRAYS: u8 = 5;
pub const REUSE_GENERATIONS: u8 = 6;
pub const KEEP_DUPLICATES: u8 = 7;
pub const GIVE_WAY_BEFORE_READY: u8 = 8;
pub const IGNORE_DEATHS: u8 = 9;
pub const NO_HYSTERESIS: u8 = 10;
pub const DRAINED_TAKES: u8 = 11;
pub const DATA_STAYS_BEHIND: u8 = 12;
pub const NO_LEASE: u8 = 13;
pub const UNFENCED_RELEASES: u8 = 14;

#[cfg(feature = "mutants")]
thread_local! {
    static ACTIVE: std::cell::Cell<u8> = const { std::cell::Cell::new(0) };
}

/// Makes this thread's machines commit one mistake; zero for none.
#[cfg(feature = "mutants")]
pub fn activate(mutant: u8) {
    ACTIVE.with(|active| active.set(mutant));
}

#[cfg(feature = "mutants")]
pub(crate) fn active(mutant: u8) -> bool {
    ACTIVE.with(|active| active.get() == mutant)
}

#[cfg(not(feature = "mutants"))]
pub(crate) fn active(_mutant: u8) -> bool {
    false
}
