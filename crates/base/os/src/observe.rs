//! The processes of applications as `/proc` shows them: their trees, their memory, where they
//! listen. One `Snapshot` serves any number of them. Blocking, about 10 µs per process of the
//! machine; must not know what the processes are for.

pub mod process;

mod activity;
mod diagnosis;
mod listeners;

use std::collections::{BTreeMap, BTreeSet};
use std::io;

pub use activity::{Activity, connections};
pub use listeners::{Listeners, ports_in};
use process::Stat;

/// The maximum number of processes of a tree; larger ones are cut off: no application needs as
/// many, and a fork bomb must not stall those who look at it.
pub const TREE_PROCESSES_MAX: usize = 4096;
/// The first argument of a process that holds an application's tree and takes over what it leaves
/// behind: a shim.
pub const HOLDER: &str = "__shim";
/// The maximum number of processes that are asked for their exact share; it takes the kernel about
/// a millisecond for each GiB.
const EXACT_PROCESSES_MAX: usize = 64;

/// All processes of the machine at one moment.
pub struct Snapshot {
    processes: BTreeMap<u32, Stat>,
    children: BTreeMap<u32, Vec<u32>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub bytes: u64,
    pub measure: Measure,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Shared pages are divided among the processes that share them. Right for servers that fork
    /// workers from one that has loaded everything: resident sizes count that part once per worker.
    Proportional,
    /// An upper bound, where the kernel does not say or the tree is large.
    Resident,
}

impl Snapshot {
    pub fn take() -> io::Result<Snapshot> {
        let mut processes = BTreeMap::new();
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for pid in process::pids()? {
            if let Some(stat) = process::stat(pid).filter(|stat| !stat.is_dead()) {
                children.entry(stat.parent).or_default().push(pid);
                processes.insert(pid, stat);
            }
        }
        Ok(Snapshot { processes, children })
    }

    pub fn contains(&self, pid: u32) -> bool {
        self.processes.contains_key(&pid)
    }

    /// Returns `pid`, everything below it, its session, and what its shim has taken over from it.
    /// Empty when there is no such process.
    pub fn tree(&self, pid: u32) -> Vec<u32> {
        let Some(stat) = self.processes.get(&pid) else { return Vec::new() };
        if is_shim(stat.parent) {
            let mut tree = self.below(stat.parent);
            tree.retain(|one| *one != stat.parent);
            return tree;
        }
        self.tree_and_session(pid).iter().map(|stat| stat.pid).collect()
    }

    pub fn stat(&self, pid: u32) -> Option<&Stat> {
        self.processes.get(&pid)
    }

    /// Returns the same as `tree`, for a process whose shim is gone.
    pub fn tree_and_session(&self, pid: u32) -> Vec<Stat> {
        if !self.contains(pid) {
            return Vec::new();
        }
        let mut tree = self.below(pid);
        let known: BTreeSet<u32> = tree.iter().copied().collect();
        let session = self.processes.values().filter(|stat| stat.session == pid);
        tree.extend(session.map(|stat| stat.pid).filter(|one| !known.contains(one)));
        tree.iter().filter_map(|pid| self.processes.get(pid)).copied().collect()
    }

    fn below(&self, root: u32) -> Vec<u32> {
        let mut tree = vec![root];
        let mut next = 0;
        while let Some(parent) = tree.get(next).copied()
            && tree.len() < TREE_PROCESSES_MAX
        {
            tree.extend(self.children.get(&parent).into_iter().flatten());
            next += 1;
        }
        tree.truncate(TREE_PROCESSES_MAX);
        tree
    }

    /// Returns the memory of the whole tree; `None` when there is no such process.
    pub fn memory(&self, pid: u32) -> Option<Memory> {
        let tree = self.tree(pid);
        if tree.is_empty() {
            return None;
        }
        if tree.len() <= EXACT_PROCESSES_MAX
            && let Some(bytes) = tree.iter().map(|pid| proportional_bytes(*pid)).sum()
        {
            return Some(Memory { bytes, measure: Measure::Proportional });
        }
        Some(Memory { bytes: self.resident_bytes(&tree), measure: Measure::Resident })
    }

    /// Returns everything below `root`, without `root` itself.
    pub fn descendants(&self, root: u32) -> Vec<u32> {
        self.below(root).split_off(1)
    }

    /// Returns an upper bound: pages that are shared count once for each process that shares them.
    pub fn resident_bytes(&self, tree: &[u32]) -> u64 {
        tree.iter().map(|pid| self.resident_of(*pid)).sum()
    }

    /// Returns the memory with shared pages counted once; for other users' processes the upper
    /// bound.
    pub fn exact_bytes(&self, tree: &[u32]) -> u64 {
        let one = |pid: &u32| proportional_bytes(*pid).unwrap_or_else(|| self.resident_of(*pid));
        tree.iter().map(one).sum()
    }

    fn resident_of(&self, pid: u32) -> u64 {
        let pages = self.processes.get(&pid).map_or(0, |stat| stat.resident_pages);
        pages.saturating_mul(rustix::param::page_size() as u64)
    }
}

/// Returns a process's proportional share: zero if it is gone meanwhile; `None` if it is another
/// user's.
fn proportional_bytes(pid: u32) -> Option<u64> {
    match std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) {
        Ok(text) => {
            let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
            Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
        }
        Err(_) if process::stat(pid).is_none_or(|stat| stat.is_dead()) => Some(0),
        Err(_) => None,
    }
}

fn is_shim(pid: u32) -> bool {
    let Ok(line) = std::fs::read(format!("/proc/{pid}/cmdline")) else { return false };
    line.split(|byte| *byte == 0).nth(1) == Some(HOLDER.as_bytes())
}
