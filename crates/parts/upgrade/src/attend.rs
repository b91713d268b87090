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

use os::finishing::FINISHING_MAX;
use os::layout::DataDirectory;
use os::observe::process;

/// The command that runs a node, and its option in a process that takes one over.
pub const UP: &str = "up";
pub const TAKE_OVER: &str = "--take-over";
/// The most processes between this one and the node's: those that finish, one that is told to end,
/// and one on trial.
const DEPTH_MAX: usize = FINISHING_MAX + 2;
/// The number that shells add to a signal's for the exit code of a process that it ended.
const SIGNALLED: u8 = 128;

/// Turns this process into the attendant, of which `node` is a child. Runs from the new binary, or
/// from this one if that fails.
pub fn become_attendant(layout: &DataDirectory, program: &Path, node: u32) -> anyhow::Error {
    use std::os::unix::process::CommandExt;
    let exec = |program: &Path| {
        let mut command = Command::new(program);
        command.arg("attend").arg("--data-dir").arg(layout.root());
        command.args(["--node", &node.to_string()]).exec()
    };
    let first = exec(program);
    tracing::warn!(error = %first, "upgrade.attendant_from_before");
    anyhow::Error::new(exec(Path::new(os::binaries::OWN_BINARY)))
        .context("the attendant cannot be started")
}

/// Runs until no node process is left that came from this one.
pub fn run(layout: &DataDirectory, node: u32) -> anyhow::Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let interrupts = Interrupts::of_this_process();
        Ok(Below::watch(layout, node, interrupts)?.ended().await)
    })
}

/// What becomes of SIGINT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupts {
    PassedOn,
    /// A terminal sends it to the node itself.
    Ignored,
}

impl Interrupts {
    /// Returns what becomes of those that the process in a node's place gets.
    pub fn of_this_process() -> Interrupts {
        match std::io::stdin().is_terminal() {
            true => Interrupts::Ignored,
            false => Interrupts::PassedOn,
        }
    }
}

/// The node process below this one. Those between the two that finish what they have are children
/// of one another, each of the one before it.
pub struct Below {
    layout: DataDirectory,
    /// The child that runs the node, or one that has handed over to its own child.
    child: u32,
    interrupts: Interrupts,
    ended: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Below {
    /// Watches over the node process from now on; `child` runs it, or did.
    pub fn watch(
        layout: &DataDirectory,
        child: u32,
        interrupts: Interrupts,
    ) -> anyhow::Result<Below> {
        // Each node that hands over ends, and its child becomes this process's.
        rustix::process::set_child_subreaper(Some(getpid())).context("becoming a subreaper")?;
        Ok(Below {
            layout: layout.clone(),
            child,
            interrupts,
            ended: signal(SignalKind::child())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    pub fn child(&self) -> u32 {
        self.child
    }

    /// Resolves to the node's exit code when no process of it is left, and passes on signals until
    /// then.
    pub async fn ended(&mut self) -> u8 {
        loop {
            while let Some((pid, status)) = reap() {
                if pid != self.child {
                    continue;
                }
                match successor() {
                    Some(next) => self.child = next,
                    None => return code(status),
                }
            }
            tokio::select! {
                _ = self.ended.recv() => {}
                _ = self.terminate.recv() => send(self.node(), Signal::TERM),
                _ = self.interrupt.recv() => if self.interrupts == Interrupts::PassedOn {
                    send(self.node(), Signal::INT);
                },
            }
        }
    }

    /// Returns the process that runs the node now.
    fn node(&self) -> u32 {
        let named = std::fs::read_to_string(self.layout.lock());
        let named = named.ok().and_then(|text| text.trim().parse().ok());
        named.filter(|node| is_below(*node, std::process::id())).unwrap_or(self.child)
    }
}

/// Reaps a child that ended; shims of nodes that are gone are children, too.
fn reap() -> Option<(u32, ExitStatus)> {
    let (pid, status) = wait(WaitOptions::NOHANG).ok()??;
    let pid = u32::try_from(pid.as_raw_nonzero().get()).ok()?;
    Some((pid, ExitStatus::from_raw(status.as_raw())))
}

/// Returns the child of this process that took the node over from the one that was its parent.
fn successor() -> Option<u32> {
    let own = std::process::id();
    let mine =
        |pid: &u32| process::stat(*pid).is_some_and(|stat| stat.parent == own && !stat.is_dead());
    process::pids().ok()?.filter(mine).find(|pid| took_over(*pid))
}

/// Returns whether that process was started to take a node over.
fn took_over(pid: u32) -> bool {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = words.split(|byte| *byte == 0).skip(1);
    words.next() == Some(UP.as_bytes()) && words.any(|word| word == TAKE_OVER.as_bytes())
}

fn is_below(pid: u32, ancestor: u32) -> bool {
    let parents = std::iter::successors(Some(pid), |one| Some(process::stat(*one)?.parent));
    parents.skip(1).take(DEPTH_MAX).any(|parent| parent == ancestor)
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
