//! The router of another member that made a connection to this one, and what it has heard of its
//! present request.

use std::cell::Cell;
use std::time::Duration;

use model::NodeId;

/// The router that called, for as long as its connection stands.
pub struct CallingRouter {
    node: NodeId,
    /// The time that its present request may stand in the queue here.
    wait: Cell<Duration>,
    /// Whether it has heard what becomes of that request.
    told: Cell<bool>,
}

impl CallingRouter {
    pub fn new(node: NodeId) -> CallingRouter {
        CallingRouter { node, wait: Cell::default(), told: Cell::default() }
    }

    /// Begins one of its requests, which may wait for `wait`.
    pub fn asks(&self, wait: Duration) {
        self.wait.set(wait);
        self.told.set(false);
    }

    /// Returns whether it has yet to hear what becomes of its request; from now on it has.
    pub fn is_to_be_told(&self) -> bool {
        !self.told.replace(true)
    }

    pub fn node(&self) -> &NodeId {
        &self.node
    }

    pub fn wait(&self) -> Duration {
        self.wait.get()
    }
}
