//! Time as machines see it.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::FormatItem;
use time::macros::format_description;

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

    /// Returns the time as people read it, in UTC: `2026/08/01 12:00:00`.
    pub fn date(self) -> String {
        const DATE: &[FormatItem<'_>] =
            format_description!("[year]/[month]/[day] [hour]:[minute]:[second]");
        let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1_000_000);
        at.ok().and_then(|at| at.format(DATE).ok()).unwrap_or_else(|| self.to_string())
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_readable() {
        assert_eq!(Timestamp(1_785_585_600_999).date(), "2026/08/01 12:00:00");
        assert_eq!(Timestamp(u64::MAX).date(), u64::MAX.to_string());
    }
}
