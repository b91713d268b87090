//! The thesis's benchmark of its store, again: this store beside Redis, etcd, PostgreSQL and SQLite
//! on loopback and one disk, in interleaved runs. Every server is started here and stopped by its
//! id; this process is the load.

mod client;
mod contender;
mod descriptors;
mod load;
pub mod postgresql;
mod ratios;
mod replication;
mod report;
mod site;
mod table;
mod thesis;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;

use self::contender::{Contender, Kind};
use self::report::{Report, Run};
use super::interrupted::Interrupted;
use super::process::own_cpu_seconds;
use super::{in_directory, print};
use os::shared_port::allow_descriptors;

const TURNS: u64 = 10_000;
const TURNS_QUICK: u64 = 200;
const TURNS_MAX: u64 = 1_000_000;
const WORKERS: [usize; 3] = [10, 100, 1000];
const WORKERS_QUICK: [usize; 2] = [2, 20];
/// The most workers: each has a connection, and a machine has ports for no more.
const WORKERS_MAX: usize = 10_000;
const RUNS: u32 = 5;
/// The warm-up is this fraction of the turns, so that connections, caches and files are warm before
/// the first run counts.
const WARM_UP_PART: u64 = 20;
const SECONDS: u64 = 60;
const SECONDS_QUICK: u64 = 1;
const SECONDS_MAX: u64 = 3600;
/// The files that this process opens besides one connection for each worker.
const DESCRIPTORS_BESIDES: u64 = 200;

#[derive(Debug, Args)]
pub struct StoreArgs {
    /// What is measured; contenders that are not installed are left out [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    against: Vec<Kind>,
    /// Workers at a time [default: 10,100,1000]
    #[arg(long, value_delimiter = ',', value_parser = workers)]
    workers: Vec<usize>,
    /// Runs of each; mean, standard deviation and median are printed [default: 5]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=50))]
    runs: Option<u32>,
    /// How connections are used [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    modes: Vec<Mode>,
    /// Turns of set, lookup and delete in each run [default: 10000]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=TURNS_MAX))]
    turns: Option<u64>,
    /// Which parts [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    parts: Vec<Part>,
    /// How long clients open and close connections, and how long replication is watched
    /// [default: 60]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX))]
    seconds: Option<u64>,
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
    /// A new connection for each action
    NewConnection,
    /// One connection for each worker
    Persistent,
    /// A new connection for each action, and writes are not waited for
    Unawaited,
}

pub const MODES: [Mode; 3] = [Mode::NewConnection, Mode::Persistent, Mode::Unawaited];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Set, lookup and delete, in interleaved runs
    Load,
    /// Clients that open and close connections against a server with few descriptors
    Descriptors,
    /// How soon a change is visible on the other of two nodes
    Replication,
}

/// The work of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    pub mode: Mode,
    pub workers: usize,
    pub turns: u64,
}

/// The arguments with all defaults filled in.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    pub workers: Vec<usize>,
    pub runs: u32,
    pub turns: u64,
    pub seconds: u64,
    pub quick: bool,
    pub parts: Vec<Part>,
    pub modes: Vec<Mode>,
    #[serde(skip)]
    kinds: Vec<Kind>,
}

impl Plan {
    fn of(args: &StoreArgs) -> Plan {
        let (workers, runs, turns, seconds) = match args.quick {
            true => (WORKERS_QUICK.to_vec(), 1, TURNS_QUICK, SECONDS_QUICK),
            false => (WORKERS.to_vec(), RUNS, TURNS, SECONDS),
        };
        let all = [Part::Load, Part::Descriptors, Part::Replication];
        let mut kinds = or(&args.against, &contender::ALL);
        kinds.sort();
        kinds.dedup();
        Plan {
            workers: or(&args.workers, &workers),
            runs: args.runs.unwrap_or(runs),
            turns: args.turns.unwrap_or(turns),
            seconds: args.seconds.unwrap_or(seconds),
            quick: args.quick,
            parts: or(&args.parts, &all),
            modes: or(&args.modes, &MODES),
            kinds,
        }
    }

    fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }
}

fn or<T: Clone>(given: &[T], otherwise: &[T]) -> Vec<T> {
    if given.is_empty() { otherwise.to_vec() } else { given.to_vec() }
}

pub fn run(args: &StoreArgs) -> anyhow::Result<()> {
    let plan = Plan::of(args);
    let clients = plan.workers.iter().chain(&descriptors::CLIENTS).max().context("no workers")?;
    ensure_descriptors(*clients as u64 + DESCRIPTORS_BESIDES)?;
    let place = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let on_disk = report::is_disk(&place).with_context(|| {
        format!("{} cannot be used; give a directory with --dir", place.display())
    })?;
    if !on_disk {
        eprintln!("{} is in memory: nothing is durable there; give --dir", place.display());
    }
    let mut report = Report::new(&plan, on_disk);
    let result = in_directory(Some(&place), |directory, interrupted| {
        measure(&plan, directory, &mut report, interrupted)
    });
    report.finish(result.as_ref().err());
    if report.has_figures() || result.is_ok() {
        print(&report, args.json, table::print)?;
    }
    result
}

/// Allows so many open files; the servers that are started inherit the limit.
fn ensure_descriptors(needed: u64) -> anyhow::Result<()> {
    let allowed = allow_descriptors();
    ensure!(
        allowed >= needed,
        "only {allowed} files may be open here, and so many workers need {needed}: raise \
         `ulimit -n`, or give fewer --workers"
    );
    Ok(())
}

/// Measures into the report, which also holds what was measured before an error.
fn measure(
    plan: &Plan,
    directory: &Path,
    report: &mut Report,
    interrupted: &Interrupted,
) -> anyhow::Result<()> {
    let mut kinds = Vec::new();
    for kind in &plan.kinds {
        match kind.missing() {
            Some(why) => {
                eprintln!("{} is left out: {why}", kind.name());
                report.leave_out(*kind, why);
            }
            None => kinds.push(*kind),
        }
    }
    if plan.has(Part::Load) {
        let mut contenders = Vec::new();
        for kind in &kinds {
            contenders.extend(start(*kind, directory, report, interrupted)?);
        }
        report.compare(&contenders);
        loads(plan, contenders, report, interrupted)?;
    }
    if plan.has(Part::Descriptors) {
        for kind in kinds.iter().filter(|kind| matches!(kind, Kind::Cortex | Kind::Redis)) {
            let endured = few_descriptors(plan, *kind, directory, report, interrupted);
            go_on_without(*kind, endured, report, interrupted)?;
        }
    }
    if plan.has(Part::Replication) && kinds.contains(&Kind::CortexPair) {
        eprintln!("replication, {} s", plan.seconds);
        let directory = directory.join("replication");
        std::fs::create_dir(&directory)?;
        if let Some(pair) = start(Kind::CortexPair, &directory, report, interrupted)? {
            let (from, to) = pair.resp().zip(pair.replica).context("a pair has two addresses")?;
            let replicated = replication::measure(from, to, plan.seconds, interrupted);
            report.replication = go_on_without(Kind::CortexPair, replicated, report, interrupted)?;
        }
    }
    Ok(())
}

/// Reports a contender that fails while it is measured; the others are measured all the same.
fn go_on_without<T>(
    kind: Kind,
    result: anyhow::Result<T>,
    report: &mut Report,
    interrupted: &Interrupted,
) -> anyhow::Result<Option<T>> {
    match result {
        Ok(measured) => Ok(Some(measured)),
        Err(error) => {
            interrupted.check()?;
            let why = format!("{error:#}");
            eprintln!("{} failed and is left out from here on: {why}", kind.name());
            report.leave_out(kind, why);
            Ok(None)
        }
    }
}

/// Starts a contender; one that cannot be started is left out with the reason, as the others are
/// worth comparing.
fn start(
    kind: Kind,
    directory: &Path,
    report: &mut Report,
    interrupted: &Interrupted,
) -> anyhow::Result<Option<Contender>> {
    let started = site::start(kind, directory, interrupted);
    go_on_without(kind, started, report, interrupted)
}

fn loads(
    plan: &Plan,
    contenders: Vec<Contender>,
    report: &mut Report,
    interrupted: &Interrupted,
) -> anyhow::Result<()> {
    let mut sound = Vec::new();
    for contender in contenders {
        let warmed = warm_up(plan, &contender, interrupted);
        sound.extend(
            go_on_without(contender.kind, warmed, report, interrupted)?.map(|()| contender),
        );
    }
    let mut failed = BTreeSet::new();
    for run in 1..=plan.runs {
        for mode in &plan.modes {
            for workers in &plan.workers {
                eprintln!("run {run} of {}: {}, {workers} workers", plan.runs, mode.name());
                let load = Load { mode: *mode, workers: *workers, turns: plan.turns };
                for offset in 0..sound.len() {
                    // Another contender begins in each run.
                    let contender = &sound[(offset + run as usize) % sound.len()];
                    let kind = contender.kind;
                    let Some(load) = kind.load(load).filter(|_| !failed.contains(&kind)) else {
                        continue;
                    };
                    let measured = one(contender, load, interrupted);
                    match go_on_without(kind, measured, report, interrupted)? {
                        Some(run) => report.add(load, kind, run),
                        None => drop(failed.insert(kind)),
                    }
                }
            }
        }
    }
    Ok(())
}

fn few_descriptors(
    plan: &Plan,
    kind: Kind,
    directory: &Path,
    report: &mut Report,
    interrupted: &Interrupted,
) -> anyhow::Result<()> {
    let server = site::start_limited(kind, directory, descriptors::DESCRIPTORS, interrupted)?;
    let address = server.resp().context("it speaks the Redis protocol")?;
    for clients in descriptors::CLIENTS {
        eprintln!("{clients} clients and few descriptors, {}, {} s", kind.name(), plan.seconds);
        let endured = descriptors::endure(kind, address, clients, plan.seconds, interrupted)?;
        report.descriptors.push(endured);
    }
    Ok(())
}

fn warm_up(plan: &Plan, contender: &Contender, interrupted: &Interrupted) -> anyhow::Result<()> {
    eprintln!("warming up {}", contender.kind.name());
    let turns = (plan.turns / WARM_UP_PART).max(1);
    let workers = plan.workers.iter().copied().min().unwrap_or(1);
    let load = Load { mode: Mode::Persistent, workers, turns };
    match contender.kind.load(load) {
        Some(load) => contender.run(load, interrupted).map(drop),
        None => Ok(()),
    }
}

fn one(contender: &Contender, load: Load, interrupted: &Interrupted) -> anyhow::Result<Run> {
    let (before, own_before) = (contender.cpu_seconds()?, own_cpu_seconds()?);
    let seen = contender.run(load, interrupted)?;
    let (after, own_after) = (contender.cpu_seconds()?, own_cpu_seconds()?);
    Ok(Run::new(seen, after - before, own_after - own_before))
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Mode::NewConnection => "a new connection each",
            Mode::Persistent => "persistent connections",
            Mode::Unawaited => "a new connection each, writes not awaited",
        }
    }

    pub fn short(self) -> &'static str {
        match self {
            Mode::NewConnection => "new",
            Mode::Persistent => "persistent",
            Mode::Unawaited => "not awaited",
        }
    }
}
