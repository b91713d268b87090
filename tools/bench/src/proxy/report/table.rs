//! The table of the report.

use std::fmt::{Result, Write};

use super::{ALONE_PART_MAX, Cell, P99, Report, Row};
use crate::proxy::contender::Kind;
use crate::proxy::workload::Over;

impl Report {
    pub fn table(&self) -> String {
        let mut out = String::new();
        // Writing to memory cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> Result {
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
            for cell in &row.cells {
                let Some(round) = cell.median else { continue };
                let named = self.contenders.iter().find(|named| named.name == cell.contender);
                let version = named.map_or("", |named| &named.version);
                let name = format!("  {} {version}", cell.contender);
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
    fn write_owed(&self, out: &mut String) -> Result {
        let Some((times, peer)) = self.times(Kind::Cortex) else {
            return writeln!(out, "  no ratio: nothing valid to compare");
        };
        let Row { floor, aim, .. } = self;
        let word = reached(times, *floor, *aim);
        writeln!(
            out,
            "  cortex / best peer ({peer}), req/CPU-s: {times:.2} (floor {floor}, aim {aim}): {word}"
        )?;
        if let (Some(floor), Some(times)) = (self.nginx_floor, self.times_nginx()) {
            let word = reached(times, floor, f64::INFINITY);
            writeln!(out, "  cortex / nginx, req/CPU-s: {times:.2} (floor {floor}): {word}")?;
        }
        if let Some((most, peer)) = self.times(Kind::Least) {
            writeln!(
                out,
                "  least / best peer ({peer}), req/CPU-s: {most:.2}: one constant answer, nothing but \
                 a receive and a send for each"
            )?;
        }
        let mut line = |what: &str, p99: Option<P99>| {
            let Some(P99 { own, best, worst_round, peer }) = p99 else { return Ok(()) };
            let word = match own {
                own if own <= best => "no worse",
                own if own <= worst_round => "no worse than in its worst round",
                _ => "WORSE",
            };
            writeln!(
                out,
                "  p99 ms, {what}: {own:.2}, the better peer's ({peer}) {best:.2}: {word}"
            )
        };
        let full = |cell: &Cell| cell.rounds.iter().map(|round| round.p99_ms).collect();
        line("each asked as fast as it answers", self.p99(full))?;
        if let Some(rate) = self.rate {
            let what = format!("all asked {rate:.0} times a second");
            line(&what, self.p99(|cell| cell.paced.iter().map(|round| round.p99_ms).collect()))?;
        }
        if let Some((own, nginx)) = self.memory().filter(|_| self.idle > 0) {
            let word = if own <= nginx { "no higher" } else { "HIGHER" };
            writeln!(out, "  memory MB: {own:.1}, nginx's {nginx:.1}: {word}")?;
        }
        Ok(())
    }

    fn write_alone(&self, out: &mut String) -> Result {
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
}
