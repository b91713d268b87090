//! The time that all of a node goes by. The machine's own clock may be set while the node runs,
//! which is noticed here and not followed: time that jumps would end leases and reorder writes.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use model::Timestamp;
use model::time::CLOCK_AHEAD_MAX_MS;
use rustix::time::{ClockId, clock_gettime};

/// The wall-clock time, which never goes backwards: anchored once, advanced by the time since the
/// boot, which includes the time that the machine sleeps.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    wall_at_start: Duration,
    start: Duration,
    /// The seconds by which the machine's clock counts as wrong.
    off: i64,
}

impl Clock {
    pub fn start() -> Clock {
        Clock::start_off(0)
    }

    /// Starts a clock as on a machine whose clock is wrong by this many seconds.
    pub fn start_off(off: i64) -> Clock {
        Clock { wall_at_start: wall(off), start: since_boot(), off }
    }

    pub fn now(&self) -> Timestamp {
        let now = self.wall_at_start + since_boot().saturating_sub(self.start);
        Timestamp(u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
    }

    /// Returns by how much the machine's clock was set, if by more than nodes tolerate.
    pub fn leap(&self) -> Option<Leap> {
        let wall = u64::try_from(wall(self.off).as_millis()).unwrap_or(u64::MAX);
        Leap::between(self.now(), Timestamp(wall))
    }
}

fn since_boot() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

fn wall(off: i64) -> Duration {
    let right = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let by = Duration::from_secs(off.unsigned_abs());
    let wrong = if off < 0 { right.checked_sub(by) } else { right.checked_add(by) };
    wrong.unwrap_or_default()
}

/// The difference of the machine's clock from the one that the node goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leap {
    ms: u64,
    ahead: bool,
}

impl Leap {
    fn between(own: Timestamp, machine: Timestamp) -> Option<Leap> {
        let ms = own.0.abs_diff(machine.0);
        (ms > CLOCK_AHEAD_MAX_MS).then_some(Leap { ms, ahead: machine.0 > own.0 })
    }
}

impl fmt::Display for Leap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Leap { ms, ahead } = *self;
        let (direction, seconds) = (if ahead { "forward" } else { "back" }, ms.div_ceil(1000));
        write!(
            f,
            "this machine's clock was set {direction} by {seconds} s while the node ran, which goes on \
             by the old one: if the clock is right now, restart the node; if not, set it right"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_starts_with_the_machines_and_advances() {
        let clock = Clock::start();
        let (first, wall) = (clock.now(), wall(0).as_millis());
        assert!(wall.abs_diff(first.0.into()) < 60_000);
        while clock.now() == first {
            std::thread::yield_now();
        }
        assert!(clock.now() > first);
        let wrong = Clock::start_off(-7200);
        assert!(first.since(wrong.now()).as_secs().abs_diff(7200) < 60);
    }

    #[test]
    fn a_clock_that_was_set_is_noticed_and_not_followed() {
        for off in [0, -7200, 86_400] {
            assert_eq!(Clock::start_off(off).leap(), None, "wrong as it was, it did not leap");
        }
        let hour = Duration::from_secs(3600);
        let right = Clock::start();
        let set_back = Clock { wall_at_start: right.wall_at_start + hour, ..right };
        let before = set_back.now();
        let leap = set_back.leap().expect("an hour");
        assert!(!leap.ahead && leap.ms.abs_diff(3_600_000) < 60_000, "{leap}");
        assert!(set_back.now() >= before);
        let set_forward = Clock { wall_at_start: right.wall_at_start - hour, ..right };
        let said = set_forward.leap().expect("an hour").to_string();
        assert!(said.contains("set forward by 36") && said.contains("restart the node"), "{said}");
    }

    #[test]
    fn a_small_difference_is_not_a_leap() {
        let at = |ms| Timestamp(1_700_000_000_000 + ms);
        assert_eq!(Leap::between(at(0), at(CLOCK_AHEAD_MAX_MS)), None);
        assert_eq!(Leap::between(at(CLOCK_AHEAD_MAX_MS), at(0)), None);
        let leap = Leap::between(at(0), at(CLOCK_AHEAD_MAX_MS + 1));
        assert_eq!(leap, Some(Leap { ms: CLOCK_AHEAD_MAX_MS + 1, ahead: true }));
    }
}
