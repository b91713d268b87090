//! Processes and ports, as this machine reports them.

use std::fs;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::wait_until;

/// The identity of one process: a pid alone may be another one later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub pid: u32,
    pub start_ticks: u64,
}

/// Returns the identity of a process; `None` if no such process lives, as one that only waits to be
/// reaped.
pub fn identity(pid: u32) -> Option<Identity> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    if matches!(fields[0], "Z" | "X") {
        return None;
    }
    Some(Identity { pid, start_ticks: fields[19].parse().ok()? })
}

pub fn lives(process: Identity) -> bool {
    identity(process.pid) == Some(process)
}

pub fn kill(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid as i32).expect("a pid is not 0");
    kill_process(pid, signal).unwrap_or_else(|e| panic!("signalling {pid:?}: {e}"));
}

/// Stops a process, and waits until it stands still: whichever thread takes the signal stops the
/// others, and they go on while that one waits for a processor.
pub fn freeze(pid: u32) {
    kill(pid, Signal::STOP);
    wait_until("the process to stand still", || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it is there");
        let mut states = tasks.flatten().map(|task| fs::read_to_string(task.path().join("stat")));
        // The state comes behind the name, which is in parentheses.
        states.all(|stat| {
            stat.is_ok_and(|stat| {
                stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T"))
            })
        })
    });
}

/// Returns the processes whose working directory or executable lies below `directory`.
pub fn processes_below(directory: &Path) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("/proc is there").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let below = |link: &str| {
            fs::read_link(entry.path().join(link)).is_ok_and(|path| path.starts_with(directory))
        };
        if identity(pid).is_some() && (below("cwd") || below("exe")) {
            let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            found.push((pid, String::from_utf8_lossy(&command).replace('\0', " ")));
        }
    }
    found
}

/// The ports that tests take: apart from the range of instances (20000-29999), of applications
/// (8000-8999) and of ports that the kernel gives to outgoing connections (32768 and above).
const PORTS: std::ops::Range<u16> = 10_000..20_000;

/// The ports of a block, of which each test process has one to itself: more than its tests use at a
/// time.
const BLOCK_PORTS: u16 = 2_000;

/// Returns a port that nothing listens on.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let block = port_block();
    for _ in 0..BLOCK_PORTS {
        let port = block + NEXT.fetch_add(1, Ordering::Relaxed) % BLOCK_PORTS;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port between {block} and {}", block + BLOCK_PORTS);
}

/// Returns the first port of this process's block. A name in the kernel, which ends with the
/// process, says that the block is taken.
fn port_block() -> u16 {
    static BLOCK: OnceLock<(u16, UnixDatagram)> = OnceLock::new();
    let take = || {
        let mut free = PORTS.step_by(usize::from(BLOCK_PORTS)).filter_map(|first| {
            let name = format!("cortex-e2e-ports-{first}");
            let name = SocketAddr::from_abstract_name(name).expect("a short name");
            Some((first, UnixDatagram::bind_addr(&name).ok()?))
        });
        free.next().expect("one of the blocks of ports: too many test processes run at once")
    };
    BLOCK.get_or_init(take).0
}
