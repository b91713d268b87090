//! The lease: how long what a shim holds goes on without a node process. Owns the limit and when a
//! node was heard last, by a clock that stands still while the machine does; must not know why
//! there is a limit. Asked by the shim's loop.

use std::time::Duration;

use model::Timestamp;

use crate::mutants;

/// The lease that shims are given in a cluster where others take over what a dead node process ran:
/// long enough to restart or upgrade a node process under load, and short, as until then two copies
/// run. Nobody waits for it: liveness takes a few seconds.
pub const LEASE: Duration = Duration::from_secs(30);
/// The time between SIGTERM and SIGKILL at its end. Others have taken the work over by then, and no
/// request comes in any more: what a worker is about may still end.
pub const LEASE_GRACE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct Lease {
    /// The limit; `None` if it never ends.
    limit: Option<Duration>,
    heard_at: Timestamp,
}

impl Lease {
    pub fn new(limit: Option<Duration>, now: Timestamp) -> Lease {
        Lease { limit, heard_at: now }
    }

    /// Notes that a node process is there.
    pub fn heard(&mut self, now: Timestamp) {
        self.heard_at = now;
    }

    pub fn renew(&mut self, limit: Option<Duration>, now: Timestamp) {
        *self = Lease::new(limit, now);
    }

    /// Returns when the lease ends; `None` if it never does.
    pub fn end(&self) -> Option<Timestamp> {
        let limit = self.limit.filter(|_| !mutants::active(mutants::NO_LEASE));
        limit.map(|limit| self.heard_at.after(limit))
    }

    pub fn is_over(&self, now: Timestamp) -> bool {
        self.end().is_some_and(|end| end <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ends_some_time_after_the_last_renewal() {
        let second = Some(Duration::from_secs(1));
        let mut lease = Lease::new(second, Timestamp(0));
        assert_eq!(lease.end(), Some(Timestamp(1_000)));
        lease.heard(Timestamp(700));
        assert!(!lease.is_over(Timestamp(1_699)) && lease.is_over(Timestamp(1_700)));
        lease.renew(None, Timestamp(800));
        lease.heard(Timestamp(900));
        assert_eq!(lease.end(), None);
        lease.renew(Some(Duration::MAX), Timestamp(1_000));
        assert!(!lease.is_over(Timestamp(u64::MAX - 1)), "no overflow");
    }
}
