//! Percentiles of each part of a run. A shared machine stands still now and then; percentiles of
//! the whole run would show only that of two contenders that differ by less.

use std::time::Duration;

use crate::median;
use crate::statistics::Latencies;

/// The length of a part: short beside the time between two such moments, long enough for a 99th
/// percentile.
const SLICE: Duration = Duration::from_millis(250);

#[derive(Debug, Default)]
pub struct Sliced(Vec<Latencies>);

impl Sliced {
    /// Adds a request that began at `at`, counted from the start of the run.
    pub fn add(&mut self, at: Duration, latency: Duration) {
        let slice = (at.as_micros() / SLICE.as_micros()) as usize;
        if self.0.len() <= slice {
            self.0.resize_with(slice + 1, Latencies::default);
        }
        self.0[slice].add(latency);
    }

    pub fn len(&self) -> usize {
        self.0.iter().map(Latencies::len).sum()
    }

    /// Returns each percentile in milliseconds, as the median of those of the parts; `None` if
    /// there are none.
    pub fn percentiles_ms<const N: usize>(self, fractions: [f64; N]) -> Option<[f64; N]> {
        let slices = self.0.into_iter().filter_map(|slice| slice.percentiles_ms(fractions));
        let slices: Vec<[f64; N]> = slices.collect();
        let of = |index: usize| median(slices.iter().map(|slice| slice[index]).collect());
        (!slices.is_empty()).then(|| std::array::from_fn(of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_at_which_the_machine_stood_still_is_one_slice() {
        let mut sliced = Sliced::default();
        for ms in 0..1000 {
            let waits = if (300..400).contains(&ms) { 90 } else { 1 + u64::from(ms % 50 == 0) };
            sliced.add(Duration::from_millis(ms), Duration::from_millis(waits));
        }
        assert_eq!(sliced.len(), 1000);
        assert_eq!(sliced.percentiles_ms([0.5, 0.99, 1.0]), Some([1.0, 2.0, 2.0]));
        assert_eq!(Sliced::default().percentiles_ms([0.5]), None);
    }
}
