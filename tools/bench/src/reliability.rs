//! The benchmark of reliability: what a lost machine costs those who ask. It has the thesis's test
//! with `ab`, the same with a client that numbers its requests, and two nodes of which either is
//! lost. All nodes are started here, on addresses of loopback, and killed by id and start time.

mod ab;
mod client;
mod cluster;
mod connection;
mod kills;
mod lost;
mod numbered;
mod pair;
mod table;
mod thesis;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::interrupted::Interrupted;
use super::{in_directory, print};

/// The roles of the nodes. The thesis had four application managers, and a balancer that was not
/// killed: here the first.
const AGENTS: [Option<&str>; 5] = [Some("store,router,checker"), None, None, None, None];
const REQUESTS: u32 = 10_000;
const REQUESTS_QUICK: u32 = 200;
const CONCURRENCY: [usize; 3] = [1, 4, 12];
const CONCURRENCY_QUICK: [usize; 1] = [4];
const CONCURRENCY_MAX: usize = 1000;
const KILLS: u32 = 10;
const KILLS_QUICK: u32 = 1;
const SECONDS: u64 = 30;
const SECONDS_QUICK: u64 = 2;
const WARM_UP: Duration = Duration::from_secs(3);
/// Rounds of the pair; each has three situations.
const PAIR_ROUNDS: u32 = 4;
const PAIR_ROUNDS_QUICK: u32 = 1;

#[derive(Debug, Args)]
pub struct ReliabilityArgs {
    /// Which parts [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    parts: Vec<Part>,
    /// Requests of each run of `ab` [default: 10000]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    requests: Option<u32>,
    /// Requests of `ab` at a time [default: 1,4,12]
    #[arg(long, value_delimiter = ',', value_parser = concurrency)]
    concurrency: Vec<usize>,
    /// How often something is killed in each row [default: 10]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    kills: Option<u32>,
    /// Seconds of numbered requests without kills [default: 30]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: Option<u64>,
    /// How often each situation of the pair is tried [default: 4]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Decides what is killed, and when [default: another one each time]
    #[arg(long)]
    seed: Option<u64>,
    /// A short form of each part: shows that it works, measures little
    #[arg(long)]
    quick: bool,
    /// Where the nodes keep their data; on a disk [default: TMPDIR]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn concurrency(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=CONCURRENCY_MAX).contains(count));
    count.ok_or_else(|| format!("between 1 and {CONCURRENCY_MAX} requests at a time"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// As in the thesis: `ab`, four nodes, twelve instances
    Thesis,
    /// Numbered requests to an application that pauses
    Numbered,
    /// Two nodes, either of which is lost, also during a push
    Pair,
}

/// The arguments with all defaults filled in.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    pub parts: Vec<Part>,
    pub requests: u32,
    pub concurrency: Vec<usize>,
    pub kills: u32,
    pub seconds: Duration,
    pub warm_up: Duration,
    pub pair_rounds: u32,
    pub seed: u64,
}

impl Plan {
    fn of(args: &ReliabilityArgs) -> anyhow::Result<Plan> {
        let (requests, concurrency, kills, seconds, pair_rounds) = match args.quick {
            true => {
                let at_once = CONCURRENCY_QUICK.to_vec();
                (REQUESTS_QUICK, at_once, KILLS_QUICK, SECONDS_QUICK, PAIR_ROUNDS_QUICK)
            }
            false => (REQUESTS, CONCURRENCY.to_vec(), KILLS, SECONDS, PAIR_ROUNDS),
        };
        let all = vec![Part::Thesis, Part::Numbered, Part::Pair];
        let concurrency = match args.concurrency.is_empty() {
            true => concurrency,
            false => args.concurrency.clone(),
        };
        let requests = args.requests.unwrap_or(requests);
        let at_once = concurrency.iter().max().copied().unwrap_or(1);
        anyhow::ensure!(
            requests as usize >= at_once,
            "{requests} requests cannot be {at_once} at a time: give more --requests or less \
             --concurrency"
        );
        Ok(Plan {
            parts: if args.parts.is_empty() { all } else { args.parts.clone() },
            requests,
            concurrency,
            kills: args.kills.unwrap_or(kills),
            seconds: Duration::from_secs(args.seconds.unwrap_or(seconds)),
            warm_up: if args.quick { Duration::ZERO } else { WARM_UP },
            pair_rounds: args.rounds.unwrap_or(pair_rounds),
            seed: args.seed.map_or_else(random_seed, Ok)?,
        })
    }

    fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }
}

/// Returns a random seed that is short enough to be typed again.
fn random_seed() -> anyhow::Result<u64> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u32::from_le_bytes(bytes).into())
}

#[derive(Debug, Serialize)]
struct Report {
    seed: u64,
    version: String,
    thesis: Option<Vec<thesis::Level>>,
    numbered: Option<numbered::Numbered>,
    pair: Option<Vec<pair::Round>>,
    /// The reason why a part is missing.
    incomplete: Option<String>,
}

pub fn run(args: &ReliabilityArgs) -> anyhow::Result<()> {
    let plan = Plan::of(args)?;
    if plan.has(Part::Thesis) {
        ab::program()?;
    }
    eprintln!("seed {}", plan.seed);
    let (thesis, numbered, pair) = (None, None, None);
    let version = crate::version();
    let mut report = Report { seed: plan.seed, version, thesis, numbered, pair, incomplete: None };
    let result = in_directory(args.dir.as_deref(), |directory, interrupted| {
        measure(&plan, directory, &mut report, interrupted)
    });
    report.incomplete = result.as_ref().err().map(|error| format!("{error:#}"));
    print(&report, args.json, table::print)?;
    result
}

fn measure(
    plan: &Plan,
    directory: &Path,
    report: &mut Report,
    interrupted: &Interrupted,
) -> anyhow::Result<()> {
    if plan.has(Part::Thesis) {
        let measured = thesis::measure(plan, directory, interrupted);
        report.thesis = Some(measured.context("the thesis's test")?);
    }
    if plan.has(Part::Numbered) {
        let measured = numbered::measure(plan, directory, interrupted);
        report.numbered = Some(measured.context("numbered requests")?);
    }
    if plan.has(Part::Pair) {
        report.pair = Some(pair::measure(plan, directory, interrupted).context("two nodes")?);
    }
    Ok(())
}
