//! Probes every instance of this node in a loop and decides what its state is. Pure; the shell in
//! the binary performs the probes and writes the verdicts. Historic name: G23.

mod probe;
mod schedule;

pub use probe::{Method, Outcome, Target};
pub use schedule::{Checker, Effect, Event, PROBES_AT_ONCE_MAX};
