//! Large values that commits of this node name and only other nodes have: the store's side of their
//! fetching. Looks at the commits in small steps, so that no write waits for it.

use super::mailbox::Sender;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::{Arc, Weak};

use store_core::{Commit, CommitAction, Event, Position, Replica};

use super::bulk::schedule::MissingValues;
use super::bulk::{StatedHash, ValueName};
use super::command::Command;
use super::shared::Shared;

/// The number of values looked at under one lock of the machine: well below a millisecond.
const STEP: usize = 256;

/// The number of commits whose claims about a value are considered; one true claim suffices.
const CLAIMS_MAX: usize = 64;

pub struct Missing {
    /// The store; weak, since it ends when its owner drops it.
    shared: Weak<Shared>,
    commands: Sender<Command>,
}

impl Missing {
    pub fn new(shared: &Arc<Shared>, commands: Sender<Command>) -> Arc<Missing> {
        Arc::new(Missing { shared: Arc::downgrade(shared), commands })
    }
}

impl MissingValues for Missing {
    fn missing(&self, max: usize, skip: &dyn Fn(&ValueName) -> bool) -> Vec<ValueName> {
        let Some(shared) = self.shared.upgrade() else { return Vec::new() };
        let mut newest: BinaryHeap<Reverse<(Position, ValueName)>> = BinaryHeap::new();
        let mut after = None;
        loop {
            let machine = shared.machine();
            let replica = machine.replica();
            let from = after.map_or(Unbounded, Excluded);
            let step = replica.absent().range::<[u8; 32], _>((from, Unbounded)).take(STEP);
            after = None;
            for (hash, absent) in step {
                after = Some(*hash);
                let value = ValueName { hash: *hash, size: absent.size };
                let winner = absent.needed_by.iter().rev().find(|at| wins(replica, **at));
                let Some(at) = winner.filter(|_| !skip(&value)) else { continue };
                newest.push(Reverse((*at, value)));
                if newest.len() > max {
                    newest.pop();
                }
            }
            if after.is_none() {
                break;
            }
        }
        newest.into_sorted_vec().into_iter().map(|Reverse((_, value))| value).collect()
    }

    fn is_missing(&self, value: &ValueName) -> bool {
        let Some(shared) = self.shared.upgrade() else { return false };
        let machine = shared.machine();
        let replica = machine.replica();
        let absent = replica.absent().get(&value.hash);
        absent.is_some_and(|absent| absent.needed_by.iter().any(|at| wins(replica, *at)))
    }

    fn claims(&self, value: &ValueName) -> Vec<StatedHash> {
        let Some(shared) = self.shared.upgrade() else { return Vec::new() };
        let machine = shared.machine();
        let replica = machine.replica();
        let Some(absent) = replica.absent().get(&value.hash) else { return Vec::new() };
        let commits = absent.needed_by.iter().filter_map(|at| replica.history().get(*at));
        let claim = |commit: &Commit| match commit.action {
            CommitAction::Set { sha1, .. } => {
                Some(StatedHash { sha1, by: commit.at.node.node(), key: commit.key.clone() })
            }
            CommitAction::Delete => None,
        };
        commits.filter_map(claim).take(CLAIMS_MAX).collect()
    }

    fn arrived(&self, values: &[ValueName]) {
        let hashes = values.iter().map(|value| value.hash).collect();
        // A store that has stopped finds the files when it starts again.
        let _ = self.commands.send(Command::Tell(Event::Fetched(hashes), None));
    }
}

/// Returns whether the commit gives its key the present value; superseded ones are history without
/// bytes.
fn wins(replica: &Replica, at: Position) -> bool {
    let commit = replica.history().get(at);
    commit.is_some_and(|commit| replica.newest(&commit.key).is_some_and(|newest| newest.at == at))
}
