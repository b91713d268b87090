//! The time at which a process that failed may start again: at once the first time, then ever
//! later, and rarely once it is plain that it cannot live. Owns the figures of one slot's failures;
//! knows nothing of processes. Asked by the application's machine.

use std::time::Duration;

use model::Timestamp;

use crate::mutants;

/// The wait after the second failure, which doubles from then on; the first is repaired at once.
pub const BACKOFF_FIRST: Duration = Duration::from_secs(1);
/// The longest wait: a cure from outside (a database that is back) is noticed within a minute.
pub const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// The time after which a process started well: what failed before no longer counts.
pub const LIVED_WELL: Duration = Duration::from_secs(60);
/// The time of service after which a process that fails is replaced at once, as long as it is no
/// crash loop: waiting costs its users more than one start every few seconds costs the machine.
pub const LIVED_A_WHILE: Duration = Duration::from_secs(3);
/// Failures in a row, none after a good life, that are no accident.
pub const CRASH_LOOP_FAILURES: u32 = 5;
/// The least wait in a crash loop: starting costs processor time that other applications need.
pub const CRASH_LOOP_BACKOFF_MIN: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailureHistory {
    failures: u32,
    not_before: Timestamp,
}

impl FailureHistory {
    /// Notes a failure; `lived` is how long it was ready before it failed.
    pub fn failed(&mut self, now: Timestamp, lived: Duration) {
        if lived >= LIVED_WELL {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        self.not_before = now.after(self.backoff(lived));
    }

    fn backoff(&self, lived: Duration) -> Duration {
        if mutants::active(mutants::NO_BACKOFF) {
            return Duration::ZERO;
        }
        if lived >= LIVED_A_WHILE && !self.is_crash_loop() {
            return Duration::ZERO;
        }
        let doublings = match self.failures {
            0 | 1 => return Duration::ZERO,
            failures => (failures - 2).min(16),
        };
        let wait = (BACKOFF_FIRST * (1 << doublings)).min(BACKOFF_MAX);
        if self.is_crash_loop() { wait.max(CRASH_LOOP_BACKOFF_MIN) } else { wait }
    }

    pub fn not_before(&self) -> Timestamp {
        self.not_before
    }

    pub fn is_crash_loop(&self) -> bool {
        self.failures >= CRASH_LOOP_FAILURES
    }

    /// Returns true for the failure that made it a crash loop, so that it is reported once.
    pub fn became_crash_loop(&self) -> bool {
        self.failures == CRASH_LOOP_FAILURES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(lives_s: &[u64], expected_s: u64, crash_loop: bool) {
        let mut history = FailureHistory::default();
        let now = Timestamp(1_000_000);
        for life in lives_s {
            history.failed(now, Duration::from_secs(*life));
        }
        assert_eq!(history.not_before().since(now).as_secs(), expected_s, "{lives_s:?}");
        assert_eq!(history.is_crash_loop(), crash_loop, "{lives_s:?}");
    }

    #[test]
    fn waits_grow_and_a_good_life_resets_them() {
        check(&[0], 0, false);
        check(&[0, 0], 1, false);
        check(&[0, 0, 0], 2, false);
        check(&[0, 0, 0, 0], 4, false);
        check(&[0, 0, 0, 0, 0], 30, true);
        check(&[0; 7], 32, true);
        check(&[0; 99], 60, true);
        check(&[0, 0, 0, 0, 0, 61], 0, false);
        check(&[5, 5, 5, 5], 0, false);
        check(&[5, 5, 5, 5, 5], 30, true);
    }
}
