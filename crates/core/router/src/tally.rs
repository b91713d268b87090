//! The summary of a run: requests per second, as minimum, mean and maximum over whole seconds, and
//! latency. Driven by `cortex proxy`, which feeds it each completed request.

use std::collections::BTreeMap;

/// Seconds that stay open, as requests of several threads arrive in nearly the order of their ends.
const OPEN_SECONDS: u64 = 3;

/// The tally of one back end.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// The seconds that may still get a request.
    open: BTreeMap<u64, u64>,
    /// The first second that is not closed yet.
    next: Option<u64>,
    closed: Seconds,
    requests: u64,
    failed: u64,
    bytes_in: u64,
    bytes_out: u64,
    latency_us: Range,
}

/// A request that has ended.
#[derive(Clone, Copy, Debug)]
pub struct EndedRequest {
    /// The second in which it ended, on any clock.
    pub second: u64,
    pub latency_us: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub failed: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seconds {
    count: u64,
    requests: u64,
    range: Range,
}

#[derive(Clone, Copy, Debug, Default)]
struct Range {
    min: Option<u64>,
    max: u64,
    sum: u64,
}

impl Range {
    fn add(&mut self, value: u64) {
        self.min = Some(self.min.map_or(value, |min| min.min(value)));
        self.max = self.max.max(value);
        self.sum = self.sum.saturating_add(value);
    }
}

impl Seconds {
    fn close(&mut self, requests: u64) {
        self.count += 1;
        self.requests += requests;
        self.range.add(requests);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunSummary {
    pub requests: u64,
    pub failed: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// The rates per second.
    pub rate_min: u64,
    pub rate_mean: f64,
    pub rate_max: u64,
    pub latency_min_us: u64,
    pub latency_mean_us: f64,
    pub latency_max_us: u64,
}

impl Tally {
    pub fn add(&mut self, ended: EndedRequest) {
        let next = *self.next.get_or_insert(ended.second);
        // A straggler counts for the oldest second that is open.
        *self.open.entry(ended.second.max(next)).or_default() += 1;
        self.requests += 1;
        self.failed += u64::from(ended.failed);
        self.bytes_in = self.bytes_in.saturating_add(ended.bytes_in);
        self.bytes_out = self.bytes_out.saturating_add(ended.bytes_out);
        self.latency_us.add(ended.latency_us);
        self.close_until(ended.second.saturating_sub(OPEN_SECONDS));
    }

    /// Closes the seconds before this one, which have all their requests; those without any count
    /// as none.
    fn close_until(&mut self, second: u64) {
        while let Some(next) = self.next
            && next < second
        {
            let count = self.open.remove(&next).unwrap_or(0);
            self.closed.close(count);
            if self.open.is_empty() {
                // A long silence is closed at once.
                let silent = second - next - 1;
                if silent > 0 {
                    self.closed.count += silent;
                    self.closed.range.add(0);
                }
                self.next = Some(second);
                return;
            }
            self.next = Some(next + 1);
        }
    }

    /// Summarises the seconds from the first request to `now`, which is not whole yet and left out;
    /// a run of less than a second counts as one.
    pub fn summary(&self, now: u64) -> Option<RunSummary> {
        let mut all = self.clone();
        all.close_until(now);
        if all.closed.count == 0 {
            all.close_until(all.open.keys().next_back()? + 1);
        }
        let Seconds { count, requests, range } = all.closed;
        Some(RunSummary {
            requests: self.requests,
            failed: self.failed,
            bytes_in: self.bytes_in,
            bytes_out: self.bytes_out,
            rate_min: range.min.unwrap_or(0),
            rate_mean: requests as f64 / count as f64,
            rate_max: range.max,
            latency_min_us: self.latency_us.min.unwrap_or(0),
            latency_mean_us: self.latency_us.sum as f64 / self.requests as f64,
            latency_max_us: self.latency_us.max,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn at(second: u64, latency_us: u64) -> EndedRequest {
        EndedRequest { second, latency_us, bytes_in: 1, bytes_out: 2, failed: false }
    }

    #[test]
    fn whole_seconds_are_counted_silent_ones_too() {
        let mut tally = Tally::default();
        assert_eq!(tally.summary(9), None);
        for (second, count) in [(10, 3), (11, 1), (13, 2), (14, 7)] {
            (0..count).for_each(|number| tally.add(at(second, 100 * (number + 1))));
        }
        let summary = tally.summary(14).unwrap();
        assert_eq!((summary.rate_min, summary.rate_max), (0, 3));
        assert_eq!(summary.rate_mean, 6.0 / 4.0);
        assert_eq!((summary.requests, summary.bytes_out), (13, 26));
        assert_eq!((summary.latency_min_us, summary.latency_max_us), (100, 700));
    }

    #[test]
    fn a_short_run_is_one_second_and_a_pause_is_many() {
        let mut tally = Tally::default();
        tally.add(at(5, 10));
        tally.add(EndedRequest { failed: true, ..at(5, 30) });
        let summary = tally.summary(5).unwrap();
        assert_eq!((summary.rate_min, summary.rate_mean, summary.rate_max), (2, 2.0, 2));
        assert_eq!((summary.failed, summary.latency_mean_us), (1, 20.0));
        tally.add(at(1_000_005, 10));
        let summary = tally.summary(1_000_005).unwrap();
        assert_eq!((summary.rate_min, summary.rate_max), (0, 2));
        assert!((summary.rate_mean - 2.0 / 1_000_000.0).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn every_second_is_counted_as_a_list_would(
            steps in vec((0u64..8, 1usize..5), 1..40),
            late in 0u64..9,
        ) {
            let mut tally = Tally::default();
            let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
            let mut second = 100;
            for (later, count) in steps {
                second += later;
                *counts.entry(second).or_default() += count as u64;
                (0..count).for_each(|_| tally.add(at(second, 1)));
            }
            let first = *counts.keys().next().unwrap();
            let now = second + 1 + late;
            let all: Vec<u64> =
                (first..now).map(|one| counts.get(&one).copied().unwrap_or(0)).collect();
            let summary = tally.summary(now).unwrap();
            prop_assert_eq!(summary.rate_min, *all.iter().min().unwrap());
            prop_assert_eq!(summary.rate_max, *all.iter().max().unwrap());
            let mean = all.iter().sum::<u64>() as f64 / all.len() as f64;
            prop_assert!((summary.rate_mean - mean).abs() < 1e-9);
        }
    }
}
