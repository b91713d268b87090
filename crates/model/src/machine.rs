//! The contract of everything that decides.

use crate::time::Timestamp;

/// A pure state machine: time and an event go in, effects come out, in the order in which they must
/// be performed. It owns no clock, socket, file, thread or randomness.
pub trait Machine {
    type Event;
    type Effect;

    fn handle(&mut self, now: Timestamp, event: Self::Event, effects: &mut Vec<Self::Effect>);

    /// Does what is due; called when `deadline` has passed. Afterwards the deadline must lie after
    /// `now` or be none, or the driver would spin; it asserts this.
    fn tick(&mut self, now: Timestamp, effects: &mut Vec<Self::Effect>);

    fn deadline(&self) -> Option<Timestamp>;

    /// Checks the invariants; debug builds call this after every `handle` and `tick`.
    fn check_invariants(&self) {}
}
