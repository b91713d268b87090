//! A replica made from a snapshot: commits in order, and the winners found once at the end. A
//! million lookups in a growing order of keys would take most of the time of opening.

use super::{Horizons, Replica};
use crate::commit::Commit;
use crate::history::Inserted;
use crate::winners::Winners;

#[derive(Default)]
pub struct Restoring {
    replica: Replica,
}

impl Restoring {
    pub fn new(horizons: Horizons) -> Restoring {
        Restoring { replica: Replica { horizons, ..Replica::default() } }
    }

    /// Takes in a commit with its own `cid`. Returns false if its position is taken, which happens
    /// in no snapshot.
    pub fn take(&mut self, commit: Commit, cid: &[u8; 32]) -> bool {
        self.replica.count(&commit);
        self.replica.history.insert_as(commit, cid) == Inserted::New
    }

    pub fn finish(self) -> Replica {
        let Restoring { mut replica } = self;
        replica.winners = Winners::of(replica.history.iter());
        let mut deleted = 0;
        let history = &replica.history;
        for commit in history.iter().filter(|c| c.is_delete() || c.expires().is_some()) {
            if replica.winners.get(&commit.key) == Some(commit.at) {
                deleted += usize::from(commit.is_delete());
                if let Some(expires) = commit.expires() {
                    replica.expiring.enter(expires, commit.at);
                }
            }
        }
        replica.deleted = deleted;
        replica
    }
}
