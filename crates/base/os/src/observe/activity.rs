//! The activity of a process tree, as far as can be seen from outside: processor time used and
//! waited for, and connections to elsewhere. For people who wonder why nothing is printed.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

use super::Snapshot;
use super::listeners::{DESCRIPTORS_MAX, TABLE_BYTES_MAX, address_of, socket_inode};

/// The maximum number of processes that are looked at: compilers run some dozens; more do not
/// change the picture.
const PROCESSES_MAX: usize = 128;
const THREADS_MAX: usize = 64;
/// The states in the column `st` of connections that are open, or being opened.
const CONNECTED: &[&str] = &["01", "02"];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    pub processes: usize,
    /// The processor time of those that run, and of children that they have waited for.
    pub cpu: Duration,
    /// The time in which they were ready to run, and something else was running.
    pub delayed: Duration,
    /// The number of those that wait for a disk at this moment.
    pub on_disk: usize,
}

impl Activity {
    pub fn of(snapshot: &Snapshot, pid: u32) -> Activity {
        let tree = snapshot.tree(pid);
        let mut all = Activity { processes: tree.len(), ..Activity::default() };
        for pid in tree.iter().take(PROCESSES_MAX) {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if let Some((state, ticks)) = parse(&stat) {
                let per_second = rustix::param::clock_ticks_per_second().max(1);
                all.cpu += Duration::from_millis(ticks.saturating_mul(1000) / per_second);
                all.on_disk += usize::from(state == "D");
            }
            let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            for thread in threads.take(THREADS_MAX) {
                let text = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
                let delayed = text.split(' ').nth(1).and_then(|word| word.parse().ok());
                all.delayed += Duration::from_nanos(delayed.unwrap_or(0));
            }
        }
        all
    }
}

/// Returns the state, and the ticks of the process and of children that it has waited for.
fn parse(stat: &str) -> Option<(&str, u64)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let ticks = fields.skip(10).take(4).map(|field| field.parse().unwrap_or(0u64)).sum();
    Some((state, ticks))
}

/// Returns the number of connections that the tree of `pid` has with other machines.
pub fn connections(snapshot: &Snapshot, pid: u32) -> usize {
    let mut remote = BTreeSet::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let Ok(file) = fs::File::open(table) else { continue };
        let lines =
            BufReader::new(file.take(TABLE_BYTES_MAX)).lines().skip(1).map_while(Result::ok);
        remote.extend(lines.filter_map(|line| remote_inode(&line)));
    }
    let tree = snapshot.tree(pid);
    let links = tree.iter().take(PROCESSES_MAX).flat_map(|pid| {
        let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        entries.take(DESCRIPTORS_MAX).filter_map(|entry| fs::read_link(entry.path()).ok())
    });
    let inodes: BTreeSet<u64> = links.filter_map(|link| socket_inode(&link)).collect();
    inodes.intersection(&remote).count()
}

fn remote_inode(line: &str) -> Option<u64> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, _, peer, state, _, _, _, _, _, inode, ..] = fields[..] else { return None };
    let address = address_of(peer.split_once(':')?.0)?;
    (CONNECTED.contains(&state) && !address.is_loopback()).then(|| inode.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_a_process_and_of_its_children_counts() {
        let line = "42 (a) b (c)) D 7 42 41 0 -1 4194560 1 2 3 4 50 6 7 8 20 0 1 0 99 1000 25 18";
        assert_eq!(parse(line), Some(("D", 71)));
        assert_eq!(parse("gone"), None);
        let own = Activity::of(&Snapshot::take().unwrap(), std::process::id());
        assert!(own.processes >= 1, "{own:?}");
    }

    #[test]
    fn only_connections_with_other_machines_count() {
        let row = |peer: &str, state: &str| {
            remote_inode(&format!(" 1: 0100007F:1F90 {peer} {state} 0:0 00:0 0 0 0 77 1"))
        };
        assert_eq!(row("08080808:0050", "01"), Some(77));
        assert_eq!(row("08080808:0050", "02"), Some(77));
        assert_eq!(row("0100007F:0050", "01"), None);
        assert_eq!(row("08080808:0050", "0A"), None);
    }
}
