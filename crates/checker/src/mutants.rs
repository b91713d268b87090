//! Deliberate mistakes, to prove that the simulator would notice them. Compiled only with the
//! feature `mutants`, which nothing that ships turns on.

/// A node that cannot be asked counts as one whose instances are gone.
pub const SILENCE_IS_GONE: u8 = 1;
/// One witness is believed although there are others.
pub const ONE_SUFFICES: u8 = 2;
/// Witnesses are heard who cannot have looked lately.
pub const THE_DEAD_SPEAK: u8 = 3;

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
