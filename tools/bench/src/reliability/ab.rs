//! ApacheBench itself, as the thesis used it: it is started, its report is read, and several runs
//! are summed up.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use serde::Serialize;

use crate::interrupted::Interrupted;
use crate::process::find;

/// The seconds that one answer may take; `ab` counts a slower one as failed.
const ANSWER_SECONDS_MAX: &str = "60";
const POLL: Duration = Duration::from_millis(20);
/// The number of complaints of `ab` that are kept.
const COMPLAINTS_MAX: usize = 20;

pub fn program() -> anyhow::Result<PathBuf> {
    find("ab").context("`ab` is not installed: apt-get install apache2-utils")
}

/// The figures of `ab`, of all runs together.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Served {
    pub runs: u32,
    pub requests: u64,
    /// The number of answers that were cut, refused, of another length, or with a status other than
    /// 2xx.
    pub failed: u64,
    pub seconds: f64,
    pub per_second: f64,
    pub p95_ms: u32,
    pub p98_ms: u32,
    /// The number of answers of each process, by its own word.
    pub answers: BTreeMap<String, u64>,
    pub complaints: Vec<String>,
    #[serde(skip)]
    times_ms: Vec<u32>,
}

impl Served {
    pub fn add(&mut self, other: Served) {
        self.runs += other.runs;
        self.requests += other.requests;
        self.failed += other.failed;
        self.seconds += other.seconds;
        for (process, count) in other.answers {
            *self.answers.entry(process).or_default() += count;
        }
        self.complaints.extend(other.complaints);
        self.complaints.truncate(COMPLAINTS_MAX);
        self.times_ms.extend(other.times_ms);
        self.times_ms.sort_unstable();
        self.per_second = self.requests.saturating_sub(self.failed) as f64 / self.seconds;
        self.p95_ms = percentile(&self.times_ms, 95);
        self.p98_ms = percentile(&self.times_ms, 98);
    }
}

/// Returns a percentile of sorted times as `ab` computes it.
fn percentile(times: &[u32], percent: usize) -> u32 {
    times.get(times.len() * percent / 100).or(times.last()).copied().unwrap_or(0)
}

/// A running `ab`, killed when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

pub struct Run<'a> {
    pub program: &'a Path,
    pub address: SocketAddr,
    pub host: &'a str,
    pub requests: u32,
    pub concurrency: usize,
    /// The file to which `ab` writes the time of each request.
    pub times: &'a Path,
}

impl Run<'_> {
    pub fn perform(&self, interrupted: &Interrupted) -> anyhow::Result<Served> {
        let mut command = Command::new(self.program);
        // -v 2 prints the head of each answer, and -r goes on after one that was cut. -l is left
        // out: all answers have one length.
        command.args(["-q", "-r", "-v", "2", "-s", ANSWER_SECONDS_MAX]);
        command.args(["-n", &self.requests.to_string(), "-c", &self.concurrency.to_string()]);
        command.arg("-g").arg(self.times).args(["-H", &format!("Host: {}", self.host)]);
        command.arg(format!("http://{}/index.html", self.address));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = Running(command.spawn().context("ab cannot be started")?);
        let stdout = running.0.stdout.take().context("it is piped")?;
        let stderr = running.0.stderr.take().context("it is piped")?;
        let reader = std::thread::spawn(move || read(BufReader::new(stdout)));
        let complaints = std::thread::spawn(move || std::io::read_to_string(stderr));
        let status = loop {
            interrupted.check()?;
            match running.0.try_wait()? {
                Some(status) => break status,
                None => std::thread::sleep(POLL),
            }
        };
        let said = reader.join().map_err(|_| anyhow!("the reader of ab's output panicked"))??;
        let complaints = complaints.join().map_err(|_| anyhow!("a reader panicked"))??;
        ensure!(status.success(), "ab ended with {status}: {}", complaints.trim());
        let times = fs::read_to_string(self.times).context("ab left no times")?;
        let mut served = Served::default();
        served.add(said.served(self.requests, times_ms(&times)?, &complaints)?);
        Ok(served)
    }
}

/// The lines of its report.
#[derive(Debug, Default)]
struct Said {
    answers: BTreeMap<String, u64>,
    figures: BTreeMap<String, f64>,
}

fn read(mut output: impl BufRead) -> anyhow::Result<Said> {
    let (mut said, mut line) = (Said::default(), Vec::new());
    loop {
        line.clear();
        // A body may follow a head on the same line, and need not be text.
        if output.read_until(b'\n', &mut line)? == 0 {
            return Ok(said);
        }
        let text = String::from_utf8_lossy(&line);
        let Some((name, value)) = text.trim().split_once(':') else { continue };
        let first = value.split_whitespace().next().unwrap_or_default();
        if name.eq_ignore_ascii_case("x-instance") {
            *said.answers.entry(first.into()).or_default() += 1;
        } else if let Ok(figure) = first.parse() {
            said.figures.insert(name.into(), figure);
        }
    }
}

impl Said {
    fn served(self, asked: u32, times_ms: Vec<u32>, complaints: &str) -> anyhow::Result<Served> {
        let figure = |name: &str| self.figures.get(name).copied();
        let needed = |name| figure(name).with_context(|| format!("ab did not say '{name}'"));
        let complete = needed("Complete requests")? as u64;
        let bad = needed("Failed requests")? as u64;
        let not_2xx = figure("Non-2xx responses").unwrap_or(0.0) as u64;
        let requests = u64::from(asked);
        // An answer of another length often has another status too: the sum is capped at the number
        // of requests.
        let failed = (bad + not_2xx).min(requests) + requests.saturating_sub(complete);
        Ok(Served {
            runs: 1,
            requests,
            failed: failed.min(requests),
            seconds: needed("Time taken for tests")?,
            answers: self.answers,
            complaints: complaints.lines().take(COMPLAINTS_MAX).map(str::to_owned).collect(),
            times_ms,
            ..Served::default()
        })
    }
}

/// Returns the column `ttime` of the table that `-g` writes.
fn times_ms(table: &str) -> anyhow::Result<Vec<u32>> {
    let time = |line: &str| line.split('\t').nth(4)?.parse().ok();
    let row = |line| time(line).with_context(|| format!("a row of ab's table has no time: {line}"));
    table.lines().skip(1).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "LOG: header received:\nHTTP/1.1 200 OK\nX-Instance: 7@a\n\n<p>x\n\
        LOG: header received:\nHTTP/1.1 200 OK\nx-instance: 7@a\n\n\
        LOG: header received:\nHTTP/1.1 503 Busy\nContent-Length: 3\n\n..done\n\
        Time taken for tests:   0.500 seconds\nComplete requests:      3\n\
        Failed requests:        1\n   (Connect: 0, Receive: 0, Length: 1, Exceptions: 0)\n\
        Non-2xx responses:      1\n";

    fn served(asked: u32, output: &str) -> anyhow::Result<Served> {
        let times = "starttime\tseconds\tctime\tdtime\tttime\twait\n\
            Sun Nov 22 04:09:16 2026\t1795320556\t0\t21\t21\t21\n\
            Sun Nov 22 04:09:16 2026\t1795320556\t1\t22\t23\t22\n";
        let mut all = Served::default();
        all.add(read(output.as_bytes())?.served(asked, times_ms(times)?, "")?);
        Ok(all)
    }

    #[test]
    fn its_report_is_understood() {
        let all = served(4, OUTPUT).unwrap();
        assert_eq!(all.answers, BTreeMap::from([("7@a".into(), 2)]));
        // One is missing; the one with a status of its own is counted on both lines.
        assert_eq!((all.requests, all.failed, all.runs), (4, 3, 1));
        assert_eq!((all.p95_ms, all.p98_ms, all.per_second), (23, 23, 2.0));
        assert!(served(4, "Benchmarking 127.0.0.1\n").is_err());
        assert!(times_ms("starttime\tseconds\nSun Nov 22\t17\t0\t21\n").is_err());
    }

    #[test]
    fn runs_are_summed_up() {
        let mut all = served(3, &OUTPUT.replace("1\n", "0\n")).unwrap();
        assert_eq!((all.failed, all.per_second), (0, 6.0));
        all.add(all.clone());
        assert_eq!((all.requests, all.runs, all.answers["7@a"]), (6, 2, 4));
        assert_eq!((all.times_ms.len(), all.per_second), (4, 6.0));
    }
}
