//! The report for people: each row's figures, then the thesis's tables beside them, then ratios.

use std::fmt::{self, Write};

use super::Mode;
use super::contender::Kind;
use super::ratios::{self, Ratio};
use super::report::{Cell, Report};
use super::thesis::Column;

const NAME: usize = 44;

pub fn print(report: &Report) -> String {
    let mut out = String::new();
    // Writing to memory cannot fail.
    let _ = write_all(report, &mut out);
    out
}

fn write_all(report: &Report, out: &mut String) -> fmt::Result {
    if !report.on_disk {
        writeln!(out, "NOTHING OF THIS IS DURABLE: the directory is in memory; give --dir\n")?;
    }
    if let Some(why) = &report.incomplete {
        writeln!(out, "NOT EVERYTHING WAS MEASURED: {why}\n")?;
    }
    if !report.rows.is_empty() {
        rows(report, out)?;
        beside_the_thesis(report, out)?;
        figure(report, out)?;
        reached(report, out)?;
    }
    descriptors(report, out)?;
    replication(report, out)?;
    for left in &report.not_run {
        writeln!(out, "{}: {}", left.name, left.why)?;
    }
    Ok(())
}

fn rows(report: &Report, out: &mut String) -> fmt::Result {
    for row in &report.rows {
        let name = format!("{}, {} workers", row.mode.name(), row.workers);
        writeln!(
            out,
            "{name:<56} {:>6} {:>6} {:>7} {:>7} {:>8} {:>8} {:>8} {:>8}",
            "op/s", "±", "median", "p50 ms", "p99 ms", "CPU us", "load us", "repeated"
        )?;
        row.cells.iter().try_for_each(|cell| cell_line(report, cell, out))?;
        writeln!(out)?;
    }
    let (runs, turns) = (report.plan.runs, report.plan.turns);
    writeln!(
        out,
        "{runs} interleaved runs of {turns} turns of set, lookup and delete. op/s: mean, standard \
         deviation, median;\np50 and p99 of an action with its repetitions; CPU: of the server for \
         each operation, and of the load.\n"
    )
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
        "{name:<55} {:>7.0} {:>6.0} {:>7.0} {:>7.2} {:>8.2} {:>8.1} {:>8.1} {:>8}",
        rate.mean,
        rate.deviation,
        rate.median,
        sum.p50_ms,
        sum.p99_ms,
        sum.cpu_us_per_operation,
        sum.load_cpu_us_per_operation,
        sum.repeated
    )
}

/// Returns the contenders that stand beside a table of the thesis.
fn beside(number: &str) -> &'static [Kind] {
    match number {
        "6.1" => &[Kind::Cortex, Kind::CortexPair],
        "6.2" => &[Kind::RedisEverysec, Kind::RedisNo],
        "6.3" => &[Kind::Postgresql],
        _ => &[Kind::Sqlite, Kind::SqliteWal],
    }
}

fn beside_the_thesis(report: &Report, out: &mut String) -> fmt::Result {
    write!(out, "{:<NAME$}", "seconds, deviation, operations/s")?;
    for workers in &report.plan.workers {
        write!(out, " {:>24}", format!("{workers} workers"))?;
    }
    writeln!(out)?;
    for table in report.thesis {
        let name = format!("  table {}, {}", table.number, table.store);
        write!(out, "{name:<NAME$}")?;
        for workers in &report.plan.workers {
            let column = table.at(*workers);
            let figures =
                |it: &Column| format!("{:.2} {:.2} {:.2}", it.mean, it.deviation, it.rate);
            write!(out, " {:>24}", column.map_or("-".into(), figures))?;
        }
        writeln!(out)?;
        for kind in beside(table.number) {
            here(report, *kind, out)?;
        }
    }
    writeln!(
        out,
        "The thesis: a new connection each, two cores of 2012; {} operations, SQLite {}; its own \
         store's clients did not wait for writes.\n",
        report.thesis[0].operations, report.thesis[3].operations
    )
}

fn here(report: &Report, kind: Kind, out: &mut String) -> fmt::Result {
    let sum = |workers: usize| report.sum(Mode::NewConnection, workers, kind);
    if report.plan.workers.iter().all(|workers| sum(*workers).is_none()) {
        return Ok(());
    }
    write!(out, "{:<NAME$}", format!("    here, {}", kind.name()))?;
    for workers in &report.plan.workers {
        let figures = sum(*workers).map(|sum| {
            let (time, rate) = (sum.seconds, sum.operations_per_second.mean);
            format!("{:.2} {:.2} {rate:.0}", time.mean, time.deviation)
        });
        write!(out, " {:>24}", figures.unwrap_or("-".into()))?;
    }
    writeln!(out)
}

fn times(report: &Report, ratios: &[Ratio], out: &mut String) -> fmt::Result {
    for workers in &report.plan.workers {
        let ratio = ratios.iter().find(|ratio| ratio.workers == *workers);
        let text = ratio.map_or("-".into(), |ratio| format!("{:.2}", ratio.times));
        write!(out, " {text:>8}")?;
    }
    Ok(())
}

fn header(report: &Report, name: &str, out: &mut String) -> fmt::Result {
    write!(out, "{name:<NAME$}")?;
    report.plan.workers.iter().try_for_each(|workers| write!(out, " {workers:>8}"))
}

fn figure(report: &Report, out: &mut String) -> fmt::Result {
    header(report, "Figure 6.1, times as fast, by workers", out)?;
    writeln!(out)?;
    for (store, of_the_thesis) in ratios::of_the_thesis() {
        write!(out, "{:<NAME$}", format!("  the thesis's store / {store}"))?;
        times(report, &of_the_thesis, out)?;
        writeln!(out)?;
    }
    for peer in report.contenders.iter().filter(|peer| peer.kind != Kind::Cortex) {
        for mode in super::MODES {
            let ratios = ratios::here(report, mode, Kind::Cortex, peer.kind);
            if !ratios.is_empty() {
                let name = format!("  here, cortex / {}, {}", peer.kind.name(), mode.short());
                write!(out, "{name:<NAME$}")?;
                times(report, &ratios, out)?;
                writeln!(out)?;
            }
        }
    }
    writeln!(out)
}

fn reached(report: &Report, out: &mut String) -> fmt::Result {
    if report.ratios.is_empty() {
        return Ok(());
    }
    header(report, "What was asked for, times as fast, by workers", out)?;
    writeln!(out, " {:>7} {:>6}", "floor", "aim")?;
    for goal in &report.ratios {
        let name = format!("  {} / {}, {}", goal.of.name(), goal.to.name(), goal.mode.short());
        write!(out, "{name:<NAME$}")?;
        times(report, &goal.ratios, out)?;
        writeln!(out, " {:>7} {:>6}  {}", goal.floor, goal.aim, goal.word())?;
    }
    writeln!(out)
}

fn descriptors(report: &Report, out: &mut String) -> fmt::Result {
    let Some(first) = report.descriptors.first() else { return Ok(()) };
    let limit = super::descriptors::DESCRIPTORS;
    let name = format!("{} s, a server with {limit} descriptors", first.seconds);
    writeln!(
        out,
        "{name:<NAME$} {:>8} {:>8} {:>8} {:>10} {:>11}",
        "clients", "served", "refused", "unanswered", "slowest ms"
    )?;
    for it in &report.descriptors {
        write!(
            out,
            "  {:<42} {:>8} {:>8} {:>8} {:>10} {:>11.1}",
            it.kind.name(),
            it.clients,
            it.served,
            it.refused,
            it.unanswered,
            it.slowest_ms
        )?;
        match &it.failure {
            Some(failure) => writeln!(out, "  {failure}")?,
            None => writeln!(out)?,
        }
    }
    writeln!(out)
}

fn replication(report: &Report, out: &mut String) -> fmt::Result {
    let Some(it) = &report.replication else { return Ok(()) };
    writeln!(
        out,
        "Visible on the other node, {:.0} writes/s: {:.1} ms at the median, {:.1} ms at p99; of {} \
         looked for, {} not seen\n",
        it.writes_per_second, it.p50_ms, it.p99_ms, it.looked_for, it.not_visible
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::descriptors::Endured;
    use crate::store::load::Seen;
    use crate::store::report::{Named, Run};
    use crate::store::{Load, Plan};

    fn report(rates: &[(Kind, &[f64])]) -> Report {
        let kinds: Vec<Kind> = rates.iter().map(|(kind, _)| *kind).collect();
        let plan = Plan {
            workers: vec![10, 100],
            runs: 3,
            turns: 10_000,
            seconds: 1,
            quick: false,
            parts: Vec::new(),
            modes: super::super::MODES.to_vec(),
            kinds,
        };
        let mut report = Report::new(&plan, true);
        let load = Load { mode: Mode::NewConnection, workers: 10, turns: 10_000 };
        for (kind, rates) in rates {
            report.contenders.push(Named { kind: *kind, version: "1.0".into() });
            for rate in *rates {
                let seen = Seen {
                    seconds: 30_000.0 / rate,
                    operations: 30_000,
                    repeated: 2,
                    p50_ms: 0.5,
                    p99_ms: 1.5,
                    failure: None,
                };
                report.add(load, *kind, Run::new(seen, 0.3, 0.6));
            }
        }
        report.finish(None);
        report
    }

    fn line<'a>(text: &'a str, start: &str) -> &'a str {
        let line = text.lines().find(|line| line.trim_start().starts_with(start));
        line.unwrap_or_else(|| panic!("no line begins with '{start}':\n{text}"))
    }

    #[test]
    fn figures_stand_beside_the_thesis_and_ratios_are_of_medians() {
        let cortex: &[f64] = &[20_000.0, 1000.0, 22_000.0];
        let report = report(&[(Kind::Cortex, cortex), (Kind::Redis, &[20_000.0; 3])]);
        let text = print(&report);
        let words: Vec<&str> = line(&text, "cortex 1.0").split_whitespace().collect();
        // Mean, deviation, median, p50, p99, processor time of server and load, repetitions.
        assert_eq!(words[2..], ["14333", "11590", "20000", "0.50", "1.50", "10.0", "20.0", "6"]);
        assert!(line(&text, "table 6.1").contains("40.05 0.69 749.16"), "{text}");
        assert!(line(&text, "here, cortex ").contains("14333"), "{text}");
        let figure = line(&text, "the thesis's store / PostgreSQL");
        assert!(figure.contains("3.38") && figure.contains("2.44"), "{figure}");
        // 1.0 times is above 0.95 and below 1.2; nothing was measured with 100 workers.
        let asked = line(&text, "cortex / redis, new");
        assert!(asked.contains("1.00") && asked.ends_with("floor reached"), "{asked}");
        assert!(line(&text, "mongodb").contains("not re-run"));
        assert!(!text.contains("DURABLE"), "{text}");
    }

    #[test]
    fn a_ratio_below_its_goal_is_reported() {
        let mut report = report(&[(Kind::Cortex, &[100.0]), (Kind::Redis, &[200.0])]);
        report.on_disk = false;
        report.descriptors.push(Endured {
            kind: Kind::Redis,
            clients: 1000,
            seconds: 60,
            served: 7,
            refused: 206,
            unanswered: 0,
            without_port: 0,
            slowest_ms: 1.0,
            failure: Some("max number of clients".into()),
        });
        let text = print(&report);
        assert!(line(&text, "cortex / redis, new").ends_with("BELOW THE FLOOR"), "{text}");
        let refused = line(&text, "redis                    ");
        assert!(refused.contains("206") && refused.contains("max number"), "{refused}");
        assert!(text.starts_with("NOTHING OF THIS IS DURABLE"), "{text}");
    }
}
