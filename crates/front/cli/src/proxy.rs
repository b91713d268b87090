//! `cortex proxy`: the router's machinery on its own, in front of copies of any server; and
//! `proxy back-ends`, which looks at a running one and changes it.

mod back_ends;
pub mod options;
mod table;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use recipe_core::manifest::domains::host_header;
use router_core::balance;
use router_core::detect::Sort;
use router_core::http::request::ForwardedFields;
use router_core::proxy_protocol::{HeaderVersion, Senders};
use tracing::level_filters::LevelFilter;

use self::options::{seconds, to_address};
use super::Session;
use os::directory;
use os::shared_port::allow_descriptors_up_to;
use proxy::back_ends::BackEndConfig;
use proxy::health::HealthCheck;
use proxy::{Mode, ProxyConfig};
use tls::CertificateFiles;

/// The descriptors wanted: twice all connections of two threads, since every connection takes two,
/// and some more.
const DESCRIPTORS_WANTED: u64 = 100_000;

const EXAMPLES: &str = "\
Examples:
  cortex proxy --listen 127.0.0.1:8080 --to 3001,3002,3003 --concurrency 1
      one address for three copies of a serial server; each gets one request at a time
  cortex proxy --listen 0.0.0.0:443 --to tls:git.example=10.0.0.2:443 --to tls=8443 --to ssh=22
      several services behind one port, told apart by the clients' first bytes
  cortex proxy --listen 127.0.0.1:5432 --mode tcp --to 10.0.0.2:5432,10.0.0.3:5432 --health tcp
      whole connections
  cortex proxy back-ends add 3004 --listen 127.0.0.1:8080
      one more, while it runs

docs/proxy.md says more.";

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub struct Proxy {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    serve: Serve,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List, add, remove, drain or weigh the back ends of a running proxy
    BackEnds(back_ends::BackEndsArgs),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ModeName {
    /// Request by request
    Http,
    /// Connection by connection
    Tcp,
    /// Datagrams, by client
    Udp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ProxyVersion {
    V1,
    V2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Forwarded {
    /// X-Forwarded-For and its like
    Usual,
    /// The same and Forwarded of RFC 7239
    Standard,
}

#[derive(Debug, Args)]
struct Serve {
    /// Where clients connect; a port alone is one of 127.0.0.1
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Back ends, several with commas; a port alone is one of 127.0.0.1. With `SORT=` in front only
    /// for clients that begin so: tls, tls:NAME, http, ssh or other
    #[arg(long, value_name = "[SORT=]HOST:PORT,…")]
    to: Vec<String>,
    /// What is passed on [default: http; tcp where clients are told apart]
    #[arg(long, value_enum)]
    mode: Option<ModeName>,
    /// Which back end is next
    #[arg(long, value_name = "NAME", default_value = balance::STRATEGIES[0].0)]
    strategy: String,
    /// Requests, connections or flows that a back end has at a time; the rest waits in one line
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    concurrency: Option<u32>,
    /// Ask back ends whether they are well: `tcp` connects, a PATH must answer 200 to 399
    #[arg(long, value_name = "tcp|PATH")]
    health: Option<String>,
    /// The name that they are asked for, as `Host` [default: their address]
    #[arg(long, value_name = "NAME", requires = "health")]
    health_host: Option<String>,
    /// The time between two such questions
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    health_interval: Duration,
    /// Tell back ends about the client in X-Forwarded-For, -Proto, -Host and X-Request-Id, or in
    /// Forwarded (RFC 7239) as well; without it not a byte is changed
    #[arg(
        long,
        value_enum,
        value_name = "HOW",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "usual"
    )]
    forwarded: Option<Forwarded>,
    /// Clients connect with TLS: a certificate in PEM form, followed by its authorities' (http).
    /// Once for each certificate; clients get the one that has the name they ask for
    #[arg(long = "tls-cert", value_name = "FILE")]
    chains: Vec<PathBuf>,
    /// The private key of the certificate before it, in PEM form
    #[arg(long = "tls-key", value_name = "FILE")]
    keys: Vec<PathBuf>,
    /// Clients come through a proxy that says who they are in the PROXY protocol, version 1 or 2;
    /// with addresses, only those that come from there (http, tcp)
    #[arg(
        long,
        value_name = "ADDRESS[/BITS],…",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "any"
    )]
    accept_proxy: Option<Senders>,
    /// Tell back ends who the client is in the PROXY protocol (tcp)
    #[arg(long, value_enum, value_name = "VERSION")]
    send_proxy: Option<ProxyVersion>,
    /// End connections (tcp: after 3600) and flows (udp: 60) on which nothing moves for this long
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    idle: Option<Duration>,
    /// How long clients of a proxy that was taken over may go on there
    #[arg(long, value_name = "SECONDS", default_value = "3600", value_parser = seconds)]
    drain: Duration,
    /// Threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// Write a line of JSON for every request or connection that has ended
    #[arg(long, value_name = "FILE")]
    records: Option<PathBuf>,
    /// Print requests per second and latency of each back end when it ends, and on SIGUSR1
    #[arg(long)]
    stats: bool,
    /// The socket for `proxy back-ends` [default: one in the runtime directory]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Go on where the proxy that runs on this address leaves off, without losing a connection;
    /// without --to, with its back ends
    #[arg(long)]
    take_over: bool,
    /// Log more
    #[arg(short, long)]
    verbose: bool,
}

impl Proxy {
    pub fn run(self, session: &Session) -> anyhow::Result<()> {
        match self.action {
            Some(Action::BackEnds(back_ends)) => back_ends.run(session),
            None => self.serve.run(session),
        }
    }
}

impl Serve {
    fn run(self, session: &Session) -> anyhow::Result<()> {
        let level = if self.verbose { LevelFilter::DEBUG } else { LevelFilter::WARN };
        let colours = std::io::stderr().is_terminal();
        let log = tracing_subscriber::fmt().with_max_level(level).with_target(false);
        log.with_ansi(colours).with_writer(std::io::stderr).init();
        let config = self.config(session)?;
        if config.control.is_none() {
            directory::private_socket_directory(&config.runtime)?;
        }
        allow_descriptors_up_to(DESCRIPTORS_WANTED);
        proxy::run(&config, &table::TableOutput)
    }

    fn config(self, session: &Session) -> anyhow::Result<ProxyConfig> {
        let listen = self
            .listen
            .as_deref()
            .context("say where clients connect: add for example --listen 127.0.0.1:8080")?;
        let listen = to_address(listen, "--listen", true)?;
        let (sorts, back_ends) = self.services()?;
        let mode = self.mode(&sorts)?;
        let balance = balance::strategy(&self.strategy).with_context(|| {
            let known: Vec<&str> = balance::STRATEGIES.iter().map(|(name, _)| *name).collect();
            format!("--strategy: '{}' is unknown; there are: {}", self.strategy, known.join(", "))
        })?;
        let check = self.check(mode)?;
        let idle = match (self.idle, mode) {
            (Some(_), Mode::Http { .. }) => anyhow::bail!(
                "--idle is for --mode tcp and udp; limits of HTTP are fixed (docs/proxy.md)"
            ),
            (Some(idle), _) => idle,
            (None, Mode::Udp) => Duration::from_secs(60),
            (None, _) => Duration::from_secs(3600),
        };
        let certificates = self.certificates(mode)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(ProxyConfig {
            listen,
            mode,
            sorts,
            back_ends,
            balance,
            certificates,
            announced_by: self.accept_proxy,
            concurrency: self.concurrency,
            check,
            check_interval: self.health_interval,
            threads: self.threads.map_or(cores, usize::from),
            idle,
            drain: self.drain,
            records: self.records,
            stats: self.stats,
            control: self.control,
            runtime: session.runtime.clone(),
            take_over: self.take_over,
        })
    }

    fn check(&self, mode: Mode) -> anyhow::Result<Option<HealthCheck>> {
        let check = match self.health.as_deref() {
            None => None,
            Some("tcp") => {
                anyhow::ensure!(
                    self.health_host.is_none(),
                    "--health-host: a check by connection sends no host name; use it with --health PATH"
                );
                Some(HealthCheck::Tcp)
            }
            Some(path) if path.starts_with('/') && path.bytes().all(|b| b.is_ascii_graphic()) => {
                let host = self.health_host.as_deref().map(host_header).transpose();
                let host = host.map_err(|why| anyhow::anyhow!("--health-host: {why}"))?;
                Some(HealthCheck::Http { path: path.into(), host })
            }
            Some(other) => anyhow::bail!(
                "--health: '{other}' is neither tcp nor a path; write for example --health /up"
            ),
        };
        anyhow::ensure!(
            check.is_none() || mode != Mode::Udp,
            "--health: servers of mode udp cannot be checked; leave it out"
        );
        Ok(check)
    }

    fn services(&self) -> anyhow::Result<(Vec<Option<Sort>>, Vec<BackEndConfig>)> {
        let (mut sorts, mut back_ends) = (Vec::new(), Vec::<BackEndConfig>::new());
        for text in &self.to {
            let (name, addresses) = match text.split_once('=') {
                Some((name, addresses)) => (Some(name), addresses),
                None => (None, text.as_str()),
            };
            let sort: Option<Sort> =
                name.map(str::parse).transpose().context(format!("--to {text}"))?;
            if !sorts.contains(&sort) {
                sorts.push(sort);
            }
            for one in addresses.split(',') {
                anyhow::ensure!(
                    !one.contains('='),
                    "--to {text}: each sort has an option of its own, for example \
                     --to tls=3001 --to http=3002,3003"
                );
                let address = to_address(one, "--to", false)?;
                let sort = name.map(str::to_owned);
                let wanted = BackEndConfig { address, sort, weight: 1, draining: false };
                anyhow::ensure!(!back_ends.contains(&wanted), "--to: {address} is named twice");
                back_ends.push(wanted);
            }
        }
        anyhow::ensure!(
            !sorts.is_empty() || self.take_over,
            "there is no back end: add for example --to 127.0.0.1:3001,127.0.0.1:3002"
        );
        anyhow::ensure!(
            sorts.len() <= 1 || !sorts.contains(&None),
            "--to: say for all back ends which clients they are for, or for none; \
             `other=` takes what nobody else does"
        );
        if sorts.is_empty() {
            sorts.push(None);
        }
        Ok((sorts, back_ends))
    }

    fn certificates(&self, mode: Mode) -> anyhow::Result<Vec<CertificateFiles>> {
        let Self { chains, keys, .. } = self;
        anyhow::ensure!(
            chains.len() == keys.len(),
            "--tls-cert is given {} times and --tls-key {} times: each certificate needs its key",
            chains.len(),
            keys.len()
        );
        anyhow::ensure!(
            chains.is_empty() || matches!(mode, Mode::Http { .. }),
            "--tls-cert is for --mode http; the other modes pass TLS on as it comes"
        );
        let pairs = chains.iter().cloned().zip(keys.iter().cloned());
        Ok(pairs.map(|(chain, key)| CertificateFiles { chain, key }).collect())
    }

    fn mode(&self, sorts: &[Option<Sort>]) -> anyhow::Result<Mode> {
        let apart = sorts.iter().any(Option::is_some);
        let name = self.mode.unwrap_or(if apart { ModeName::Tcp } else { ModeName::Http });
        anyhow::ensure!(
            !apart || name == ModeName::Tcp,
            "--to: only --mode tcp tells clients apart, each connection as a whole"
        );
        anyhow::ensure!(
            self.accept_proxy.is_none() || name != ModeName::Udp,
            "--accept-proxy is for --mode http and tcp; datagrams carry no such header"
        );
        if name != ModeName::Tcp {
            anyhow::ensure!(
                self.send_proxy.is_none(),
                "--send-proxy is for --mode tcp: in the other modes clients share connections to \
                 back ends; --forwarded tells HTTP servers who asks"
            );
        }
        anyhow::ensure!(
            self.forwarded.is_none() || name == ModeName::Http,
            "--forwarded is for --mode http: the other modes have no headers; see --send-proxy"
        );
        Ok(match name {
            ModeName::Http => Mode::Http {
                forwarded: match self.forwarded {
                    None => ForwardedFields::Nothing,
                    Some(Forwarded::Usual) => ForwardedFields::Usual,
                    Some(Forwarded::Standard) => ForwardedFields::Standard,
                },
            },
            ModeName::Tcp => Mode::Tcp {
                send_proxy: self.send_proxy.map(|version| match version {
                    ProxyVersion::V1 => HeaderVersion::V1,
                    ProxyVersion::V2 => HeaderVersion::V2,
                }),
            },
            ModeName::Udp => Mode::Udp,
        })
    }
}
