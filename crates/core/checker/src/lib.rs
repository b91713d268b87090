//! The checker, which probes every instance of this node in a loop and decides what its state is,
//! and testifies of instances of nodes that have no checker. Pure; the shell in the binary performs
//! the probes and writes the verdicts. Historic name: G23.

mod jury;
pub mod mutants;
pub mod probe;
mod schedule;
mod witness;

pub use jury::{Evidence, Jury, Ruling, WITNESSES_NEEDED};
pub use probe::{Method, ProbeOutcome, Target};
pub use schedule::{Checker, Effect, Event, PROBES_AT_ONCE_MAX};
pub use witness::{WITNESSES_MAX, Witnessed, is_witness};
