//! The benchmark of instances that take one request at a time, as most Ruby, Python and PHP servers
//! do: how long a quick request waits when some are slow, beside nginx in turn and HAProxy by least
//! connections; and whether n instances do n times the work of one.

mod arrivals;
pub mod client;
mod compute;
pub mod front;
pub mod instances;
mod report;

use std::path::Path;
use std::time::Duration;

use clap::Args;

use self::arrivals::Mix;
use self::front::{Fronts, HaproxyQueues, SERIAL};
use self::instances::Instances;
use self::report::Report;
use super::interrupted::Interrupted;
use super::{in_directory, print};

#[derive(Debug, Args)]
pub struct SerialArgs {
    /// Seconds of arrivals for each contender
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Serial instances behind each contender
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=100))]
    instances: u64,
    /// What a quick request takes, in milliseconds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    quick_ms: u64,
    /// What a slow request takes, in milliseconds
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    slow_ms: u64,
    /// Slow requests of 100
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(0..=100))]
    slow_percent: u64,
    /// Percent of what all instances together could do
    #[arg(long, default_value_t = 70, value_parser = clap::value_parser!(u64).range(1..=95))]
    load_percent: u64,
    /// Seconds of computing for each number of instances; 0 leaves that part out
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(0..=600))]
    compute_seconds: u64,
    /// Seed of the arrivals: the same one asks for the same at the same times
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Ask for each request under a target of its own, so that nothing tells quick ones from slow
    #[arg(long)]
    alike: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &SerialArgs) -> anyhow::Result<()> {
    let report =
        in_directory(None, |directory, interrupted| measure(args, directory, interrupted))?;
    print(&report, args.json, Report::table)
}

fn measure(
    args: &SerialArgs,
    directory: &Path,
    interrupted: &Interrupted,
) -> anyhow::Result<Report> {
    let mix = Mix {
        quick: Duration::from_millis(args.quick_ms),
        slow: Duration::from_millis(args.slow_ms),
        slow_fraction: args.slow_percent as f64 / 100.0,
        instances: usize::try_from(args.instances)?,
        load: args.load_percent as f64 / 100.0,
        time: Duration::from_secs(args.seconds),
        seed: args.seed,
        alike: args.alike,
    };
    let instances = Instances::start(mix.instances)?;
    let fronts = Fronts {
        directory,
        instances: &instances.ports,
        configurations: SERIAL,
        haproxy_queues: HaproxyQueues::Nowhere,
        interrupted,
    };
    let mut report = Report::new(&mix);
    for front in fronts.start()? {
        eprintln!("{} {}: {:.0} requests a second", front.name, front.version, mix.rate());
        let seen = arrivals::run(&mix, front.port, interrupted)?;
        report.add(&front, seen)?;
    }
    drop(instances);
    if args.compute_seconds > 0 {
        let time = Duration::from_secs(args.compute_seconds);
        report.computing = compute::run(directory, time, interrupted)?;
    }
    Ok(report)
}
