//! Values of other nodes that the disk had no room for. They are not kept, not passed on and not
//! part of the history, but this node must know some of them (`Options::unkept` says which). Those
//! are notes on its board, in memory, until the disk takes the values.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use model::{Key, NodeId};
use store_core::event::BatchEntry;
use store_core::{Commit, Position};

use super::Committer;
use crate::options::NoteUnkept;

/// The number of values known this way: as many as a large cluster has instances. More are ignored
/// until there is room.
const UNKEPT_MAX: usize = 16_384;

/// The position of the newest value of each key: a peer sends all it has again and again, oldest
/// first.
#[derive(Debug)]
pub(super) struct Unkept {
    note: NoteUnkept,
    newest: BTreeMap<Arc<str>, Position>,
}

impl Unkept {
    pub(super) fn new(note: NoteUnkept) -> Unkept {
        Unkept { note, newest: BTreeMap::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.newest.is_empty()
    }

    /// Returns the note for a value that was not kept; `None` if it need not be known or is no
    /// news.
    fn heard(&mut self, own: &NodeId, commit: &Commit, held: Option<Position>) -> Option<Key> {
        let note = self.note_of(own, commit)?;
        let known = self.newest.get(&commit.key).copied();
        if known.max(held) >= Some(commit.at) {
            return None;
        }
        if known.is_none() && self.newest.len() >= UNKEPT_MAX {
            return None;
        }
        self.newest.insert(commit.key.clone(), commit.at);
        Some(note)
    }

    /// Returns the note to remove if the value that is kept now is as new; `None` otherwise.
    fn kept(&mut self, own: &NodeId, commit: &Commit) -> Option<Key> {
        let known = self.newest.get(&commit.key)?;
        if *known > commit.at {
            return None;
        }
        self.newest.remove(&commit.key);
        self.note_of(own, commit)
    }

    fn note_of(&self, own: &NodeId, commit: &Commit) -> Option<Key> {
        (self.note)(own, &Key::try_from(commit.key.clone()).ok()?)
    }
}

impl Committer {
    /// Puts values that the disk had no room for on the board, as notes.
    pub(super) fn know_unkept(&mut self, entries: &[BatchEntry]) {
        let now = self.clock.now();
        for entry in entries {
            let BatchEntry::Foreign { ticket, commit, .. } = entry else { continue };
            let newest = self.shared.machine().replica().newest(&commit.key).map(|held| held.at);
            let Some(note) = self.unkept.heard(&self.shared.node, commit, newest) else { continue };
            let value = match self.pending.get(ticket) {
                Some(pending) if !commit.is_delete() => pending.value.clone(),
                _ => Bytes::new(),
            };
            self.shared.set_note(now, note, value);
        }
    }

    /// Removes the notes of values that are kept now and can be read like all others.
    pub(super) fn forget_unkept(&mut self, entries: &[BatchEntry]) {
        let now = self.clock.now();
        for entry in entries {
            if let BatchEntry::Foreign { commit, .. } = entry
                && let Some(note) = self.unkept.kept(&self.shared.node, commit)
            {
                self.shared.remove_note(now, note);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use model::Timestamp;
    use store_core::{CommitAction, Location, Stamp};

    use super::*;

    fn commit(key: &str, at: u64) -> Commit {
        let at = Position {
            stamp: Stamp::start_of(Timestamp(at)),
            node: store_core::NodeTag::from(&"n2".parse().unwrap()),
        };
        Commit { at, key: key.into(), action: CommitAction::Delete, location: Location::Nowhere }
    }

    #[test]
    fn the_newest_claim_of_another_node_is_known_until_it_is_kept() {
        let own: NodeId = "n1".parse().unwrap();
        let mut unkept = Unkept::new(model::key::note_unkept);
        let claim = |at| commit("instance::shop::web::1::n2", at);
        let note = Some("local::unkept::shop::web::1::n2".parse().unwrap());
        assert_eq!(unkept.heard(&own, &claim(5), Some(claim(5).at)), None, "it is held");
        assert_eq!(unkept.heard(&own, &claim(5), Some(claim(4).at)), note);
        assert_eq!(unkept.heard(&own, &claim(7), None), note);
        // The next session begins with the oldest value again.
        for at in [5, 7] {
            assert_eq!(unkept.heard(&own, &claim(at), Some(claim(4).at)), None);
        }
        assert_eq!(unkept.kept(&own, &claim(5)), None, "what is known is newer");
        assert_eq!(unkept.kept(&own, &claim(7)), note);
        assert_eq!(unkept.kept(&own, &claim(7)), None);
        for other in ["instance::shop::web::1::n1", "app::shop::spec", "a"] {
            assert_eq!(unkept.heard(&own, &commit(other, 9), None), None, "{other}");
        }
    }

    #[test]
    fn the_claims_that_are_not_kept_are_bounded() {
        let own: NodeId = "n1".parse().unwrap();
        let mut unkept = Unkept::new(model::key::note_unkept);
        let all = (1..=UNKEPT_MAX + 1).map(|n| commit(&format!("instance::a::web::{n}::n2"), 1));
        let heard = all.filter(|claim| unkept.heard(&own, claim, None).is_some()).count();
        assert_eq!(heard, UNKEPT_MAX);
    }
}
