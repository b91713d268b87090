//! The benchmark of fairness: one client floods with many connections while another asks one
//! request at a time. It measures how long the quiet one waits without the flood and under it,
//! behind the router and beside nginx and HAProxy. All of them stand before the same serial
//! instances.

mod quiet;
mod report;

use std::path::Path;
use std::time::Duration;

use clap::Args;

use self::quiet::{Flood, ask_quietly};
use self::report::Report;
use super::interrupted::Interrupted;
use super::serial::front::{Fronts, HaproxyQueues, SERIAL};
use super::serial::instances::{Instances, sleeping_about};
use super::{in_directory, print};

#[derive(Debug, Args)]
pub struct FairnessArgs {
    /// Seconds for each contender, without the flood and then under it
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Connections of the client that floods
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=5_000))]
    connections: u64,
    /// Serial instances behind each contender
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=100))]
    instances: u64,
    /// What a request takes, in milliseconds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    service_ms: u64,
    /// By how many percent a request may take longer or shorter; with 0, those that began together
    /// end together
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=100))]
    spread_percent: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &FairnessArgs) -> anyhow::Result<()> {
    let report =
        in_directory(None, |directory, interrupted| measure(args, directory, interrupted))?;
    print(&report, args.json, Report::table)
}

fn measure(
    args: &FairnessArgs,
    directory: &Path,
    interrupted: &Interrupted,
) -> anyhow::Result<Report> {
    let instances = Instances::start(usize::try_from(args.instances)?)?;
    let fronts = Fronts {
        directory,
        instances: &instances.ports,
        configurations: SERIAL,
        haproxy_queues: HaproxyQueues::InOneLine,
        interrupted,
    };
    let path = sleeping_about(Duration::from_millis(args.service_ms), args.spread_percent);
    let time = Duration::from_secs(args.seconds);
    let mut report = Report::new(args);
    for front in fronts.start()? {
        eprintln!("{} {}: without the flood", front.name, front.version);
        let before = ask_quietly(front.port, &path, time, interrupted)?;
        eprintln!("{} {}: under it", front.name, front.version);
        let flood = Flood::start(front.port, &path, usize::try_from(args.connections)?)?;
        let under = flood
            .reached(interrupted)
            .and_then(|()| ask_quietly(front.port, &path, time, interrupted));
        let flooded = flood.stop();
        report.add(&front, before, under?, flooded);
    }
    Ok(report)
}
