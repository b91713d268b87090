//! Hybrid logical time: wall-clock milliseconds with a counter, so that the stamps of one node
//! always grow and stay close to its clock. It reads no clock; the machine hands in the time.

use model::Timestamp;
use model::time::CLOCK_AHEAD_MAX_MS;
use thiserror::Error;

const COUNTER_BITS: u32 = 16;
const MILLISECONDS_MAX: u64 = (1 << (64 - COUNTER_BITS)) - 1;

/// A hybrid time: 48 bits of milliseconds, 16 bits of counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(pub u64);

impl Stamp {
    /// Returns the first stamp of a millisecond.
    pub fn start_of(time: Timestamp) -> Stamp {
        Stamp(time.0.min(MILLISECONDS_MAX) << COUNTER_BITS)
    }

    pub fn time(self) -> Timestamp {
        Timestamp(self.0 >> COUNTER_BITS)
    }

    pub fn counter(self) -> u16 {
        self.0 as u16
    }

    fn successor(self) -> Stamp {
        Stamp(self.0.saturating_add(1))
    }
}

#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a stamp is {ahead_ms} ms ahead of this node's clock; set the clocks of the nodes right")]
pub struct TooFarAhead {
    pub ahead_ms: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct HybridClock {
    last: Stamp,
}

impl HybridClock {
    pub fn last(&self) -> Stamp {
        self.last
    }

    /// Returns a stamp above all earlier ones.
    pub fn next(&mut self, now: Timestamp) -> Stamp {
        self.last = self.last.successor().max(Stamp::start_of(now));
        self.last
    }

    /// Adopts a stamp from this node's own log, whatever the clock says.
    pub fn restore(&mut self, stamp: Stamp) {
        self.last = self.last.max(stamp);
    }

    /// Sets the clock back, where this node no longer holds what it issued later.
    pub fn reset(&mut self, stamp: Stamp) {
        self.last = stamp;
    }

    pub fn observe(&mut self, now: Timestamp, stamp: Stamp) -> Result<(), TooFarAhead> {
        let ahead_ms = stamp.time().0.saturating_sub(now.0);
        if ahead_ms > CLOCK_AHEAD_MAX_MS {
            return Err(TooFarAhead { ahead_ms });
        }
        self.restore(stamp);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_grow_even_when_the_clock_stands_or_falls_back() {
        let mut clock = HybridClock::default();
        let first = clock.next(Timestamp(1000));
        let second = clock.next(Timestamp(1000));
        let third = clock.next(Timestamp(10));
        let fourth = clock.next(Timestamp(1001));
        assert!(first < second && second < third && third < fourth);
        assert_eq!((third.time(), third.counter()), (Timestamp(1000), 2));
        assert_eq!((fourth.time(), fourth.counter()), (Timestamp(1001), 0));
    }

    #[test]
    fn a_full_counter_carries_into_the_time() {
        let mut clock = HybridClock::default();
        clock.restore(Stamp(Stamp::start_of(Timestamp(5)).0 | 0xffff));
        assert_eq!(clock.next(Timestamp(5)).time(), Timestamp(6));
    }

    #[test]
    fn stamps_of_the_far_future_are_not_adopted() {
        let mut clock = HybridClock::default();
        let near = Stamp::start_of(Timestamp(1500));
        assert_eq!(clock.observe(Timestamp(1000), near), Ok(()));
        assert_eq!(clock.last(), near);
        let far = Stamp::start_of(Timestamp(1501));
        assert_eq!(clock.observe(Timestamp(1000), far), Err(TooFarAhead { ahead_ms: 501 }));
        assert_eq!(clock.last(), near);
    }
}
