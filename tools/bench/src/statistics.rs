//! Mean, deviation and median of a few runs; percentiles of many latencies.

use serde::Serialize;

use crate::median;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    pub mean: f64,
    /// The deviation of a sample: divided by one less than its size, as in the thesis. It is zero
    /// for a single run.
    pub deviation: f64,
    pub median: f64,
}

impl Summary {
    /// Returns the summary; `None` without samples.
    pub fn of(samples: &[f64]) -> Option<Summary> {
        if samples.is_empty() {
            return None;
        }
        let count = samples.len() as f64;
        let mean = samples.iter().sum::<f64>() / count;
        let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
        let deviation = if samples.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 };
        Some(Summary { mean, deviation, median: median(samples.to_vec()) })
    }
}

/// Latencies in microseconds, of four bytes each, as there are many.
#[derive(Clone, Debug, Default)]
pub struct Latencies(Vec<u32>);

impl Latencies {
    pub fn with_capacity(count: usize) -> Latencies {
        Latencies(Vec::with_capacity(count))
    }

    pub fn add(&mut self, latency: std::time::Duration) {
        self.0.push(u32::try_from(latency.as_micros()).unwrap_or(u32::MAX));
    }

    pub fn append(&mut self, mut other: Latencies) {
        self.0.append(&mut other.0);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the longest of them, if there are any.
    pub fn longest(&self) -> Latencies {
        Latencies(self.0.iter().max().into_iter().copied().collect())
    }

    /// Returns, for each fraction, the smallest latency in milliseconds that this fraction of all
    /// do not exceed.
    pub fn percentiles_ms<const N: usize>(mut self, fractions: [f64; N]) -> Option<[f64; N]> {
        self.0.sort_unstable();
        let last = self.0.len().checked_sub(1)?;
        Some(fractions.map(|fraction| {
            let rank = (fraction * self.0.len() as f64).ceil() as usize;
            f64::from(self.0[rank.saturating_sub(1).min(last)]) / 1000.0
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_run_has_no_deviation_and_none_has_nothing() {
        assert_eq!(Summary::of(&[]), None);
        let one = Summary::of(&[2.0]).unwrap();
        assert_eq!((one.mean, one.deviation, one.median), (2.0, 0.0, 2.0));
        assert_eq!(Summary::of(&[1.0, 100.0, 2.0]).unwrap().median, 2.0);
    }

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let mut latencies = Latencies::default();
        for ms in (1..=100).rev() {
            latencies.add(Duration::from_millis(ms));
        }
        assert_eq!(latencies.len(), 100);
        assert_eq!(latencies.clone().percentiles_ms([0.5, 0.99, 1.0]), Some([50.0, 99.0, 100.0]));
        latencies.add(Duration::from_secs(1_000_000));
        assert_eq!(latencies.percentiles_ms([1.0]), Some([f64::from(u32::MAX) / 1000.0]));
        assert_eq!(Latencies::default().percentiles_ms([0.5]), None);
    }
}
