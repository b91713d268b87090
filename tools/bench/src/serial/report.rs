//! The report on serial instances, and its table.

use std::fmt::Write;

use anyhow::Context;
use serde::Serialize;

use super::arrivals::{Mix, Seen};
use super::compute::Computing;
use super::front::Front;

#[derive(Debug, Serialize)]
pub struct Report {
    instances: usize,
    requests_per_second: f64,
    quick_ms: u128,
    slow_ms: u128,
    slow_fraction: f64,
    seconds: u64,
    alike: bool,
    rows: Vec<Row>,
    pub computing: Vec<Computing>,
}

#[derive(Debug, Serialize)]
struct Row {
    contender: &'static str,
    version: String,
    quick: usize,
    slow: usize,
    failed: usize,
    quick_p50_ms: f64,
    quick_p99_ms: f64,
    quick_max_ms: f64,
    /// `None` if no slow request was answered.
    slow_p50_ms: Option<f64>,
    slow_p99_ms: Option<f64>,
    /// Its 99th percentile divided by ours.
    times_ours: f64,
}

impl Report {
    pub fn new(mix: &Mix) -> Report {
        Report {
            instances: mix.instances,
            requests_per_second: mix.rate(),
            quick_ms: mix.quick.as_millis(),
            slow_ms: mix.slow.as_millis(),
            slow_fraction: mix.slow_fraction,
            seconds: mix.time.as_secs(),
            alike: mix.alike,
            rows: Vec::new(),
            computing: Vec::new(),
        }
    }

    pub fn add(&mut self, front: &Front, seen: Seen) -> anyhow::Result<()> {
        let (quick, slow) = (seen.quick.len(), seen.slow.len());
        let found = seen.quick.percentiles_ms([0.5, 0.99, 1.0]);
        let [p50, p99, max] = found
            .with_context(|| format!("no quick request was answered through {}", front.name))?;
        let slow_ms = seen.slow.percentiles_ms([0.5, 0.99]);
        let ours = self.rows.first().map_or(p99, |first| first.quick_p99_ms);
        self.rows.push(Row {
            contender: front.name,
            version: front.version.clone(),
            quick,
            slow,
            failed: seen.failed,
            quick_p50_ms: p50,
            quick_p99_ms: p99,
            quick_max_ms: max,
            slow_p50_ms: slow_ms.map(|[p50, _]| p50),
            slow_p99_ms: slow_ms.map(|[_, p99]| p99),
            times_ours: p99 / ours,
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
            "{:<22} {:>8} {:>8} {:>8} {:>8} {:>10} {:>16} {:>6} {:>6}",
            "quick requests",
            "p50 ms",
            "p99 ms",
            "max ms",
            "answered",
            "p99 / ours",
            "slow p50/p99 ms",
            "slow",
            "failed",
        )?;
        for row in &self.rows {
            let name = format!("  {} {}", row.contender, row.version);
            let slow = row.slow_p50_ms.zip(row.slow_p99_ms);
            let slow = slow.map_or_else(String::new, |(p50, p99)| format!("{p50:.0} / {p99:.0}"));
            writeln!(
                out,
                "{name:<22} {:>8.1} {:>8.1} {:>8.1} {:>8} {:>10.2} {slow:>16} {:>6} {:>6}",
                row.quick_p50_ms,
                row.quick_p99_ms,
                row.quick_max_ms,
                row.quick,
                row.times_ours,
                row.slow,
                row.failed,
            )?;
        }
        writeln!(
            out,
            "{} serial instances, {:.0} requests a second for {} s, {:.0} % of {} ms, others of {} ms{}\n",
            self.instances,
            self.requests_per_second,
            self.seconds,
            self.slow_fraction * 100.0,
            self.slow_ms,
            self.quick_ms,
            if self.alike { "; nothing tells which" } else { "" }
        )?;
        if self.computing.is_empty() {
            return Ok(());
        }
        writeln!(
            out,
            "{:<22} {:>8} {:>9} {:>11} {:>8} {:>7}",
            "computing", "req/s", "threads/s", "efficiency", "of gain", "failed"
        )?;
        for one in &self.computing {
            let name = format!("  {} on {} cores", one.instances, one.cores);
            let efficiency = one.efficiency * 100.0;
            let rate = one.requests_per_second;
            writeln!(
                out,
                "{name:<22} {rate:>8.1} {:>9.1} {efficiency:>9.0} % {:>6.0} % {:>7}",
                one.alone_per_second,
                one.of_gain * 100.0,
                one.failed
            )?;
        }
        writeln!(
            out,
            "efficiency: of one instance's rate, times the instances that have a core; of gain: of \
             what as\nmany threads that only compute gain over one"
        )
    }
}
