//! `h2load`: HTTP/2 inside TLS, streams beside each other on each connection.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use super::Seen;
use crate::bench::proxy::Workload;

pub fn command(h2load: &Path, workload: &Workload, port: u16, seconds: u32, log: &Path) -> Command {
    let mut command = Command::new(h2load);
    command
        .args(["--threads", "1", "--connection-active-timeout", "10s"])
        .args(["--clients", &workload.connections.to_string()])
        .args(["--max-concurrent-streams", &workload.streams.to_string()])
        .args(["--duration", &format!("{seconds}s"), "--header"])
        .arg(format!(":authority: {}", workload.host))
        .arg(format!("--log-file={}", log.display()))
        .arg(format!("https://127.0.0.1:{port}{}", workload.path));
    command
}

/// Its report has counts, its log a line for each request: start, status, microseconds.
pub fn parse(text: &str, log: &str, seconds: u32) -> anyhow::Result<Seen> {
    for expected in ["Application protocol: h2", "TLS Protocol: TLSv1.3"] {
        ensure!(text.contains(expected), "h2load did not say '{expected}': {text}");
    }
    let mut times = Vec::new();
    let mut errors = failures(text).context("h2load's counts of failed requests")?;
    for line in log.lines() {
        let mut fields = line.split('\t').skip(1);
        let mut number = || fields.next()?.parse::<i64>().ok();
        let read = number().zip(number());
        let (status, microseconds) = read.with_context(|| format!("h2load's log: '{line}'"))?;
        times.push(microseconds);
        errors += u64::from(status != 200);
    }
    times.sort_unstable();
    ensure!(!times.is_empty(), "h2load had no answer: {text}");
    let at = |part: usize| times[(times.len() * part / 100).min(times.len() - 1)] as f64 / 1_000.0;
    Ok(Seen {
        requests: times.len() as u64,
        requests_per_second: times.len() as f64 / f64::from(seconds),
        p50_ms: at(50),
        p99_ms: at(99),
        errors,
    })
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
        assert_eq!((seen.p50_ms, seen.p99_ms), (0.51, 1.0));
        log.push_str("1795354217771650\t503\t5\n");
        assert_eq!(parse(REPORT, &log, 2).unwrap().errors, 7);
        let other = REPORT.replace("Application protocol: h2", "Application protocol: http/1.1");
        assert!(parse(&other, &log, 2).is_err());
        assert!(parse(REPORT, "", 2).is_err());
        assert!(parse(REPORT, "1\t2", 2).is_err());
    }
}
