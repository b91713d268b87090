//! Parked commits: those from ahead of this node's clock wait until it gets there. Before that they
//! count for nothing and are passed on to nobody.

use std::collections::BTreeMap;

use model::Timestamp;

use crate::clock::Stamp;
use crate::commit::Position;
use crate::machine::context::Context;
use crate::sync::message::Carried;
use model::time::CLOCK_AHEAD_MAX_MS;

/// Commits that may be parked; with their values at most 4 MiB. What does not fit comes again with
/// a later session.
const PARKED_MAX: usize = 1024;

#[derive(Default)]
pub struct Parked {
    commits: BTreeMap<Position, Carried>,
}

impl Parked {
    /// Parks a commit, unless it is parked already or does not fit.
    pub fn park(&mut self, carried: Carried, cx: &mut Context<'_>) {
        let at = carried.commit.at;
        if self.commits.contains_key(&at) || self.commits.len() >= PARKED_MAX {
            return cx.release(carried.ticket);
        }
        self.commits.insert(at, carried);
    }

    pub fn due(&mut self, now: Timestamp) -> Vec<Carried> {
        let limit = Position::start_of(newest_admitted(now));
        let later = self.commits.split_off(&limit);
        std::mem::replace(&mut self.commits, later).into_values().collect()
    }

    pub fn len(&self) -> usize {
        self.commits.len()
    }

    pub fn deadline(&self) -> Option<Timestamp> {
        let first = self.commits.keys().next()?;
        Some(Timestamp(first.stamp.time().0.saturating_sub(CLOCK_AHEAD_MAX_MS)))
    }
}

/// Returns the stamp from which on stamps are too far ahead.
pub fn newest_admitted(now: Timestamp) -> Stamp {
    Stamp::start_of(Timestamp(now.0.saturating_add(CLOCK_AHEAD_MAX_MS + 1)))
}
