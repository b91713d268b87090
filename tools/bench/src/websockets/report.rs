//! The report on idle WebSockets, and its table.

use std::fmt::Write;

use serde::Serialize;

/// The most memory that an idle WebSocket may take in the router, in kB.
const KB_EACH_MAX: f64 = 8.0;

#[derive(Debug, Serialize)]
pub struct Report {
    connections: u64,
    seconds: u64,
    kb_each_max: f64,
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
    /// The time until all have heard a word again that all said at once.
    pub all_heard_ms: f64,
}

impl Report {
    pub fn new(connections: u64, seconds: u64) -> Report {
        Report { connections, seconds, kb_each_max: KB_EACH_MAX, rows: Vec::new() }
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
            "{:<22} {:>5} {:>9} {:>14} {:>13}",
            "idle WebSockets", "turn", "kB each", "idle ms of CPU/s", "all heard, ms"
        )?;
        for row in &self.rows {
            for (number, turn) in (1..).zip(&row.turns) {
                let name = match number {
                    1 => format!("  {} {}", row.contender, row.version),
                    _ => String::new(),
                };
                writeln!(
                    out,
                    "{name:<22} {number:>5} {:>9.2} {:>16.1} {:>13.0}",
                    turn.kb_each, turn.idle_cpu_ms_per_second, turn.all_heard_ms
                )?;
            }
        }
        let most = self.rows.first().map(|row| row.turns.iter().map(|turn| turn.kb_each));
        let most = most.into_iter().flatten().fold(0.0, f64::max);
        let verdict = if most <= self.kb_each_max { "reached" } else { "MISSED" };
        writeln!(
            out,
            "{} WebSockets, {} s of silence; owed: at most {} kB each in every turn, {verdict}",
            self.connections, self.seconds, self.kb_each_max
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_turn_of_ours_decides() {
        let turn = |kb_each| Turn { kb_each, idle_cpu_ms_per_second: 1.0, all_heard_ms: 90.0 };
        let mut report = Report::new(100, 5);
        report.add("cortex", "1.0", vec![turn(5.0), turn(8.0)]);
        report.add("nginx", "1.22.1", vec![turn(12.0)]);
        assert!(report.table().ends_with("in every turn, reached\n"), "{}", report.table());
        report.rows[0].turns.push(turn(8.1));
        assert!(report.table().contains("MISSED"), "{}", report.table());
    }
}
