//! The report for people: each row's figures, then the thesis's tables beside them, then ratios.

use std::fmt::{self, Write};

use super::Mode;
use super::contender::Kind;
use super::report::{Cell, Report};

pub fn print(report: &Report) -> String {
    let mut out = String::new();
    // Writing to memory cannot fail.
    let _ = rows(report, &mut out);
    let _ = beside_the_thesis(report, &mut out);
    out
}

fn rows(report: &Report, out: &mut String) -> fmt::Result {
    for row in &report.rows {
        let name = format!("{}, {} workers", row.mode.name(), row.workers);
        writeln!(
            out,
            "{name:<55} {:>8} {:>7} {:>8} {:>8} {:>9} {:>9} {:>8}",
            "op/s", "±", "median", "p50 ms", "p99 ms", "CPU us/op", "repeated"
        )?;
        for cell in &row.cells {
            cell_line(report, cell, out)?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn cell_line(report: &Report, cell: &Cell, out: &mut String) -> fmt::Result {
    let Some(sum) = &cell.sum else { return Ok(()) };
    let named = report.contenders.iter().find(|named| named.kind == cell.kind);
    let version = named.map_or("", |named| named.version.as_str());
    let mut name = format!("  {} {version}", cell.kind.name());
    if cell.operations != report.plan.turns * 3 {
        write!(name, ", {} operations", cell.operations)?;
    }
    let rate = &sum.operations_per_second;
    writeln!(
        out,
        "{name:<55} {:>8.0} {:>7.0} {:>8.0} {:>8.2} {:>9.2} {:>9.1} {:>8}",
        rate.mean,
        rate.deviation,
        rate.median,
        sum.p50_ms,
        sum.p99_ms,
        sum.cpu_us_per_operation,
        sum.repeated
    )
}

/// Who stands beside which of its tables.
fn stands_in(number: &str) -> &'static [Kind] {
    match number {
        "6.2" => &[Kind::RedisEverysec, Kind::RedisNo],
        "6.3" => &[Kind::Postgresql],
        "6.4" => &[Kind::Sqlite, Kind::SqliteWal],
        _ => &[],
    }
}

fn beside_the_thesis(report: &Report, out: &mut String) -> fmt::Result {
    writeln!(out, "The thesis's tables, and the same here: seconds, deviation, operations/s")?;
    for table in report.thesis {
        write!(out, "  {} {:<31}", table.number, table.store)?;
        for workers in &report.plan.workers {
            match table.at(*workers) {
                Some(it) => write!(
                    out,
                    " {:>5}: {:>7.2} {:>6.2} {:>7.1}",
                    workers, it.mean, it.deviation, it.rate
                )?,
                None => write!(out, " {workers:>5}: {:>22}", "-")?,
            }
        }
        writeln!(out)?;
        for kind in stands_in(table.number) {
            here(report, *kind, out)?;
        }
    }
    for left in &report.not_run {
        writeln!(out, "  {}: {}", left.name, left.why)?;
    }
    Ok(())
}

fn here(report: &Report, kind: Kind, out: &mut String) -> fmt::Result {
    let name = format!("here, {}", kind.name());
    write!(out, "      {name:<31}")?;
    for workers in &report.plan.workers {
        match report.sum(Mode::NewConnection, *workers, kind) {
            Some(sum) => write!(
                out,
                " {:>5}: {:>7.2} {:>6.2} {:>7.0}",
                workers, sum.seconds.mean, sum.seconds.deviation, sum.operations_per_second.mean
            )?,
            None => write!(out, " {workers:>5}: {:>22}", "-")?,
        }
    }
    writeln!(out)
}
