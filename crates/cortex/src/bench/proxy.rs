//! The router against nginx and HAProxy, in front of the same backend, in interleaved rounds on
//! this machine's loopback: what a request costs in processor time, and what the client sees.

mod contender;
mod idle;
mod load;
mod report;
mod standalone;

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use self::contender::{Contender, Kind, Programs, Site};
use self::idle::Idle;
use self::report::{Report, Round};
use super::interrupted::Interrupted;
use super::{in_directory, print, process};
use crate::shared_port::allow_descriptors;

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
    /// Only rows whose name has one of these in it
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
    only: Vec<String>,
    /// Another build of this program [default: this one]
    #[arg(long, value_name = "PATH")]
    cortex: Option<PathBuf>,
    /// Another build of nginx [default: the installed one]
    #[arg(long, value_name = "PATH")]
    nginx: Option<PathBuf>,
    /// Another build of HAProxy [default: the installed one]
    #[arg(long, value_name = "PATH")]
    haproxy: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What clients speak. The backend is always asked in clear, over HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Over {
    Plain,
    /// TLS 1.3, no session resumed.
    Tls,
    /// Chosen by ALPN, inside the same.
    Http2,
}

/// One row: what the clients ask for, and what is owed: requests per second of processor time,
/// compared with the best peer's.
#[derive(Debug)]
pub struct Workload {
    pub name: &'static str,
    pub host: &'static str,
    pub path: &'static str,
    pub over: Over,
    pub keep_alive: bool,
    /// The contender itself has the file; no backend is asked.
    pub is_file: bool,
    /// All of them busy.
    pub connections: u32,
    /// Requests at a time on each, which takes HTTP/2.
    pub streams: u32,
    /// Beside them: they asked once.
    pub idle: usize,
    pub floor: f64,
    pub aim: f64,
}

const SMALL: Workload = Workload {
    name: "1 KiB, kept connections",
    host: "proxy.localhost",
    path: "/small",
    over: Over::Plain,
    keep_alive: true,
    is_file: false,
    connections: 64,
    streams: 1,
    idle: 0,
    floor: 1.1,
    aim: 1.2,
};

const WORKLOADS: [Workload; 8] = [
    SMALL,
    Workload {
        name: "1 KiB, new connection each",
        keep_alive: false,
        floor: 1.0,
        aim: 1.1,
        ..SMALL
    },
    Workload { name: "100 KB, kept connections", path: "/large", floor: 1.3, aim: 1.6, ..SMALL },
    Workload {
        name: "1 KiB, 512 busy, 1,000 idle",
        connections: 512,
        idle: 1_000,
        floor: 1.25,
        aim: 1.5,
        ..SMALL
    },
    Workload {
        name: "6 KB file, kept connections",
        host: "files.localhost",
        path: "/file/page.txt",
        is_file: true,
        floor: 1.4,
        aim: 1.7,
        ..SMALL
    },
    Workload { name: "1 KiB, TLS 1.3, kept", over: Over::Tls, floor: 1.0, aim: 1.1, ..SMALL },
    Workload {
        name: "1 KiB, new TLS handshakes",
        over: Over::Tls,
        keep_alive: false,
        floor: 1.0,
        aim: 1.1,
        ..SMALL
    },
    Workload {
        name: "1 KiB, HTTP/2, 8 x 8 streams",
        over: Over::Http2,
        connections: 8,
        streams: 8,
        floor: 1.0,
        aim: 1.1,
        ..SMALL
    },
];

impl ProxyArgs {
    fn workloads(&self) -> anyhow::Result<Vec<&'static Workload>> {
        let wanted = |workload: &&Workload| {
            self.only.is_empty() || self.only.iter().any(|text| workload.name.contains(text))
        };
        let found: Vec<&Workload> = WORKLOADS.iter().filter(wanted).collect();
        let names = WORKLOADS.map(|workload| workload.name).join("\n  ");
        anyhow::ensure!(!found.is_empty(), "no row is named so; there are:\n  {names}");
        Ok(found)
    }
}

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
    let report =
        in_directory(None, |directory, interrupted| measure(args, directory, interrupted))?;
    print(&report, args.json, Report::table)
}

fn measure(
    args: &ProxyArgs,
    directory: &Path,
    interrupted: &Interrupted,
) -> anyhow::Result<Report> {
    let workloads = args.workloads()?;
    let cores = Cores::assign()?;
    // Those that are started inherit it.
    allow_descriptors();
    if cores.contender.is_none() {
        eprintln!("There is one core only: contender, backend and client disturb each other.");
    }
    let wrk = contender::required("wrk", "wrk")?;
    let h2load = contender::required("h2load", "nghttp2-client")?;
    let programs = Programs::choose(args.cortex.clone(), args.nginx.clone(), args.haproxy.clone())?;
    let site = Site::prepare(directory, &programs, cores.contender, interrupted)?;
    let _backend = site.backend(cores.others)?;
    let load = load::Load { wrk, h2load, directory, core: cores.others, interrupted };
    let kinds = programs.kinds();
    let contenders: Vec<Contender> =
        kinds.iter().map(|kind| site.start(*kind)).collect::<anyhow::Result<_>>()?;
    let mut report = Report::new(args.rounds, args.seconds, &workloads, &contenders);
    for round in 0..=args.rounds {
        match round {
            0 => eprintln!("warming up"),
            _ => eprintln!("round {round} of {}", args.rounds),
        }
        for workload in &workloads {
            let seconds = if round == 0 { WARM_UP_SECONDS } else { args.seconds };
            for offset in 0..contenders.len() {
                // Another one begins in each round.
                let index = (offset + round as usize) % contenders.len();
                if !kinds[index].can(workload) {
                    continue;
                }
                let measured = one(&contenders[index], &load, workload, seconds)?;
                if round > 0 {
                    report.add(workload, index, measured);
                }
            }
        }
    }
    drop(contenders);
    for (index, kind) in kinds.iter().enumerate().filter(|(_, kind)| **kind != Kind::Cortex) {
        let peer = site.start(*kind)?;
        eprintln!("{} alone", kind.name());
        for workload in workloads.iter().filter(|workload| kind.can(workload)) {
            report.add_alone(workload, index, alone(&peer, workload, args, &load)?);
        }
    }
    Ok(report)
}

/// What the same load gets from a peer under the same configuration when nobody else is there: so
/// it shows if the rounds took something from it.
fn alone(
    peer: &Contender,
    workload: &Workload,
    args: &ProxyArgs,
    load: &load::Load<'_>,
) -> anyhow::Result<Vec<f64>> {
    let port = peer.port(workload);
    let _idle = Idle::open(workload, port)?;
    load.run(workload, port, WARM_UP_SECONDS)?;
    (0..args.rounds)
        .map(|_| Ok(load.run(workload, port, args.seconds)?.requests_per_second))
        .collect()
}

fn one(
    contender: &Contender,
    load: &load::Load<'_>,
    workload: &Workload,
    seconds: u32,
) -> anyhow::Result<Round> {
    let port = contender.port(workload);
    let _idle = Idle::open(workload, port)?;
    let before = contender.process.usage()?;
    let seen = load.run(workload, port, seconds)?;
    let after = contender.process.usage()?;
    Ok(Round::new(after.cpu_seconds - before.cpu_seconds, after.resident_kb, seen))
}
