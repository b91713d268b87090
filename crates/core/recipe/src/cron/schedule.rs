//! The five fields of a schedule as crontab has them: parsed, and asked whether a minute matches.

use thiserror::Error;

use super::calendar::Reading;

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ScheduleError {
    #[error(
        "'{0}' is not a schedule: write minute, hour, day of month, month and day of week, for \
         example '30 4 * * 1-5', or @hourly, @daily, @weekly, @monthly, @yearly"
    )]
    Fields(String),
    #[error(
        "'{text}' is not a valid {field}: use {low} to {high}, *, lists (1,2), ranges (1-5), steps (*/10)"
    )]
    Field { field: &'static str, text: String, low: u8, high: u8 },
    #[error("'{0}' never comes: no month that it names has that day")]
    Never(String),
}

/// The fields as sets of values; bit n stands for the value n.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Whether either day is enough, as in crontab: it is if both are restricted.
    any_day: bool,
    any_weekday: bool,
    /// Whether it names hours: a day on which the clock is changed does not skip or repeat it.
    pub(super) names_hours: bool,
}

struct Field {
    name: &'static str,
    low: u8,
    high: u8,
    words: &'static [&'static str],
}

const MINUTE: Field = Field { name: "minute", low: 0, high: 59, words: &[] };
const HOUR: Field = Field { name: "hour", low: 0, high: 23, words: &[] };
const DAY: Field = Field { name: "day of month", low: 1, high: 31, words: &[] };
const MONTH: Field = Field {
    name: "month",
    low: 1,
    high: 12,
    words: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
/// The day of the week, in which 7 is Sunday too.
const WEEKDAY: Field = Field {
    name: "day of week",
    low: 0,
    high: 7,
    words: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
};
/// The days of each month, in a leap year.
const DAYS: [u8; 12] = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

impl std::str::FromStr for Schedule {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Schedule, ScheduleError> {
        let written = match text.trim() {
            "@hourly" => "0 * * * *",
            "@daily" | "@midnight" => "0 0 * * *",
            "@weekly" => "0 0 * * 0",
            "@monthly" => "0 0 1 * *",
            "@yearly" | "@annually" => "0 0 1 1 *",
            other => other,
        };
        let fields: Vec<&str> = written.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields[..] else {
            return Err(ScheduleError::Fields(shown(text)));
        };
        let weekdays = WEEKDAY.parse(weekday)?;
        let schedule = Schedule {
            minutes: MINUTE.parse(minute)?,
            hours: HOUR.parse(hour)?,
            days: DAY.parse(day)?,
            months: MONTH.parse(month)?,
            weekdays: (weekdays | weekdays >> 7) & 0x7f,
            any_day: day.starts_with('*'),
            any_weekday: weekday.starts_with('*'),
            names_hours: !hour.starts_with('*'),
        };
        if schedule.ever_comes() { Ok(schedule) } else { Err(ScheduleError::Never(shown(text))) }
    }
}

fn shown(text: &str) -> String {
    text.escape_debug().take(80).collect()
}

impl Field {
    fn parse(&self, text: &str) -> Result<u64, ScheduleError> {
        let error = || {
            let (field, text) = (self.name, shown(text));
            ScheduleError::Field { field, text, low: self.low, high: self.high }
        };
        let mut set = 0;
        for part in text.split(',') {
            let (range, step) = match part.split_once('/') {
                None => (part, None),
                Some((range, step)) => {
                    let step = step.parse::<u8>().ok().filter(|step| (1..=60).contains(step));
                    (range, Some(step.ok_or_else(error)?))
                }
            };
            let (low, high) = match range.split_once('-') {
                _ if range == "*" => (self.low, self.high),
                Some((low, high)) => {
                    (self.value(low).ok_or_else(error)?, self.value(high).ok_or_else(error)?)
                }
                None => {
                    let value = self.value(range).ok_or_else(error)?;
                    (value, if step.is_some() { self.high } else { value })
                }
            };
            if low > high {
                return Err(error());
            }
            for value in (low..=high).step_by(usize::from(step.unwrap_or(1))) {
                set |= 1 << value;
            }
        }
        Ok(set)
    }

    fn value(&self, text: &str) -> Option<u8> {
        let word = self.words.iter().position(|word| text.eq_ignore_ascii_case(word));
        let number = || text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?;
        let value = word.map(|at| at as u8 + self.low).or_else(number)?;
        (self.low..=self.high).contains(&value).then_some(value)
    }
}

fn has(set: u64, value: u8) -> bool {
    set >> value & 1 == 1
}

impl Schedule {
    fn ever_comes(&self) -> bool {
        let by_day = (1..=12_u8).any(|month| {
            let last = DAYS[usize::from(month) - 1];
            has(self.months, month) && (1..=last).any(|day| has(self.days, day))
        });
        by_day || !self.any_weekday
    }

    pub(super) fn has_day(&self, at: Reading) -> bool {
        let (day, weekday) = (has(self.days, at.day), has(self.weekdays, at.weekday));
        let either = !self.any_day && !self.any_weekday;
        has(self.months, at.month) && if either { day || weekday } else { day && weekday }
    }

    pub(super) fn matches(&self, at: Reading) -> bool {
        has(self.minutes, at.minute) && has(self.hours, at.hour) && self.has_day(at)
    }
}
