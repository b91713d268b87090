//! The loss of a machine without warning, as far as one machine that goes on can have it: every
//! process of a node is killed at once. Processes are found by where they run and identified by
//! their start time; a pid alone is never signalled.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use os::observe::process::{Stat, pids, stat};

/// The number of times that processes are looked for: one that is killed may have started another a
/// moment before.
const SWEEPS_MAX: u32 = 20;
/// The time limit for killed processes to end, which takes a processor that others may keep busy.
const DEATH_TIME_MAX: Duration = Duration::from_secs(10);

/// Kills the node's process, its shims and its instances, and returns how many were killed.
pub fn kill_all(node: u32, data: &Path) -> anyhow::Result<usize> {
    let mut killed = BTreeSet::new();
    let deadline = Instant::now() + DEATH_TIME_MAX;
    for _ in 0..SWEEPS_MAX {
        let living = of_node(node, data)?;
        if living.is_empty() {
            return Ok(killed.len());
        }
        let mut dying = Vec::new();
        for process in living {
            dying.extend(kill(&process)?);
            killed.insert((process.pid, process.start_ticks));
        }
        for process in dying {
            wait_for_end(&process, deadline.saturating_duration_since(Instant::now()))?;
        }
    }
    let left = of_node(node, data)?.len();
    ensure!(left == 0, "{left} processes below {} were not to be killed", data.display());
    Ok(killed.len())
}

/// Returns the processes of a node, the node itself first, so that it sees none of the others die.
fn of_node(node: u32, data: &Path) -> anyhow::Result<Vec<Stat>> {
    let own = std::process::id();
    let all: BTreeMap<u32, Stat> = pids()
        .context("/proc")?
        .filter_map(|pid| Some((pid, stat(pid).filter(|stat| !stat.is_dead() && pid != own)?)))
        .collect();
    let belongs = |stat: &&Stat| {
        // A node that ended left its number to others, but its parent is this process.
        let is_node = stat.pid == node && stat.parent == own;
        is_node || ["cwd", "exe"].iter().any(|link| leads_below(stat.pid, link, data))
    };
    let mut found: Vec<Stat> = all.values().filter(belongs).copied().collect();
    let mut known: BTreeSet<u32> = found.iter().map(|stat| stat.pid).collect();
    let mut next = 0;
    while let Some(parent) = found.get(next).map(|stat| stat.pid) {
        let children = all.values().filter(|stat| stat.parent == parent);
        found.extend(children.filter(|stat| known.insert(stat.pid)).copied());
        next += 1;
    }
    found.sort_by_key(|stat| (stat.pid != node, !leads_below(stat.pid, "exe", data), stat.pid));
    Ok(found)
}

fn leads_below(pid: u32, link: &str, data: &Path) -> bool {
    std::fs::read_link(format!("/proc/{pid}/{link}")).is_ok_and(|path| path.starts_with(data))
}

/// Waits for a process to end, or until the time is over.
fn wait_for_end(process: &OwnedFd, limit: Duration) -> anyhow::Result<()> {
    let limit = Timespec::try_from(limit).context("a time limit")?;
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    match poll(&mut ended, Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error).context("poll"),
    }
}

/// Kills exactly this process: its descriptor cannot come to mean another one. Returns `None` if it
/// has ended.
pub fn kill(process: &Stat) -> anyhow::Result<Option<OwnedFd>> {
    let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw).context("no pid")?;
    let descriptor = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return Ok(None),
        opened => opened.context("pidfd_open")?,
    };
    if stat(process.pid).is_none_or(|now| now.start_ticks != process.start_ticks) {
        return Ok(None);
    }
    match pidfd_send_signal(&descriptor, Signal::KILL) {
        Ok(()) => Ok(Some(descriptor)),
        Err(Errno::SRCH) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("process {} cannot be killed", pid)),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn every_process_of_a_node_is_killed_and_no_other() {
        let data = tempfile::tempdir().unwrap();
        let mut node = Command::new("sleep").arg("600").spawn().unwrap();
        let mut instance = Command::new("sleep");
        let mut instance = instance.arg("600").current_dir(data.path()).spawn().unwrap();
        let mut stranger = Command::new("sleep").arg("600").spawn().unwrap();

        let killed = kill_all(node.id(), data.path()).unwrap();
        assert_eq!(killed, 2, "the node and what runs below its data");
        assert!(!node.wait().unwrap().success() && !instance.wait().unwrap().success());
        assert!(stranger.try_wait().unwrap().is_none());
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }

    #[test]
    fn a_number_that_means_another_process_now_is_not_signalled() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let other = Stat { start_ticks: 1, ..stat(child.id()).unwrap() };
        kill(&other).unwrap();
        assert!(child.try_wait().unwrap().is_none());
        kill(&stat(child.id()).unwrap()).unwrap();
        assert!(!child.wait().unwrap().success());
    }
}
