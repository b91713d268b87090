//! Processes and ports, as this machine reports them.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};

use rustix::process::{Pid, Signal, kill_process};

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

/// Returns a port that nothing listens on. Test processes that run at once start at different
/// places.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let span = PORTS.end - PORTS.start;
    let start = (std::process::id() % u32::from(span)) as u16;
    for _ in 0..span {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = PORTS.start + start.wrapping_add(step) % span;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port between {} and {}", PORTS.start, PORTS.end);
}
