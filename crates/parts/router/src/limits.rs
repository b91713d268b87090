//! The time that the parts of a request may take, and the size that it may have: the router's own
//! limits, or what the application's settings say instead.

use std::time::Duration;

use model::request::RequestLimits;

/// The time that a connection may be idle; browsers close theirs after one to five minutes.
const IDLE_TIME_MAX: Duration = Duration::from_secs(75);
/// The time from the first byte of a head to its last.
const HEAD_TIME_MAX: Duration = Duration::from_secs(20);
/// The time until the first byte of an answer; a report may take its time.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(300);
/// The time between two pieces of a body, either way; server-sent events are rarely quieter.
const BODY_IDLE_MAX: Duration = Duration::from_secs(300);

/// The lowest rate of a body, in bytes a second, once a client has kept the router waiting for as
/// long as a single piece may take: a slower one holds a place for nothing. IIS asks for as much in
/// either direction, Apache for twice that of a request.
const BODY_RATE_MIN: u64 = 240;

/// The limits of one application, or of a connection until it is known which application it is for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub idle: Duration,
    pub head: Duration,
    /// The time between two pieces of the client's body.
    pub body: Duration,
    /// The time that a request may wait for an endpoint; `None` for that of every queue.
    pub queue: Option<Duration>,
    pub answer: Duration,
    /// The time between two pieces of an answer.
    pub answer_idle: Duration,
    pub body_bytes_max: u64,
}

/// Returns how long a client may have kept the router waiting in all when this many bytes have
/// passed.
pub fn patience(piece: Duration, bytes: u64) -> Duration {
    piece + Duration::from_millis(bytes.saturating_mul(1_000) / BODY_RATE_MIN)
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::new(&RequestLimits::default())
    }
}

impl Limits {
    /// Returns how long a client may have kept the router waiting when this much of its body has
    /// come.
    pub fn body_patience(&self, bytes: u64) -> Duration {
        patience(self.body, bytes)
    }

    pub fn new(set: &RequestLimits) -> Limits {
        let time = |ms: Option<u64>, own| ms.map_or(own, Duration::from_millis);
        Limits {
            idle: time(set.idle_ms, IDLE_TIME_MAX),
            head: time(set.head_ms, HEAD_TIME_MAX),
            body: time(set.body_ms, BODY_IDLE_MAX),
            queue: set.queue_ms.map(Duration::from_millis),
            answer: time(set.answer_ms, ANSWER_TIME_MAX),
            answer_idle: time(set.answer_ms, BODY_IDLE_MAX),
            body_bytes_max: set.body_bytes_max.unwrap_or(u64::MAX),
        }
    }
}
