//! The thesis's benchmark of its store, again: this store beside Redis, etcd, PostgreSQL and SQLite
//! on loopback and one disk, in interleaved runs. Every server is started here and stopped by its
//! id; the load is this process.

mod client;
mod contender;
mod load;
mod postgresql;
mod report;
mod statistics;
mod table;
mod thesis;

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use rustix::process::{Resource, getrlimit, setrlimit};
use serde::Serialize;

use self::contender::{Contender, Kind};
use self::report::{Report, Run};
use super::interrupted::Interrupted;
use super::temporary_directory;

const TURNS: u64 = 10_000;
const TURNS_QUICK: u64 = 200;
const TURNS_MAX: u64 = 1_000_000;
const WORKERS: [usize; 3] = [10, 100, 1000];
const WORKERS_QUICK: [usize; 2] = [2, 20];
/// Each has a connection, and a machine has ports for no more.
const WORKERS_MAX: usize = 10_000;
const RUNS: u32 = 5;
/// Of the turns: connections, caches and files are warm before the first run counts.
const WARM_UP_PART: u64 = 20;
/// What this process opens besides one connection for each worker.
const DESCRIPTORS_BESIDES: u64 = 200;

#[derive(Debug, Args)]
pub struct StoreArgs {
    /// Who is measured; each is left out that is not installed [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    against: Vec<Kind>,
    /// Workers at a time [default: 10,100,1000]
    #[arg(long, value_delimiter = ',', value_parser = workers)]
    workers: Vec<usize>,
    /// Runs of each; mean, standard deviation and median are printed [default: 5]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=50))]
    runs: Option<u32>,
    /// Turns of set, lookup and delete in each run [default: 10000]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=TURNS_MAX))]
    turns: Option<u64>,
    /// One short run of each with few workers: shows that it works, measures little
    #[arg(long)]
    quick: bool,
    /// Where the servers keep what they store; on a disk, not in memory [default: TMPDIR]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn workers(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=WORKERS_MAX).contains(count));
    count.ok_or_else(|| format!("between 1 and {WORKERS_MAX} workers"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    NewConnection,
    Persistent,
    /// A new connection each, and writes are not waited for.
    Unawaited,
}

pub const MODES: [Mode; 3] = [Mode::NewConnection, Mode::Persistent, Mode::Unawaited];

/// One run's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    pub mode: Mode,
    pub workers: usize,
    pub turns: u64,
}

/// What was asked for, with nothing left open.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    pub workers: Vec<usize>,
    pub runs: u32,
    pub turns: u64,
    pub quick: bool,
    #[serde(skip)]
    kinds: Vec<Kind>,
}

impl Plan {
    fn of(args: &StoreArgs) -> Plan {
        let (workers, runs, turns) = match args.quick {
            true => (WORKERS_QUICK.to_vec(), 1, TURNS_QUICK),
            false => (WORKERS.to_vec(), RUNS, TURNS),
        };
        let given =
            |list: &[Kind]| if list.is_empty() { contender::ALL.to_vec() } else { list.into() };
        let mut kinds: Vec<Kind> = given(&args.against);
        kinds.sort();
        kinds.dedup();
        Plan {
            workers: if args.workers.is_empty() { workers } else { args.workers.clone() },
            runs: args.runs.unwrap_or(runs),
            turns: args.turns.unwrap_or(turns),
            quick: args.quick,
            kinds,
        }
    }
}

pub fn run(args: &StoreArgs) -> anyhow::Result<()> {
    let plan = Plan::of(args);
    let most = plan.workers.iter().max().context("no workers")?;
    allow_descriptors(*most as u64 + DESCRIPTORS_BESIDES)?;
    let interrupted = Interrupted::default();
    interrupted.watch()?;
    let directory = match &args.dir {
        Some(dir) => {
            let directory = dir.join(format!("cortex-bench-{}", std::process::id()));
            std::fs::create_dir(&directory)
                .with_context(|| format!("{} cannot be made", directory.display()))?;
            directory
        }
        None => temporary_directory()?,
    };
    let result = measure(&plan, &directory, &interrupted);
    std::fs::remove_dir_all(&directory).ok();
    // What broke because everything was told to stop is no news.
    interrupted.check()?;
    let report = result?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", table::print(&report));
    }
    Ok(())
}

/// Raised to what the administrator allows at most; servers that are started inherit it.
fn allow_descriptors(needed: u64) -> anyhow::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    ensure!(
        limit.maximum.is_none_or(|maximum| maximum >= needed),
        "only {} files may be open here, and so many workers need {needed}: raise `ulimit -n`, or \
         give fewer --workers",
        limit.maximum.unwrap_or(0)
    );
    limit.current = limit.maximum;
    Ok(setrlimit(Resource::Nofile, limit)?)
}

fn measure(plan: &Plan, directory: &Path, interrupted: &Interrupted) -> anyhow::Result<Report> {
    let mut contenders = Vec::new();
    let mut left_out = Vec::new();
    for kind in &plan.kinds {
        if let Some(why) = kind.missing() {
            eprintln!("{} is left out: {why}", kind.name());
            left_out.push((*kind, why));
            continue;
        }
        contenders.push(Contender::start(*kind, directory, interrupted)?);
    }
    let on_disk = report::is_disk(directory)?;
    if !on_disk {
        eprintln!("{} is in memory: nothing is durable there; give --dir", directory.display());
    }
    let mut report = Report::new(plan, &contenders, left_out, on_disk);
    warm_up(plan, &contenders, interrupted)?;
    for run in 1..=plan.runs {
        for mode in MODES {
            for workers in &plan.workers {
                eprintln!("run {run} of {}: {}, {workers} workers", plan.runs, mode.name());
                let load = Load { mode, workers: *workers, turns: plan.turns };
                for offset in 0..contenders.len() {
                    // Another one begins in each run.
                    let index = (offset + run as usize) % contenders.len();
                    if let Some(load) = contenders[index].kind.load(load) {
                        report.add(load, index, one(&contenders[index], load, interrupted)?);
                    }
                }
            }
        }
    }
    Ok(report)
}

fn warm_up(plan: &Plan, contenders: &[Contender], interrupted: &Interrupted) -> anyhow::Result<()> {
    eprintln!("warming up");
    let turns = (plan.turns / WARM_UP_PART).max(1);
    let workers = plan.workers.iter().copied().min().unwrap_or(1);
    for contender in contenders {
        let load = Load { mode: Mode::Persistent, workers, turns };
        if let Some(load) = contender.kind.load(load) {
            contender.run(load, interrupted)?;
        }
    }
    Ok(())
}

fn one(contender: &Contender, load: Load, interrupted: &Interrupted) -> anyhow::Result<Run> {
    let before = contender.cpu_seconds()?;
    let seen = contender.run(load, interrupted)?;
    let after = contender.cpu_seconds()?;
    Ok(Run::new(&seen, after - before))
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Mode::NewConnection => "a new connection each",
            Mode::Persistent => "persistent connections",
            Mode::Unawaited => "a new connection each, writes not awaited",
        }
    }
}
