//! What the two sides of a session have in common: its name, and the batches that are not durable
//! yet.

use std::collections::BTreeMap;

use crate::commit::NodeTag;
use crate::event::Origin;
use crate::sync::give::BATCHES_UNDURABLE_MAX;

/// A session, by its peer and the number that its opener chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionId {
    pub peer: NodeTag,
    pub number: u64,
}

impl From<Origin> for SessionId {
    fn from(origin: Origin) -> SessionId {
        SessionId { peer: origin.peer, number: origin.session }
    }
}

/// The batches that a session has brought and that are not durable yet.
#[derive(Default)]
pub(crate) struct Undurable(BTreeMap<u32, usize>);

impl Undurable {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a batch of this number may come now.
    pub fn admits(&self, batch: u32) -> bool {
        self.0.len() < BATCHES_UNDURABLE_MAX && !self.0.contains_key(&batch)
    }

    /// Notes a batch of which so many commits are on their way to the disk.
    pub fn begin(&mut self, batch: u32, commits: usize) {
        self.0.insert(batch, commits);
    }

    pub fn remove(&mut self, batch: u32) {
        self.0.remove(&batch);
    }

    /// Notes that so many more commits of a batch are durable. Returns whether it all is now.
    pub fn durable(&mut self, batch: u32, count: usize) -> bool {
        let Some(left) = self.0.get_mut(&batch) else { return false };
        *left = left.saturating_sub(count);
        let all = *left == 0;
        if all {
            self.0.remove(&batch);
        }
        all
    }
}
