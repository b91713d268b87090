//! The report on what the quiet client saw, and its table.

use std::fmt::Write;

use serde::Serialize;

use super::FairnessArgs;
use super::quiet::{Flooded, Quiet};
use crate::serial::front::Front;

#[derive(Debug, Serialize)]
pub struct Report {
    connections: u64,
    instances: u64,
    service_ms: u64,
    spread_percent: u64,
    seconds: u64,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    contender: &'static str,
    version: String,
    alone: Seen,
    flooded: Seen,
    /// The 99th percentile under the flood divided by that without it; `None` without answers.
    p99_ratio: Option<f64>,
    flood_answered: usize,
    flood_turned_away: usize,
}

#[derive(Debug, Serialize)]
struct Seen {
    answered: usize,
    failed: usize,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
}

impl Seen {
    fn new(quiet: Quiet) -> Seen {
        let answered = quiet.latencies.len();
        let found = quiet.latencies.percentiles_ms([0.5, 0.99]);
        let [p50_ms, p99_ms] = found.map_or([None; 2], |found| found.map(Some));
        Seen { answered, failed: quiet.failed, p50_ms, p99_ms }
    }
}

impl Report {
    pub fn new(args: &FairnessArgs) -> Report {
        Report {
            connections: args.connections,
            instances: args.instances,
            service_ms: args.service_ms,
            spread_percent: args.spread_percent,
            seconds: args.seconds,
            rows: Vec::new(),
        }
    }

    pub fn add(&mut self, front: &Front, alone: Quiet, flooded: Quiet, flood: Flooded) {
        let (alone, flooded) = (Seen::new(alone), Seen::new(flooded));
        self.rows.push(Row {
            contender: front.name,
            version: front.version.clone(),
            p99_ratio: flooded.p99_ms.zip(alone.p99_ms).map(|(under, alone)| under / alone),
            alone,
            flooded,
            flood_answered: flood.answered,
            flood_turned_away: flood.turned_away,
        });
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
            "{:<22} {:>16} {:>16} {:>6} {:>9} {:>7} {:>19}",
            "the quiet client",
            "alone p50/p99 ms",
            "flood p50/p99 ms",
            "ratio",
            "answered",
            "failed",
            "flood served/503"
        )?;
        for row in &self.rows {
            let name = format!("  {} {}", row.contender, row.version);
            let text = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.1}"));
            let pair = |seen: &Seen| format!("{} / {}", text(seen.p50_ms), text(seen.p99_ms));
            writeln!(
                out,
                "{name:<22} {:>16} {:>16} {:>6} {:>9} {:>7} {:>19}",
                pair(&row.alone),
                pair(&row.flooded),
                text(row.p99_ratio),
                row.flooded.answered,
                row.flooded.failed,
                format!("{} / {}", row.flood_answered, row.flood_turned_away)
            )?;
        }
        writeln!(
            out,
            "{} connections flood, {} serial instances of {} ms +-{} %, {} s each; ratio: of the p99s",
            self.connections, self.instances, self.service_ms, self.spread_percent, self.seconds
        )
    }
}
