//! How long what a shim holds goes on without a node process. Owns the limit and when a node was
//! heard last; must not know why there is a limit. Asked by the shim's loop.

use std::time::{Duration, Instant};

/// Others have taken the work over by now, and no request comes in any more: what a worker is
/// about may still end.
pub const LEASE_GRACE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct Lease {
    /// None for as long as it takes.
    limit: Option<Duration>,
    heard_at: Instant,
}

impl Lease {
    pub fn new(limit_ms: Option<u64>, now: Instant) -> Lease {
        Lease { limit: limit_ms.map(Duration::from_millis), heard_at: now }
    }

    /// A node process is there.
    pub fn heard(&mut self, now: Instant) {
        self.heard_at = now;
    }

    pub fn renew(&mut self, limit_ms: Option<u64>, now: Instant) {
        *self = Lease::new(limit_ms, now);
    }

    /// None when it never ends.
    pub fn end(&self) -> Option<Instant> {
        self.limit.and_then(|limit| self.heard_at.checked_add(limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_after_the_last_word_of_a_node() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut lease = Lease::new(Some(1_000), start);
        assert_eq!(lease.end(), Some(at(1_000)));
        lease.heard(at(700));
        assert_eq!(lease.end(), Some(at(1_700)));
        lease.renew(None, at(800));
        lease.heard(at(900));
        assert_eq!(lease.end(), None);
        lease.renew(Some(u64::MAX), at(1_000));
        assert!(lease.end().is_none_or(|end| end > at(1_000_000)), "no overflow");
    }
}
