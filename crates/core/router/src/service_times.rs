//! How long requests of each kind take, learnt from those that were served, and which are slow:
//! those that keep a place for much longer than the application's requests do on average. Pure;
//! held by the router's queue where places are counted.
//!
//! A kind is a method and a target. If that is not known yet, all targets count together that
//! differ only in their query and in what looks like an identifier. Its time is a running median
//! (Frugal-1U: Ma, Muthukrishnan and Sandler, "Frugal Streaming for Estimating Quantiles", 2013,
//! here by a ratio instead of a step), so one hiccup makes no quick kind a slow one. Each table
//! keeps those that come often (as Misra and Gries, "Finding repeated elements", 1982, in each of
//! its slots), however many others come once.

use std::time::Duration;

use model::hash;

/// Slots of each table: 4 KiB, and more kinds than most applications have routes.
const SLOTS: usize = 256;
/// Requests before which a kind counts as any other.
const KNOWN_MIN: u8 = 3;
/// Requests of a slot's other kinds after which a kind that does not come again is forgotten.
const SEEN_MAX: u8 = 32;
/// The parts by which a kind's time changes: it goes up by a quarter of itself, or down by a fifth,
/// which undoes that.
const UP_DIVISOR: u32 = 4;
const DOWN_DIVISOR: u32 = 5;
/// Requests that the average is taken over.
const AVERAGE_OF: u32 = 128;
/// The multiple of the average that one request counts for in it at most: a connection that was
/// held for hours says little of the others, and would make nobody slow beside it.
const OUTLIER_RATIO: u32 = 32;
/// The multiple of the average from which on a kind is slow. Slow ones are then a quarter of all
/// requests at most.
const SLOW_RATIO: u32 = 4;
/// The time that a slow kind takes at least; what is over sooner keeps nobody waiting who would
/// notice.
const SLOW_TIME_MIN: Duration = Duration::from_millis(100);
/// Bytes of a word in a path; a longer segment counts as an identifier.
const WORD_BYTES_MAX: usize = 32;

/// A kind of requests, alike in how long they take, as far as can be told before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestKind {
    exact: u64,
    similar: u64,
}

impl RequestKind {
    /// Returns the kind of the request with this head.
    pub fn of(head: &[u8]) -> RequestKind {
        let line = head.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
        let line = line.strip_suffix(b" HTTP/1.1").unwrap_or(line);
        let path = line.split(|byte| *byte == b'?').next().unwrap_or_default();
        let segments = path.split(|byte| *byte == b'/').map(|segment| {
            let is_word =
                segment.len() <= WORD_BYTES_MAX && !segment.iter().any(u8::is_ascii_digit);
            hash::bytes(if is_word { segment } else { b"*" })
        });
        RequestKind { exact: hash::bytes(line), similar: segments.fold(0, hash::pair) }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct TimesSlot {
    kind: u64,
    time_us: u32,
    seen: u8,
}

#[derive(Debug, Default)]
struct TimesTable {
    /// The slots; empty before anything was learnt.
    slots: Box<[TimesSlot]>,
}

/// The average of all requests.
#[derive(Debug, Default)]
struct Average {
    time_us: u32,
    count: u32,
}

#[derive(Debug, Default)]
pub struct ServiceTimes {
    exact: TimesTable,
    similar: TimesTable,
    average: Average,
}

impl ServiceTimes {
    /// Returns what a request of this kind is expected to take, if that is long.
    pub fn slow(&self, kind: RequestKind) -> Option<Duration> {
        let time_us = self.known(kind)?;
        let is_slow = time_us / SLOW_RATIO >= self.average.time_us;
        let time = Duration::from_micros(time_us.into());
        (is_slow && time >= SLOW_TIME_MIN).then_some(time)
    }

    fn known(&self, kind: RequestKind) -> Option<u32> {
        self.exact.known(kind.exact).or_else(|| self.similar.known(kind.similar))
    }

    /// Learns that a request of this kind had its place for this long.
    pub fn learn(&mut self, kind: RequestKind, time: Duration) {
        let time_us = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        self.average.learn(time_us);
        self.exact.learn(kind.exact, time_us);
        self.similar.learn(kind.similar, time_us);
    }

    /// Learns of a request that was not served to the end: it would have taken this long at least.
    pub fn learn_at_least(&mut self, kind: RequestKind, time: Duration) {
        let expected_us = self.known(kind).unwrap_or(self.average.time_us);
        if time > Duration::from_micros(expected_us.into()) {
            self.learn(kind, time);
        }
    }
}

impl Average {
    fn learn(&mut self, time_us: u32) {
        self.count = (self.count + 1).min(AVERAGE_OF);
        let least_us = u32::try_from(SLOW_TIME_MIN.as_micros()).unwrap_or(u32::MAX);
        let time_us = time_us.min(self.time_us.saturating_mul(OUTLIER_RATIO).max(least_us));
        let change = (i64::from(time_us) - i64::from(self.time_us)) / i64::from(self.count);
        self.time_us = u32::try_from(i64::from(self.time_us) + change).unwrap_or(u32::MAX);
    }
}

impl TimesTable {
    fn known(&self, kind: u64) -> Option<u32> {
        let slot = self.slots.get(place(kind))?;
        (slot.kind == kind && slot.seen >= KNOWN_MIN).then_some(slot.time_us)
    }

    fn learn(&mut self, kind: u64, time_us: u32) {
        if self.slots.is_empty() {
            self.slots = vec![TimesSlot::default(); SLOTS].into();
        }
        let slot = &mut self.slots[place(kind)];
        if slot.kind == kind && slot.seen > 0 {
            slot.learn(time_us);
        } else if slot.seen > 0 {
            slot.seen -= 1;
        } else {
            *slot = TimesSlot { kind, time_us, seen: 1 };
        }
    }
}

impl TimesSlot {
    fn learn(&mut self, time_us: u32) {
        self.time_us = match self.seen < KNOWN_MIN {
            // The least of the first few counts: no kind is slow for how it began.
            true => self.time_us.min(time_us),
            false if time_us > self.time_us => {
                self.time_us.saturating_add(self.time_us / UP_DIVISOR + 1).min(time_us)
            }
            false => (self.time_us - self.time_us / DOWN_DIVISOR).max(time_us),
        };
        self.seen = (self.seen + 1).min(SEEN_MAX);
    }
}

fn place(kind: u64) -> usize {
    kind as usize % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_millis(5);
    const SLOW: Duration = Duration::from_secs(1);

    fn kind(line: &str) -> RequestKind {
        RequestKind::of(format!("{line} HTTP/1.1\r\nHost: shop\r\n").as_bytes())
    }

    fn learn(times: &mut ServiceTimes, line: &str, time: Duration, count: usize) {
        (0..count).for_each(|_| times.learn(kind(line), time));
    }

    /// Returns times of both kinds, where one in twenty is slow.
    fn mixed() -> ServiceTimes {
        let mut times = ServiceTimes::default();
        for _ in 0..20 {
            learn(&mut times, "GET /", QUICK, 19);
            learn(&mut times, "GET /report", SLOW, 1);
        }
        times
    }

    #[test]
    fn requests_far_above_the_average_are_slow() {
        let times = mixed();
        assert_eq!(times.slow(kind("GET /")), None);
        let time = times.slow(kind("GET /report")).unwrap();
        assert_eq!(time, SLOW);
        assert_eq!(times.slow(kind("POST /report")), None, "another method");
        assert_eq!(times.slow(kind("GET /never")), None, "nobody knows");
    }

    #[test]
    fn nobody_is_slow_where_all_take_as_long_or_nobody_would_notice() {
        let mut times = ServiceTimes::default();
        learn(&mut times, "GET /a", SLOW, 100);
        learn(&mut times, "GET /b", SLOW * 3, 100);
        assert_eq!((times.slow(kind("GET /a")), times.slow(kind("GET /b"))), (None, None));
        let mut times = ServiceTimes::default();
        learn(&mut times, "GET /a", QUICK / 5, 100);
        learn(&mut times, "GET /b", SLOW_TIME_MIN - QUICK, 10);
        assert_eq!(times.slow(kind("GET /b")), None);
    }

    #[test]
    fn targets_that_differ_in_an_identifier_or_the_query_are_alike_until_they_are_known() {
        let mut times = mixed();
        for number in 0..10 {
            learn(&mut times, &format!("GET /users/{number}/export?page=a"), SLOW, 1);
        }
        assert!(times.slow(kind("GET /users/77/export")).is_some());
        assert!(times.slow(kind("GET /users/77")).is_none());
        let long = "f".repeat(WORD_BYTES_MAX + 1);
        assert!(times.slow(kind(&format!("GET /users/{long}/export?x"))).is_some());
        // One of them is known to be of another kind.
        learn(&mut times, "GET /users/5/export?page=b", QUICK, KNOWN_MIN.into());
        assert!(times.slow(kind("GET /users/5/export?page=b")).is_none());
        assert!(times.slow(kind("GET /users/6/export?page=b")).is_some());
    }

    #[test]
    fn a_hiccup_makes_no_kind_slow_and_a_change_is_learnt() {
        let mut times = mixed();
        learn(&mut times, "GET /", SLOW * 30, 1);
        assert_eq!(times.slow(kind("GET /")), None);
        // The hiccup is among its first times, whichever it was.
        let mut times = mixed();
        for at in 0..3 {
            let line = format!("GET /new{}", "-".repeat(at));
            for number in 0..3 {
                learn(&mut times, &line, if number == at { QUICK } else { SLOW }, 1);
                assert_eq!(times.slow(kind(&line)), None, "{at} {number}");
            }
        }
        for _ in 0..20 {
            learn(&mut times, "GET /", QUICK, 40);
            learn(&mut times, "GET /new", SLOW, 2);
        }
        assert_eq!(times.slow(kind("GET /new")), Some(SLOW));
        learn(&mut times, "GET /new", QUICK, 40);
        assert_eq!(times.slow(kind("GET /new")), None);
    }

    #[test]
    fn a_connection_of_hours_makes_nobody_quick() {
        let mut times = mixed();
        for _ in 0..3 {
            times.learn_at_least(kind("GET /socket"), SLOW * 36_000);
            assert_eq!(times.slow(kind("GET /report")), Some(SLOW));
        }
        // Where all take so long, the average soon says so.
        learn(&mut times, "GET /", SLOW * 60, 60);
        assert_eq!(times.slow(kind("GET /")), None);
    }

    #[test]
    fn a_request_that_is_given_up_counts_as_slow() {
        let mut times = mixed();
        for _ in 0..KNOWN_MIN {
            times.learn_at_least(kind("GET /hangs"), SLOW * 3);
            times.learn_at_least(kind("GET /report"), QUICK);
            times.learn_at_least(kind("GET /refused"), Duration::ZERO);
        }
        assert_eq!(times.slow(kind("GET /hangs")), Some(SLOW * 3));
        assert_eq!(times.slow(kind("GET /report")), Some(SLOW), "it was given up early");
        assert_eq!(times.known(kind("GET /refused")), None);
    }

    #[test]
    fn those_that_come_often_stay_known_however_many_come_once() {
        let mut times = mixed();
        for number in 0..20_000_u32 {
            // Each number makes another word.
            let word: String =
                number.to_string().bytes().map(|digit| char::from(digit + 50)).collect();
            times.learn(kind(&format!("GET /{word}")), QUICK);
            if number % 100 == 0 {
                assert_eq!(times.slow(kind("GET /report")), Some(SLOW), "{number}");
                times.learn(kind("GET /report"), SLOW);
            }
        }
        assert_eq!(times.exact.slots.len() + times.similar.slots.len(), 2 * SLOTS);
        assert_eq!(size_of::<TimesSlot>() * SLOTS, 4096);
    }

    #[test]
    fn no_time_is_too_long() {
        let mut times = mixed();
        learn(&mut times, "GET /for-ever", Duration::MAX, 300);
        learn(&mut times, "GET /", Duration::ZERO, 300);
        assert!(times.slow(kind("GET /for-ever")).is_some());
        RequestKind::of(b"");
    }
}
