//! The router's machinery as a program of its own, in front of copies of any server: HTTP request
//! by request, TCP by connections, UDP by flows. No node, no store. Driven by `cortex proxy`.

pub mod back_ends;
pub mod control;
pub mod health;
pub mod records;
mod sharing;
pub mod tcp;
pub mod udp;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, ensure};
use router_core::balance::Balance;
use router_core::detect::Sort;
use router_core::http::request::ForwardedFields;
use router_core::proxy_protocol::{HeaderVersion, Senders};
use tokio::net::UnixListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::Instant;

use self::back_ends::{BackEndConfig, BackEndName, BackEndSettings, BackEnds};
use self::control::{Controlled, ProxyHeir, carried};
use self::health::HealthCheck;
use self::records::{Figures, Recorder, RecordsWriter};
use metrics::Metrics;
use os::finishing::Finishing;
use os::shared_port::{BoundListeners, Listeners};
use router::alone;
use router::alone::Alone;
use router::datagrams;
use router::datagrams::FLOWS_MAX;
use runtime::driver::Clock;
use tls::{CertificateFiles, Tls};

/// The maximum wait for what is under way when somebody ends the proxy.
const STOP_TIME_MAX: Duration = Duration::from_secs(10);
/// The interval at which back ends are forgotten that were removed and are empty.
const REAP_INTERVAL: Duration = Duration::from_secs(1);

/// The interval at which a proxy that was taken over looks whether it is to make room.
const FINISHING_INTERVAL: Duration = Duration::from_secs(1);
/// The ending, behind the control socket's path, of the directory where those are counted.
const FINISHING_ENDING: &str = ".finishing";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Requests are distributed one by one.
    Http {
        forwarded: ForwardedFields,
    },
    Tcp {
        send_proxy: Option<HeaderVersion>,
    },
    Udp,
}

#[derive(Clone)]
pub struct ProxyConfig {
    pub listen: SocketAddr,
    pub mode: Mode,
    /// The sorts of clients that are told apart; a single `None` where all are alike.
    pub sorts: Vec<Option<Sort>>,
    pub back_ends: Vec<BackEndConfig>,
    pub balance: &'static dyn Balance,
    /// The certificates for clients inside TLS (http); empty for plain ones.
    pub certificates: Vec<CertificateFiles>,
    /// The proxies that announce of each connection whose it is (http, tcp).
    pub announced_by: Option<Senders>,
    pub concurrency: Option<u32>,
    pub check: Option<HealthCheck>,
    pub check_interval: Duration,
    pub threads: usize,
    /// The time after which a connection or a flow on which nothing moves is ended.
    pub idle: Duration,
    /// The time that clients of a proxy that was taken over may stay.
    pub drain: Duration,
    pub records: Option<PathBuf>,
    pub stats: bool,
    /// The control socket; `None` for one beside the others of this user, under the address.
    pub control: Option<PathBuf>,
    /// The directory of those sockets.
    pub runtime: PathBuf,
    pub take_over: bool,
}

/// Whether new clients are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyPhase {
    Serving,
    /// Another process goes on: clients that are here may stay until then.
    Leaving(Instant),
    /// The proxy ends: what is under way may go on until then.
    Ending(Instant),
}

async fn until_phase_changes(phase: &mut watch::Receiver<ProxyPhase>) {
    // If the sender of phases is gone, nobody will serve for long.
    phase.changed().await.ok();
}

/// The messages for people, shown by the program that started this.
pub trait Announcer {
    fn listening(&self, at: SocketAddr, control: &Path);
    fn figures(&self, figures: &Figures);
    fn taken_over(&self);
}

enum Workers {
    Router(Arc<Alone>),
    Threads(watch::Sender<ProxyPhase>, Mutex<Vec<JoinHandle<()>>>),
}

impl Workers {
    fn end(&self, limit: Duration, taken_over: bool) {
        match self {
            Workers::Router(router) if taken_over => router.leave(limit),
            Workers::Router(router) => router.stop(limit),
            Workers::Threads(phase, _) => {
                let deadline = Instant::now() + limit;
                phase.send_replace(match taken_over {
                    true => ProxyPhase::Leaving(deadline),
                    false => ProxyPhase::Ending(deadline),
                });
            }
        }
    }

    /// Waits until all threads have ended. Blocks.
    fn join(&self) {
        match self {
            Workers::Router(router) => router.join(),
            Workers::Threads(_, joins) => {
                let mut joins = joins.lock().unwrap_or_else(PoisonError::into_inner);
                joins.drain(..).for_each(|join| drop(join.join()));
            }
        }
    }
}

/// The sockets that clients come to.
enum Sockets {
    Streams(Vec<std::net::TcpListener>),
    Datagrams(Vec<std::net::UdpSocket>),
}

impl Sockets {
    fn bind(
        config: &ProxyConfig,
        inherited: BoundListeners,
    ) -> anyhow::Result<(Sockets, SocketAddr, BoundListeners)> {
        let address = config.listen;
        if config.mode == Mode::Udp {
            let mut sockets: Vec<std::net::UdpSocket> = match inherited.into_iter().next() {
                Some((_, carried)) => carried
                    .into_iter()
                    .map(|socket| std::os::fd::OwnedFd::from(socket).into())
                    .collect(),
                None => Vec::new(),
            };
            if sockets.is_empty() {
                sockets = datagrams::bind(address, config.threads)?;
            }
            let at = sockets[0].local_addr()?;
            let copies: Result<Vec<_>, _> =
                sockets.iter().map(std::net::UdpSocket::try_clone).collect();
            let bound = BoundListeners::from([(at, carried(copies?))]);
            return Ok((Sockets::Datagrams(sockets), at, bound));
        }
        let listeners = Listeners::inheriting(inherited).bind(address, config.threads)?;
        let at = listeners[0].local_addr()?;
        let copies: Result<Vec<_>, _> =
            listeners.iter().map(std::net::TcpListener::try_clone).collect();
        let bound = BoundListeners::from([(at, copies?)]);
        Ok((Sockets::Streams(listeners), at, bound))
    }
}

/// Serves until a signal ends it or another process has taken over.
pub fn run(config: &ProxyConfig, told: &dyn Announcer) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(serve(config, told));
    runtime.shutdown_background();
    ended
}

async fn serve(config: &ProxyConfig, told: &dyn Announcer) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let mut asked = signal(SignalKind::user_defined1())?;
    let mut config = config.clone();
    let heir = match config.take_over {
        true => Some(ProxyHeir::meet(&config.control_path(config.listen)).await?),
        false => None,
    };
    let (mut inherited, mut elsewhere) = (BoundListeners::new(), Vec::new());
    let heir = heir.map(|mut heir| {
        inherited = std::mem::take(&mut heir.listeners);
        elsewhere = std::mem::take(&mut heir.names);
        if config.back_ends.is_empty() {
            config.back_ends = std::mem::take(&mut heir.back_ends);
        }
        heir
    });
    ensure!(
        !config.take_over || inherited.contains_key(&config.listen),
        "--take-over: the proxy that runs does not listen on {}",
        config.listen
    );
    let (sockets, at, bound) = Sockets::bind(&config, inherited)?;
    let path = config.control_path(at);
    let control: UnixListener = match heir {
        Some(_) => control::bind_anew(&path)?,
        None => control::bind(&path).await?,
    };
    let metrics = Metrics::default();
    let (records, recorder) = RecordsWriter::start(config.records.as_deref(), metrics.clone())?;
    let started = start(&config, elsewhere.clone(), sockets, at, metrics, recorder).await;
    let (back_ends, workers) = match started {
        Ok(started) => started,
        Err(error) => {
            records.finish();
            std::fs::remove_file(&path).ok();
            return Err(error);
        }
    };
    let controlled = Arc::new(Controlled {
        back_ends: back_ends.clone(),
        listeners: bound,
        taken_over: tokio::sync::Notify::new(),
    });
    let mut parts = tokio::task::JoinSet::new();
    parts.spawn(control::serve(controlled.clone(), control));
    parts.spawn(reap(back_ends.clone()));
    if let Some(check) = config.check.clone() {
        parts.spawn(health::run(back_ends.clone(), check, config.check_interval));
    }
    if let Some(heir) = heir {
        let stream = heir.serves().await.context("the process from before is gone")?;
        // This goes on while this process leaves, too.
        tokio::spawn(sharing::come(back_ends, stream, elsewhere));
    }
    told.listening(at, &path);
    parts.spawn(runtime::settle::settle());
    let taken_over = loop {
        tokio::select! {
            () = signals.end() => break false,
            () = controlled.taken_over.notified() => break true,
            _ = asked.recv() => told.figures(&records.figures()),
        }
    };
    if taken_over {
        told.taken_over();
    } else {
        std::fs::remove_file(&path).ok();
    }
    parts.shutdown().await;
    drop(controlled);
    workers.end(if taken_over { config.drain } else { STOP_TIME_MAX }, taken_over);
    let ended = tokio::task::spawn_blocking({
        let workers = workers.clone();
        move || workers.join()
    });
    let making_room = async {
        if !taken_over {
            std::future::pending().await
        }
        await_followers(&path).await;
        tracing::warn!("proxy.makes_room");
        workers.end(STOP_TIME_MAX, false);
        std::future::pending().await
    };
    tokio::select! {
        _ = ended => {}
        // A second signal comes from somebody who does not want to wait.
        () = signals.end() => {}
        () = making_room => {}
    }
    records.finish();
    if config.stats {
        told.figures(&records.figures());
    }
    Ok(())
}

/// Resolves when so many processes have followed this one that it is to make room.
async fn await_followers(control: &Path) {
    let mut directory = control.as_os_str().to_owned();
    directory.push(FINISHING_ENDING);
    match Finishing::begin(directory.as_ref()) {
        Ok(own) => {
            while own.may_go_on() {
                tokio::time::sleep(FINISHING_INTERVAL).await;
            }
        }
        Err(error) => {
            tracing::warn!(error = format!("{error:#}"), "proxy.finishing_uncounted");
            std::future::pending().await
        }
    }
}

impl ProxyConfig {
    fn control_path(&self, at: SocketAddr) -> PathBuf {
        let kind = if self.mode == Mode::Udp { "udp" } else { "tcp" };
        let default = || control::default_path(&self.runtime, at, kind);
        self.control.clone().unwrap_or_else(default)
    }
}

/// The signals that end the proxy.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn end(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

async fn reap(back_ends: Arc<BackEnds>) {
    loop {
        tokio::select! {
            () = back_ends.emptied.notified() => {}
            () = tokio::time::sleep(REAP_INTERVAL) => {}
        }
        back_ends.reap();
    }
}

async fn start(
    config: &ProxyConfig,
    elsewhere: Vec<BackEndName>,
    sockets: Sockets,
    at: SocketAddr,
    metrics: Metrics,
    recorder: Recorder,
) -> anyhow::Result<(Arc<BackEnds>, Arc<Workers>)> {
    let clock = Clock::start();
    let (balance, concurrency) = (config.balance, config.concurrency);
    let settings = BackEndSettings { clock, balance, concurrency, elsewhere };
    let back_ends = |router: Option<Arc<Alone>>| {
        let (sorts, wanted) = (config.sorts.clone(), config.back_ends.clone());
        BackEnds::new(sorts, wanted, settings, router).map(Arc::new)
    };
    match (sockets, config.mode) {
        (Sockets::Streams(listeners), Mode::Http { forwarded }) => {
            let tls = match config.certificates.is_empty() {
                true => None,
                false => Some(Tls::load(config.certificates.clone())?),
            };
            if let Some(tls) = &tls {
                tokio::spawn(tls.follow());
            }
            let announced_by = config.announced_by.clone();
            let threads = listeners.len();
            let settings = alone::AloneSettings { at, threads, forwarded, tls, announced_by };
            let router = Arc::new(Alone::start(settings, clock, metrics)?);
            let back_ends = back_ends(Some(router.clone()))?;
            router.listen(listeners).await;
            Ok((back_ends, Arc::new(Workers::Router(router))))
        }
        (Sockets::Streams(listeners), mode) => {
            let send_proxy = match mode {
                Mode::Tcp { send_proxy } => send_proxy,
                Mode::Http { .. } | Mode::Udp => None,
            };
            let announced_by = config.announced_by.clone();
            let settings = tcp::TcpSettings { announced_by, send_proxy, idle: config.idle, clock };
            let back_ends = back_ends(None)?;
            let workers = spawn(listeners, &back_ends, move |back_ends, listener, phase| {
                tcp::run(back_ends, settings.clone(), recorder.clone(), listener, phase)
            })?;
            Ok((back_ends, workers))
        }
        (Sockets::Datagrams(sockets), _) => {
            let flows_max = (FLOWS_MAX / sockets.len().max(1)).max(1);
            let settings = udp::UdpSettings { idle: config.idle, flows_max, clock };
            let back_ends = back_ends(None)?;
            let workers = spawn(sockets, &back_ends, move |back_ends, socket, phase| {
                udp::run(back_ends, settings.clone(), recorder.clone(), socket, phase)
            })?;
            Ok((back_ends, workers))
        }
    }
}

/// Starts a thread for each socket.
fn spawn<S: Send + 'static>(
    sockets: Vec<S>,
    back_ends: &Arc<BackEnds>,
    work: impl Fn(Arc<BackEnds>, S, watch::Receiver<ProxyPhase>) -> anyhow::Result<()>
    + Clone
    + Send
    + 'static,
) -> anyhow::Result<Arc<Workers>> {
    let (phase, _) = watch::channel(ProxyPhase::Serving);
    let mut joins = Vec::new();
    for (index, socket) in sockets.into_iter().enumerate() {
        let (work, back_ends, phase) = (work.clone(), back_ends.clone(), phase.subscribe());
        let body = move || {
            if let Err(error) = work(back_ends, socket, phase) {
                tracing::error!(index, error = format!("{error:#}"), "proxy.thread_failed");
            }
        };
        let thread = std::thread::Builder::new().name(format!("proxy-{index}")).spawn(body);
        joins.push(thread.context("a thread of the proxy cannot be started")?);
    }
    Ok(Arc::new(Workers::Threads(phase, Mutex::new(joins))))
}
