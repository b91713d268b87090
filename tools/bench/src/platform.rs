//! The benchmark of one node: the time from a push to the first answer, what a killed instance
//! costs its clients, and how much memory the node and a shim take. Everything is measured from
//! outside: by the command line, by a client that numbers its requests, and by `/proc`.

pub mod client;
pub mod node;
mod walls;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use serde::Serialize;

use self::client::Load;
use self::node::BenchNode;
use super::{median, new_directory};

const EXAMPLE: &str = include_str!("../../../examples/hello/app.py");
/// The example's settings, with four instances, so that three go on when one is killed.
const EXAMPLE_SETTINGS: &str = include_str!("../../../examples/hello/cortex.toml");
const CLIENTS: usize = 4;
/// How long the load goes on after a kill: enough for an instance to be replaced several times
/// over.
const LOAD_AFTER_KILL: Duration = Duration::from_secs(4);
const LOAD_BEFORE_KILL: Duration = Duration::from_secs(1);
/// The time that a node that has just started gets to settle.
const SETTLE: Duration = Duration::from_secs(3);

#[derive(Debug, Args)]
pub struct PlatformArgs {
    /// Rounds of each measurement; the median is printed
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=50))]
    rounds: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Figures {
    rounds: u32,
    /// The median time from `cortex push` of a new application until its URL answered.
    push_new_s: f64,
    /// The median time from `cortex push` of a second release until it answered.
    push_again_s: f64,
    kills: Vec<Kill>,
    /// The median time of a command that does nothing, without a wall and behind one.
    start_plain_ms: f64,
    start_walled_ms: f64,
    /// The same with a network of its own.
    start_full_ms: f64,
    idle_node_rss_kb: u64,
    idle_node_pss_kb: u64,
    shim_private_kb: u64,
    binary_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Kill {
    requests: u64,
    failed: u64,
    /// The time from the signal to the first answer by the new process of that slot.
    back_after_s: Option<f64>,
}

pub fn run(args: &PlatformArgs) -> anyhow::Result<()> {
    let directory = new_directory(&std::env::temp_dir())?;
    let result = measure(args, &directory);
    fs::remove_dir_all(&directory).ok();
    let figures = result?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&figures)?);
    } else {
        print_table(&figures);
    }
    Ok(())
}

fn measure(args: &PlatformArgs, directory: &Path) -> anyhow::Result<Figures> {
    let source = directory.join("hello");
    fs::create_dir(&source)?;
    fs::write(source.join("app.py"), EXAMPLE)?;
    fs::write(source.join("cortex.toml"), EXAMPLE_SETTINGS)?;
    let node = BenchNode::start(&directory.join("data"))?;
    eprintln!("a node without applications settles");
    std::thread::sleep(SETTLE);
    let idle_node_rss_kb = node::memory_kb(node.pid(), &["Rss:"])?;
    let idle_node_pss_kb = node::memory_kb(node.pid(), &["Pss:"])?;
    node.push(&source, "warmup")?;
    node.destroy("warmup")?;

    let mut push_new = Vec::new();
    let mut push_again = Vec::new();
    for round in 1..=args.rounds {
        eprintln!("push, round {round} of {}", args.rounds);
        let name = format!("bench{round}");
        push_new.push(timed_push(&node, &source, &name)?);
        push_again.push(timed_push(&node, &source, &name)?);
        node.destroy(&name)?;
    }

    eprintln!("starts without a wall and behind one");
    let starts = walls::starts(&node, directory)?;
    let url = node.push(&source, "victim")?;
    let mut kills = Vec::new();
    for round in 1..=args.rounds {
        eprintln!("kill -9 under load, round {round} of {}", args.rounds);
        kills.push(kill_under_load(&node, &url, round as usize)?);
    }
    let victim = node.instances("victim")?.first().context("no instance runs")?.pid;
    let shim_private_kb =
        node::memory_kb(node::parent_of(victim)?, &["Private_Clean:", "Private_Dirty:"])?;
    let binary_bytes = fs::metadata(crate::cortex()?)?.len();
    Ok(Figures {
        rounds: args.rounds,
        push_new_s: median(push_new),
        push_again_s: median(push_again),
        kills,
        start_plain_ms: starts.plain_ms,
        start_walled_ms: starts.walled_ms,
        start_full_ms: starts.full_ms,
        idle_node_rss_kb,
        idle_node_pss_kb,
        shim_private_kb,
        binary_bytes,
    })
}

/// Returns the seconds from the start of a push until the printed URL has answered an outside
/// client.
fn timed_push(node: &BenchNode, source: &Path, name: &str) -> anyhow::Result<f64> {
    let start = Instant::now();
    let url = node.push(source, name)?;
    client::get_once(&url)?;
    Ok(start.elapsed().as_secs_f64())
}

/// Kills an instance under load; another slot in each round, as one that fails again and again is
/// made to wait.
fn kill_under_load(node: &BenchNode, url: &str, round: usize) -> anyhow::Result<Kill> {
    let before = node.instances("victim")?;
    ensure!(before.len() == CLIENTS, "four instances were expected, {} run", before.len());
    let load = Load::start(url, CLIENTS)?;
    std::thread::sleep(LOAD_BEFORE_KILL);
    let victim = &before[round % before.len()];
    let killed_at = Instant::now();
    node::kill(victim.pid)?;
    std::thread::sleep(LOAD_AFTER_KILL);
    let report = load.stop();
    let known: Vec<u32> = before.iter().map(|instance| instance.pid).collect();
    let back_after_s = report
        .first_answers
        .iter()
        .filter(|(pid, _)| !known.contains(pid))
        .map(|(_, at)| at.saturating_duration_since(killed_at).as_secs_f64())
        .min_by(f64::total_cmp);
    Ok(Kill { requests: report.requests, failed: report.failed, back_after_s })
}

fn print_table(figures: &Figures) {
    let worst = |values: Vec<f64>| values.into_iter().fold(0.0, f64::max);
    let failed: Vec<u64> = figures.kills.iter().map(|kill| kill.failed).collect();
    // An instance that never came back is worse than any that did.
    let back: Vec<f64> =
        figures.kills.iter().map(|kill| kill.back_after_s.unwrap_or(f64::INFINITY)).collect();
    let requests: u64 = figures.kills.iter().map(|kill| kill.requests).sum();
    println!("figure                                            measured     at most");
    println!(
        "push to answer, new application (median)      {:>10.2} s    1.50 s",
        figures.push_new_s
    );
    println!(
        "push to answer, second release (median)       {:>10.2} s    1.50 s",
        figures.push_again_s
    );
    println!(
        "failed requests per kill -9 of 1 in 4          {:>11}    1 (in its hands)",
        failed.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
    );
    println!("  of requests in all                          {requests:>12}");
    println!(
        "killed instance answers again (median)        {:>10.2} s    1.00 s",
        median(back.clone())
    );
    println!("killed instance answers again (worst)         {:>10.2} s    1.00 s", worst(back));
    println!("a command starts and ends (median)           {:>10.1} ms", figures.start_plain_ms);
    println!(
        "  behind a wall it takes longer by           {:>10.1} ms   10.0 ms",
        figures.start_walled_ms - figures.start_plain_ms
    );
    println!(
        "  with a network of its own by               {:>10.1} ms   10.0 ms",
        figures.start_full_ms - figures.start_plain_ms
    );
    println!(
        "idle node, resident                          {:>10.1} MiB  20.0 MiB",
        mib(figures.idle_node_rss_kb)
    );
    println!(
        "idle node, proportional share                {:>10.1} MiB",
        mib(figures.idle_node_pss_kb)
    );
    println!(
        "shim, private                                {:>10.2} MiB   1.00 MiB",
        mib(figures.shim_private_kb)
    );
    println!(
        "binary                                       {:>10.1} MiB  15.0 MiB",
        mib(figures.binary_bytes / 1024)
    );
}

fn mib(kb: u64) -> f64 {
    kb as f64 / 1024.0
}
