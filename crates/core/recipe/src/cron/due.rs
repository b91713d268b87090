//! The latest time at which a schedule was due, in a time zone whose clock is changed at times:
//! what falls into the hour that is left out comes right after it, what falls into the hour that
//! comes twice comes once.

use std::time::Duration;

use model::Timestamp;
use tz::TimeZone;

use super::calendar::reading;
use super::schedule::Schedule;

/// The time looked back for what was due: a command that comes once a year is not lost by a week's
/// downtime.
pub const LOOK_BACK_MAX: Duration = Duration::from_secs(366 * 86_400);

/// Returns the latest due time after `since`, up to and including `now`; to the minute.
pub fn latest_due(
    schedule: &Schedule,
    zone: &TimeZone,
    since: Timestamp,
    now: Timestamp,
) -> Option<Timestamp> {
    let look_back = Timestamp(now.0.saturating_sub(LOOK_BACK_MAX.as_millis() as u64));
    let last = (now.0 / 60_000) as i64;
    let first = (since.max(look_back).0 / 60_000) as i64 + 1;
    let mut minute = last;
    while minute >= first {
        let here = local(zone, minute)?;
        if is_due(schedule, zone, minute, here)? {
            return Some(Timestamp(minute as u64 * 60_000));
        }
        // Nothing is due on this day: go on at the last minute of the day before, but not past a
        // change.
        let into_day = here.rem_euclid(1_440);
        let skips = into_day > 0 && !schedule.has_day(reading(here));
        let before = local(zone, minute - into_day)?;
        minute -= if skips && before == here - into_day { into_day } else { 1 };
    }
    None
}

/// Returns the minutes after 1970 by the clocks there; `None` if the zone's data say nothing.
fn local(zone: &TimeZone, minute: i64) -> Option<i64> {
    let offset = zone.find_local_time_type(minute * 60).ok()?.ut_offset();
    Some(minute + i64::from(offset.div_euclid(60)))
}

fn is_due(schedule: &Schedule, zone: &TimeZone, minute: i64, here: i64) -> Option<bool> {
    let matches = |at: i64| schedule.matches(reading(at));
    if !schedule.names_hours {
        return Some(matches(here));
    }
    let before = local(zone, minute - 1)?;
    if before + 1 < here && (before + 1..here).any(matches) {
        return Some(true);
    }
    if !matches(here) {
        return Some(false);
    }
    // Was it the same reading a while ago, before the clock was put back?
    for back in [30, 60, 120] {
        if local(zone, minute - back)? == here {
            return Some(false);
        }
    }
    Some(true)
}
