//! Arrival times of independent users: at a given rate with exponential times between, and the same
//! times for the same seed.

use std::time::Duration;

use model::hash;

#[derive(Clone, Debug)]
pub struct Poisson {
    seed: u64,
    per_second: f64,
    number: u64,
    at: f64,
}

impl Poisson {
    pub fn new(seed: u64, per_second: f64) -> Poisson {
        Poisson { seed, per_second, number: 0, at: 0.0 }
    }
}

/// Yields the times from the start at which requests are due; it never ends.
impl Iterator for Poisson {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.at += -(1.0 - chance(self.seed, self.number)).ln() / self.per_second;
        self.number += 1;
        Some(Duration::from_secs_f64(self.at))
    }
}

/// Returns a number from 0 to below 1, with the 53 bits of a fraction.
pub fn chance(seed: u64, number: u64) -> f64 {
    (hash::pair(seed, number) >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_come_as_the_rate_says_at_times_that_a_seed_repeats() {
        let seconds = Duration::from_secs(100);
        let of = |seed| Poisson::new(seed, 50.0).take_while(|at| *at < seconds).collect::<Vec<_>>();
        let all = of(7);
        assert!((4_700..5_300).contains(&all.len()), "{}", all.len());
        assert!(all.is_sorted());
        assert_eq!(all, of(7));
        assert_ne!(all, of(8));
        // One in e of the times between two arrivals is longer than their mean.
        let long = all.windows(2).filter(|two| two[1] - two[0] > Duration::from_millis(20)).count();
        assert!((1_600..2_100).contains(&long), "{long}");
    }
}
