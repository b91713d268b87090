//! Leases remove ended values from etcd. Values that end at about the same time share one, so that
//! a key that is given a new end every second does not cost a lease each time. Reading does not
//! depend on them: the record itself has the time of the end.

use std::collections::BTreeMap;
use std::time::Duration;

use model::Timestamp;

use super::link::{EtcdLink, LinkError};

/// The smallest step in seconds between ends that have leases of their own.
const STEP_SECONDS_MIN: u64 = 64;
/// The part of its life by which a value may stay in etcd longer.
const STEP_PART: u64 = 16;
/// The longest lease that etcd grants, some 285 years; values that end later are left to the people
/// who run the cluster then.
const LEASE_SECONDS_MAX: u64 = 9_000_000_000;
pub const NO_LEASE: i64 = 0;

pub struct Leases {
    link: EtcdLink,
    /// The leases by the second at which they end.
    granted: BTreeMap<u64, i64>,
}

impl Leases {
    pub fn new(link: EtcdLink) -> Leases {
        Leases { link, granted: BTreeMap::new() }
    }

    pub async fn until(&mut self, end: Timestamp, now: Timestamp) -> Result<i64, LinkError> {
        let seconds = now.0 / 1000;
        self.granted = self.granted.split_off(&seconds);
        let shared = shared_end(end, now);
        if let Some(lease) = self.granted.get(&shared) {
            return Ok(*lease);
        }
        let rest = shared.saturating_sub(seconds) + 1;
        if rest > LEASE_SECONDS_MAX {
            return Ok(NO_LEASE);
        }
        let lease = self.link.grant(i64::try_from(rest).unwrap_or(i64::MAX)).await?;
        self.granted.insert(shared, lease);
        Ok(lease)
    }

    /// Forgets all leases, since etcd no longer knows one of them.
    pub fn forget(&mut self) {
        self.granted.clear();
    }
}

/// Returns the end in seconds that a value's lease shares with others; never before `end`.
fn shared_end(end: Timestamp, now: Timestamp) -> u64 {
    let rest = end.since(now).max(Duration::from_secs(1)).as_secs();
    let step = (rest / STEP_PART).max(STEP_SECONDS_MIN);
    let step = step.checked_next_power_of_two().unwrap_or(step);
    let earliest = end.0.max(now.0).div_ceil(1000);
    earliest.div_ceil(step).saturating_mul(step)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn shared_ends_are_few_and_never_early() {
        let now = Timestamp(1_700_000_000_000);
        let mut shared = BTreeSet::new();
        let day_ms = 24 * 3600 * 1000;
        for ms in (0..day_ms).step_by(777) {
            let end = Timestamp(now.0 + ms);
            let at = shared_end(end, now);
            assert!(at * 1000 >= end.0);
            assert!(at * 1000 <= end.0 + 130_000 + ms / 8, "{ms}");
            shared.insert(at);
        }
        assert!(shared.len() < 120, "{}", shared.len());
        assert!(shared_end(Timestamp(0), now) >= now.0 / 1000);
        assert!(shared_end(Timestamp(u64::MAX), now) >= u64::MAX / 1000);
    }
}
