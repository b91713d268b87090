//! Benchmarks that anybody can run again. Each starts what it measures, on addresses of this
//! machine, for a bounded time, and prints a table for people or JSON for machines.

mod answer;
mod concurrency;
mod fairness;
mod interrupted;
mod neighbour;
mod own_server;
mod platform;
mod poisson;
mod process;
mod proxy;
mod reliability;
mod routes;
mod serial;
mod statistics;
mod store;
mod websockets;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use serde::Serialize;

use self::interrupted::Interrupted;

/// Measures Cortex beside its peers, on this machine
#[derive(Debug, Parser)]
#[command(name = "cortex bench", bin_name = "cortex bench", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The same work on servers with threads, fibers and events while requests become more frequent
    Concurrency(concurrency::ConcurrencyArgs),
    /// How long a client with few requests waits while another floods with connections, beside
    /// others
    Fairness(fairness::FairnessArgs),
    /// What an application that forks and allocates without end costs its neighbour
    Neighbour(neighbour::NeighbourArgs),
    /// Push to first answer, recovery of a killed instance under load, memory, size of the binary
    Platform(platform::PlatformArgs),
    /// The router beside nginx and HAProxy: processor time per request, latency, memory
    Proxy(proxy::ProxyArgs),
    /// What lost machines cost: the thesis's test with `ab`, numbered requests, a pair of nodes
    Reliability(reliability::ReliabilityArgs),
    /// A router's table of very many applications: size, how soon a change takes effect, what it
    /// costs
    Routes(routes::RoutesArgs),
    /// Serial instances: quick requests among slow ones beside nginx and HAProxy, and computing
    Serial(serial::SerialArgs),
    /// The replicated store beside Redis, etcd, PostgreSQL and SQLite: set, lookup, delete
    Store(store::StoreArgs),
    /// Idle WebSockets: memory for each in the router, beside nginx and HAProxy
    Websockets(websockets::WebsocketsArgs),
    #[command(hide = true)]
    ProxyRouter(proxy::StandaloneArgs),
    #[command(hide = true)]
    ProxyLeast(proxy::LeastArgs),
}

fn main() -> ExitCode {
    match run(&Cli::parse().what) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the path of the `cortex` that is measured: the one beside this program, as both come
/// from one build.
fn cortex() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let beside = own.parent().map(|place| place.join("cortex")).filter(|path| path.is_file());
    beside
        .context("`cortex` is not beside this program: build both, or put them into one directory")
}

/// Returns what `cortex --version` prints: its version and the profile it was built with.
fn version() -> String {
    let said = cortex().and_then(|cortex| {
        let output = std::process::Command::new(cortex).arg("--version").output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    });
    let said = said.unwrap_or_default();
    said.trim().strip_prefix("cortex ").unwrap_or(env!("CARGO_PKG_VERSION")).to_owned()
}

/// Prints what is measured, and warns if it was built without the optimisation that is shipped, so
/// that nobody takes its figures for those of Cortex.
fn tell_profile() {
    let version = version();
    eprintln!("Measuring cortex {version}");
    if !version.ends_with("(dist)") {
        eprintln!(
            "It is not built as it is shipped; for figures that last: \
             cargo build --profile dist -p cortex -p bench"
        );
    }
}

fn run(what: &What) -> anyhow::Result<()> {
    if !matches!(what, What::ProxyRouter(_) | What::ProxyLeast(_)) {
        tell_profile();
    }
    match what {
        What::Concurrency(args) => concurrency::run(args),
        What::Fairness(args) => fairness::run(args),
        What::Neighbour(args) => neighbour::run(args),
        What::Platform(args) => platform::run(args),
        What::Proxy(args) => proxy::run(args),
        What::Reliability(args) => reliability::run(args),
        What::Routes(args) => routes::run(args),
        What::Serial(args) => serial::run(args),
        What::Store(args) => store::run(args),
        What::Websockets(args) => websockets::run(args),
        What::ProxyRouter(args) => proxy::run_standalone(args),
        What::ProxyLeast(args) => proxy::run_least(args),
    }
}

/// Returns the median of a few rounds, which a noisy neighbour hardly moves.
pub fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    match samples.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => samples[n / 2],
        n => f64::midpoint(samples[n / 2 - 1], samples[n / 2]),
    }
}

/// Runs `measure` in a new directory, below `place` or the directory for temporary files, and
/// removes it afterwards. After an interruption the error says so, rather than what broke because
/// everything had to stop.
fn in_directory<R>(
    place: Option<&Path>,
    measure: impl FnOnce(&Path, &Interrupted) -> anyhow::Result<R>,
) -> anyhow::Result<R> {
    let interrupted = Interrupted::default();
    interrupted.watch()?;
    let directory = new_directory(place.unwrap_or(&std::env::temp_dir()))?;
    let result = measure(&directory, &interrupted);
    fs::remove_dir_all(&directory).ok();
    interrupted.check().and(result)
}

fn print<R: Serialize>(
    report: &R,
    json: bool,
    table: impl FnOnce(&R) -> String,
) -> anyhow::Result<()> {
    match json {
        true => println!("{}", serde_json::to_string_pretty(report)?),
        false => print!("{}", table(report)),
    }
    Ok(())
}

fn new_directory(place: &Path) -> anyhow::Result<PathBuf> {
    let directory = place.join(format!("cortex-bench-{}", std::process::id()));
    fs::create_dir(&directory)
        .with_context(|| format!("{} cannot be made", directory.display()))?;
    Ok(directory)
}
