//! Time as machines see it.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Milliseconds by which the clocks of one cluster may differ: what is stamped further ahead is not
/// adopted, and a clock that leaps further is reported.
pub const CLOCK_AHEAD_MAX_MS: u64 = 500;

/// Milliseconds since the Unix epoch. Within one process it never goes backwards: the driver
/// anchors the wall clock once and advances it by the monotonic clock.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    pub fn after(self, wait: Duration) -> Timestamp {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        Timestamp(self.0.saturating_add(wait_ms))
    }

    /// Returns the time passed since `earlier`; zero if `earlier` is in the future.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
