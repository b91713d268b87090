//! The process that a shim holds while it runs: its signals, its lease, its cap, the end of its
//! tree, and what is written down of that.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use agent_core::lease::{LEASE_GRACE, Lease};
use model::Timestamp;
use rustix::process::{Pid, Signal, WaitStatus};
use session_core::CUT_KEPT;

use super::cap::CapWatch;
use super::message::VERSION;
use super::output::{Output, PipeState, now_ms};
use super::record::{ExitRecord, Holding};
use super::tree::{self, Reaped};
use crate::sandbox::{self, Ending};

/// The grace for what a process that ended by itself left behind.
pub const LEFTOVER_GRACE: Duration = Duration::from_secs(2);
/// The interval between two looks while a tree is being stopped, as descendants beside the main
/// process end without a signal to us: fast at first, since most end at once.
const STOP_LOOK_MIN: Duration = Duration::from_millis(1);
const STOP_LOOK_MAX: Duration = Duration::from_millis(20);
/// The interval between two rounds of SIGKILL: fast at first, as children may fork meanwhile; then
/// slow, as what is left waits for a disk.
const KILL_INTERVAL_MIN: Duration = Duration::from_millis(2);
const KILL_INTERVAL_MAX: Duration = Duration::from_millis(500);

pub struct Running {
    pub holding: Holding,
    pub main: Pid,
    /// Readable once the main process has ended; `None` on kernels before 5.3, and after the end.
    pub main_end: Option<OwnedFd>,
    pub status: Option<WaitStatus>,
    /// The pipe that tells how the program of a sandbox ended.
    pub report: Option<OwnedFd>,
    /// The process between its network and the machine's. It ends by itself, after the program.
    pub relay: Option<Pid>,
    pub relay_lost: bool,
    pub output: Output,
    pub output_open: bool,
    /// The start of the clock by which the lease is kept.
    pub started: Instant,
    pub lease: Lease,
    pub lease_over: bool,
    pub watch: Option<CapWatch>,
    pub over_cap: Option<String>,
    pub background: bool,
    pub stopping: Option<Stopping>,
}

pub struct Stopping {
    began: Instant,
    kill_at: Instant,
    /// The pause before the next SIGKILL; `None` until the first was sent.
    kill_interval: Option<Duration>,
}

impl Stopping {
    /// Returns when to look next whether all have ended.
    pub fn next_look(&self, now: Instant) -> Instant {
        let elapsed = now.saturating_duration_since(self.began);
        match self.kill_interval {
            Some(interval) => now + interval,
            None => (now + (elapsed / 2).clamp(STOP_LOOK_MIN, STOP_LOOK_MAX)).min(self.kill_at),
        }
    }
}

impl Running {
    /// Returns the time since the start. It stands still while the machine is asleep, as the node
    /// process does.
    pub fn monotonic(&self) -> Timestamp {
        Timestamp(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Returns the lease's limit. A session has no second copy that another node would start
    /// meanwhile, so it waits for a node process as long as for its client.
    pub fn limit(&self, lease_ms: Option<u64>) -> Option<Duration> {
        let limit = lease_ms.map(Duration::from_millis);
        limit.map(|limit| if self.holding.session.is_some() { limit.max(CUT_KEPT) } else { limit })
    }

    pub fn lease_end(&self) -> Option<Instant> {
        let end = self.lease.end()?;
        self.started.checked_add(Duration::from_millis(end.0))
    }

    /// Returns when something may have to be done, at the latest `limit`.
    pub fn next_look(&self, limit: Instant) -> Instant {
        let watch = self.watch.as_ref().map(CapWatch::next);
        self.lease_end().into_iter().chain(watch).fold(limit, Instant::min)
    }

    /// Signals the main process's group. That process is not reaped before its status is known
    /// here, so its pid is nobody else's.
    pub fn signal(&self, signal: i32) {
        if self.status.is_none()
            && let Some(signal) = Signal::from_named_raw(signal)
        {
            // The group may be gone but for a main process that nobody has reaped.
            let _ = rustix::process::kill_process_group(self.main, signal);
        }
    }

    /// Stops the tree. A shorter grace than before counts; a longer one does not.
    pub fn stop(&mut self, grace: Duration) {
        let kill_at = Instant::now() + grace;
        match &mut self.stopping {
            Some(stopping) => stopping.kill_at = stopping.kill_at.min(kill_at),
            None => {
                tree::signal_all(Signal::TERM, self.relay);
                // A stopped process would not see it.
                tree::signal_all(Signal::CONT, self.relay);
                let began = Instant::now();
                self.stopping = Some(Stopping { began, kill_at, kill_interval: None });
            }
        }
    }

    /// Does what is due; true once no descendant is left.
    pub fn step(&mut self, now: Instant) -> bool {
        loop {
            match tree::reap() {
                Reaped::Child(pid, status) if pid == self.main => {
                    self.status = Some(status);
                    self.main_end = None;
                }
                Reaped::Child(pid, _) if Some(pid) == self.relay => {
                    self.relay = None;
                    self.relay_lost = self.status.is_none();
                }
                Reaped::Child(..) => {}
                Reaped::NoneYet => break,
                Reaped::NoChildren => return true,
            }
        }
        if self.status.is_some() && self.stopping.is_none() {
            // What else was behind a wall has ended with its first process.
            self.background = self.relay.is_none();
            self.stop(LEFTOVER_GRACE);
        }
        if self.relay_lost && self.stopping.is_none() {
            self.stop(LEFTOVER_GRACE);
        }
        if self.stopping.is_none() && self.lease.is_over(self.monotonic()) {
            self.lease_over = true;
            self.stop(LEASE_GRACE);
        }
        if self.stopping.is_none()
            && let Some(excess) = self.watch.as_mut().and_then(|watch| watch.look(now))
        {
            self.over_cap = Some(excess);
            // It grows while it is asked to end.
            self.stop(Duration::ZERO);
        }
        if let Some(stopping) = &mut self.stopping
            && now >= stopping.kill_at
        {
            tree::signal_all(Signal::KILL, None);
            let next = stopping.kill_interval.map_or(KILL_INTERVAL_MIN, |interval| interval * 2);
            stopping.kill_interval = Some(next.min(KILL_INTERVAL_MAX));
        }
        false
    }

    pub fn end(mut self) -> ExitRecord {
        // A stranger that was handed the pipe may hold it open for ever, so only what is there now
        // is read.
        while self.output_open && self.output.read() == PipeState::Open {}
        let killed_here = self.stopping.is_some_and(|stopping| stopping.kill_interval.is_some());
        let lease_over = self.lease_over;
        // The first process of a sandbox ends as its program did, but for signals.
        let ending =
            self.report.take().and_then(sandbox::ending).or(self.status.and_then(Ending::of));
        let mut how = ending.map_or_else(|| "ended".to_owned(), tree::describe);
        if lease_over {
            how.push_str(", stopped by its shim: the node was away for longer than the lease");
        } else if self.relay_lost {
            how.push_str(", stopped by its shim: the relay of its network has ended");
        } else if let Some(excess) = &self.over_cap {
            how = format!("stopped by its shim, as it {excess}");
        } else if !killed_here && ending == Some(Ending::Killed(9)) {
            how.push_str(", not by Cortex: out of memory, or by hand");
        }
        ExitRecord {
            v: VERSION,
            how,
            code: ending.and_then(tree::code),
            success: ending == Some(Ending::Exited(0)),
            last_words: self.output.finish(),
            lease_over,
            over_cap: self.over_cap,
            background: self.background,
            ended_at: Timestamp(now_ms()),
            holding: self.holding,
        }
    }

    /// Kills all processes at once and waits for their end.
    pub fn abandon(&mut self) {
        self.stop(Duration::ZERO);
        while !self.step(Instant::now()) {
            std::thread::sleep(KILL_INTERVAL_MIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_that_is_stopped_is_looked_at_soon_then_rarely_and_when_it_is_to_be_killed() {
        let began = Instant::now();
        let kill_at = began + Duration::from_secs(2);
        let mut stopping = Stopping { began, kill_at, kill_interval: None };
        let mut after = |elapsed_ms: u64, kill_interval: Option<Duration>| {
            stopping.kill_interval = kill_interval;
            let now = began + Duration::from_millis(elapsed_ms);
            (stopping.next_look(now) - now).as_millis()
        };
        assert_eq!([0, 1, 10, 1_000].map(|elapsed| after(elapsed, None)), [1, 1, 5, 20]);
        assert_eq!(after(1_995, None), 5);
        assert_eq!(after(3_000, Some(KILL_INTERVAL_MAX)), KILL_INTERVAL_MAX.as_millis());
    }
}
