//! `h2load`: HTTP/2 inside TLS, streams beside each other on each connection.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};

use super::Seen;
use super::sliced::Sliced;
use crate::bench::proxy::workload::Workload;
use crate::bench::statistics::Latencies;

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

/// Its report has counts, its log a line for each request.
pub fn parse(text: &str, log: &str, seconds: u32) -> anyhow::Result<Seen> {
    for expected in ["Application protocol: h2", "TLS Protocol: TLSv1.3"] {
        ensure!(text.contains(expected), "h2load did not say '{expected}': {text}");
    }
    let mut times = Latencies::default();
    let mut errors = failures(text).context("h2load's counts of failed requests")?;
    for line in log.lines() {
        let Line { status, latency, .. } = Line::parse(line)?;
        times.add(latency);
        errors += u64::from(status != 200);
    }
    let requests = times.len() as u64;
    let percentiles = times.percentiles_ms([0.5, 0.99]);
    let [p50_ms, p99_ms] = percentiles.with_context(|| format!("no answer for h2load: {text}"))?;
    let requests_per_second = requests as f64 / f64::from(seconds);
    Ok(Seen { requests, requests_per_second, p50_ms, p99_ms, errors })
}

/// The same of one whose report was read already, with the percentiles of its parts.
pub fn sliced(seen: Seen, log: &str) -> anyhow::Result<Seen> {
    let lines = log.lines().map(Line::parse).collect::<anyhow::Result<Vec<Line>>>()?;
    let first = lines.iter().map(|line| line.began).min().context("h2load's log is empty")?;
    let mut times = Sliced::default();
    for Line { began, latency, .. } in lines {
        times.add(began - first, latency);
    }
    let [p50_ms, p99_ms] = times.percentiles_ms([0.5, 0.99]).context("h2load's log is empty")?;
    Ok(Seen { p50_ms, p99_ms, ..seen })
}

/// Start, status, microseconds.
struct Line {
    /// Since 1970.
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

/// Requests that had no answer at all are not in the log.
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
        let seen = parse(REPORT, &log, 2).unwrap();
        assert_eq!((seen.requests, seen.requests_per_second, seen.errors), (100, 50.0, 6));
        assert_eq!((seen.p50_ms, seen.p99_ms), (0.5, 0.99));
        assert_eq!(sliced(seen, &log).unwrap(), seen);
        log.push_str("1795354217771650\t503\t5\n");
        assert_eq!(parse(REPORT, &log, 2).unwrap().errors, 7);
        let other = REPORT.replace("Application protocol: h2", "Application protocol: http/1.1");
        assert!(parse(&other, &log, 2).is_err());
        assert!(parse(REPORT, "", 2).is_err());
        assert!(parse(REPORT, "1\t2", 2).is_err());
    }
}
