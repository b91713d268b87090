//! When an endpoint is left alone after failures: it rejects for a pause that grows with every
//! failure in a row, then admits one request at a time until one succeeds. Fits into one machine
//! word, so that threads share it without a lock. Driven by the router's threads.

/// The first pause: a process that is being replaced is back soon, and others take its requests.
pub const PAUSE_MIN_MS: u64 = 100;
/// What is down for long is tried every few seconds; the checker usually says so earlier.
pub const PAUSE_MAX_MS: u64 = 5_000;

const TIME_BITS: u32 = 48;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;
const FAILURES_MAX: u64 = 255;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Admits,
    /// Admits one trial request while no other is in flight.
    AdmitsOne,
    RejectsUntil(u64),
}

/// Times are milliseconds on any clock that does not go backwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breaker {
    failures: u64,
    rejects_until_ms: u64,
}

impl Breaker {
    pub fn from_bits(bits: u64) -> Breaker {
        Breaker { failures: bits >> TIME_BITS, rejects_until_ms: bits & TIME_MASK }
    }

    pub fn to_bits(self) -> u64 {
        (self.failures.min(FAILURES_MAX) << TIME_BITS) | self.rejects_until_ms.min(TIME_MASK)
    }

    pub fn verdict(self, now_ms: u64) -> Verdict {
        match self {
            Breaker { failures: 0, .. } => Verdict::Admits,
            Breaker { rejects_until_ms, .. } if now_ms < rejects_until_ms => {
                Verdict::RejectsUntil(rejects_until_ms)
            }
            Breaker { .. } => Verdict::AdmitsOne,
        }
    }

    /// Failures during a pause were under way before it and do not lengthen it.
    pub fn failed(self, now_ms: u64) -> Breaker {
        if matches!(self.verdict(now_ms), Verdict::RejectsUntil(_)) {
            return self;
        }
        let failures = (self.failures + 1).min(FAILURES_MAX);
        Breaker { failures, rejects_until_ms: now_ms.saturating_add(pause_ms(failures)) }
    }

    /// Somebody has seen it well since then. That counts only if it has not failed after that.
    pub fn healthy_since(self, since_ms: u64) -> Breaker {
        let failed_at_ms = self.rejects_until_ms.saturating_sub(pause_ms(self.failures));
        if since_ms > failed_at_ms { Breaker::default() } else { self }
    }
}

/// After so many failures in a row.
fn pause_ms(failures: u64) -> u64 {
    let doublings = u32::try_from(failures.saturating_sub(1)).unwrap_or(u32::MAX).min(16);
    (PAUSE_MIN_MS << doublings).min(PAUSE_MAX_MS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn pauses_grow_and_one_trial_follows() {
        let first = Breaker::default().failed(1000);
        assert_eq!(first.verdict(1099), Verdict::RejectsUntil(1100));
        assert_eq!(first.verdict(1100), Verdict::AdmitsOne);
        assert_eq!(first.failed(1050), first);
        assert_eq!(first.failed(1100).verdict(1299), Verdict::RejectsUntil(1300));
        assert_eq!(Breaker::default().verdict(0), Verdict::Admits);
    }

    #[test]
    fn a_sight_of_health_after_the_last_failure_ends_the_pause() {
        let twice = Breaker::default().failed(1000).failed(1100);
        assert_eq!(twice.healthy_since(1100), twice);
        assert_eq!(twice.healthy_since(1101).verdict(1101), Verdict::Admits);
        let again = twice.healthy_since(1101).failed(1200);
        assert_eq!(again.healthy_since(1101).verdict(1250), Verdict::RejectsUntil(1300));
        assert_eq!(Breaker::default().healthy_since(5), Breaker::default());
    }

    proptest! {
        #[test]
        fn words_round_trip_and_pauses_are_bounded(times in vec(0u64..1 << 40, 0..300)) {
            let mut breaker = Breaker::default();
            let mut now = 0;
            for step in times {
                now += step % 20_000;
                breaker = breaker.failed(now);
                prop_assert_eq!(Breaker::from_bits(breaker.to_bits()), breaker);
                let Verdict::RejectsUntil(end) = breaker.verdict(now) else {
                    return Err(TestCaseError::fail("it admits right after a failure"));
                };
                prop_assert!(end - now <= PAUSE_MAX_MS);
            }
        }
    }
}
