//! The thread on which the committer works. That is its own, or, if cores are few and the disk is
//! quick, the one whose clients have written. There a second thread would only be woken,
//! wait for the disk and wake the first again, at a third of what the write itself costs. The
//! committer's own thread handles what comes from elsewhere and what is due by the clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::Timestamp;
use store_core::machine::BATCH_WRITES_MAX;

use super::command::Command;
use super::committer::Committer;
use super::mailbox::{Expected, Receiver};
use super::shared::Shared;
use runtime::driver::Clock;

/// The time up to which the disk counts as quick; a slower one is waited for on the committer's
/// thread, since readers would be kept waiting for about as long.
const DISK_QUICK_NS: u64 = 1_000_000;
/// The newest batch counts for one part in this many in the mean.
const DISK_SHARE: u64 = 8;
/// The upper bound of the mean, so that a disk that stood still is not held to be slow for long.
const DISK_KNOWN_MAX_NS: u64 = 10 * DISK_QUICK_NS;
/// The number of commands that are due without `hurry` when the committer has a thread of its own:
/// it begins while others are still writing, with a batch for which one wait for the disk costs
/// each of them little.
const UNHURRIED_MAX: usize = 128;

/// Returns how many commands may be left for the committer before they are due without `hurry`. On
/// few cores its thread would only take the processor from the writing one, which commits at its
/// own `hurry`.
pub fn unhurried_max(few_cores: bool) -> usize {
    if few_cores { BATCH_WRITES_MAX } else { UNHURRIED_MAX }
}

pub struct CommitThread {
    shared: Arc<Shared>,
    commands: Receiver<Command>,
    committer: Mutex<Option<Committer>>,
    clock: Clock,
    few_cores: bool,
    /// The time the disk takes, in nanoseconds: a moving mean, since one slow answer says little.
    disk_takes: AtomicU64,
    /// The time at which the committer's thread looks again, in milliseconds of the clock.
    sleeps_until: AtomicU64,
}

/// Ends the watches, however the thread ends.
struct AtEnd(Arc<Shared>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        let mut watchers = self.0.watchers();
        self.0.stop("its writing thread ended".into());
        self.0.fetch_board.stop();
        watchers.clear();
    }
}

impl CommitThread {
    pub fn new(
        shared: Arc<Shared>,
        commands: Receiver<Command>,
        committer: Committer,
        clock: Clock,
        few_cores: bool,
    ) -> CommitThread {
        CommitThread {
            shared,
            commands,
            committer: Mutex::new(Some(committer)),
            clock,
            few_cores,
            disk_takes: AtomicU64::new(u64::MAX / 2),
            sleeps_until: AtomicU64::new(0),
        }
    }

    /// Runs the committer's own thread until the store has ended.
    pub fn run(&self) {
        let _at_end = AtEnd(self.shared.clone());
        while let Some((wait, expected)) = self.rest() {
            let deserted = self.commands.await_due(wait, expected).is_err();
            let mut held = self.lock_committer();
            let Some(committer) = held.as_mut() else { break };
            self.work(committer, self.commands.take(BATCH_WRITES_MAX), deserted);
        }
        // After a panic elsewhere the committer is in a state that nobody may continue from.
        let poisoned = self.committer.is_poisoned();
        let committer = self.lock_committer().take();
        self.commands.close();
        match committer {
            Some(committer) if !poisoned => committer.finish(),
            _ => {}
        }
    }

    fn work(&self, committer: &mut Committer, commands: Vec<Command>, deserted: bool) {
        committer.work(commands, deserted);
        let took = u64::try_from(committer.disk_took().as_nanos()).unwrap_or(u64::MAX);
        let before = self.disk_takes.load(Ordering::Relaxed).min(DISK_KNOWN_MAX_NS);
        let mean = before - before / DISK_SHARE + took / DISK_SHARE;
        self.disk_takes.store(mean, Ordering::Relaxed);
    }

    fn lock_committer(&self) -> MutexGuard<'_, Option<Committer>> {
        self.committer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how long nothing need be done on this thread, and which writers are likely to come;
    /// `None` at the end.
    fn rest(&self) -> Option<(Duration, Option<Expected>)> {
        let held = self.committer.lock().ok()?;
        let committer = held.as_ref().filter(|committer| !committer.has_ended())?;
        let wait = committer.wait();
        self.sleeps_until.store(self.clock.now().after(wait).0, Ordering::Relaxed);
        Some((wait, committer.expected()))
    }

    /// Commits here and now what was left. Returns `false` if the committer's own thread has to do
    /// it.
    pub fn commit_here(&self) -> bool {
        if !self.few_cores || self.disk_takes.load(Ordering::Relaxed) > DISK_QUICK_NS {
            return false;
        }
        let Ok(mut held) = self.committer.try_lock() else { return false };
        let Some(committer) = held.as_mut() else { return false };
        let _rouse = RouseOnPanic(self);
        let commands = self.commands.take(BATCH_WRITES_MAX);
        let more = commands.len() == BATCH_WRITES_MAX;
        self.work(committer, commands, false);
        let sleeps_until = Timestamp(self.sleeps_until.load(Ordering::Relaxed));
        let next = self.clock.now().after(committer.wait());
        if more || committer.has_ended() || next < sleeps_until {
            // The thread need not be told again until it has looked.
            self.sleeps_until.store(0, Ordering::Relaxed);
            self.commands.rouse();
        }
        true
    }
}

/// Wakes the committer's thread on a panic: it ends the store when it finds that another thread's
/// turn was not finished.
struct RouseOnPanic<'a>(&'a CommitThread);

impl Drop for RouseOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.commands.rouse();
        }
    }
}
