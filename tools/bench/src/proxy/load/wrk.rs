//! The load by `wrk`: HTTP/1.1, in clear and inside TLS.

use std::path::Path;
use std::process::Command;

use super::Seen;
use crate::proxy::workload::{Over, Workload};

pub fn command(wrk: &Path, workload: &Workload, port: u16, seconds: u32) -> Command {
    let scheme = if workload.over == Over::Plain { "http" } else { "https" };
    let mut command = Command::new(wrk);
    command
        .args(["--threads", "1", "--latency", "--timeout", "10s"])
        .args(["--connections", &workload.connections.to_string()])
        .args(["--duration", &format!("{seconds}s")])
        .args(["--header", &format!("Host: {}", workload.host)]);
    if !workload.keep_alive {
        command.args(["--header", "Connection: close"]);
    }
    command.arg(format!("{scheme}://127.0.0.1:{port}{}", workload.path));
    command
}

pub fn parse(text: &str) -> Option<Seen> {
    let lines = || text.lines().map(str::trim);
    let after = |start: &str| lines().find_map(|line| line.strip_prefix(start)).map(str::trim);
    let requests = lines().find(|line| line.contains(" requests in "))?;
    let requests = requests.split_whitespace().next()?.parse().ok()?;
    let mut errors = 0;
    if let Some(counts) = after("Socket errors:") {
        for count in counts.split(',') {
            errors += count.split_whitespace().nth(1)?.parse::<u64>().ok()?;
        }
    }
    if let Some(count) = after("Non-2xx or 3xx responses:") {
        errors += count.parse::<u64>().ok()?;
    }
    Some(Seen {
        requests,
        requests_per_second: after("Requests/sec:")?.parse().ok()?,
        p50_ms: milliseconds(after("50%")?)?,
        p99_ms: milliseconds(after("99%")?)?,
        errors,
    })
}

fn milliseconds(text: &str) -> Option<f64> {
    let units = [("us", 0.001), ("ms", 1.0), ("s", 1_000.0), ("m", 60_000.0)];
    units.iter().find_map(|(unit, factor)| {
        let number: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        Some(number * factor)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "Running 2s test @ http://127.0.0.1:8000/small
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.06ms  391.11us   8.61ms   92.62%
  Latency Distribution
     50%  990.00us
     75%    1.10ms
     90%    1.29ms
     99%    2.84ms
  123456 requests in 2.00s, 140.00MB read
Requests/sec:  61728.00
Transfer/sec:     70.00MB
";

    #[test]
    fn a_report_is_read() {
        let seen = parse(REPORT).unwrap();
        assert_eq!((seen.requests, seen.errors), (123_456, 0));
        assert_eq!((seen.p50_ms, seen.p99_ms), (0.99, 2.84));
        let bad = REPORT.replace(
            "Requests/sec:",
            "  Socket errors: connect 1, read 2, write 3, timeout 4\n\
             \x20 Non-2xx or 3xx responses: 5\nRequests/sec:",
        );
        assert_eq!(parse(&bad).unwrap().errors, 15);
        assert_eq!(parse("unable to connect"), None);
        assert_eq!(milliseconds("1.50s"), Some(1500.0));
        assert_eq!(milliseconds("2.00m"), Some(120_000.0));
    }
}
