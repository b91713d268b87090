//! What of the store is seen here, and who is told: the replica, and the numbers of what arrived.
//! Owns the order in which watchers hear of changes, and of values that have expired.

use model::{Key, Timestamp};

use super::EXPIRIES_PER_TICK_MAX;
use crate::clock::Stamp;
use crate::commit::{Commit, CommitAction, Location, Position};
use crate::event::{Effect, Ticket};
use crate::replica::{Admitted, Horizons, Replica};
use crate::watch::Arrivals;

pub(crate) struct Holdings {
    replica: Replica,
    arrivals: Arrivals,
    /// The time of the next expiries, after a tick that left some for the next one.
    expire_not_before: Timestamp,
}

impl Holdings {
    pub fn new(mut replica: Replica, incarnation: u64, now: Timestamp) -> Holdings {
        // Nobody watches yet, so nobody need be told.
        while replica.notice_expiry(now).is_some() {}
        Holdings { replica, arrivals: Arrivals::new(incarnation), expire_not_before: now }
    }

    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    pub fn arrivals(&self) -> &Arrivals {
        &self.arrivals
    }

    /// Takes in a commit that is durable. `announce` says so to watchers.
    pub fn admit(&mut self, commit: Commit, cid: &[u8; 32]) -> Admitted {
        self.replica.admit_as(commit, cid)
    }

    /// Announces a commit that was admitted, if it changed what its key's value is.
    pub fn announce(
        &mut self,
        ticket: Ticket,
        commit: Commit,
        admitted: Admitted,
        effects: &mut Vec<Effect>,
    ) {
        let commit = match admitted {
            Admitted::Winner => commit,
            // Whatever ended the value, it is no longer there.
            Admitted::Ended => {
                Commit { action: CommitAction::Delete, location: Location::Nowhere, ..commit }
            }
            _ => return,
        };
        let arrival = self.arrivals.note(commit.key.clone());
        effects.push(Effect::Notify { arrival, ticket, commit });
    }

    /// Announces a change of this node's board, which no log keeps.
    pub fn announce_local(&mut self, key: &Key) -> u64 {
        self.arrivals.note(key.as_str().into())
    }

    /// Notes that the value of a commit has come as a file, and announces it if the key still has
    /// that value.
    pub fn value_arrived(&mut self, now: Timestamp, commit: Commit, effects: &mut Vec<Effect>) {
        self.replica.relocate(commit.at, Location::File);
        let present = self.replica.get(&commit.key, now);
        if present.is_some_and(|present| present.at == commit.at) {
            let arrival = self.arrivals.note(commit.key.clone());
            effects.push(Effect::Arrived { arrival, commit });
        }
    }

    /// Gives a commit's value another location. Returns false if the commit is no longer held.
    pub fn relocate(&mut self, at: Position, location: Location) -> bool {
        self.replica.relocate(at, location)
    }

    /// Raises the horizons and drops what nobody needs any more.
    pub fn raise(&mut self, horizons: Horizons) {
        self.replica.raise(horizons);
    }

    /// Lowers the horizons to nothing: what one cluster has collected says nothing of another.
    pub fn lower_horizons(&mut self) {
        self.replica.lower_horizons();
    }

    /// Takes commits out as if they had never been, under a clock that stands at this stamp.
    pub fn forget(&mut self, positions: &[Position], clock: Stamp) {
        self.replica.forget(positions);
        self.replica.limit_squash(clock);
    }

    /// Tells watchers to read again, as what changed cannot be told.
    pub fn resync(&mut self, effects: &mut Vec<Effect>) {
        self.arrivals = Arrivals::new(self.arrivals.incarnation() + 1);
        effects.push(Effect::Resync);
    }

    /// Announces the values that have expired; what is beyond one tick's measure waits for the
    /// next.
    pub fn announce_expiries(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        for _ in 0..EXPIRIES_PER_TICK_MAX {
            let Some(commit) = self.replica.notice_expiry(now).cloned() else { return };
            let arrival = self.arrivals.note(commit.key.clone());
            effects.push(Effect::Expired { arrival, commit });
        }
        self.expire_not_before = Timestamp(now.0.saturating_add(1));
    }

    /// Returns when the next expiry is due.
    pub fn deadline(&self) -> Option<Timestamp> {
        let expiry = self.replica.next_expiry();
        expiry.map(|expires| expires.time().max(self.expire_not_before))
    }
}
