//! A node's knowledge from its own log: records replayed in order. It is a function of state and
//! record, so that the state after opening is the state after the last complete batch.

use crate::clock::Stamp;
use crate::commit::{Commit, Location};
use crate::event::Standing;
use crate::record::Record;
use crate::replica::Replica;
use crate::sync::members::forget_beyond;
use crate::sync::message::Vector;

#[derive(Clone, Debug)]
pub struct Past {
    pub replica: Replica,
    /// The newest stamp that the log knows.
    pub clock: Stamp,
    /// The stamp up to which this node issues nothing more.
    pub promised: Stamp,
    pub next_batch: u64,
    pub held: Vector,
    pub standing: Standing,
    /// Whether the last run did not close the store.
    pub unclean: bool,
}

impl Default for Past {
    fn default() -> Past {
        Past {
            replica: Replica::default(),
            clock: Stamp::default(),
            promised: Stamp::default(),
            next_batch: 1,
            held: Vector::new(),
            standing: Standing::default(),
            unclean: false,
        }
    }
}

impl Past {
    /// Applies a record, which lies at `here`. Returns false for a record that no log has.
    pub fn replay(&mut self, record: Record<'_>, here: Location) -> bool {
        let located = |commit: Commit| match commit.location {
            Location::Log { .. } => Commit { location: here, ..commit },
            _ => commit,
        };
        self.unclean = true;
        match record {
            Record::Commit { commit, .. } => {
                self.clock = self.clock.max(commit.at.stamp);
                self.replica.admit(located(commit));
            }
            Record::Moved { commit, .. } => {
                let commit = located(commit);
                self.replica.relocate(commit.at, commit.location);
            }
            Record::Horizons(horizons) => {
                self.replica.raise(horizons);
            }
            Record::Vector { promise, held } => {
                self.clock = self.clock.max(promise);
                self.promised = promise;
                self.held = held;
            }
            Record::Standing(standing) => {
                if standing.cluster != self.standing.cluster {
                    self.replica.lower_horizons();
                }
                self.standing = standing;
            }
            Record::Forgotten { positions, clock } => {
                self.replica.forget(&positions);
                self.replica.limit_squash(clock);
                self.clock = clock;
                self.promised = self.promised.min(clock);
                forget_beyond(&mut self.held, clock);
            }
            Record::Closed => self.unclean = false,
            Record::Segment { .. }
            | Record::Secret(_)
            | Record::Snapshot { .. }
            | Record::Block(_)
            | Record::SnapshotEnd { .. } => return false,
        }
        true
    }
}
