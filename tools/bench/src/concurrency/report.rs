//! The report on ways to serve many requests at a time: for each kind of work what every server did
//! as requests became more frequent, and which way pays.

use std::fmt::Write;

use serde::Serialize;

use super::ramp::{Ramp, Seen, SliceFigures};
use super::work::Work;

/// The time within which 99 of 100 requests have to be answered: people take a page that comes
/// within a second for one that comes at once.
const IN_TIME_MS: f64 = 1_000.0;
/// Servers that hold this part of the best one's frequency are as good: runs differ by as much.
const AS_GOOD: f64 = 0.85;

#[derive(Debug, Serialize)]
pub struct Report {
    seconds: u64,
    in_time_ms: f64,
    works: Vec<WorkRows>,
}

#[derive(Debug, Serialize)]
struct WorkRows {
    name: &'static str,
    about: &'static str,
    peak_per_second: f64,
    rows: Vec<Row>,
}

/// One server at one kind of work.
#[derive(Debug, Serialize)]
pub struct Row {
    pub server: &'static str,
    pub model: &'static str,
    pub version: String,
    pub idle_kb: u64,
    pub most_kb: u64,
    pub cpu_seconds: f64,
    #[serde(flatten)]
    pub seen: Seen,
}

impl Row {
    /// Returns the requests per second up to which it answered in time, without a failure.
    fn holds(&self) -> f64 {
        let held = |slice: &&SliceFigures| {
            slice.failed == 0 && slice.p99_ms.is_none_or(|p99| p99 <= IN_TIME_MS)
        };
        let last = self.seen.slices.iter().take_while(held).last();
        last.map_or(0.0, |slice| slice.asked_per_second)
    }

    /// Returns what it holds in words: one that is late in the first part of the ramp may hold
    /// anything below that.
    fn held(&self, unit: f64) -> String {
        let first = self.seen.slices.first().map_or(0.0, |slice| slice.asked_per_second);
        match self.holds() {
            0.0 => format!("under {:.0}", (first * unit).max(1.0)),
            holds => format!("{:.0}", holds * unit),
        }
    }
}

impl Report {
    pub fn new(seconds: u64) -> Report {
        Report { seconds, in_time_ms: IN_TIME_MS, works: Vec::new() }
    }

    pub fn add(&mut self, work: &Work, ramp: &Ramp, row: Row) {
        match self.works.iter_mut().find(|rows| rows.name == work.name) {
            Some(rows) => rows.rows.push(row),
            None => self.works.push(WorkRows {
                name: work.name,
                about: work.about,
                peak_per_second: ramp.peak,
                rows: vec![row],
            }),
        }
    }

    pub fn table(&self) -> String {
        let mut out = String::new();
        // Writing to memory cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        for work in &self.works {
            work.write(out, self.seconds)?;
        }
        writeln!(
            out,
            "{:<9} {:>30} {:>14}  which pays",
            "in time", "the most requests/s, by server", "memory, MB"
        )?;
        for work in &self.works {
            for (number, row) in work.rows.iter().enumerate() {
                let name = if number == 0 { work.name } else { "" };
                let held = format!("{} ({}) {}", row.server, row.model, row.held(1.0));
                let memory = format!("{} to {}", row.idle_kb / 1024, row.most_kb / 1024);
                let pays = if number == 0 { work.which_pays() } else { String::new() };
                writeln!(out, "{name:<9} {held:>30} {memory:>14}  {pays}")?;
            }
        }
        writeln!(
            out,
            "in time: 99 of 100 answered within {} s, none failed; one core for each server",
            self.in_time_ms / 1000.0
        )
    }
}

impl WorkRows {
    fn write(&self, out: &mut String, seconds: u64) -> std::fmt::Result {
        let (name, about, peak) = (self.name, self.about, self.peak_per_second);
        writeln!(out, "{name}: {about}; up to {peak:.0} requests/s in {seconds} s")?;
        let Some(first) = self.rows.first() else { return Ok(()) };
        let line =
            |out: &mut String, label: &str, what: &dyn Fn(&SliceFigures) -> String, row: &Row| {
                let cells = row.seen.slices.iter().map(|slice| format!("{:>7}", what(slice)));
                writeln!(out, "  {label:<24}{}", cells.collect::<String>())
            };
        let text = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.0}"));
        line(out, "requests/s", &|slice| format!("{:.0}", slice.asked_per_second), first)?;
        for row in &self.rows {
            let label = format!("{} {}", row.server, row.version);
            line(out, &label, &|slice| format!("{:.0}", slice.answered_per_second), row)?;
            line(out, "  median, ms", &|slice| text(slice.p50_ms), row)?;
            line(out, "  p99, ms", &|slice| text(slice.p99_ms), row)?;
            line(out, "  failed", &|slice| slice.failed.to_string(), row)?;
        }
        writeln!(out)
    }

    /// Says which ways hold about the most, and with what part of it the others end.
    fn which_pays(&self) -> String {
        let most = self.rows.iter().map(Row::holds).fold(0.0, f64::max);
        if most == 0.0 {
            return "none answered in time".into();
        }
        let (good, others): (Vec<_>, Vec<_>) =
            self.rows.iter().partition(|row| row.holds() >= AS_GOOD * most);
        let good: Vec<_> = good.iter().map(|row| row.server).collect();
        let others: Vec<_> = others
            .iter()
            .map(|row| format!("{} {} %", row.server, row.held(100.0 / most)))
            .collect();
        match others.is_empty() {
            true => "all alike".into(),
            false => format!("{}; {}", good.join(" and "), others.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::work::WORKS;
    use super::*;

    fn row(server: &'static str, p99s: &[(f64, usize)]) -> Row {
        let slices = p99s.iter().enumerate().map(|(index, (p99_ms, failed))| SliceFigures {
            asked_per_second: 100.0 * (index + 1) as f64,
            answered_per_second: 100.0,
            p50_ms: Some(1.0),
            p99_ms: Some(*p99_ms),
            failed: *failed,
        });
        Row {
            server,
            model: "threads",
            version: "1".into(),
            idle_kb: 1024,
            most_kb: 2048,
            cpu_seconds: 1.0,
            seen: Seen::of(slices.collect()),
        }
    }

    #[test]
    fn a_server_holds_up_to_the_first_part_that_it_does_not_answer_in_time() {
        assert_eq!(row("a", &[(10.0, 0), (1_500.0, 0), (10.0, 0)]).holds(), 100.0);
        assert_eq!(row("a", &[(10.0, 0), (10.0, 1)]).holds(), 100.0);
        let late = row("a", &[(1_500.0, 0)]);
        assert_eq!((late.holds(), late.held(1.0)), (0.0, "under 100".into()));
    }

    #[test]
    fn the_table_says_which_pays() {
        let ramp = Ramp { peak: 300.0, time: Duration::from_secs(3), seed: 1 };
        let mut report = Report::new(3);
        report.add(&WORKS[0], &ramp, row("puma", &[(10.0, 0), (9_000.0, 3), (9_000.0, 70)]));
        report.add(&WORKS[0], &ramp, row("node", &[(10.0, 0), (20.0, 0), (30.0, 0)]));
        report.add(&WORKS[0], &ramp, row("neverblock", &[(10.0, 0), (20.0, 0), (30.0, 0)]));
        let table = report.table();
        assert!(table.contains("node and neverblock; puma 33 %"), "{table}");
        let alike = WorkRows {
            name: "cpu",
            about: "",
            peak_per_second: 1.0,
            rows: vec![row("a", &[(1.0, 0)]), row("b", &[(1.0, 0)])],
        };
        assert_eq!(alike.which_pays(), "all alike");
    }
}
