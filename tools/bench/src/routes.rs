//! The benchmark of a table of very many applications: how long it takes to build, how much memory
//! it takes, how soon the router's thread uses a change of one application, how much processor time
//! that takes, and what a stream of changes costs requests.
//! Store, router and clients are in this process; the endpoints are two servers under many names.

mod answering;
mod report;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use futures_util::{StreamExt, TryStreamExt};
use model::ApplicationName;
use router_core::http::request::ForwardedFields;

use self::answering::{Answering, NEW, OLD};
use self::report::Report;
use super::interrupted::Interrupted;
use super::proxy::{World, web};
use super::serial::client::Client;
use super::statistics::Latencies;
use super::{in_directory, print, process};
use metrics::Metrics;
use node::records::StoredRecords;
use os::layout::DataDirectory;
use router::queue::QueueLimits;
use router::{CONNECTIONS_MAX, RouterConfig, RouterHandle};
use runtime::driver::Clock;
use runtime::faults::Faults;
use runtime::supervise::supervise;
use store::SharedStore;
use store::options::Options;

/// The number of writes under way at a time, which the store commits together.
const WRITES_AT_ONCE: usize = 512;
const BUILD_TIME_MAX: Duration = Duration::from_secs(300);
/// The time limit for a change to take effect; a slower one is a fault.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(2);
/// The application whose endpoint alone is replaced while its changes are timed.
const WATCHED: &str = "watched";
/// The pause between two changes of the stream beside the requests: a hundred a second.
const CHANGE_INTERVAL: Duration = Duration::from_millis(10);

#[derive(Debug, Args)]
pub struct RoutesArgs {
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=50000))]
    applications: u32,
    /// Endpoints of each application
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    endpoints: u32,
    /// Changes that are timed
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    changes: u32,
    /// Seconds of requests, without changes and then beside them
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Connections that ask for one application after the other
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    connections: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &RoutesArgs) -> anyhow::Result<()> {
    let report = in_directory(None, |directory, interrupted| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build()?;
        let result = runtime.block_on(measure(args, directory, interrupted));
        runtime.shutdown_timeout(Duration::from_secs(5));
        result
    })?;
    print(&report, args.json, Report::table)
}

struct Site<'a> {
    args: &'a RoutesArgs,
    world: World,
    store: SharedStore,
    old: Answering,
    new: Answering,
    interrupted: &'a Interrupted,
}

async fn measure(
    args: &RoutesArgs,
    directory: &Path,
    interrupted: &Interrupted,
) -> anyhow::Result<Report> {
    let clock = Clock::start();
    let layout = DataDirectory::new(directory.join("data"), directory);
    let world = World { node: "bench".parse()?, clock, layout: layout.clone() };
    let store = {
        let (layout, node) = (layout.clone(), world.node.clone());
        tokio::task::spawn_blocking(move || {
            store::open::open_alone(&layout, node, clock, Options::default())
        })
        .await??
    };
    let (old, new) = (Answering::start(OLD)?, Answering::start(NEW)?);
    let site = Site { args, world, store, old, new, interrupted };
    eprintln!("writing {} applications", args.applications);
    site.fill().await?;

    let before_kb = process::own_resident_kb()?;
    let (metrics, faults) = (Metrics::default(), Faults::default());
    let config = RouterConfig {
        public: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        threads: Some(1),
        queue: QueueLimits::default(),
        connections_max: CONNECTIONS_MAX,
        listeners: Arc::default(),
        secure: None,
        announced_by: None,
        forwarded: ForwardedFields::Usual,
    };
    let node = site.world.node.clone();
    let router = Arc::new(router::start(
        &config,
        Arc::new(StoredRecords(site.store.clone())),
        node,
        layout,
        clock,
        faults,
        metrics,
    )?);
    let started = Instant::now();
    let control = {
        let router = router.clone();
        tokio::spawn(supervise("router.control", move || router.control()))
    };
    let result = site.watch(&router, started, before_kb).await;
    control.abort();
    let stopping = router.clone();
    tokio::task::spawn_blocking(move || stopping.stop(Duration::from_secs(1))).await?;
    site.store.close().await?;
    result
}

impl Site<'_> {
    async fn fill(&self) -> anyhow::Result<()> {
        let names = (0..self.args.applications).map(|number| (name(number), self.args.endpoints));
        let watched = (WATCHED.to_owned(), 1);
        let writes = names.chain([watched]).map(|(name, endpoints)| async move {
            self.interrupted.check()?;
            let name: ApplicationName = name.parse()?;
            self.world.release(&self.store, &name, web()).await?;
            for slot in 1..=endpoints {
                self.world.claim(&self.store, &name, (slot, 1), self.old.port, None).await?;
            }
            Ok::<_, anyhow::Error>(())
        });
        futures_util::stream::iter(writes).buffer_unordered(WRITES_AT_ONCE).try_collect().await
    }

    async fn watch(
        &self,
        router: &RouterHandle,
        started: Instant,
        before_kb: u64,
    ) -> anyhow::Result<Report> {
        let (release, last) = (self.world.release_id(), name(self.args.applications - 1).parse()?);
        let watched: ApplicationName = WATCHED.parse()?;
        while !router.serves(&last, &release) || !router.serves(&watched, &release) {
            self.interrupted.check()?;
            ensure!(started.elapsed() < BUILD_TIME_MAX, "the table was not built in time");
            tokio::time::sleep(POLL).await;
        }
        let build_seconds = started.elapsed().as_secs_f64();
        let grown_kb = process::own_resident_kb()?.saturating_sub(before_kb);
        let port = router.public().context("the router's address")?.port();
        eprintln!("timing {} changes", self.args.changes);
        let (stored, used) = self.time_changes(port).await?;
        eprintln!("changing without requests");
        let cost = self.cost_of_change().await?;
        eprintln!("asking without changes, then beside them");
        let quiet = self.ask(port, None).await?;
        let changed = AtomicU64::new(0);
        let busy = self.ask(port, Some(&changed)).await?;
        Report::new(self.args, build_seconds, grown_kb, (stored, used), (quiet, busy))
            .map(|report| report.changed(cost, changed.into_inner()))
    }

    /// Returns the latencies until the first answer of the new endpoint, counted from when each
    /// write was acknowledged and from when it began.
    async fn time_changes(&self, port: u16) -> anyhow::Result<(Latencies, Latencies)> {
        let name: ApplicationName = WATCHED.parse()?;
        let mut client = Client::new(port, Ipv4Addr::LOCALHOST);
        client.host = format!("{WATCHED}.localhost");
        let (mut from_stored, mut from_asked) = (Latencies::default(), Latencies::default());
        for change in 0..self.args.changes {
            self.interrupted.check()?;
            let (to, status) = match change % 2 {
                0 => (&self.new, NEW),
                _ => (&self.old, OLD),
            };
            let (asked, incarnation) = (Instant::now(), (1, u64::from(change) + 2));
            self.world.claim(&self.store, &name, incarnation, to.port, None).await?;
            let stored = Instant::now();
            while client.ask("/").await? != status {
                ensure!(stored.elapsed() < CHANGE_TIME_MAX, "a change was never used");
            }
            from_stored.add(stored.elapsed());
            from_asked.add(asked.elapsed());
        }
        Ok((from_stored, from_asked))
    }

    /// Returns the processor time of one change, with its write in the store, and without what the
    /// process uses when idle.
    async fn cost_of_change(&self) -> anyhow::Result<Duration> {
        let (name, changes) = (WATCHED.parse()?, self.args.changes);
        let began = process::own_processor_time();
        for _ in 0..changes {
            self.interrupted.check()?;
            tokio::time::sleep(CHANGE_INTERVAL).await;
        }
        let idle = process::own_processor_time() - began;
        for change in 0..changes {
            self.interrupted.check()?;
            let to = if change % 2 == 0 { &self.new } else { &self.old };
            // The generations before it were used by the timed changes.
            let incarnation = (1, u64::from(changes) + u64::from(change) + 2);
            self.world.claim(&self.store, &name, incarnation, to.port, None).await?;
            tokio::time::sleep(CHANGE_INTERVAL).await;
        }
        let all = process::own_processor_time() - began;
        Ok(all.saturating_sub(2 * idle) / changes)
    }

    /// Counts answers within the time and failures, while applications change that are asked for as
    /// well.
    async fn ask(&self, port: u16, changed: Option<&AtomicU64>) -> anyhow::Result<Asked> {
        let time = Duration::from_secs(self.args.seconds);
        let load = Load::start(port, self.args.connections, self.args.applications)?;
        let end = Instant::now() + time;
        let result = async {
            while Instant::now() < end {
                self.interrupted.check()?;
                if let Some(changed) = changed {
                    let number = changed.fetch_add(1, Ordering::Relaxed);
                    let of = u64::from(self.args.applications);
                    let which = name(u32::try_from(model::hash::mix(number) % of)?);
                    let to = if number % 2 == 0 { &self.new } else { &self.old };
                    let incarnation = (1, number + 2);
                    self.world
                        .claim(&self.store, &which.parse()?, incarnation, to.port, None)
                        .await?;
                }
                tokio::time::sleep(CHANGE_INTERVAL).await;
            }
            Ok(())
        };
        let result: anyhow::Result<()> = result.await;
        let asked = tokio::task::spawn_blocking(move || load.stop()).await?;
        result.map(|()| asked)
    }
}

fn name(number: u32) -> String {
    format!("app-{number}")
}

#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub requests_per_second: f64,
    pub failed: usize,
}

#[derive(Default)]
struct Counts {
    answered: AtomicUsize,
    failed: AtomicUsize,
    stopped: AtomicBool,
}

/// Clients in a closed loop, on a thread of their own.
struct Load {
    counts: Arc<Counts>,
    started: Instant,
    thread: std::thread::JoinHandle<()>,
}

impl Load {
    fn start(port: u16, connections: u32, applications: u32) -> anyhow::Result<Load> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let counts = Arc::new(Counts::default());
        let shared = counts.clone();
        let body = move || {
            runtime.block_on(async {
                let clients = (0..connections).map(|first| {
                    let counts = shared.clone();
                    async move {
                        let mut client = Client::new(port, Ipv4Addr::LOCALHOST);
                        for turn in 0_u32.. {
                            let number = first.wrapping_add(turn.wrapping_mul(connections));
                            client.host = format!("{}.localhost", name(number % applications));
                            match client.ask("/").await {
                                Ok(OLD | NEW) => &counts.answered,
                                _ => &counts.failed,
                            }
                            .fetch_add(1, Ordering::Relaxed);
                            if counts.stopped.load(Ordering::Relaxed) {
                                return;
                            }
                        }
                    }
                });
                futures_util::future::join_all(clients).await;
            });
        };
        let thread = std::thread::Builder::new().name("load".into()).spawn(body)?;
        Ok(Load { counts, started: Instant::now(), thread })
    }

    fn stop(self) -> Asked {
        let answered = self.counts.answered.load(Ordering::Relaxed) as f64;
        let requests_per_second = answered / self.started.elapsed().as_secs_f64();
        self.counts.stopped.store(true, Ordering::Relaxed);
        self.thread.join().ok();
        Asked { requests_per_second, failed: self.counts.failed.load(Ordering::Relaxed) }
    }
}
