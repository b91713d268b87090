//! The benchmark of the router against nginx and HAProxy, in front of the same backend, in
//! interleaved rounds on this machine's loopback: how much processor time a request costs, and what
//! the client sees.

mod contender;
mod idle;
mod least;
mod load;
mod report;
mod standalone;
mod workload;

use std::path::{Path, PathBuf};

use clap::Args;

use self::contender::{Contender, Kind, Programs, Site};
use self::idle::Idle;
use self::load::Load;
use self::report::{Report, Round};
use self::workload::{WORKLOADS, Workload};
use super::interrupted::Interrupted;
use super::{in_directory, print, process};
use os::shared_port::allow_descriptors;

pub use contender::version_of;
pub use least::LeastArgs;
pub use least::run as run_least;
pub use standalone::StandaloneArgs;
pub use standalone::run as run_standalone;
pub use standalone::{World, web};

/// Seconds of load that are not counted, in which pools fill, and caches and branch predictors
/// learn.
const WARM_UP_SECONDS: u32 = 1;
const SMALL_BYTES: usize = 1024;
const LARGE_BYTES: usize = 100 * 1024;
/// The size of the file that the reference documents serve.
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
    /// Only rows whose name contains this; may be repeated
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Another build of cortex, which measures the router in the cortex-bench beside it
    /// [default: the one beside this program]
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

/// The cores that the contender and all others run on, so that nobody measures a neighbour.
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
    // The programs that are started inherit the limit.
    allow_descriptors();
    if cores.contender.is_none() {
        eprintln!("There is one core only: contender, backend and client disturb each other.");
    }
    let wrk = contender::required("wrk", "wrk")?;
    let h2load = contender::required("h2load", "nghttp2-client")?;
    let programs = Programs::choose(args.cortex.clone(), args.nginx.clone(), args.haproxy.clone())?;
    let site = Site::prepare(directory, &programs, cores.contender, interrupted)?;
    let _backend = site.backend(cores.others)?;
    let certificate = site.certificate();
    let load = Load { wrk, h2load, directory, certificate, core: cores.others, interrupted };
    let kinds = programs.kinds();
    // The cost of a request differs by a tenth with the memory layout of a process, so each round
    // starts new ones.
    let start = || -> anyhow::Result<Vec<Contender>> {
        let contenders: Vec<Contender> =
            kinds.iter().map(|kind| site.start(*kind)).collect::<anyhow::Result<_>>()?;
        for (workload, index) in turns(0, &workloads, &kinds) {
            one(&contenders[index], &load, workload, WARM_UP_SECONDS)?;
        }
        Ok(contenders)
    };
    eprintln!("warming up");
    let mut contenders = start()?;
    let mut report = Report::new(args.rounds, args.seconds, &workloads, &contenders);
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        for (workload, index) in turns(round, &workloads, &kinds) {
            report.add(workload, index, one(&contenders[index], &load, workload, args.seconds)?);
        }
        contenders.clear();
        contenders = start()?;
    }
    report.choose_rates();
    for round in 1..=args.rounds {
        eprintln!("the same rate for all, round {round} of {}", args.rounds);
        for (workload, index) in turns(round, &workloads, &kinds) {
            let Some(rate) = report.rate(workload) else { continue };
            let port = contenders[index].port(workload);
            let _idle = Idle::open(workload, port)?;
            report.add_paced(workload, index, load.paced(workload, port, rate, args.seconds)?);
        }
    }
    drop(contenders);
    for (index, kind) in kinds.iter().enumerate().filter(|(_, kind)| kind.is_peer()) {
        let peer = site.start(*kind)?;
        eprintln!("{} alone", kind.name());
        for workload in workloads.iter().filter(|workload| kind.can(workload)) {
            report.add_alone(workload, index, alone(&peer, workload, args, &load)?);
        }
    }
    Ok(report.finish())
}

/// Yields row by row each contender that can do it. Another contender begins in each round.
fn turns<'a>(
    round: u32,
    workloads: &'a [&'static Workload],
    kinds: &'a [Kind],
) -> impl Iterator<Item = (&'static Workload, usize)> + use<'a> {
    let of = move |workload: &'static Workload| {
        let indices = (0..kinds.len()).map(move |offset| (offset + round as usize) % kinds.len());
        indices.filter(|index| kinds[*index].can(workload)).map(move |index| (workload, index))
    };
    workloads.iter().flat_map(move |workload| of(workload))
}

/// Returns the requests per second that the same load gets from a peer with the same configuration
/// while no other contender runs, which shows if the rounds took something from it.
fn alone(
    peer: &Contender,
    workload: &Workload,
    args: &ProxyArgs,
    load: &Load<'_>,
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
    load: &Load<'_>,
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
