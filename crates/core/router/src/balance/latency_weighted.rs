//! The cheaper of two that chance names, where cost is what an answer took of late, times the
//! requests under way and this one. The average follows a slower answer at once and forgets it by
//! and by: peak EWMA, as in Finagle (`com.twitter.finagle.loadbalancer.PeakEwma`) and, after it,
//! Linkerd and `tower-load`.

use super::power_of_two::cheaper_of_two;
use super::{Balance, Candidate, Endpoints, Turn};

/// Milliseconds after which a third of an old average is left (Finagle's).
const DECAY_MS: f64 = 10_000.0;
/// Microseconds assumed of an endpoint that is busy and has not answered yet: as slow as can be
/// (Finagle's).
const UNKNOWN_US: f64 = 1e12;
const STAMP_BITS: u32 = 32;

pub struct LatencyWeighted;

impl Balance for LatencyWeighted {
    fn pick(&self, turn: Turn, endpoints: &dyn Endpoints) -> Option<usize> {
        let now_ms = endpoints.now_ms();
        cheaper_of_two(turn, endpoints, &|index, candidate| {
            cost(Peak::from_bits(endpoints.learnt(index)), candidate, now_ms)
        })
    }

    fn learns(&self) -> bool {
        true
    }

    fn learn(&self, learnt: u64, latency_us: u64, now_ms: u64) -> u64 {
        Peak::from_bits(learnt).after(latency_us, now_ms).to_bits()
    }
}

fn cost(peak: Peak, candidate: &Candidate, now_ms: u64) -> f64 {
    let in_flight = f64::from(candidate.in_flight);
    if peak.latency_us == 0 && candidate.in_flight > 0 {
        return UNKNOWN_US + in_flight;
    }
    // An endpoint without an answer for long is worth another look: the average falls while nothing
    // comes.
    let latency = f64::from(peak.latency_us) * peak.left(now_ms);
    latency * (in_flight + 1.0)
}

/// The average of an endpoint, which fits into the word that is kept of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Peak {
    /// The latency in microseconds: 0 before the first answer; more than an hour counts as an hour.
    latency_us: u32,
    /// The lower half of the clock in milliseconds: seven weeks until it comes round.
    at_ms: u32,
}

impl Peak {
    fn from_bits(bits: u64) -> Peak {
        let half = |bits: u64| u32::try_from(bits & 0xffff_ffff).unwrap_or(0);
        Peak { latency_us: half(bits >> STAMP_BITS), at_ms: half(bits) }
    }

    fn to_bits(self) -> u64 {
        (u64::from(self.latency_us) << STAMP_BITS) | u64::from(self.at_ms)
    }

    /// Returns how much of the average is left by now.
    fn left(self, now_ms: u64) -> f64 {
        let now = u32::try_from(now_ms & 0xffff_ffff).unwrap_or(0);
        let elapsed = now.wrapping_sub(self.at_ms);
        // Another thread's clock reading may be a little ahead.
        let elapsed = if elapsed > u32::MAX / 2 { 0 } else { elapsed };
        (-f64::from(elapsed) / DECAY_MS).exp()
    }

    fn after(self, latency_us: u64, now_ms: u64) -> Peak {
        let latency = u32::try_from(latency_us).unwrap_or(u32::MAX).max(1);
        let left = self.left(now_ms);
        let average = f64::from(self.latency_us) * left + f64::from(latency) * (1.0 - left);
        let latency_us = if latency >= self.latency_us { latency } else { average as u32 };
        let at_ms = u32::try_from(now_ms & 0xffff_ffff).unwrap_or(0);
        Peak { latency_us: latency_us.max(1), at_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::tests::{Fakes, turn};
    use proptest::prelude::*;

    const NOW_MS: u64 = 1_000_000;

    #[test]
    fn a_slower_answer_counts_at_once_and_is_forgotten_slowly() {
        let peak = Peak::default().after(1_000, NOW_MS).after(50_000, NOW_MS);
        assert_eq!(peak.latency_us, 50_000);
        let soon = peak.after(1_000, NOW_MS + 100);
        assert!((49_000..50_000).contains(&soon.latency_us), "{soon:?}");
        let late = peak.after(1_000, NOW_MS + 60_000);
        assert!((1_000..1_500).contains(&late.latency_us), "{late:?}");
    }

    #[test]
    fn a_quick_endpoint_takes_more_in_proportion_to_its_speed() {
        let mut fakes = Fakes::idle(2);
        fakes.0[0].learnt = LatencyWeighted.learn(0, 10_000, NOW_MS);
        fakes.0[1].learnt = LatencyWeighted.learn(0, 1_000, NOW_MS);
        for number in 0..22 {
            let index = LatencyWeighted.pick(turn(number), &fakes).unwrap();
            fakes.0[index].candidate.in_flight += 1;
        }
        assert_eq!(fakes.0[0].candidate.in_flight, 2);
        assert_eq!(fakes.0[1].candidate.in_flight, 20);
    }

    #[test]
    fn a_new_endpoint_gets_one_request_until_it_has_answered() {
        let mut fakes = Fakes::idle(2);
        fakes.0[0].learnt = LatencyWeighted.learn(0, 1_000, NOW_MS);
        assert_eq!(LatencyWeighted.pick(turn(0), &fakes), Some(1));
        fakes.0[1].candidate.in_flight = 1;
        fakes.0[0].candidate.in_flight = 30;
        assert_eq!(LatencyWeighted.pick(turn(1), &fakes), Some(0));
    }

    proptest! {
        #[test]
        fn an_average_lies_between_its_answers(
            answers in proptest::collection::vec((1u64..10_000_000, 0u64..100_000), 1..50),
        ) {
            let (mut peak, mut now) = (Peak::default(), NOW_MS);
            for (latency, later) in &answers {
                now += later;
                peak = peak.after(*latency, now);
                prop_assert_eq!(Peak::from_bits(peak.to_bits()), peak);
                prop_assert!(u64::from(peak.latency_us) >= *latency - 1);
            }
            let most = answers.iter().map(|(latency, _)| *latency).max().unwrap_or(0);
            prop_assert!(u64::from(peak.latency_us) <= most);
        }
    }
}
