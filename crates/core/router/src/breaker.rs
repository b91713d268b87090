//! The breaker, which decides when an endpoint is left alone after failures: it rejects for a pause
//! that grows with every failure in a row, then admits one request at a time until one succeeds,
//! and from then on a growing share of its part. Fits into one machine word, so that threads share
//! it without a lock. Driven by the router's threads.

use crate::ramp;

/// Milliseconds of the first pause: a process that is being replaced is back soon, and others take
/// its requests.
pub const PAUSE_MIN_MS: u64 = 100;
/// Milliseconds of the longest pause: what is down for long is tried every few seconds; the checker
/// usually says so earlier.
pub const PAUSE_MAX_MS: u64 = 5_000;

/// Milliseconds until an endpoint has its whole part again: what comes back and breaks down again
/// does so under little load.
pub const RETURN_MS: u64 = 2_000;
/// Milliseconds after which an instance that is left alone although there is no other is tried,
/// whatever its pause: with nothing to lose, the first sign of life counts.
const LAST_PAUSE_MS: u64 = 250;
/// Percent of the instances that must admit for another to be taken out, Envoy's panic threshold:
/// with fewer than half of them, something else is wrong, and those that are left would only break
/// down under the load of all.
const ADMITTED_PERCENT_MIN: usize = 50;

const TIME_BITS: u32 = 48;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;
const FAILURES_MAX: u64 = 255;
const RETURNING: u64 = 1 << 63;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    Admits,
    /// The endpoint admits one trial request while no other is in flight.
    AdmitsOne,
    RejectsUntil(u64),
}

/// What an endpoint did wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Nothing listens there.
    Refused,
    /// It took a request and did not answer it.
    Silent,
}

/// Returns whether this takes it out, where `others_admitting` of `count` admit. An endpoint that
/// refuses connections is of use to nobody; silence may be the fault of a request.
pub fn ejects(failure: Failure, others_admitting: usize, count: usize) -> bool {
    failure == Failure::Refused
        || (others_admitting > 0 && others_admitting * 100 >= count * ADMITTED_PERCENT_MIN)
}

/// The state of one endpoint. Times are milliseconds on any clock that does not go backwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breaker {
    failures: u64,
    /// Whether a trial succeeded; then the time is when that was, else until when it rejects.
    returning: bool,
    time_ms: u64,
}

impl Breaker {
    pub fn from_bits(bits: u64) -> Breaker {
        let failures = (bits & !RETURNING) >> TIME_BITS;
        Breaker { failures, returning: bits & RETURNING != 0, time_ms: bits & TIME_MASK }
    }

    pub fn to_bits(self) -> u64 {
        let returning = if self.returning { RETURNING } else { 0 };
        let failures = self.failures.min(FAILURES_MAX) << TIME_BITS;
        returning | failures | self.time_ms.min(TIME_MASK)
    }

    pub fn verdict(self, now_ms: u64) -> Admission {
        if self.failures == 0 || self.returning {
            Admission::Admits
        } else if now_ms < self.time_ms {
            Admission::RejectsUntil(self.time_ms)
        } else {
            Admission::AdmitsOne
        }
    }

    /// Returns the verdict where no other endpoint admits anything.
    pub fn verdict_as_last(self, now_ms: u64) -> Admission {
        match self.verdict(now_ms) {
            Admission::RejectsUntil(end_ms) => {
                let failed_at_ms = end_ms.saturating_sub(pause_ms(self.failures));
                let end_ms = end_ms.min(failed_at_ms + LAST_PAUSE_MS);
                if now_ms < end_ms { Admission::RejectsUntil(end_ms) } else { Admission::AdmitsOne }
            }
            other => other,
        }
    }

    /// Returns how much of its part it has, in units of `ramp::WHOLE`.
    pub fn share(self, now_ms: u64) -> u32 {
        match self.returning {
            true => ramp::share(now_ms.saturating_sub(self.time_ms), RETURN_MS),
            false => ramp::WHOLE,
        }
    }

    /// Notes an answer. The failures are forgotten once the endpoint has its whole part again.
    pub fn succeeded(self, now_ms: u64) -> Breaker {
        match self {
            Breaker { failures: 0, .. } => self,
            Breaker { returning: false, .. } => {
                Breaker { returning: true, time_ms: now_ms, ..self }
            }
            Breaker { .. } if self.share(now_ms) >= ramp::WHOLE => Breaker::default(),
            Breaker { .. } => self,
        }
    }

    /// Notes a failure. Failures during a pause were under way before it and do not lengthen it.
    pub fn failed(self, now_ms: u64) -> Breaker {
        if matches!(self.verdict(now_ms), Admission::RejectsUntil(_)) {
            return self;
        }
        let failures = (self.failures + 1).min(FAILURES_MAX);
        let time_ms = now_ms.saturating_add(pause_ms(failures));
        Breaker { failures, returning: false, time_ms }
    }

    /// Notes that the endpoint was seen well since then. That counts only if it has not failed
    /// after that.
    pub fn healthy_since(self, since_ms: u64) -> Breaker {
        let pause_ms = if self.returning { 0 } else { pause_ms(self.failures) };
        let changed_at_ms = self.time_ms.saturating_sub(pause_ms);
        if since_ms > changed_at_ms { Breaker::default() } else { self }
    }
}

/// Returns the pause after this many failures in a row.
pub fn pause_ms(failures: u64) -> u64 {
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
        assert_eq!(first.verdict(1099), Admission::RejectsUntil(1100));
        assert_eq!(first.verdict(1100), Admission::AdmitsOne);
        assert_eq!(first.failed(1050), first);
        assert_eq!(first.failed(1100).verdict(1299), Admission::RejectsUntil(1300));
        assert_eq!(Breaker::default().verdict(0), Admission::Admits);
    }

    #[test]
    fn a_sight_of_health_after_the_last_failure_ends_the_pause() {
        let twice = Breaker::default().failed(1000).failed(1100);
        assert_eq!(twice.healthy_since(1100), twice);
        assert_eq!(twice.healthy_since(1101).verdict(1101), Admission::Admits);
        let again = twice.healthy_since(1101).failed(1200);
        assert_eq!(again.healthy_since(1101).verdict(1250), Admission::RejectsUntil(1300));
        assert_eq!(Breaker::default().healthy_since(5), Breaker::default());
    }

    #[test]
    fn an_endpoint_that_answers_again_returns_by_and_by() {
        let twice = Breaker::default().failed(1000).failed(1100);
        let back = twice.succeeded(1300);
        assert_eq!(Breaker::from_bits(back.to_bits()), back);
        assert_eq!(back.verdict(1300), Admission::Admits);
        assert!(back.share(1300) < ramp::WHOLE / 5);
        assert_eq!(back.share(1300 + RETURN_MS / 2), ramp::WHOLE / 2);
        assert_eq!(back.succeeded(1301), back);
        // It is a third failure in a row, although one request went well between.
        assert_eq!(back.failed(1400).verdict(1799), Admission::RejectsUntil(1800));
        assert_eq!(back.share(1300 + RETURN_MS), ramp::WHOLE);
        assert_eq!(back.succeeded(1300 + RETURN_MS), Breaker::default());
        assert_eq!(Breaker::default().succeeded(5), Breaker::default());
    }

    #[test]
    fn the_last_endpoint_is_tried_soon_whatever_its_pause() {
        let often = (0..10).fold(Breaker::default(), |breaker, n| breaker.failed(n * 10_000));
        assert_eq!(often.verdict(94_999), Admission::RejectsUntil(95_000));
        assert_eq!(often.verdict_as_last(90_249), Admission::RejectsUntil(90_250));
        assert_eq!(often.verdict_as_last(90_250), Admission::AdmitsOne);
        assert_eq!(Breaker::default().verdict_as_last(0), Admission::Admits);
    }

    #[test]
    fn silence_takes_out_at_most_half_and_never_the_last() {
        assert!(!ejects(Failure::Silent, 0, 1));
        assert!(ejects(Failure::Silent, 1, 2));
        assert!(!ejects(Failure::Silent, 1, 3));
        assert!(ejects(Failure::Silent, 2, 3));
        assert!(ejects(Failure::Refused, 0, 1));
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
                let Admission::RejectsUntil(end) = breaker.verdict(now) else {
                    return Err(TestCaseError::fail("it admits right after a failure"));
                };
                prop_assert!(end - now <= PAUSE_MAX_MS);
            }
        }
    }
}
