//! The output of `cortex proxy`: where it listens, and what a run was like.

use std::net::SocketAddr;
use std::path::Path;

use router_core::tally::RunSummary;

use super::super::output;
use proxy::Announcer;
use proxy::records::Figures;

pub struct TableOutput;

impl Announcer for TableOutput {
    fn listening(&self, at: SocketAddr, control: &Path) {
        // Errors are ignored, as nobody need read it.
        output::print(&format!("Listening on {at}. Control socket: {}", control.display())).ok();
        output::say("Ctrl-C ends it; `cortex proxy back-ends` changes its back ends.");
    }

    fn figures(&self, figures: &Figures) {
        for line in lines(figures) {
            output::print(&line).ok();
        }
    }

    fn taken_over(&self) {
        output::say("Another process has taken over; this one ends with its last client.");
    }
}

fn lines(figures: &Figures) -> Vec<String> {
    let Some(all) = &figures.all else { return vec!["No request has ended yet.".into()] };
    let head = [
        "BACK END",
        "REQUESTS",
        "FAILED",
        "PER SECOND",
        "MIN",
        "MEAN",
        "MAX",
        "LATENCY (ms)",
        "MIN",
        "MEAN",
        "MAX",
        "IN",
        "OUT",
    ];
    let name = |address: &Option<SocketAddr>| match address {
        Some(address) => address.to_string(),
        None => "(none)".into(),
    };
    let mut rows: Vec<Vec<String>> =
        figures.back_ends.iter().map(|(address, one)| row(name(address), one)).collect();
    rows.push(row("all".into(), all));
    let mut lines = output::aligned(&head, &rows);
    if figures.dropped > 0 {
        lines.push(format!(
            "{} records were lost: the disk or this thread was too slow",
            figures.dropped
        ));
    }
    lines
}

fn row(name: String, summary: &RunSummary) -> Vec<String> {
    let ms = |us: f64| format!("{:.2}", us / 1000.0);
    vec![
        name,
        summary.requests.to_string(),
        summary.failed.to_string(),
        String::new(),
        summary.rate_min.to_string(),
        format!("{:.1}", summary.rate_mean),
        summary.rate_max.to_string(),
        String::new(),
        ms(summary.latency_min_us as f64),
        ms(summary.latency_mean_us),
        ms(summary.latency_max_us as f64),
        output::bytes(summary.bytes_in),
        output::bytes(summary.bytes_out),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_a_table_with_a_sum() {
        let none = Figures { back_ends: Vec::new(), all: None, dropped: 0 };
        assert_eq!(lines(&none), ["No request has ended yet."]);
        let summary = RunSummary {
            requests: 12,
            failed: 1,
            bytes_in: 10,
            bytes_out: 2_000,
            rate_min: 1,
            rate_mean: 4.0,
            rate_max: 9,
            latency_min_us: 1_500,
            latency_mean_us: 2_000.0,
            latency_max_us: 9_000,
        };
        let back_ends = vec![(Some("127.0.0.1:81".parse().unwrap()), summary), (None, summary)];
        let lines = lines(&Figures { back_ends, all: Some(summary), dropped: 3 });
        assert_eq!(lines.len(), 5);
        let words: Vec<&str> = lines[1].split_whitespace().collect();
        let expected = [
            "127.0.0.1:81",
            "12",
            "1",
            "1",
            "4.0",
            "9",
            "1.50",
            "2.00",
            "9.00",
            "10",
            "B",
            "2.0",
            "kB",
        ];
        assert_eq!(words, expected);
        assert!(lines[2].starts_with("(none)") && lines[3].starts_with("all"));
        assert!(lines[4].starts_with("3 records were lost"));
    }
}
