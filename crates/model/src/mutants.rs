//! Deliberate mistakes of a machine, to prove that the simulator would notice them. Compiled only
//! with the feature `mutants` of the crate that names them, which nothing that ships turns on.

/// Defines the module's content: the names of its mistakes, numbered from one as the simulator
/// counts them.
#[macro_export]
macro_rules! mutants {
    ($($(#[$about:meta])* $name:ident = $number:literal,)+) => {
        $($(#[$about])* pub const $name: u8 = $number;)+

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
    };
}
