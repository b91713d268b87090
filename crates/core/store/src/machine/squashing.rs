//! The times at which history is squashed: every hour what is a day old, and earlier where too much
//! could be dropped.

use model::Timestamp;

use super::{DROPPABLE_MAX, SQUASH_AGE, SQUASH_INTERVAL};
use crate::clock::Stamp;
use crate::replica::Replica;

/// Keys with a value for each droppable commit. Finding the oldest half takes a look at every
/// commit, so it is done less often where there are many keys.
const LIVE_PER_DROPPABLE: usize = 4;

pub(super) struct Squashing {
    at: Timestamp,
    /// The number of droppable commits from which on to squash early: what could be dropped at the
    /// last attempt, and some more.
    early_from: usize,
}

impl Squashing {
    pub fn new(now: Timestamp) -> Squashing {
        Squashing { at: now.after(SQUASH_INTERVAL), early_from: 0 }
    }

    pub fn deadline(&self) -> Timestamp {
        self.at
    }

    /// Returns before which stamp to squash, if the hour has come.
    pub fn due(&mut self, now: Timestamp) -> Option<Stamp> {
        if now < self.at {
            return None;
        }
        self.at = now.after(SQUASH_INTERVAL);
        let age_ms = u64::try_from(SQUASH_AGE.as_millis()).unwrap_or(u64::MAX);
        Some(Stamp::start_of(Timestamp(now.0.saturating_sub(age_ms))))
    }

    /// Returns before which stamp to squash early, if there is too much to drop. Deletes that a
    /// lost member has not heard of stay, and are not looked through again with each write.
    pub fn early(&mut self, now: Timestamp, replica: &Replica) -> Option<Stamp> {
        let droppable = replica.droppable();
        if droppable <= DROPPABLE_MAX {
            self.early_from = 0;
            return None;
        }
        // This is counted only here, as it looks through what has just expired.
        let most = DROPPABLE_MAX.max(replica.live(now) / LIVE_PER_DROPPABLE);
        if droppable <= most {
            self.early_from = 0;
            return None;
        }
        if droppable < self.early_from {
            return None;
        }
        self.early_from = droppable + most / 8;
        Some(replica.median_droppable())
    }
}
