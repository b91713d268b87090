//! The time that stands before each line of a log, in UTC, without a calendar library in the shim.

/// Returns the time as `2026-11-21T10:00:00.123Z`.
pub fn stamp(milliseconds: u64) -> String {
    let (seconds, milliseconds) = (milliseconds / 1000, milliseconds % 1000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milliseconds:03}Z")
}

/// Returns year, month and day, this many days after 1970-01-01. Counts years from March, so that a
/// leap day is the last of its year.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_their_dates() {
        for (milliseconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_200_007, "2024-03-01T00:00:00.007Z"),
            (1_795_255_200_123, "2026-11-21T10:00:00.123Z"),
            (4_102_444_799_000, "2099-12-31T23:59:59.000Z"),
        ] {
            assert_eq!(stamp(milliseconds), text);
        }
    }
}
