//! Waiting for a state: poll with a deadline, never a fixed sleep.

use std::time::{Duration, Instant};

/// The time limit for any state of a loaded two-core machine; reached only when something is wrong.
pub const STATE_DEADLINE: Duration = Duration::from_secs(90);
/// The shortest and the longest pause between two looks.
const POLL_MIN: Duration = Duration::from_millis(20);
const POLL_MAX: Duration = Duration::from_millis(500);
/// How many times as long as a look the pause behind it is: most looks are a process of their own,
/// and what is waited for needs the processors, too.
const PAUSE_PER_LOOK: u32 = 4;

fn pause_after(looked: Instant) {
    std::thread::sleep((looked.elapsed() * PAUSE_PER_LOOK).clamp(POLL_MIN, POLL_MAX));
}

/// Polls until `look` gives a value; else panics with `what` and what was seen last.
pub fn wait_for<T>(
    what: &str,
    deadline: Duration,
    mut look: impl FnMut() -> Result<T, String>,
) -> T {
    let started = Instant::now();
    loop {
        let looked = Instant::now();
        match look() {
            Ok(value) => return value,
            Err(seen) if started.elapsed() > deadline => {
                panic!("waited {deadline:?} in vain for {what}; seen last: {seen}")
            }
            Err(_) => pause_after(looked),
        }
    }
}

/// Returns whether it comes to hold in time, for callers that have something to do if it does not.
pub fn holds_within(deadline: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    loop {
        let looked = Instant::now();
        if holds() {
            return true;
        }
        if started.elapsed() > deadline {
            return false;
        }
        pause_after(looked);
    }
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
