//! The benchmark of ways to serve many requests at a time: the same work on servers with threads,
//! with fibers and with events, one core each, while the frequency of requests rises. It says up to
//! which frequency each answers in time, and so for which work which way pays.

mod ramp;
mod remote;
mod report;
mod servers;
mod site;
mod work;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;

use self::ramp::{Ramp, Seen};
use self::report::{Report, Row};
use self::servers::Server;
use self::site::Site;
use self::work::{WORKS, Work};
use super::interrupted::Interrupted;
use super::process::Process;
use super::{in_directory, print};
use os::shared_port::allow_descriptors;

/// The time of the ramp before the one that counts: compilers at run time and pools of connections
/// need it. It goes up to this part of the frequency.
const WARM_UP: Duration = Duration::from_secs(4);
const WARM_UP_DIVISOR: f64 = 4.0;
/// The time between two looks at how much memory a server takes.
const MEMORY_LOOK: Duration = Duration::from_millis(250);

#[derive(Debug, Args)]
pub struct ConcurrencyArgs {
    /// Seconds in which the frequency of requests rises from nothing to its most
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(2..=600))]
    seconds: u64,
    /// Multiplies the most frequent of each kind of work
    #[arg(long, default_value_t = 1.0, value_parser = scale)]
    scale: f64,
    /// Only work whose name contains one of these
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
    only: Vec<String>,
    /// Only servers of these names
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    servers: Vec<String>,
    /// Seed of the arrivals: the same one asks at the same times
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn scale(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "no number".to_owned())?;
    let allowed = (0.01..=10.0).contains(&value);
    allowed.then_some(value).ok_or_else(|| "give a number from 0.01 to 10".to_owned())
}

impl ConcurrencyArgs {
    fn works(&self) -> anyhow::Result<Vec<&'static Work>> {
        let wanted = |work: &&Work| {
            self.only.is_empty() || self.only.iter().any(|text| work.name.contains(text))
        };
        let found: Vec<&Work> = WORKS.iter().filter(wanted).collect();
        let names = WORKS.map(|work| work.name).join(", ");
        anyhow::ensure!(!found.is_empty(), "no work is named so; there are: {names}");
        Ok(found)
    }

    /// Returns the servers that are wanted. One that is not installed is named on stderr and left
    /// out, unless it was asked for.
    fn servers(&self) -> anyhow::Result<Vec<&'static dyn Server>> {
        for name in &self.servers {
            let names: Vec<&str> = servers::ALL.iter().map(|one| one.name()).collect();
            anyhow::ensure!(
                names.contains(&name.as_str()),
                "there is no server '{name}'; there are: {}",
                names.join(", ")
            );
        }
        let mut found = Vec::new();
        for server in servers::ALL.iter().copied() {
            let is_named = self.servers.iter().any(|name| name == server.name());
            if !self.servers.is_empty() && !is_named {
                continue;
            }
            match server.lacks() {
                None => found.push(server),
                Some(lack) if is_named => anyhow::bail!("{}: {lack}", server.name()),
                Some(lack) => eprintln!("{} is left out: {lack}", server.name()),
            }
        }
        anyhow::ensure!(!found.is_empty(), "no server is installed");
        Ok(found)
    }
}

pub fn run(args: &ConcurrencyArgs) -> anyhow::Result<()> {
    let report =
        in_directory(None, |directory, interrupted| measure(args, directory, interrupted))?;
    print(&report, args.json, Report::table)
}

fn measure(
    args: &ConcurrencyArgs,
    directory: &Path,
    interrupted: &Interrupted,
) -> anyhow::Result<Report> {
    let (works, servers) = (args.works()?, args.servers()?);
    allow_descriptors();
    let site = Site::start(directory, interrupted)?;
    let mut report = Report::new(args.seconds);
    for server in servers {
        eprintln!("{}: preparing", server.name());
        let prepared = server.prepare(&site)?;
        for work in &works {
            let ramp = Ramp {
                peak: work.peak * args.scale,
                time: Duration::from_secs(args.seconds),
                seed: args.seed,
            };
            eprintln!("{}: {}", server.name(), work.name);
            let row = one(&site, server, &prepared, work, &ramp)?;
            report.add(work, &ramp, row);
        }
    }
    Ok(report)
}

/// Measures one kind of work on a new process of a server.
fn one(
    site: &Site<'_>,
    server: &dyn Server,
    prepared: &servers::Prepared,
    work: &Work,
    ramp: &Ramp,
) -> anyhow::Result<Row> {
    let (process, port) = site.serve(server.name(), prepared)?;
    let idle_kb = process.usage()?.resident_kb;
    let warm_up = Ramp { peak: ramp.peak / WARM_UP_DIVISOR, time: WARM_UP, ..*ramp };
    ramp::run(&warm_up, port, work.path, site.interrupted)?;
    let before = process.usage()?.cpu_seconds;
    let (seen, most_kb) = watched(&process, || ramp::run(ramp, port, work.path, site.interrupted));
    let seen: Seen = seen?;
    anyhow::ensure!(seen.answered() > 0, "{}: {} was never answered", server.name(), work.path);
    Ok(Row {
        server: server.name(),
        model: server.model(),
        version: prepared.version.clone(),
        idle_kb,
        most_kb,
        cpu_seconds: process.usage()?.cpu_seconds - before,
        seen,
    })
}

/// Runs `work`, and returns with its result the most memory that the process took meanwhile.
fn watched<T>(process: &Process, work: impl FnOnce() -> T) -> (T, u64) {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let mut most = 0;
            while !ended.load(Ordering::Relaxed) {
                // One that has ended is noticed by those who ask it.
                most = most.max(process.usage().map_or(0, |usage| usage.resident_kb));
                std::thread::sleep(MEMORY_LOOK);
            }
            most
        });
        let result = work();
        ended.store(true, Ordering::Relaxed);
        (result, looks.join().unwrap_or(0))
    })
}
