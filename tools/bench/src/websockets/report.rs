//! The report on idle WebSockets, and its table.

use std::fmt::Write;

use serde::Serialize;

use crate::statistics::Latencies;

/// The most memory that an idle WebSocket may take in the router, in kB.
const KB_EACH_MAX: f64 = 8.0;

/// The time within which all clients know of an event, in milliseconds, in 99 of a hundred.
const ALL_KNOW_MS_MAX: f64 = 250.0;

#[derive(Debug, Serialize)]
pub struct Report {
    connections: u64,
    seconds: u64,
    kb_each_max: f64,
    all_know_ms_max: f64,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    contender: &'static str,
    version: String,
    turns: Vec<Turn>,
}

/// All of them at once, silent for a while.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Turn {
    /// The resident memory beyond what the server had before the first turn, for each.
    pub kb_each: f64,
    /// The processor time for each second of silence.
    pub idle_cpu_ms_per_second: f64,
    pub event: EventTimes,
    /// The time until all have heard a word again that all said at once.
    pub all_heard_ms: f64,
}

/// How soon clients know of what happened, in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct EventTimes {
    /// The longest of 99 in a hundred times that a client hears of something.
    pub client_p99_ms: f64,
    /// Until the last client has heard of it: the median of all events, and of 99 in a hundred the
    /// longest.
    pub all_median_ms: f64,
    pub all_p99_ms: f64,
}

impl EventTimes {
    pub fn of(events: Vec<Latencies>) -> EventTimes {
        let (mut each, mut last) = (Latencies::default(), Latencies::default());
        for event in events {
            last.append(event.longest());
            each.append(event);
        }
        let [client_p99_ms] = each.percentiles_ms([0.99]).unwrap_or_default();
        let [all_median_ms, all_p99_ms] = last.percentiles_ms([0.5, 0.99]).unwrap_or_default();
        EventTimes { client_p99_ms, all_median_ms, all_p99_ms }
    }
}

impl Report {
    pub fn new(connections: u64, seconds: u64) -> Report {
        Report {
            connections,
            seconds,
            kb_each_max: KB_EACH_MAX,
            all_know_ms_max: ALL_KNOW_MS_MAX,
            rows: Vec::new(),
        }
    }

    pub fn add(&mut self, contender: &'static str, version: &str, turns: Vec<Turn>) {
        self.rows.push(Row { contender, version: version.into(), turns });
    }

    pub fn table(&self) -> String {
        let mut out = String::new();
        // Writing to memory cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "{:<22} {:>5} {:>8} {:>9} {:>10} {:>10} {:>10} {:>10}",
            "WebSockets",
            "turn",
            "kB each",
            "idle ms/s",
            "one knows",
            "all, p50",
            "all, p99",
            "all heard"
        )?;
        for row in &self.rows {
            for (number, turn) in (1..).zip(&row.turns) {
                let name = match number {
                    1 => format!("  {} {}", row.contender, row.version),
                    _ => String::new(),
                };
                writeln!(
                    out,
                    "{name:<22} {number:>5} {:>8.2} {:>9.1} {:>10.0} {:>10.0} {:>10.0} {:>10.0}",
                    turn.kb_each,
                    turn.idle_cpu_ms_per_second,
                    turn.event.client_p99_ms,
                    turn.event.all_median_ms,
                    turn.event.all_p99_ms,
                    turn.all_heard_ms
                )?;
            }
        }
        let own: Vec<&Turn> =
            self.rows.first().map(|row| &row.turns).into_iter().flatten().collect();
        let most = |value: fn(&Turn) -> f64| own.iter().map(|turn| value(turn)).fold(0.0, f64::max);
        let verdict = |most: f64, owed: f64| if most <= owed { "reached" } else { "MISSED" };
        writeln!(
            out,
            "times in ms: 99 in 100 clients know of an event; all do, at the median and in 99 of \
             100 events; all have heard what all said at once\n\
             {} WebSockets, {} s of silence; owed in every turn: at most {} kB each, {}; all know \
             of 99 in 100 events within {} ms, {}",
            self.connections,
            self.seconds,
            self.kb_each_max,
            verdict(most(|turn| turn.kb_each), self.kb_each_max),
            self.all_know_ms_max,
            verdict(most(|turn| turn.event.all_p99_ms), self.all_know_ms_max)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_turn_of_ours_decides() {
        let turn = |kb_each| Turn {
            kb_each,
            idle_cpu_ms_per_second: 1.0,
            event: EventTimes { all_p99_ms: 250.0, ..EventTimes::default() },
            all_heard_ms: 90.0,
        };
        let mut report = Report::new(100, 5);
        report.add("cortex", "1.0", vec![turn(5.0), turn(8.0)]);
        report.add("nginx", "1.22.1", vec![turn(12.0)]);
        assert!(!report.table().contains("MISSED"), "{}", report.table());
        report.rows[0].turns.push(turn(8.1));
        assert!(report.table().contains("MISSED"), "{}", report.table());
    }
}
