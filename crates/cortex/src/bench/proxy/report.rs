//! The figures of all rounds, their medians, and how they are printed.

use std::fmt::Write;

use serde::Serialize;

use super::contender::{Contender, Kind};
use super::load::Seen;
use super::{Over, Workload};
use crate::bench::median;

#[derive(Debug, Serialize)]
pub struct Report {
    rounds: u32,
    seconds: u32,
    contenders: Vec<Named>,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Named {
    name: &'static str,
    version: String,
}

#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    over: Over,
    /// Beside idle connections, where memory counts as well.
    idle: usize,
    floor: f64,
    aim: f64,
    cells: Vec<Cell>,
}

/// Of a peer's rate alone, what the rounds may take.
const ALONE_PART_MAX: f64 = 0.1;

/// One contender's figures for one row.
#[derive(Debug, Default, Serialize)]
struct Cell {
    contender: &'static str,
    /// No request failed.
    valid: bool,
    median: Option<Round>,
    /// Of a peer: what the same load gets from it when nobody else is there.
    requests_per_second_alone: Option<f64>,
    rounds: Vec<Round>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Round {
    cpu_seconds_per_100k: f64,
    requests_per_cpu_second: f64,
    requests_per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    errors: u64,
    resident_kb: u64,
}

impl Round {
    pub fn new(cpu_seconds: f64, resident_kb: u64, seen: Seen) -> Round {
        let requests = seen.requests as f64;
        Round {
            cpu_seconds_per_100k: cpu_seconds / requests * 100_000.0,
            requests_per_cpu_second: requests / cpu_seconds,
            requests_per_second: seen.requests_per_second,
            p50_ms: seen.p50_ms,
            p99_ms: seen.p99_ms,
            errors: seen.errors,
            resident_kb,
        }
    }
}

impl Report {
    pub fn new(
        rounds: u32,
        seconds: u32,
        workloads: &[&Workload],
        contenders: &[Contender],
    ) -> Report {
        let named = contenders
            .iter()
            .map(|one| Named { name: one.kind.name(), version: one.version.clone() });
        Report::of(rounds, seconds, workloads, named.collect())
    }

    fn of(rounds: u32, seconds: u32, workloads: &[&Workload], contenders: Vec<Named>) -> Report {
        let row = |workload: &&Workload| Row {
            name: workload.name,
            over: workload.over,
            idle: workload.idle,
            floor: workload.floor,
            aim: workload.aim,
            cells: contenders
                .iter()
                .map(|one| Cell { contender: one.name, ..Cell::default() })
                .collect(),
        };
        Report { rounds, seconds, rows: workloads.iter().map(row).collect(), contenders }
    }

    pub fn add(&mut self, workload: &Workload, contender: usize, round: Round) {
        for row in self.rows.iter_mut().filter(|row| row.name == workload.name) {
            row.cells[contender].add(round);
        }
    }

    pub fn add_alone(&mut self, workload: &Workload, contender: usize, rates: Vec<f64>) {
        for row in self.rows.iter_mut().filter(|row| row.name == workload.name) {
            row.cells[contender].requests_per_second_alone = Some(median(rates.clone()));
        }
    }

    pub fn table(&self) -> String {
        let mut out = String::new();
        // Writing to memory cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        for row in &self.rows {
            writeln!(
                out,
                "{:<28} {:>13} {:>10} {:>10} {:>8} {:>8} {:>7} {:>8}",
                row.name,
                "CPU-s per 100k",
                "req/CPU-s",
                "req/s",
                "p50 ms",
                "p99 ms",
                "errors",
                "MB"
            )?;
            for (cell, named) in row.cells.iter().zip(&self.contenders) {
                let Some(round) = cell.median else { continue };
                let name = format!("  {} {}", named.name, named.version);
                let invalid = if cell.valid { "" } else { "  INVALID: requests failed" };
                writeln!(
                    out,
                    "{name:<28} {:>14.3} {:>10.0} {:>10.0} {:>8.2} {:>8.2} {:>7} {:>8.1}{invalid}",
                    round.cpu_seconds_per_100k,
                    round.requests_per_cpu_second,
                    round.requests_per_second,
                    round.p50_ms,
                    round.p99_ms,
                    round.errors,
                    round.resident_kb as f64 / 1024.0,
                )?;
            }
            row.write_owed(out)?;
            row.write_alone(out)?;
            writeln!(out)?;
        }
        writeln!(
            out,
            "medians of {} interleaved rounds of {} s, 64 connections where none are named, one \
             core each; TLS 1.3 without resumption",
            self.rounds, self.seconds
        )
    }
}

fn reached(times: f64, floor: f64, aim: f64) -> &'static str {
    match times {
        times if times >= aim => "aim reached",
        times if times >= floor => "floor reached",
        _ => "BELOW THE FLOOR",
    }
}

impl Row {
    fn write_owed(&self, out: &mut String) -> std::fmt::Result {
        let Some((times, peer)) = self.times() else {
            return writeln!(out, "  no ratio: nothing valid to compare");
        };
        let Row { floor, aim, .. } = self;
        let word = reached(times, *floor, *aim);
        writeln!(
            out,
            "  cortex / best peer ({peer}), req/CPU-s: {times:.2} (floor {floor}, aim {aim}): {word}"
        )?;
        if let Some((own, best, peer)) = self.p99() {
            let word = if own <= best { "no worse" } else { "WORSE" };
            writeln!(out, "  p99 ms: {own:.2}, the better peer's ({peer}) {best:.2}: {word}")?;
        }
        if let Some((own, nginx)) = self.memory().filter(|_| self.idle > 0) {
            let word = if own <= nginx { "no higher" } else { "HIGHER" };
            writeln!(out, "  memory MB: {own:.1}, nginx's {nginx:.1}: {word}")?;
        }
        Ok(())
    }

    fn write_alone(&self, out: &mut String) -> std::fmt::Result {
        let program = if self.over == Over::Http2 { "h2load" } else { "wrk" };
        for cell in &self.cells {
            let (Some(alone), Some(seen)) = (cell.requests_per_second_alone, cell.valid_median())
            else {
                continue;
            };
            let part = seen.requests_per_second / alone;
            let word = match (part - 1.0).abs() <= ALONE_PART_MAX {
                true => "within 10 %",
                false => "NOT WITHIN 10 %",
            };
            writeln!(
                out,
                "  {program} with {} alone: {alone:.0} req/s, in the rounds {part:.2} of it: {word}",
                cell.contender
            )?;
        }
        Ok(())
    }

    /// Ours, and that of the peer that makes its clients wait least.
    fn p99(&self) -> Option<(f64, f64, &'static str)> {
        let (own, peers) = self.cells.split_first()?;
        let of = |cell: &Cell| Some((cell.valid_median()?.p99_ms, cell.contender));
        let (best, peer) = peers.iter().filter_map(of).min_by(|a, b| a.0.total_cmp(&b.0))?;
        Some((of(own)?.0, best, peer))
    }

    /// Ours and nginx's, in MB.
    fn memory(&self) -> Option<(f64, f64)> {
        let (own, peers) = self.cells.split_first()?;
        let nginx = peers.iter().find(|cell| cell.contender == Kind::Nginx.name())?;
        let of = |cell: &Cell| Some(cell.valid_median()?.resident_kb as f64 / 1024.0);
        Some((of(own)?, of(nginx)?))
    }

    /// Ours is the first. Above 1 it answers more than the best of the others in the same time.
    fn times(&self) -> Option<(f64, &'static str)> {
        let (own, peers) = self.cells.split_first()?;
        let cost = |cell: &Cell| {
            Some(cell.valid_median()?.cpu_seconds_per_100k).filter(|cost| cost.is_finite())
        };
        let best = peers.iter().filter_map(|peer| Some((cost(peer)?, peer.contender)));
        let (best, peer) = best.min_by(|a, b| a.0.total_cmp(&b.0))?;
        Some((best / cost(own)?, peer))
    }
}

impl Cell {
    fn valid_median(&self) -> Option<Round> {
        self.median.filter(|_| self.valid)
    }

    fn add(&mut self, round: Round) {
        self.rounds.push(round);
        let of = |value: fn(&Round) -> f64| median(self.rounds.iter().map(value).collect());
        let errors = self.rounds.iter().map(|round| round.errors).sum();
        self.valid = errors == 0;
        self.median = Some(Round {
            cpu_seconds_per_100k: of(|round| round.cpu_seconds_per_100k),
            requests_per_cpu_second: of(|round| round.requests_per_cpu_second),
            requests_per_second: of(|round| round.requests_per_second),
            p50_ms: of(|round| round.p50_ms),
            p99_ms: of(|round| round.p99_ms),
            errors,
            resident_kb: self.rounds.iter().map(|round| round.resident_kb).max().unwrap_or(0),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::WORKLOADS;
    use super::*;

    fn report(costs: &[(&'static str, &[f64])], errors: u64) -> Report {
        let named = costs.iter().map(|(name, _)| Named { name, version: "1.0".into() });
        let rows: Vec<&Workload> = WORKLOADS.iter().collect();
        let mut report = Report::of(3, 1, &rows, named.collect());
        for (index, (_, costs)) in costs.iter().enumerate() {
            for cost in *costs {
                let seen = Seen {
                    requests: 100_000,
                    requests_per_second: 1.0,
                    p50_ms: 1.0,
                    p99_ms: 2.0,
                    errors: if index == 1 { errors } else { 0 },
                };
                report.add(&WORKLOADS[0], index, Round::new(*cost, 1024, seen));
            }
        }
        report
    }

    #[test]
    fn the_ratio_is_of_medians_and_to_the_best_valid_peer() {
        let costs: [(&str, &[f64]); 3] =
            [("cortex", &[1.0, 9.0, 1.2]), ("nginx", &[1.0, 1.0, 1.0]), ("haproxy", &[2.4])];
        let (times, peer) = report(&costs, 0).rows[0].times().unwrap();
        assert_eq!((peer, (times * 100.0).round()), ("nginx", 83.0));
        let failed = report(&costs, 1);
        let (times, peer) = failed.rows[0].times().unwrap();
        assert_eq!((peer, (times * 100.0).round()), ("haproxy", 200.0));
        assert!(report(&costs, 0).table().contains("BELOW THE FLOOR"));
        assert!(failed.table().contains("aim reached"));
        assert!(failed.table().contains("INVALID"));
        assert_eq!(failed.rows[1].times(), None);
    }

    #[test]
    fn what_else_a_row_owes_is_said() {
        let costs: [(&str, &[f64]); 3] =
            [("cortex", &[1.0]), ("nginx", &[1.0]), ("haproxy", &[1.0])];
        let mut report = report(&costs, 0);
        let text = report.table();
        assert!(text.contains("p99 ms: 2.00, the better peer's (nginx) 2.00: no worse"), "{text}");
        assert!(!text.contains("memory MB") && !text.contains("alone"), "{text}");
        report.rows[0].idle = 1_000;
        report.add_alone(&WORKLOADS[0], 1, vec![9.0, 1.05, 0.1]);
        report.add_alone(&WORKLOADS[0], 2, vec![1.2]);
        let text = report.table();
        assert!(text.contains("nginx's 1.0: no higher"), "{text}");
        assert!(text.contains("nginx alone: 1 req/s, in the rounds 0.95 of it: within"), "{text}");
        assert!(text.contains("haproxy alone: 1 req/s, in the rounds 0.83 of it: NOT"), "{text}");
        let own = report.rows[0].cells[0].median.as_mut().unwrap();
        (own.p99_ms, own.resident_kb) = (2.1, 2048);
        let text = report.table();
        assert!(text.contains("(nginx) 2.00: WORSE") && text.contains(": HIGHER"), "{text}");
    }
}
