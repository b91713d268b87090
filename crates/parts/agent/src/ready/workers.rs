//! The count of worker processes that end one after the other: a master that starts them again and
//! again binds its port and answers nobody. Counts what others see of a tree; looks at nothing
//! itself.

use std::collections::BTreeMap;

/// The number of generations that must end before workers count as dying: one may end by accident
/// or by intent; when those that came after it end as well, the next ones will.
const GENERATIONS_MAX: u32 = 2;
/// The maximum number of workers that are counted: as many processes as a tree has in a snapshot.
const WORKERS_MAX: usize = os::observe::TREE_PROCESSES_MAX;

/// A worker's pid and start time.
pub type WorkerId = (u32, u64);

#[derive(Debug, Default)]
pub struct WorkerDeaths {
    /// The workers that live, each with its generation.
    living: BTreeMap<WorkerId, u32>,
    /// The number of generations of which a worker has ended.
    ended: u32,
    deaths: u32,
}

impl WorkerDeaths {
    /// Records all workers that live now.
    pub fn see(&mut self, now: &[WorkerId]) {
        let before = std::mem::take(&mut self.living);
        for (_, generation) in before.iter().filter(|(id, _)| !now.contains(id)) {
            self.deaths += 1;
            self.ended = self.ended.max(*generation);
        }
        for id in now.iter().take(WORKERS_MAX) {
            let generation = before.get(id).copied().unwrap_or(self.ended + 1);
            self.living.insert(*id, generation);
        }
    }

    pub fn deaths(&self) -> u32 {
        self.deaths
    }

    pub fn end_in_a_row(&self) -> bool {
        self.ended >= GENERATIONS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_whose_successors_end_too_are_reported() {
        let mut workers = WorkerDeaths::default();
        workers.see(&[(10, 1), (11, 1)]);
        workers.see(&[]);
        assert!(!workers.end_in_a_row(), "all of one generation");
        workers.see(&[(12, 5)]);
        workers.see(&[(13, 9)]);
        assert!(workers.end_in_a_row());
        assert_eq!(workers.deaths(), 3);
    }

    #[test]
    fn workers_that_live_on_are_not_reported() {
        let mut workers = WorkerDeaths::default();
        workers.see(&[(10, 1), (11, 1)]);
        workers.see(&[(10, 1), (12, 2)]);
        workers.see(&[(10, 1), (12, 2), (13, 3)]);
        assert!(!workers.end_in_a_row());
        // A pid is given out again.
        workers.see(&[(10, 1), (12, 8), (13, 3)]);
        assert!(workers.end_in_a_row());
    }
}
