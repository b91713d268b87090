//! The benchmark of idle WebSockets: how much memory each takes in the router, beside nginx and
//! HAProxy, what it costs the processor to keep them, how soon all know what happened, and how soon
//! all are heard when they speak.
//! They come and go several times, as memory that was used once is used again or kept.

mod client;
mod echo;
mod report;

use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;

use self::client::Clients;
use self::echo::Echo;
use self::report::{EventTimes, Report, Turn};
use super::interrupted::Interrupted;
use super::serial::front::{Configurations, Front, Fronts, HaproxyQueues};
use super::{in_directory, print};
use os::shared_port::allow_descriptors;

const NGINX_CONFIGURATION: &str = include_str!("websockets/nginx.conf");
const HAPROXY_CONFIGURATION: &str = include_str!("websockets/haproxy.conf");

/// The connections that come and go before the first turn: what a server sets up once is no part of
/// what each takes.
const FIRST: usize = 40;
/// The connections for which there are descriptors beyond those that are measured: the first ones,
/// which may not have left yet, and what a server has besides. Half of them are for clients.
const SPARE: u64 = 200;
/// What happens in a turn, once all know of what happened before.
const EVENTS: usize = 100;
/// The time between two turns, in which a server lets go of those that left.
const APART: Duration = Duration::from_secs(2);
/// The descriptors of a connection, in a proxy as in this program: both of its ends.
const DESCRIPTORS_EACH: u64 = 2;

#[derive(Debug, Args)]
pub struct WebsocketsArgs {
    /// WebSockets at a time
    #[arg(long, default_value_t = 10_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=30_000))]
    connections: u64,
    /// Seconds for which nobody says anything
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// How often all of them come and go
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=50))]
    turns: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &WebsocketsArgs) -> anyhow::Result<()> {
    let report =
        in_directory(None, |directory, interrupted| measure(args, directory, interrupted))?;
    print(&report, args.json, Report::table)
}

fn measure(
    args: &WebsocketsArgs,
    directory: &Path,
    interrupted: &Interrupted,
) -> anyhow::Result<Report> {
    let taken = args.connections + SPARE;
    let (allowed, needed) = (allow_descriptors(), taken * DESCRIPTORS_EACH);
    ensure!(
        allowed >= needed,
        "{} WebSockets need {needed} descriptors, and {allowed} are allowed: `ulimit -n {needed}` \
         as root, or --connections {}",
        args.connections,
        (allowed / DESCRIPTORS_EACH).saturating_sub(SPARE)
    );
    let echo = Echo::start()?;
    let [nginx, haproxy] = [NGINX_CONFIGURATION, HAPROXY_CONFIGURATION].map(|template| {
        template
            .replace("@CONNECTIONS@", &(taken - SPARE / 2).to_string())
            .replace("@DESCRIPTORS@", &needed.to_string())
    });
    let fronts = Fronts {
        directory,
        instances: &[echo.port],
        configurations: Configurations { concurrency: None, nginx: &nginx, haproxy: &haproxy },
        haproxy_queues: HaproxyQueues::Nowhere,
        interrupted,
    };
    let mut report = Report::new(args.connections, args.seconds);
    for (number, front) in fronts.start()?.into_iter().enumerate() {
        match turns(args, &front, &echo, interrupted) {
            Ok(turns) => report.add(front.name, &front.version, turns),
            Err(error) if number > 0 => {
                interrupted.check()?;
                eprintln!("{} is left out: {error:#}", front.name);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(report)
}

/// Lets all of them come and go, several times, at the same server.
fn turns(
    args: &WebsocketsArgs,
    front: &Front,
    echo: &Echo,
    interrupted: &Interrupted,
) -> anyhow::Result<Vec<Turn>> {
    drop(Clients::connect(front.port, FIRST)?);
    let before = front.process.usage()?.resident_kb;
    let count = usize::try_from(args.connections)?;
    let mut turns = Vec::new();
    for number in 1..=args.turns {
        eprintln!("{} {}: turn {number} of {}", front.name, front.version, args.turns);
        let mut clients = Clients::connect(front.port, count)?;
        let began = front.process.usage()?.cpu_seconds;
        wait(Duration::from_secs(args.seconds), interrupted)?;
        let usage = front.process.usage()?;
        let kb = usage.resident_kb.saturating_sub(before) as f64;
        let events = clients.hear(EVENTS, || echo.tell())?;
        turns.push(Turn {
            kb_each: kb / count as f64,
            idle_cpu_ms_per_second: (usage.cpu_seconds - began) * 1000.0 / args.seconds as f64,
            event: EventTimes::of(events),
            all_heard_ms: clients.speak_at_once()?.as_secs_f64() * 1000.0,
        });
        wait(APART, interrupted)?;
    }
    Ok(turns)
}

fn wait(time: Duration, interrupted: &Interrupted) -> anyhow::Result<()> {
    const POLL: Duration = Duration::from_millis(100);
    let end = std::time::Instant::now() + time;
    while std::time::Instant::now() < end {
        interrupted.check()?;
        std::thread::sleep(POLL);
    }
    Ok(())
}
