//! `[[cron]]` of `cortex.toml`: commands that run at times.

use std::collections::BTreeSet;

use model::ProcessType;
use model::cron::CronRecipe;
use serde::Deserialize;

use crate::cron::{ENTRIES_MAX, Schedule};

/// Where the file names none: the same moments on every machine.
const TIMEZONE_DEFAULT: &str = "UTC";
/// The longest name of the zone database has 32 bytes.
const TIMEZONE_LENGTH_MAX: usize = 64;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    name: String,
    schedule: String,
    timezone: Option<String>,
    command: String,
}

pub(super) fn validate(entries: Vec<Entry>) -> Result<Vec<CronRecipe>, String> {
    if entries.len() > ENTRIES_MAX {
        return Err(format!("'cron' has more than {ENTRIES_MAX} entries"));
    }
    let mut names = BTreeSet::new();
    let one = |entry: Entry| {
        // It becomes part of a log file's name, as process types do.
        let name: ProcessType = entry.name.parse().map_err(|error| format!("cron: {error}"))?;
        let name = name.to_string();
        if !names.insert(name.clone()) {
            return Err(format!("cron: two entries are named '{name}'"));
        }
        let wrong = |why: String| format!("cron '{name}': {why}");
        entry.schedule.parse::<Schedule>().map_err(|error| wrong(error.to_string()))?;
        let timezone = entry.timezone.unwrap_or_else(|| TIMEZONE_DEFAULT.into());
        if !is_zone_name(&timezone) {
            let shown: String = timezone.escape_debug().take(TIMEZONE_LENGTH_MAX).collect();
            return Err(wrong(format!("'{shown}' is no time zone, for example Europe/Berlin")));
        }
        if entry.command.trim().is_empty() || entry.command.contains('\0') {
            return Err(wrong("its command is empty, or holds a zero byte".into()));
        }
        Ok(CronRecipe { name, schedule: entry.schedule, timezone, command: entry.command })
    };
    entries.into_iter().map(one).collect()
}

/// Whether it could name a file of the zone database, and no other.
fn is_zone_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '+');
    let part = |part: &str| !part.is_empty() && part.chars().all(plain);
    text.len() <= TIMEZONE_LENGTH_MAX && text.split('/').all(part)
}

#[cfg(test)]
mod tests {
    use crate::manifest::read_cortex_toml;

    fn entry(schedule: &str, zone: &str) -> String {
        format!("[[cron]]\nname = 'clean'\nschedule = '{schedule}'\n{zone}\ncommand = 'rake x'\n")
    }

    #[test]
    fn entries_are_validated() {
        let good = read_cortex_toml(&entry("0 4 * * *", "timezone = 'Europe/Berlin'")).unwrap();
        assert_eq!(good.cron[0].timezone, "Europe/Berlin");
        assert_eq!(read_cortex_toml(&entry("@daily", "")).unwrap().cron[0].timezone, "UTC");
        for (text, said) in [
            (entry("61 * * * *", ""), "cron 'clean': '61' is no minute"),
            (entry("* * * * *", "timezone = '../etc/passwd'"), "is no time zone"),
            (entry("* * * * *", "").repeat(2), "two entries are named 'clean'"),
            (entry("* * * * *", "").replace("rake x", " "), "its command is empty"),
            (entry("* * * * *", "").replace("clean", "a b"), "cron:"),
        ] {
            let error = read_cortex_toml(&text).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
