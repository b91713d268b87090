//! How long the parts of a request may take and how large it may be: the router's own limits, or
//! what the application's settings say instead.

use std::time::Duration;

use model::request::RequestLimits;

/// Browsers close idle connections after one to five minutes.
const IDLE_TIME_MAX: Duration = Duration::from_secs(75);
/// From the first byte of a head to its last.
const HEAD_TIME_MAX: Duration = Duration::from_secs(20);
/// Until the first byte of an answer; a report may take its time.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(300);
/// Between two pieces of a body, either way; server-sent events are rarely quieter.
const BODY_IDLE_MAX: Duration = Duration::from_secs(300);

/// Of a body, in bytes a second, once a client has kept the router waiting for as long as a single
/// piece may take: who is slower holds a place for nothing. IIS asks for as much in either
/// direction, Apache for twice that of a request.
const BODY_RATE_MIN: u64 = 240;

/// Of one application; of a connection, until it is known which.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub idle: Duration,
    pub head: Duration,
    /// Between two pieces of the client's body.
    pub body: Duration,
    /// None for what holds for every queue.
    pub queue: Option<Duration>,
    pub answer: Duration,
    /// Between two pieces of an answer.
    pub answer_idle: Duration,
    pub body_bytes_max: u64,
}

/// How long a client may have kept the router waiting in all when so many bytes have passed.
pub fn patience(piece: Duration, bytes: u64) -> Duration {
    piece + Duration::from_millis(bytes.saturating_mul(1_000) / BODY_RATE_MIN)
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::new(&RequestLimits::default())
    }
}

impl Limits {
    /// How long a client may have kept the router waiting when this much of its body has come.
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
