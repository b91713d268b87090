//! What the quiet client saw, and how it is printed.

use std::fmt::Write;

use anyhow::Context;
use serde::Serialize;

use super::FairnessArgs;
use super::quiet::{Flooded, Quiet};
use crate::bench::serial::front::Front;

#[derive(Debug, Serialize)]
pub struct Report {
    connections: u64,
    instances: u64,
    service_ms: u64,
    seconds: u64,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    contender: &'static str,
    version: String,
    alone: Seen,
    flooded: Seen,
    /// The 99th percentile under the flood over that without.
    p99_ratio: f64,
    flood_answered: usize,
    flood_turned_away: usize,
}

#[derive(Debug, Serialize)]
struct Seen {
    answered: usize,
    failed: usize,
    p50_ms: f64,
    p99_ms: f64,
}

impl Seen {
    fn new(quiet: Quiet) -> anyhow::Result<Seen> {
        let answered = quiet.latencies.len();
        let found = quiet.latencies.percentiles_ms([0.5, 0.99]);
        let [p50_ms, p99_ms] = found.context("the quiet client had no answer at all")?;
        Ok(Seen { answered, failed: quiet.failed, p50_ms, p99_ms })
    }
}

impl Report {
    pub fn new(args: &FairnessArgs) -> Report {
        Report {
            connections: args.connections,
            instances: args.instances,
            service_ms: args.service_ms,
            seconds: args.seconds,
            rows: Vec::new(),
        }
    }

    pub fn add(
        &mut self,
        front: &Front,
        alone: Quiet,
        flooded: Quiet,
        flood: Flooded,
    ) -> anyhow::Result<()> {
        let of = |quiet| Seen::new(quiet).with_context(|| format!("through {}", front.name));
        let (alone, flooded) = (of(alone)?, of(flooded)?);
        self.rows.push(Row {
            contender: front.name,
            version: front.version.clone(),
            p99_ratio: flooded.p99_ms / alone.p99_ms,
            alone,
            flooded,
            flood_answered: flood.answered,
            flood_turned_away: flood.turned_away,
        });
        Ok(())
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
            let pair = |seen: &Seen| format!("{:.1} / {:.1}", seen.p50_ms, seen.p99_ms);
            writeln!(
                out,
                "{name:<22} {:>16} {:>16} {:>6.1} {:>9} {:>7} {:>19}",
                pair(&row.alone),
                pair(&row.flooded),
                row.p99_ratio,
                row.flooded.answered,
                row.flooded.failed,
                format!("{} / {}", row.flood_answered, row.flood_turned_away)
            )?;
        }
        writeln!(
            out,
            "{} connections flood, {} serial instances of {} ms, {} s each; ratio: of the p99s",
            self.connections, self.instances, self.service_ms, self.seconds
        )
    }
}
