//! Fail points: tests make one part panic, stall or fail and watch the others go on. Nothing is
//! armed unless the node was started for it; a check then costs one atomic load.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::bail;
use serde::{Deserialize, Serialize};

/// The maximum number of armed fail points: tests name them, and a handful are enough.
const ARMED_MAX: usize = 64;
/// The interval at which a stalled task checks whether it may go on.
const STALL_POLL: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// The next check panics; then the point is disarmed.
    PanicOnce,
    /// Checks wait until the point is disarmed.
    Stall,
    /// Checks fail until the point is disarmed.
    Error,
}

/// All fail points of one node. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    count: AtomicUsize,
    armed: Mutex<BTreeMap<String, Fault>>,
    changed: Condvar,
}

impl Faults {
    pub fn arm(&self, point: &str, fault: Fault) -> anyhow::Result<()> {
        let mut armed = self.lock();
        if armed.len() >= ARMED_MAX {
            bail!("{ARMED_MAX} fail points are armed already; disarm some");
        }
        armed.insert(point.into(), fault);
        self.publish(&armed);
        Ok(())
    }

    pub fn disarm(&self, point: &str) {
        let mut armed = self.lock();
        armed.remove(point);
        self.publish(&armed);
    }

    pub fn is_armed(&self, point: &str) -> bool {
        self.lock().contains_key(point)
    }

    /// Checks a point, for threads that may block.
    pub fn check(&self, point: &str) -> anyhow::Result<()> {
        if self.shared.count.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let mut armed = self.lock();
        while armed.get(point) == Some(&Fault::Stall) {
            armed = self.shared.changed.wait(armed).unwrap_or_else(PoisonError::into_inner);
        }
        self.fail(armed, point)
    }

    /// Checks a point, for tasks: a stall holds up this task alone, not its thread.
    pub async fn check_async(&self, point: &str) -> anyhow::Result<()> {
        if self.shared.count.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        while self.lock().get(point) == Some(&Fault::Stall) {
            tokio::time::sleep(STALL_POLL).await;
        }
        self.fail(self.lock(), point)
    }

    fn fail(
        &self,
        mut armed: MutexGuard<'_, BTreeMap<String, Fault>>,
        point: &str,
    ) -> anyhow::Result<()> {
        match armed.get(point) {
            Some(Fault::PanicOnce) => {
                armed.remove(point);
                self.publish(&armed);
                drop(armed);
                panic!("the fail point {point} was armed")
            }
            Some(Fault::Error) => bail!("the fail point {point} was armed"),
            Some(Fault::Stall) | None => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Fault>> {
        self.shared.armed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, armed: &BTreeMap<String, Fault>) {
        self.shared.count.store(armed.len(), Ordering::Relaxed);
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_armed_point_fails_and_others_do_not() {
        let faults = Faults::default();
        faults.check("store.sync").unwrap();
        faults.arm("store.sync", Fault::Error).unwrap();
        faults.check("store.sync").unwrap_err();
        faults.check("checker").unwrap();
        faults.disarm("store.sync");
        faults.check("store.sync").unwrap();
    }

    #[test]
    fn a_panic_comes_once() {
        let faults = Faults::default();
        faults.arm("checker", Fault::PanicOnce).unwrap();
        let again = faults.clone();
        std::panic::catch_unwind(move || again.check("checker").ok()).unwrap_err();
        faults.check("checker").unwrap();
    }

    #[test]
    fn a_stall_ends_when_it_is_disarmed() {
        let faults = Faults::default();
        faults.arm("store.sync", Fault::Stall).unwrap();
        let stalled = faults.clone();
        let (passed, has_passed) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            stalled.check("store.sync").unwrap();
            passed.send(()).unwrap();
        });
        has_passed.recv_timeout(Duration::from_millis(50)).unwrap_err();
        faults.disarm("store.sync");
        has_passed.recv_timeout(Duration::from_secs(10)).unwrap();
        thread.join().unwrap();
    }
}
