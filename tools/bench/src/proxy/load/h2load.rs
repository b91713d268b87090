//! The load by `h2load`: HTTP/2 inside TLS, with several streams on each connection.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};

use super::sliced::Sliced;
use super::{PERCENTILES, Seen};
use crate::proxy::workload::Workload;
use crate::statistics::Latencies;

pub fn command(h2load: &Path, workload: &Workload, port: u16, seconds: u32) -> Command {
    let mut command = Command::new(h2load);
    command
        .args(["--threads", "1", "--connection-active-timeout", "10s"])
        .args(["--clients", &workload.connections.to_string()])
        .args(["--max-concurrent-streams", &workload.streams.to_string()])
        .args(["--duration", &format!("{seconds}s"), "--header"])
        .arg(format!(":authority: {}", workload.host))
        .arg(format!("https://127.0.0.1:{port}{}", workload.path));
    command
}

/// What `h2load` saw: its report has counts, its log a line for each request.
#[derive(Debug)]
pub struct Report {
    lines: Vec<Line>,
    errors: u64,
}

impl Report {
    pub fn parse(text: &str, log: &str) -> anyhow::Result<Report> {
        for expected in ["Application protocol: h2", "TLS Protocol: TLSv1.3"] {
            ensure!(text.contains(expected), "h2load did not say '{expected}': {text}");
        }
        let lines = log.lines().map(Line::parse).collect::<anyhow::Result<Vec<Line>>>()?;
        ensure!(!lines.is_empty(), "h2load had no answer: {text}");
        let failed = failures(text).context("h2load's counts of failed requests")?;
        let errors = failed + lines.iter().filter(|line| line.status != 200).count() as u64;
        Ok(Report { lines, errors })
    }

    /// Returns the figures with the percentiles of the whole run.
    pub fn whole(&self, seconds: u32) -> anyhow::Result<Seen> {
        let mut times = Latencies::with_capacity(self.lines.len());
        self.lines.iter().for_each(|line| times.add(line.latency));
        self.seen(seconds, times.percentiles_ms(PERCENTILES))
    }

    /// Returns the figures with percentiles as `Sliced` has them.
    pub fn sliced(&self, seconds: u32) -> anyhow::Result<Seen> {
        let first = self.lines.iter().map(|line| line.began).min().unwrap_or_default();
        let mut times = Sliced::default();
        self.lines.iter().for_each(|line| times.add(line.began - first, line.latency));
        self.seen(seconds, times.percentiles_ms(PERCENTILES))
    }

    fn seen(&self, seconds: u32, percentiles: Option<[f64; 2]>) -> anyhow::Result<Seen> {
        let [p50_ms, p99_ms] = percentiles.context("h2load had no answer")?;
        let requests = self.lines.len() as u64;
        let requests_per_second = requests as f64 / f64::from(seconds);
        Ok(Seen { requests, requests_per_second, p50_ms, p99_ms, errors: self.errors })
    }
}

/// A line of the log: start, status, microseconds.
#[derive(Debug)]
struct Line {
    /// The time since 1970 at which the request began.
    began: Duration,
    status: i64,
    latency: Duration,
}

impl Line {
    fn parse(line: &str) -> anyhow::Result<Line> {
        let mut fields = line.split('\t').map(|field| field.parse::<i64>().ok());
        let mut number = || fields.next().flatten();
        let read = number().zip(number()).zip(number());
        let ((began, status), took) = read.with_context(|| format!("h2load's log: '{line}'"))?;
        let micros = |number: i64| Duration::from_micros(u64::try_from(number).unwrap_or(0));
        Ok(Line { began: micros(began), status, latency: micros(took) })
    }
}

/// Returns the number of failed requests in the report; those without any answer are not in the
/// log.
fn failures(text: &str) -> Option<u64> {
    let counts = text.lines().find_map(|line| line.strip_prefix("requests:"))?;
    let count = |name: &str| {
        let found = counts.split(',').find_map(|count| count.trim().strip_suffix(name));
        found?.trim().parse::<u64>().ok()
    };
    Some(count("failed")? + count("errored")? + count("timeout")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "TLS Protocol: TLSv1.3
Application protocol: h2

finished in 2.00s, 50.00 req/s, 61.88MB/s
requests: 100 total, 164 started, 100 done, 99 succeeded, 1 failed, 2 errored, 3 timeout
";

    #[test]
    fn a_report_and_its_log_are_read() {
        let line =
            |number: u64| format!("{}\t200\t{}\n", 1_795_354_217_771_649 + number, number * 10);
        let mut log: String = (1..=100).map(line).collect();
        let report = Report::parse(REPORT, &log).unwrap();
        let seen = report.whole(2).unwrap();
        assert_eq!((seen.requests, seen.requests_per_second, seen.errors), (100, 50.0, 6));
        assert_eq!((seen.p50_ms, seen.p99_ms), (0.5, 0.99));
        assert_eq!(report.sliced(2).unwrap(), seen);
        log.push_str("1795354217771650\t503\t5\n");
        assert_eq!(Report::parse(REPORT, &log).unwrap().errors, 7);
        let other = REPORT.replace("Application protocol: h2", "Application protocol: http/1.1");
        assert!(Report::parse(&other, &log).is_err());
        assert!(Report::parse(REPORT, "").is_err());
        assert!(Report::parse(REPORT, "1\t2").is_err());
    }
}
