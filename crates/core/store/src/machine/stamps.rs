//! The stamps of this node: the clock that gives them out, the newest one that is in the log, and
//! whether the wall clock is in doubt.

use std::time::Duration;

use model::Timestamp;
use model::time::CLOCK_AHEAD_MAX_MS;

use crate::clock::{HybridClock, Stamp};
use crate::commit::{NodeTag, Position};
use crate::sync::park::newest_admitted;

/// The time off after which a node asks before it trusts its clock.
const CLOCK_LEAP_MAX: Duration = Duration::from_secs(24 * 3600);

/// The reason why writes are refused until somebody says that the clock is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockDoubt {
    /// The log knows later times than the clock shows.
    Behind { by_ms: u64 },
    /// The log's newest time is more than a day ago.
    Leapt { by_ms: u64 },
}

pub(crate) struct Stamps {
    node: NodeTag,
    clock: HybridClock,
    /// The newest stamp that is in the log.
    durable: Stamp,
    doubt: Option<ClockDoubt>,
}

impl Stamps {
    /// Goes on after the newest stamp of the log.
    pub fn new(node: NodeTag, durable: Stamp) -> Stamps {
        let mut clock = HybridClock::default();
        clock.restore(durable);
        Stamps { node, clock, durable, doubt: None }
    }

    pub fn node(&self) -> NodeTag {
        self.node
    }

    /// Returns the newest stamp that this node knows.
    pub fn last(&self) -> Stamp {
        self.clock.last()
    }

    /// Returns the newest stamp that is in the log.
    pub fn durable(&self) -> Stamp {
        self.durable
    }

    pub fn next(&mut self, now: Timestamp) -> Stamp {
        self.clock.next(now)
    }

    /// Returns the position of the next commit of this node.
    pub fn position(&mut self, now: Timestamp) -> Position {
        Position { stamp: self.next(now), node: self.node }
    }

    /// Takes note of a stamp that others gave out; the next one of this node is above it.
    pub fn learn(&mut self, stamp: Stamp) {
        self.clock.restore(stamp);
    }

    /// Notes that the log has this stamp now.
    pub fn log(&mut self, stamp: Stamp) {
        self.durable = self.durable.max(stamp);
    }

    /// Sets the clock back to what is right, where what was stamped later is given up.
    pub fn set_back(&mut self, right: Stamp) {
        self.clock.reset(right);
        self.durable = self.durable.min(right);
    }

    /// Compares the wall clock with the newest time of the log.
    pub fn question(&mut self, now: Timestamp) {
        self.doubt = doubt(now, self.durable);
    }

    /// Takes the wall clock for right from now on.
    pub fn trust(&mut self) {
        self.doubt = None;
    }

    pub fn doubt(&self) -> Option<ClockDoubt> {
        self.doubt
    }

    /// Returns whether the wall clock is in doubt, or what was stamped is ahead of it.
    pub fn are_doubted(&self, now: Timestamp) -> bool {
        self.doubt.is_some() || self.last() >= newest_admitted(now)
    }
}

fn doubt(now: Timestamp, newest: Stamp) -> Option<ClockDoubt> {
    let newest = newest.time();
    let behind = newest.0.saturating_sub(now.0);
    let leapt = now.since(newest);
    if behind > CLOCK_AHEAD_MAX_MS {
        Some(ClockDoubt::Behind { by_ms: behind })
    } else if leapt > CLOCK_LEAP_MAX && newest.0 > 0 {
        Some(ClockDoubt::Leapt { by_ms: u64::try_from(leapt.as_millis()).unwrap_or(u64::MAX) })
    } else {
        None
    }
}
