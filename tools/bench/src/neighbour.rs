//! What an application costs its neighbour that forks and allocates without end: the latency of a
//! quiet application behind its wall, while it is alone and while the other one floods the same
//! node behind its own. By turns, so that what else the machine does weighs on both alike.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use crate::interrupted::Interrupted;
use crate::platform::client::get_once;
use crate::platform::node::BenchNode;
use crate::statistics::Latencies;
use crate::{in_directory, median, print};

const QUIET: &str = include_str!("../../../examples/hello/app.py");
/// The flood: so many processes at a time allocate, compute, end and are started again. What they
/// take together is bounded, since the machine is somebody's.
const FLOOD: &str = r#"
import http.server, os, threading

PROCESSES, BYTES = int(os.environ["PROCESSES"]), int(os.environ["MEBIBYTES"]) << 20

def one():
    block = bytearray(os.urandom(4096)) * (BYTES // PROCESSES // 4096)
    sum(block[::64])
    os._exit(0)

def flood():
    while True:
        pids = []
        for _ in range(PROCESSES):
            pid = os.fork()
            if pid == 0:
                one()
            pids.append(pid)
        for pid in pids:
            os.waitpid(pid, 0)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"flood")

if __name__ == "__main__":
    server = http.server.ThreadingHTTPServer((os.environ["HOST"], int(os.environ["PORT"])), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    flood()
"#;
/// The time in which a flood has begun, or has ended, before anything is measured.
const SETTLE: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub struct NeighbourArgs {
    /// Rounds, each of which measures alone and beside the flood; the median is printed
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=50))]
    rounds: u32,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Requests a second to the quiet application
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=2000))]
    rate: u32,
    /// Processes of the flood at a time
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1000))]
    processes: u32,
    /// MiB that they allocate together, again and again
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(16..=65536))]
    mebibytes: u32,
    /// The wall around both: none, landlock, standard or full
    #[arg(long, default_value = "standard")]
    isolation: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    isolation: String,
    alone: Vec<Figures>,
    beside: Vec<Figures>,
    alone_p99_ms: f64,
    beside_p99_ms: f64,
    /// How many times as long the slowest of a hundred takes beside the flood.
    times: f64,
    failed: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Figures {
    p50_ms: f64,
    p99_ms: f64,
    requests: usize,
    failed: u64,
}

pub fn run(args: &NeighbourArgs) -> anyhow::Result<()> {
    let report =
        in_directory(None, |directory, interrupted| measure(args, directory, interrupted))?;
    print(&report, args.json, Report::table)
}

fn measure(
    args: &NeighbourArgs,
    directory: &Path,
    interrupted: &Interrupted,
) -> anyhow::Result<Report> {
    let isolation = &args.isolation;
    let project = |name: &str, program: &str, more: &str| -> anyhow::Result<_> {
        let source = directory.join(name);
        fs::create_dir(&source)?;
        fs::write(source.join("app.py"), program)?;
        fs::write(source.join("Procfile"), "web: exec python3 app.py\n")?;
        fs::write(source.join("cortex.toml"), format!("isolation = \"{isolation}\"\n{more}"))?;
        Ok(source)
    };
    let (processes, mebibytes) = (args.processes, args.mebibytes);
    let size = format!("[env]\nPROCESSES = \"{processes}\"\nMEBIBYTES = \"{mebibytes}\"\n");
    let (quiet, flood) = (project("quiet", QUIET, "")?, project("flood", FLOOD, &size)?);
    let node = BenchNode::start(&directory.join("data"))?;
    let url = node.push(&quiet, "quiet")?;
    node.push(&flood, "flood")?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for round in 1..=args.rounds {
        for (figures, count, what) in [(&mut alone, 0, "alone"), (&mut beside, 1, "beside it")] {
            interrupted.check()?;
            eprintln!("round {round} of {}, {what}", args.rounds);
            node.scale("flood", count)?;
            std::thread::sleep(SETTLE);
            figures.push(ask(&url, args, interrupted)?);
        }
    }
    Ok(Report::new(isolation.clone(), alone, beside))
}

/// Asks at even times, and counts from when it was due: a slow answer delays those after it.
fn ask(url: &str, args: &NeighbourArgs, interrupted: &Interrupted) -> anyhow::Result<Figures> {
    let count = u32::try_from(args.seconds)? * args.rate;
    let (begin, apart) = (Instant::now(), Duration::from_secs(1) / args.rate);
    let mut latencies = Latencies::with_capacity(count as usize);
    let mut failed = 0;
    for number in 0..count {
        interrupted.check()?;
        let due = begin + apart * number;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        match get_once(url) {
            Ok(_) => latencies.add(due.elapsed()),
            Err(_) => failed += 1,
        }
    }
    let requests = latencies.len();
    let [p50_ms, p99_ms] = latencies.percentiles_ms([0.5, 0.99]).context("nothing answered")?;
    Ok(Figures { p50_ms, p99_ms, requests, failed })
}

impl Report {
    fn new(isolation: String, alone: Vec<Figures>, beside: Vec<Figures>) -> Report {
        let p99 = |all: &[Figures]| median(all.iter().map(|one| one.p99_ms).collect());
        let (alone_p99_ms, beside_p99_ms) = (p99(&alone), p99(&beside));
        let times = beside_p99_ms / alone_p99_ms;
        let failed = alone.iter().chain(&beside).map(|one| one.failed).sum();
        Report { isolation, alone, beside, alone_p99_ms, beside_p99_ms, times, failed }
    }

    fn table(&self) -> String {
        let p50 = |all: &[Figures]| median(all.iter().map(|one| one.p50_ms).collect());
        let mut table = format!("isolation {}              p50 ms    p99 ms\n", self.isolation);
        let rows = [("alone", &self.alone), ("beside the flood", &self.beside)];
        for ((what, all), p99) in rows.into_iter().zip([self.alone_p99_ms, self.beside_p99_ms]) {
            table += &format!("{what:<24} {:>12.2} {p99:>9.2}\n", p50(all));
        }
        table += &format!("p99, times               {:>22.2}\n", self.times);
        table += &format!("failed requests          {:>22}\n", self.failed);
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_round_counts_and_every_failure() {
        let figures = |p99_ms, failed| Figures { p99_ms, failed, ..Figures::default() };
        let alone = vec![figures(2.0, 0), figures(9.0, 0), figures(1.0, 1)];
        let beside = vec![figures(3.0, 0), figures(2.0, 2), figures(90.0, 0)];
        let report = Report::new("standard".into(), alone, beside);
        assert_eq!((report.alone_p99_ms, report.beside_p99_ms), (2.0, 3.0));
        assert_eq!((report.times, report.failed), (1.5, 3));
    }
}
