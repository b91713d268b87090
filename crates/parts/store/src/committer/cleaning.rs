//! Frees space: segments without values and value files without commits. Values that keep a mostly
//! dead segment alive are written anew at the end of the log.

use std::io;
use std::sync::PoisonError;

use store_core::event::Event;
use store_core::{Location, Position};

use super::Committer;
use crate::log::LogError;
use crate::segment::snapshot_path;

/// The number of values moved at a time, so that writers hardly wait for the cleaning of old
/// segments.
const MOVES_PER_BATCH: usize = 64;

impl Committer {
    /// Removes what the snapshot that ends before `next` made superfluous.
    pub(super) fn free_covered(&mut self, next: u32) {
        let dead: Vec<u32> = {
            let machine = self.shared.machine();
            let segments = self.log.segments().read().unwrap_or_else(PoisonError::into_inner);
            let needed = machine.replica().segments();
            segments.range(..next).map(|(n, _)| *n).filter(|n| !needed.contains_key(n)).collect()
        };
        // No commit lies in them, and none ever will.
        let freed = self.log.free(&dead);
        let removed = self.old_snapshots(next).and_then(|older| {
            let mut paths = older.iter().map(|older| snapshot_path(&self.dir, *older));
            paths.try_for_each(|path| self.options.disk.remove(&path))?;
            self.options.disk.sync_names(&self.dir)
        });
        for error in [freed.err(), removed.err()].into_iter().flatten() {
            tracing::warn!(%error, "store.cleaning_failed");
        }
    }

    fn old_snapshots(&self, next: u32) -> io::Result<Vec<u32>> {
        let names = self.options.disk.names(&self.dir)?;
        let number = |name: String| name.strip_prefix("index-")?.parse().ok();
        Ok(names.into_iter().filter_map(number).filter(|n| *n < next).collect())
    }

    /// Plans to empty the emptiest segments, until the old ones hold at most as many dead bytes as
    /// live ones, and one more segment's worth.
    pub(super) fn plan_moves(&mut self, next: u32) {
        if !self.moves.is_empty() {
            return;
        }
        let machine = self.shared.machine();
        let segments = self.log.segments().read().unwrap_or_else(PoisonError::into_inner);
        let live = |n: &u32| machine.replica().segments().get(n).copied().unwrap_or(0);
        let mut old: Vec<(u32, u64, u64)> = segments
            .range(..next)
            .map(|(number, segment)| (*number, live(number), u64::from(segment.capacity)))
            .collect();
        let total: u64 = old.iter().map(|(_, _, capacity)| capacity).sum();
        let alive: u64 = old.iter().map(|(_, live, _)| live).sum();
        let spare = old.iter().map(|(_, _, capacity)| *capacity).max().unwrap_or(0);
        let mut excess = total.saturating_sub(2 * alive + spare);
        old.sort_by_key(|(number, live, capacity)| (live * 1000 / capacity.max(&1), *number));
        for (number, live, capacity) in old {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(capacity.saturating_sub(live));
            self.moves.extend(machine.replica().located_in(number).map(|commit| commit.at));
        }
    }

    pub(super) fn move_some(&mut self) -> Result<(), LogError> {
        let mut chosen: Vec<Position> = Vec::new();
        while chosen.len() < MOVES_PER_BATCH
            && let Some(at) = self.moves.pop_front()
        {
            chosen.push(at);
        }
        let mut moves = Vec::new();
        for at in chosen {
            let commit = self.shared.machine().replica().history().get(at).cloned();
            let Some(commit) = commit.filter(|c| matches!(c.location, Location::Log { .. })) else {
                continue;
            };
            let Some(file) = self.shared.file_of(&commit) else { continue };
            match self.shared.read(&commit, &file) {
                Ok(value) => moves.push((self.expect(value, None), at)),
                // The segment stays then, and with it the chance to repair the value.
                Err(error) => tracing::error!(%error, "store.value_damaged"),
            }
        }
        if moves.is_empty() { Ok(()) } else { self.feed(Some(Event::Move(moves))) }
    }

    /// Collects value files in the background: a directory may be large and the disk slow.
    pub(super) fn collect_values(&mut self) {
        if self.collecting.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        let shared = self.shared.clone();
        let work = move || {
            // A value that is still to come is needed too, as far as it has come.
            let referred = |hash: &[u8; 32]| {
                let machine = shared.machine();
                machine.replica().refers_to(hash) || machine.replica().absent().contains_key(hash)
            };
            match shared.values.collect(referred) {
                Ok(0) => {}
                Ok(removed) => tracing::info!(removed, "store.values_collected"),
                Err(error) => tracing::warn!(%error, "store.values_not_collected"),
            }
        };
        let spawned = std::thread::Builder::new().name("store-values".into()).spawn(work);
        self.collecting = spawned.ok();
    }
}
