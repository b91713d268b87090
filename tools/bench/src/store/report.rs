//! The report: the figures of all runs, their means and medians, and how they compare with each
//! other and with what was asked for. `table` prints it for people.

use std::path::Path;

use serde::Serialize;

use super::contender::{Contender, Kind};
use super::descriptors::Endured;
use super::load::Seen;
use super::ratios::{self, Reached};
use super::replication::Replicated;
use super::thesis::{TABLES, Table};
use super::{Load, Mode, Plan};
use crate::median;
use crate::statistics::Summary;

const TMPFS: i64 = 0x0102_1994;

/// Returns whether a directory is on a disk; in memory a sync costs nothing and means nothing.
pub fn is_disk(directory: &Path) -> anyhow::Result<bool> {
    Ok(rustix::fs::statfs(directory)?.f_type != TMPFS)
}

#[derive(Debug, Serialize)]
pub struct Report {
    pub plan: Plan,
    /// The reason why it ended before everything was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
    /// False if the directory is in memory, and no figure is that of a durable store.
    pub on_disk: bool,
    pub contenders: Vec<Named>,
    pub not_run: Vec<NotRun>,
    pub rows: Vec<Row>,
    pub ratios: Vec<Reached>,
    pub descriptors: Vec<Endured>,
    pub replication: Option<Replicated>,
    pub thesis: &'static [Table],
}

#[derive(Debug, Serialize)]
pub struct Named {
    pub kind: Kind,
    pub version: String,
}

#[derive(Debug, Serialize)]
pub struct NotRun {
    pub name: &'static str,
    pub why: String,
}

#[derive(Debug, Serialize)]
pub struct Row {
    pub mode: Mode,
    pub workers: usize,
    pub cells: Vec<Cell>,
}

/// One contender's figures for one row.
#[derive(Debug, Serialize)]
pub struct Cell {
    pub kind: Kind,
    pub operations: u64,
    pub runs: Vec<Run>,
    pub sum: Option<Sum>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Run {
    pub seconds: f64,
    pub operations_per_second: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub cpu_us_per_operation: f64,
    /// The processor time that the clients took of the same cores.
    pub load_cpu_us_per_operation: f64,
    pub repeated: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    #[serde(skip)]
    operations: u64,
}

/// The summary of all runs.
#[derive(Clone, Debug, Serialize)]
pub struct Sum {
    pub seconds: Summary,
    pub operations_per_second: Summary,
    /// The medians of the runs' own percentiles.
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub cpu_us_per_operation: f64,
    pub load_cpu_us_per_operation: f64,
    /// The sum over all runs.
    pub repeated: u64,
}

impl Run {
    pub fn new(seen: Seen, cpu_seconds: f64, load_cpu_seconds: f64) -> Run {
        let operations = seen.operations as f64;
        Run {
            seconds: seen.seconds,
            operations_per_second: operations / seen.seconds,
            p50_ms: seen.p50_ms,
            p99_ms: seen.p99_ms,
            cpu_us_per_operation: cpu_seconds * 1e6 / operations,
            load_cpu_us_per_operation: load_cpu_seconds * 1e6 / operations,
            repeated: seen.repeated,
            failure: seen.failure,
            operations: seen.operations,
        }
    }
}

impl Report {
    pub fn new(plan: &Plan, on_disk: bool) -> Report {
        let mongodb = NotRun {
            name: "mongodb",
            why: "not re-run, Debian has no package of it; Redis without fsync stands in for its \
                  lazy writes"
                .into(),
        };
        Report {
            plan: plan.clone(),
            incomplete: None,
            on_disk,
            contenders: Vec::new(),
            not_run: vec![mongodb],
            rows: Vec::new(),
            ratios: Vec::new(),
            descriptors: Vec::new(),
            replication: None,
            thesis: &TABLES,
        }
    }

    pub fn leave_out(&mut self, kind: Kind, why: String) {
        self.not_run.push(NotRun { name: kind.name(), why });
    }

    pub fn compare(&mut self, contenders: &[Contender]) {
        let named = |one: &Contender| Named { kind: one.kind, version: one.version.clone() };
        self.contenders = contenders.iter().map(named).collect();
    }

    pub fn add(&mut self, load: Load, kind: Kind, run: Run) {
        let same = |row: &Row| (row.mode, row.workers) == (load.mode, load.workers);
        let at = self.rows.iter().position(same).unwrap_or_else(|| {
            self.rows.push(Row { mode: load.mode, workers: load.workers, cells: Vec::new() });
            self.rows.len() - 1
        });
        let cells = &mut self.rows[at].cells;
        let at = cells.binary_search_by_key(&kind, |cell| cell.kind).unwrap_or_else(|at| {
            cells.insert(at, Cell { kind, operations: 0, runs: Vec::new(), sum: None });
            at
        });
        cells[at].add(run);
    }

    /// Completes the report, once all runs are in or there will be no more.
    pub fn finish(&mut self, cut_short_by: Option<&anyhow::Error>) {
        self.incomplete = cut_short_by.map(|error| format!("{error:#}"));
        self.ratios = ratios::reached(self);
    }

    pub fn has_figures(&self) -> bool {
        !self.rows.is_empty() || !self.descriptors.is_empty() || self.replication.is_some()
    }

    pub fn sum(&self, mode: Mode, workers: usize, kind: Kind) -> Option<&Sum> {
        let row = self.rows.iter().find(|row| (row.mode, row.workers) == (mode, workers))?;
        row.cells.iter().find(|cell| cell.kind == kind)?.sum.as_ref()
    }
}

impl Cell {
    fn add(&mut self, run: Run) {
        self.operations = run.operations;
        self.runs.push(run);
        let all = |value: fn(&Run) -> f64| -> Vec<f64> { self.runs.iter().map(value).collect() };
        let seconds = Summary::of(&all(|run| run.seconds));
        let rates = Summary::of(&all(|run| run.operations_per_second));
        self.sum = seconds.zip(rates).map(|(seconds, operations_per_second)| Sum {
            seconds,
            operations_per_second,
            p50_ms: median(all(|run| run.p50_ms)),
            p99_ms: median(all(|run| run.p99_ms)),
            cpu_us_per_operation: median(all(|run| run.cpu_us_per_operation)),
            load_cpu_us_per_operation: median(all(|run| run.load_cpu_us_per_operation)),
            repeated: self.runs.iter().map(|run| run.repeated).sum(),
        });
    }
}
