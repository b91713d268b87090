//! The cap of what a shim holds, and the watch over it. Needs no privilege that an ordinary user
//! lacks, and no cgroup: which of them a user may divide differs from system to system. Cores are
//! limited by affinity, which costs nothing, which children inherit however fast they fork, and
//! which `nproc`, make, cargo and go obey when they choose how much to do at once; stopping and
//! continuing a tree in turn would be raced by forks and noticed by programs. Memory and processes
//! are polled.

use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::spec::Cap;
use os::observe::Snapshot;

/// The interval between two looks: a tree that grows by a gigabyte a second is stopped a quarter of
/// one above the cap.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// The ratio of the interval to the duration of a look, so that looking takes no more than this
/// part of a processor, however many processes there are.
const LOOK_PART: u32 = 20;
/// The nice value of capped processes: below everything else of the session's owner.
const CAPPED_NICE: i32 = 19;

pub struct CapWatch {
    cap: Cap,
    next: Instant,
}

impl CapWatch {
    pub fn new(cap: Cap, now: Instant) -> CapWatch {
        CapWatch { cap, next: now + LOOK_INTERVAL }
    }

    pub fn next(&self) -> Instant {
        self.next
    }

    /// Returns what the descendants of this process took too much of, if anything.
    pub fn look(&mut self, now: Instant) -> Option<String> {
        if now < self.next {
            return None;
        }
        let excess = excess(&self.cap);
        self.next = Instant::now() + LOOK_INTERVAL.max(now.elapsed() * LOOK_PART);
        excess
    }
}

fn excess(cap: &Cap) -> Option<String> {
    let snapshot = Snapshot::take().ok()?;
    let tree = snapshot.descendants(std::process::id());
    if tree.len() > cap.processes as usize {
        return Some(format!("ran more than {} processes at once", cap.processes));
    }
    // Resident sizes count shared pages again and again, and cost nothing: they come first.
    let above = snapshot.resident_bytes(&tree) > cap.memory_bytes
        && snapshot.exact_bytes(&tree) > cap.memory_bytes;
    above.then(|| format!("used more than {} MB of memory", cap.memory_bytes >> 20))
}

/// Applies the cap to the calling process, just before it becomes the program. Where a system
/// refuses, it is no more than a wish.
pub fn apply(cap: &Cap) {
    let _ = rustix::process::setpriority_process(None, CAPPED_NICE);
    // Where the kernel groups processes by session, that alone weighs one against the others.
    let _ = std::fs::write("/proc/self/autogroup", CAPPED_NICE.to_string());
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    let mut set = CpuSet::new();
    for core in part(&cores, cap.cores) {
        set.set(*core);
    }
    let _ = sched_setaffinity(None, &set);
}

/// Returns the last of the cores: interrupts and programs that pin themselves prefer the first.
fn part(cores: &[usize], count: u32) -> &[usize] {
    let count = usize::try_from(count.max(1)).unwrap_or(usize::MAX);
    &cores[cores.len().saturating_sub(count)..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_cores_is_left_to_others() {
        assert_eq!(part(&[0, 1, 4, 5], 2), [4, 5]);
        assert_eq!(part(&[0, 1], 1), [1]);
        assert_eq!(part(&[3], 2), [3]);
        assert_eq!(part(&[3, 4], 0), [4]);
        assert!(part(&[], 1).is_empty());
    }

    #[test]
    fn a_cap_that_is_exceeded_is_named() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let cap = Cap { memory_bytes: 64 << 30, processes: 500, cores: 1 };
        assert_eq!(excess(&cap), None);
        // A process that is just becoming its program holds nothing for a moment.
        let deadline = Instant::now() + Duration::from_secs(20);
        let words = loop {
            if let Some(words) = excess(&Cap { memory_bytes: 1, ..cap }) {
                break words;
            }
            assert!(Instant::now() < deadline, "it holds no memory");
            std::thread::yield_now();
        };
        assert_eq!(words, "used more than 0 MB of memory");
        let words = excess(&Cap { processes: 0, ..cap }).unwrap();
        assert_eq!(words, "ran more than 0 processes at once");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
