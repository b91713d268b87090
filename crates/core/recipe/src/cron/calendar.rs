//! Days and minutes of the Gregorian calendar, by Hinnant's "chrono-compatible low-level date
//! algorithms". Knows no time zones.

/// A minute as a clock on the wall shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    pub minute: u8,
    pub hour: u8,
    /// The day of the month, from 1.
    pub day: u8,
    pub month: u8,
    /// The day of the week; Sunday is 0.
    pub weekday: u8,
}

/// Returns the reading this many minutes after 1970 began, locally.
pub(super) fn reading(minutes: i64) -> Reading {
    let (days, of_day) = (minutes.div_euclid(1_440), minutes.rem_euclid(1_440));
    let z = days + 719_468;
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    Reading {
        minute: (of_day % 60) as u8,
        hour: (of_day / 60) as u8,
        day: (day_of_year - (153 * shifted + 2) / 5 + 1) as u8,
        month: if shifted < 10 { shifted + 3 } else { shifted - 9 } as u8,
        weekday: (days + 4).rem_euclid(7) as u8,
    }
}
