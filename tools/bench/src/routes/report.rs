//! The report on a table of routes, and its table of figures.

use std::fmt::Write;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;

use super::{Asked, RoutesArgs};
use crate::statistics::Latencies;

#[derive(Debug, Serialize)]
pub struct Report {
    applications: u32,
    endpoints: u32,
    build_seconds: f64,
    /// The memory that the process grew by while the table was built.
    table_mb: f64,
    changes: u32,
    /// The time from the acknowledged write to the first answer of the new endpoint.
    stored_to_used_ms: Spread,
    /// The time to the same answer from the beginning of the write.
    asked_to_used_ms: Spread,
    /// The processor time of one change, with the write in the store.
    change_cpu_ms: f64,
    requests_per_second_before: f64,
    requests_per_second_meanwhile: f64,
    changes_meanwhile: u64,
    failed: usize,
}

#[derive(Debug, Serialize)]
struct Spread {
    median: f64,
    p99: f64,
    max: f64,
}

impl Spread {
    fn of(latencies: Latencies) -> anyhow::Result<Spread> {
        let found = latencies.percentiles_ms([0.5, 0.99, 1.0]);
        let [median, p99, max] = found.context("no change was timed")?;
        Ok(Spread { median, p99, max })
    }
}

impl Report {
    pub fn new(
        args: &RoutesArgs,
        build_seconds: f64,
        grown_kb: u64,
        (stored, asked): (Latencies, Latencies),
        (quiet, busy): (Asked, Asked),
    ) -> anyhow::Result<Report> {
        Ok(Report {
            applications: args.applications,
            endpoints: args.applications * args.endpoints,
            build_seconds,
            table_mb: grown_kb as f64 / 1024.0,
            changes: args.changes,
            stored_to_used_ms: Spread::of(stored)?,
            asked_to_used_ms: Spread::of(asked)?,
            change_cpu_ms: 0.0,
            requests_per_second_before: quiet.requests_per_second,
            requests_per_second_meanwhile: busy.requests_per_second,
            changes_meanwhile: 0,
            failed: quiet.failed + busy.failed,
        })
    }

    /// Adds the cost of one change, and how many changes came beside the requests.
    pub fn changed(self, cost: Duration, meanwhile: u64) -> Report {
        let change_cpu_ms = cost.as_secs_f64() * 1e3;
        Report { change_cpu_ms, changes_meanwhile: meanwhile, ..self }
    }

    pub fn table(&self) -> String {
        let mut out = String::new();
        // Writing to memory cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "{} applications, {} endpoints", self.applications, self.endpoints)?;
        writeln!(out, "  built in                     {:>9.2} s", self.build_seconds)?;
        writeln!(out, "  memory                       {:>9.1} MB", self.table_mb)?;
        let mut spread = |what: &str, spread: &Spread| {
            writeln!(
                out,
                "  {what:<28} {:>9.2} ms median, {:.2} p99, {:.2} max, of {}",
                spread.median, spread.p99, spread.max, self.changes
            )
        };
        spread("a stored change is used in", &self.stored_to_used_ms)?;
        spread("and since it was asked for", &self.asked_to_used_ms)?;
        writeln!(
            out,
            "  processor time of a change   {:>9.2} ms, with its write in the store",
            self.change_cpu_ms
        )?;
        writeln!(out, "  requests/s before            {:>9.0}", self.requests_per_second_before)?;
        writeln!(
            out,
            "  requests/s beside changes    {:>9.0}, {:.0} % with {} changes",
            self.requests_per_second_meanwhile,
            100.0 * self.requests_per_second_meanwhile / self.requests_per_second_before,
            self.changes_meanwhile
        )?;
        writeln!(out, "  failed                       {:>9}", self.failed)
    }
}
