//! Deliberate mistakes, to prove that the simulator would notice them. Compiled only with the
//! feature `mutants`, which nothing that ships turns on.

/// Names of the mistakes.
pub const G_IGNORES_DEAD: u8 = 1;
pub const G_BY_TIMEOUT: u8 = 2;
pub const HORIZONS_NOT_EXCHANGED: u8 = 3;
pub const V_BEFORE_DURABLE: u8 = 4;
pub const NO_SKEW_CHECK: u8 = 5;
pub const NO_RULE_B: u8 = 6;
pub const PROMISE_AFTER_RESTART: u8 = 7;
pub const EVICTION_UNSETTLED: u8 = 8;
pub const V_BEFORE_KEPT: u8 = 9;
pub const JOIN_UNLISTED: u8 = 10;

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
