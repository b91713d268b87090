//! The processes below this shim. As their subreaper it stays the ancestor of all of them, however
//! often they fork, change their session or lose their parents.

use std::collections::BTreeSet;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use os::observe::process;

use crate::sandbox::Ending;

/// Sends `signal` to every descendant but `spared` and what is below that. Each is signalled as
/// soon as it is seen: pids mostly ascend, so a child that was forked during the scan is seen later
/// in the same scan.
pub fn signal_all(signal: Signal, spared: Option<Pid>) {
    let own = std::process::id();
    let mut tree = BTreeSet::from([own]);
    let mut others = Vec::new();
    let spared = spared.and_then(|pid| u32::try_from(pid.as_raw_pid()).ok());
    let Ok(pids) = process::pids() else { return };
    for pid in pids.into_iter().filter(|pid| Some(*pid) != spared) {
        let Some(stat) = process::stat(pid) else { continue };
        if tree.contains(&stat.parent) {
            tree.insert(pid);
            send(pid, signal);
        } else {
            others.push((pid, stat.parent));
        }
    }
    // After the pids wrapped around, children come before their parents.
    loop {
        let known = tree.len();
        others.retain(|(pid, parent)| {
            let found = tree.contains(parent);
            if found {
                tree.insert(*pid);
                send(*pid, signal);
            }
            !found
        });
        if tree.len() == known {
            return;
        }
    }
}

/// Signals a process. If it is gone already, or another user's, nothing can be done about it.
fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// The result of `reap`.
pub enum Reaped {
    Child(Pid, WaitStatus),
    /// Some descendants live, none has exited.
    NoneYet,
    /// No descendant is left at all.
    NoChildren,
}

pub fn reap() -> Reaped {
    loop {
        return match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => Reaped::Child(pid, status),
            Ok(None) => Reaped::NoneYet,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => Reaped::NoChildren,
        };
    }
}

/// Returns the exit code as a shell counts it.
pub fn code(ending: Ending) -> Option<u8> {
    match ending {
        Ending::Exited(code) => Some(code),
        Ending::Killed(signal) => 128_u8.checked_add(signal),
    }
}

/// Describes the end for people.
pub fn describe(ending: Ending) -> String {
    let signal = match ending {
        Ending::Exited(code) => return format!("exit status {code}"),
        Ending::Killed(signal) => signal,
    };
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return format!("killed by signal {signal}"),
    };
    format!("killed by signal {signal} ({name})")
}
