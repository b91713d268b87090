//! The output that people see: sentences, aligned tables, sizes and times.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

use agent_core::ansi::{self, Painter};
use anyhow::Context;
use clap::ValueEnum;
use model::Timestamp;
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::Json;

/// Instances whose colours are kept apart.
const SOURCES_MAX: usize = 1000;
const ESCAPE: char = '\u{1b}';

/// Prints data: one line on stdout. A closed pipe is an error, which ends the command quietly.
pub fn print(line: &str) -> anyhow::Result<()> {
    if THROUGH_GIT.get().is_some() {
        say(line);
        return Ok(());
    }
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}", plain(line)).context("stdout")?;
    stdout.flush().context("stdout")
}

/// Prints progress or a message: one line on stderr. Errors are ignored, as nobody may be
/// listening.
pub fn say(line: &str) {
    say_painted(&plain(line));
}

/// Set where Git shows what is said here to a person: its own stdout is a conversation.
static THROUGH_GIT: OnceLock<()> = OnceLock::new();

/// Prints all that follows, data too, as Git shows what a remote says.
pub fn speak_through_git() {
    THROUGH_GIT.set(()).ok();
}

fn remote_mark() -> &'static str {
    THROUGH_GIT.get().map_or("", |()| "remote: ")
}

/// Prints the start of a line that `say` ends: `Scaling web... `.
pub fn begin(text: &str) {
    let mut stderr = io::stderr().lock();
    write!(stderr, "{}... ", plain(text)).ok();
    stderr.flush().ok();
}

/// Prints more of a line that `begin` began.
pub fn go_on(text: &str) {
    let mut stderr = io::stderr().lock();
    write!(stderr, "{}", plain(text)).ok();
    stderr.flush().ok();
}

/// Passes a result on; a failed one first ends the line that `begin` began.
pub fn finish<T>(result: anyhow::Result<T>) -> anyhow::Result<T> {
    if result.is_err() {
        say("!");
    }
    result
}

pub fn json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}", serde_json::to_string_pretty(value)?).context("stdout")?;
    stdout.flush().context("stdout")
}

/// Prints why a step failed, or what somebody has to look into, as Heroku shows it: ` !     why`,
/// with the mark on each line.
pub fn complain(text: &str) {
    let red = shows(io::stderr().is_terminal());
    for line in text.lines() {
        let line = plain(line);
        let text =
            if red { format!(" \x1b[31m!\x1b[0m     {line}") } else { format!(" !     {line}") };
        say_painted(text.trim_end());
    }
}

/// Prints what is worth knowing and no problem, below the heading of a step.
pub fn remark(text: &str) {
    text.lines().for_each(|line| say(&format!("       {line}")));
}

/// Returns the text without escape sequences and control characters, as output of applications must
/// not take hold of the terminal. Sequences are removed whole, not only their first byte.
pub fn plain(text: &str) -> String {
    harmless(&ansi::strip(text), false)
}

fn harmless(text: &str, colours: bool) -> String {
    let passes =
        |c: &char| !c.is_control() || matches!(c, '\t' | '\n') || (colours && *c == ESCAPE);
    text.chars().filter(passes).collect()
}

/// The lines of several sources, with their colours if these are shown.
pub struct Painted {
    shown: bool,
    painters: BTreeMap<String, Painter>,
}

impl Painted {
    pub fn for_stdout() -> Painted {
        Painted { shown: shows(io::stdout().is_terminal()), painters: BTreeMap::new() }
    }

    pub fn for_stderr() -> Painted {
        Painted { shown: shows(io::stderr().is_terminal()), painters: BTreeMap::new() }
    }

    /// Returns the text of a line, to be written as it is.
    pub fn line(&mut self, source: &str, text: &str) -> String {
        if !self.shown {
            return plain(text);
        }
        if self.painters.len() >= SOURCES_MAX && !self.painters.contains_key(source) {
            self.painters.clear();
        }
        let painter = self.painters.entry(source.to_string()).or_default();
        harmless(&painter.line(text), true)
    }
}

/// Prints like `print`, without filtering: the line is harmless already.
pub fn print_painted(line: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}").context("stdout")?;
    stdout.flush().context("stdout")
}

/// Prints like `say`, without filtering.
pub fn say_painted(line: &str) {
    writeln!(io::stderr().lock(), "{}{line}", remote_mark()).ok();
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Colours {
    /// Where the output is a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    Always,
    Never,
}

/// The colours that this command shows, set once when it starts.
static COLOURS: OnceLock<Colours> = OnceLock::new();

pub fn show_colours(colours: Colours, refused: bool) {
    let settled = if colours == Colours::Auto && refused { Colours::Never } else { colours };
    COLOURS.set(settled).ok();
}

fn shows(is_terminal: bool) -> bool {
    match COLOURS.get().copied().unwrap_or_default() {
        Colours::Auto => is_terminal,
        Colours::Always => true,
        Colours::Never => false,
    }
}

/// Prints what was asked for as JSON, or as a table with a line for each; says `none` if there is
/// nothing.
pub fn list<T: Serialize>(
    json: Json,
    rows: &[T],
    none: &str,
    head: &[&str],
    cells: impl Fn(&T) -> Vec<String>,
) -> anyhow::Result<()> {
    if json.json {
        return self::json(&rows);
    }
    if rows.is_empty() {
        say(none);
        return Ok(());
    }
    table(head, &rows.iter().map(cells).collect::<Vec<_>>())
}

/// Prints a table whose columns are as wide as their widest cell; the last one is not padded.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> anyhow::Result<()> {
    for line in aligned(head, rows) {
        print(&line)?;
    }
    Ok(())
}

pub fn aligned(head: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let head: Vec<String> = head.iter().map(|cell| cell.to_string()).collect();
    let all: Vec<&Vec<String>> = std::iter::once(&head).chain(rows).collect();
    let width = |column: usize| {
        let cells = all.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |row: &&Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    all.iter().map(line).collect()
}

pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if count < 1000 {
        return format!("{count} B");
    }
    let mut value = count as f64;
    let mut unit = "B";
    for next in UNITS {
        if value < 999.95 {
            break;
        }
        value /= 1000.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

/// Formats a time of the API for people: `2026/08/01 12:00:00 (~ 1h ago)`, or `(in ~ 1h)`.
pub fn time(rfc3339: &str) -> String {
    time_from(OffsetDateTime::now_utc(), rfc3339)
}

fn time_from(now: OffsetDateTime, rfc3339: &str) -> String {
    let Ok(at) = OffsetDateTime::parse(rfc3339, &Rfc3339) else {
        return rfc3339.into();
    };
    let seconds = (now - at).whole_seconds();
    let distance = duration(seconds.unsigned_abs());
    let when = if seconds < 0 { format!("in ~ {distance}") } else { format!("~ {distance} ago") };
    let at = u64::try_from(at.unix_timestamp_nanos() / 1_000_000).unwrap_or_default();
    format!("{} ({when})", Timestamp(at).date())
}

pub fn duration(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7199 => format!("{}m", seconds / 60),
        7200..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Formats a number with its noun: `1 instance`, `2 instances`.
pub fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned() {
        let rows = [vec!["hello".into(), "v1".into()], vec!["x".into(), String::new()]];
        assert_eq!(aligned(&["NAME", "RELEASE"], &rows), ["NAME   RELEASE", "hello  v1", "x"]);
    }

    #[test]
    fn sizes_and_times_are_short() {
        for (count, expected) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_500, "1.5 kB"),
            (999_999, "1.0 MB"),
            (12_345_678, "12.3 MB"),
        ] {
            assert_eq!(bytes(count), expected);
        }
        assert_eq!(
            (duration(5), duration(3_600), duration(200_000)),
            ("5s".into(), "60m".into(), "2d".into())
        );
    }

    #[test]
    fn times_say_how_far_they_are() {
        let now = OffsetDateTime::parse("2026-08-01T12:00:00Z", &Rfc3339).unwrap();
        for (at, expected) in [
            ("2026-08-01T11:00:00.5Z", "2026/08/01 11:00:00 (~ 59m ago)"),
            ("2026-08-01T12:00:00Z", "2026/08/01 12:00:00 (~ 0s ago)"),
            ("2026-08-04T12:00:00Z", "2026/08/04 12:00:00 (in ~ 3d)"),
            ("2026-08-01T14:00:00+02:00", "2026/08/01 12:00:00 (~ 0s ago)"),
            ("never", "never"),
        ] {
            assert_eq!(time_from(now, at), expected);
        }
    }

    #[test]
    fn escape_sequences_are_taken_out() {
        assert_eq!(plain("a\x1b[31mb\x07\tc\x1b]0;title\x07d"), "ab\tcd");
    }

    #[test]
    fn colours_are_shown_whole_or_not_at_all() {
        let mut painted = Painted { shown: true, painters: BTreeMap::new() };
        assert_eq!(painted.line("a", "\x1b[31mred"), "\x1b[31mred\x1b[0m");
        assert_eq!(painted.line("b", "plain\x07"), "plain", "of another source");
        assert_eq!(painted.line("a", "still\x1b[2J"), "\x1b[31mstill\x1b[0m");
        let mut plain = Painted { shown: false, painters: BTreeMap::new() };
        assert_eq!(plain.line("a", "\x1b[31mred"), "red");
    }
}
