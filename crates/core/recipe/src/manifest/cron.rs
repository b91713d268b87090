//! Commands that run at times: `[[cron]]` of `cortex.toml`, and `cron` of `app.json` as Dokku has
//! it.

use std::collections::BTreeSet;

use model::cron::CronRecipe;
use model::{ApplicationName, ProcessType};
use serde::Deserialize;
use serde_json::Value;

use super::APP_JSON;
use crate::cron::{ENTRIES_MAX, Schedule};

/// Fields of a schedule: minute, hour, day of month, month, day of week.
const SCHEDULE_FIELDS: usize = 5;
/// Characters of a name that is made from a command; a number may follow.
const NAME_CHARS_MAX: usize = 30;
/// The time zone if the file names none: the same moments on every machine.
const TIMEZONE_DEFAULT: &str = "UTC";
/// Bytes of a time zone's name; the longest one of the zone database has 32.
const TIMEZONE_LENGTH_MAX: usize = 64;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CronTable {
    name: String,
    schedule: String,
    timezone: Option<String>,
    command: String,
}

pub(super) fn validate(entries: Vec<CronTable>) -> Result<Vec<CronRecipe>, String> {
    if entries.len() > ENTRIES_MAX {
        return Err(format!("'cron' has more than {ENTRIES_MAX} entries"));
    }
    let mut names = BTreeSet::new();
    let one = |entry: CronTable| {
        // The name becomes part of a log file's name, as process types do.
        let name: ProcessType = entry.name.parse().map_err(|error| format!("cron: {error}"))?;
        let name = name.to_string();
        if !names.insert(name.clone()) {
            return Err(format!("cron: two entries are named '{name}'"));
        }
        let wrong = |why: String| format!("cron '{name}': {why}");
        check_schedule(&entry.schedule).map_err(wrong)?;
        let timezone = entry.timezone.unwrap_or_else(|| TIMEZONE_DEFAULT.into());
        if !is_zone_name(&timezone) {
            let shown: String = timezone.escape_debug().take(TIMEZONE_LENGTH_MAX).collect();
            return Err(wrong(format!(
                "'{shown}' is not a time zone: write for example Europe/Berlin"
            )));
        }
        if entry.command.trim().is_empty() || entry.command.contains('\0') {
            return Err(wrong("its command is empty, or holds a zero byte".into()));
        }
        Ok(CronRecipe { name, schedule: entry.schedule, timezone, command: entry.command })
    };
    entries.into_iter().map(one).collect()
}

fn check_schedule(schedule: &str) -> Result<(), String> {
    schedule.parse::<Schedule>().map(drop).map_err(|error| error.to_string())
}

/// Reads the entries. Those without names get one from their command, so that it stays when others
/// come and go.
pub(super) fn of_app_json(
    entries: &[Value],
    notes: &mut Vec<String>,
) -> Result<Vec<CronRecipe>, String> {
    if entries.len() > ENTRIES_MAX {
        return Err(format!("'cron' has more than {ENTRIES_MAX} entries"));
    }
    let mut recipes: Vec<CronRecipe> = Vec::new();
    for entry in entries {
        let text = |key: &str| entry.get(key).and_then(Value::as_str).map(str::trim);
        let (Some(command), Some(schedule)) = (text("command"), text("schedule")) else {
            return Err("each entry of 'cron' has a 'command' and a 'schedule'".into());
        };
        if command.is_empty() || command.contains('\0') {
            return Err("cron: a command is empty or holds a zero byte".into());
        }
        if entry.get("maintenance").and_then(Value::as_bool) == Some(true) {
            notes.push(format!("{APP_JSON}: cron '{command}' is not run: 'maintenance' is true"));
            continue;
        }
        check_schedule(schedule).map_err(|why| format!("cron '{command}': {why}"))?;
        if let Some(policy) = text("concurrency_policy").filter(|policy| *policy != "forbid") {
            notes.push(format!(
                "{APP_JSON}: concurrency_policy '{policy}' was ignored: '{command}' is never started \
                 while its last run goes on"
            ));
        }
        let name = unused_name(command, &recipes);
        let timezone = TIMEZONE_DEFAULT.into();
        recipes.push(CronRecipe {
            name,
            schedule: schedule.into(),
            timezone,
            command: command.into(),
        });
    }
    Ok(recipes)
}

/// Reads a line of piku's Procfile: five fields of a schedule, or one like `@daily`, then the
/// command.
pub(crate) fn of_procfile(name: &str, line: &str) -> Result<CronRecipe, String> {
    let fields = if line.starts_with('@') { 1 } else { SCHEDULE_FIELDS };
    let mut rest = line.trim();
    for _ in 0..fields {
        rest = rest.trim_start();
        rest = &rest[rest.find(char::is_whitespace).unwrap_or(rest.len())..];
    }
    let (schedule, command) = (line[..line.len() - rest.len()].trim(), rest.trim());
    check_schedule(schedule)?;
    if command.is_empty() {
        return Err("there is no command after the schedule".into());
    }
    let timezone = TIMEZONE_DEFAULT.into();
    Ok(CronRecipe {
        name: name.into(),
        schedule: schedule.into(),
        timezone,
        command: command.into(),
    })
}

fn unused_name(command: &str, taken: &[CronRecipe]) -> String {
    let name: String = ApplicationName::suggest(command)
        .as_str()
        .chars()
        .take(NAME_CHARS_MAX)
        .collect::<String>()
        .trim_end_matches('-')
        .into();
    let is_free = |name: &String| taken.iter().all(|one| one.name != *name);
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    std::iter::once(name.clone()).chain(numbered).find(is_free).unwrap_or(name)
}

/// Returns whether it could name a file of the zone database, and no other.
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
            (entry("61 * * * *", ""), "cron 'clean': '61' is not a valid minute"),
            (entry("* * * * *", "timezone = '../etc/passwd'"), "is not a time zone"),
            (entry("* * * * *", "").repeat(2), "two entries are named 'clean'"),
            (entry("* * * * *", "").replace("rake x", " "), "its command is empty"),
            (entry("* * * * *", "").replace("clean", "a b"), "cron:"),
        ] {
            let error = read_cortex_toml(&text).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
