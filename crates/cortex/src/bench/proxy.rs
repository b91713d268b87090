//! The router against nginx and HAProxy, in front of the same backend, in interleaved rounds on
//! this machine's loopback: what a request costs in processor time, and what the client sees.

mod contender;
mod load;
mod report;
mod standalone;

use std::path::Path;

use clap::Args;

use self::contender::{Contender, Site};
use self::report::{Report, Round};
use super::interrupted::Interrupted;
use super::{process, temporary_directory};

pub use contender::version_of;
pub use standalone::StandaloneArgs;
pub use standalone::run as run_standalone;
pub use standalone::{World, web};

/// Uncounted: pools fill, caches and branch predictors learn.
const WARM_UP_SECONDS: u32 = 1;
const SMALL_BYTES: usize = 1024;
const LARGE_BYTES: usize = 100 * 1024;
/// The file that the reference documents serve.
const FILE_BYTES: usize = 5_907;
const FILE_PATH: &str = "file/page.txt";

#[derive(Debug, Args)]
pub struct ProxyArgs {
    /// Rounds; the median of each figure is printed
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=50))]
    rounds: u32,
    /// Seconds of load per row, contender and round
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One row: what the client asks for.
#[derive(Debug)]
pub struct Workload {
    pub name: &'static str,
    pub host: &'static str,
    pub path: &'static str,
    pub keep_alive: bool,
    /// The contender itself has the file; no backend is asked.
    pub is_file: bool,
}

const WORKLOADS: [Workload; 4] = [
    Workload {
        name: "1 KiB, kept connections",
        host: "proxy.localhost",
        path: "/small",
        keep_alive: true,
        is_file: false,
    },
    Workload {
        name: "1 KiB, new connection each",
        host: "proxy.localhost",
        path: "/small",
        keep_alive: false,
        is_file: false,
    },
    Workload {
        name: "100 KB, kept connections",
        host: "proxy.localhost",
        path: "/large",
        keep_alive: true,
        is_file: false,
    },
    Workload {
        name: "6 KB file, kept connections",
        host: "files.localhost",
        path: "/file/page.txt",
        keep_alive: true,
        is_file: true,
    },
];

/// Who runs where, so that nobody measures a neighbour.
#[derive(Clone, Copy, Debug)]
struct Cores {
    contender: Option<usize>,
    others: Option<usize>,
}

impl Cores {
    fn assign() -> anyhow::Result<Cores> {
        let cores = process::cores()?;
        Ok(match cores[..] {
            [first, .., last] => Cores { contender: Some(last), others: Some(first) },
            _ => Cores { contender: None, others: None },
        })
    }
}

pub fn run(args: &ProxyArgs) -> anyhow::Result<()> {
    let interrupted = Interrupted::default();
    interrupted.watch()?;
    let directory = temporary_directory()?;
    let result = measure(args, &directory, &interrupted);
    std::fs::remove_dir_all(&directory).ok();
    // What broke because everything was told to stop is no news.
    interrupted.check()?;
    let report = result?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report.table());
    }
    Ok(())
}

fn measure(
    args: &ProxyArgs,
    directory: &Path,
    interrupted: &Interrupted,
) -> anyhow::Result<Report> {
    let cores = Cores::assign()?;
    if cores.contender.is_none() {
        eprintln!("There is one core only: contender, backend and client disturb each other.");
    }
    let wrk = contender::required("wrk")?;
    let site = Site::prepare(directory)?;
    let _backend = contender::backend(&site, cores.others, interrupted)?;
    let contenders = contender::all(&site, cores.contender, interrupted)?;
    let mut report = Report::new(args.rounds, args.seconds, &contenders);
    let load = load::Load { wrk, core: cores.others, interrupted };
    for round in 0..=args.rounds {
        match round {
            0 => eprintln!("warming up"),
            _ => eprintln!("round {round} of {}", args.rounds),
        }
        for workload in &WORKLOADS {
            let seconds = if round == 0 { WARM_UP_SECONDS } else { args.seconds };
            for offset in 0..contenders.len() {
                // Another one begins in each round.
                let index = (offset + round as usize) % contenders.len();
                if !contenders[index].can(workload) {
                    continue;
                }
                let measured = one(&contenders[index], &load, workload, seconds)?;
                if round > 0 {
                    report.add(workload, index, measured);
                }
            }
        }
    }
    Ok(report)
}

fn one(
    contender: &Contender,
    load: &load::Load<'_>,
    workload: &Workload,
    seconds: u32,
) -> anyhow::Result<Round> {
    let before = contender.process.usage()?;
    let seen = load.run(workload, contender.port, seconds)?;
    let after = contender.process.usage()?;
    Ok(Round::new(after.cpu_seconds - before.cpu_seconds, after.resident_kb, seen))
}
