//! The attendant: it stays in the place of a node process that has handed over to another one, so
//! that whatever started it (a terminal, systemd) sees the node run, signals it, and learns how it
//! ended. Holds nothing else.

use std::io::IsTerminal;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};

use anyhow::Context;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait};
use tokio::signal::unix::{SignalKind, signal};

use os::layout::DataDirectory;

/// The number that shells add to a signal's for the exit code of a process that it ended.
const SIGNALLED: u8 = 128;

/// Turns this process into the attendant, of which `node` is a child. Runs from the new binary, or
/// from this one if that fails.
pub fn become_attendant(program: &Path, layout: &DataDirectory, node: u32) -> anyhow::Error {
    use std::os::unix::process::CommandExt;
    let exec = |program: &Path| {
        let mut command = Command::new(program);
        command.arg("attend").arg("--data-dir").arg(layout.root());
        command.args(["--node", &node.to_string()]).exec()
    };
    let first = exec(program);
    tracing::warn!(error = %first, "upgrade.attendant_from_before");
    anyhow::Error::new(exec(Path::new("/proc/self/exe"))).context("the attendant cannot be started")
}

/// Runs until no node process is left that came from this one.
pub fn run(layout: &DataDirectory, node: u32) -> anyhow::Result<u8> {
    // Each node that hands over ends, and its child becomes this process's.
    rustix::process::set_child_subreaper(Some(getpid())).context("becoming a subreaper")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(attend(layout, node))
}

async fn attend(layout: &DataDirectory, mut node: u32) -> anyhow::Result<u8> {
    let mut ended = signal(SignalKind::child())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    loop {
        while let Some((pid, status)) = reap() {
            if pid != node {
                continue;
            }
            match successor(layout, node) {
                Some(next) => node = next,
                None => return Ok(code(status)),
            }
        }
        tokio::select! {
            _ = ended.recv() => {}
            _ = terminate.recv() => send(node, Signal::TERM),
            // A terminal has sent it to the node itself.
            _ = interrupt.recv() => if !std::io::stdin().is_terminal() {
                send(node, Signal::INT);
            },
        }
    }
}

/// Reaps a child that ended; shims of nodes that are gone are children, too.
fn reap() -> Option<(u32, ExitStatus)> {
    let (pid, status) = wait(WaitOptions::NOHANG).ok()??;
    let pid = u32::try_from(pid.as_raw_nonzero().get()).ok()?;
    Some((pid, ExitStatus::from_raw(status.as_raw())))
}

/// Returns the child of this process that runs the node now.
fn successor(layout: &DataDirectory, before: u32) -> Option<u32> {
    let pid = std::fs::read_to_string(layout.lock()).ok()?.trim().parse().ok()?;
    (pid != before && parent_of(pid)? == std::process::id()).then_some(pid)
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name before it may contain anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(1)?.parse().ok()
}

fn send(node: u32, signal: Signal) {
    let pid = i32::try_from(node).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        kill_process(pid, signal).ok();
    }
}

fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(1),
        (None, Some(signal)) => SIGNALLED.saturating_add(u8::try_from(signal).unwrap_or(0)),
        (None, None) => 1,
    }
}
