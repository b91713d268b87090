//! Waiting for a state: poll with a deadline, never a fixed sleep.

use std::time::{Duration, Instant};

/// The time limit for any state of a loaded two-core machine; reached only when something is wrong.
pub const STATE_DEADLINE: Duration = Duration::from_secs(90);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Polls until `look` gives a value; else panics with `what` and what was seen last.
pub fn wait_for<T>(
    what: &str,
    deadline: Duration,
    mut look: impl FnMut() -> Result<T, String>,
) -> T {
    let started = Instant::now();
    loop {
        match look() {
            Ok(value) => return value,
            Err(seen) if started.elapsed() > deadline => {
                panic!("waited {deadline:?} in vain for {what}; seen last: {seen}")
            }
            Err(_) => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

/// Returns whether it comes to hold in time, for callers that have something to do if it does not.
pub fn holds_within(deadline: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while !holds() {
        if started.elapsed() > deadline {
            return false;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    true
}

/// Waits for a condition like `wait_for`.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    wait_for(what, STATE_DEADLINE, || if holds() { Ok(()) } else { Err("not so".into()) });
}

/// Pauses between two requests of a load: sets its rate, and nothing relies on how long it takes.
pub fn space_out(pause: Duration) {
    if !pause.is_zero() {
        std::thread::sleep(pause);
    }
}
