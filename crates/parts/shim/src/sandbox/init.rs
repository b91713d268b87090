//! The first process behind a wall. It starts the program, waits for whatever its parents left to
//! it, and ends with the program; the kernel ends the rest then. Signals for which it has no
//! handler do not reach it, so the program could not take its place: it would not hear SIGTERM.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;

use rustix::process::{Pid, WaitOptions, WaitStatus};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Exited(u8),
    Killed(u8),
}

impl Ending {
    pub fn of(status: WaitStatus) -> Option<Ending> {
        let small = |number: i32| u8::try_from(number).ok();
        let exited = status.exit_status().and_then(small).map(Ending::Exited);
        exited.or_else(|| status.terminating_signal().and_then(small).map(Ending::Killed))
    }
}

/// Starts the program and stays until it has ended. Returns only if it cannot be started; `started`
/// is shut down once it runs.
pub fn become_init(mut command: Command, started: &UnixStream, report: OwnedFd) -> io::Error {
    let program = match command.spawn() {
        Ok(child) => Pid::from_child(&child),
        Err(error) => return error,
    };
    // Standard input is a copy of it, which closing would leave open.
    let _ = started.shutdown(Shutdown::Both);
    drop(command);
    let ending = loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == program => break Ending::of(status),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => break None,
        }
    };
    let mut report = std::fs::File::from(report);
    let code = match ending {
        Some(Ending::Exited(code)) => {
            let _ = report.write_all(&[0, code]);
            code
        }
        Some(Ending::Killed(signal)) => {
            let _ = report.write_all(&[1, signal]);
            128_u8.saturating_add(signal)
        }
        None => 1,
    };
    std::process::exit(i32::from(code))
}

/// Reads how the program ended; `None` if its first process ended before that.
pub fn ending(report: OwnedFd) -> Option<Ending> {
    let mut bytes = [0; 2];
    std::fs::File::from(report).read_exact(&mut bytes).ok()?;
    Some(match bytes {
        [0, code] => Ending::Exited(code),
        [_, signal] => Ending::Killed(signal),
    })
}
