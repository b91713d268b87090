//! `cortex up [DIR]`: runs the node in this process, or in the background with `--detach`.

use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use model::role::Roles;
use router_core::http::request::ForwardedFields;
use router_core::proxy_protocol::Senders;
use tokio::time::Instant;
use tracing::level_filters::LevelFilter;

use super::authority::AuthorityArgs;
use super::https::HttpsArgs;
use super::proxy::options::seconds;
use super::store::cluster::PeerArgs;
use super::{Exit, Session, address, output, push};
use api_types::upgrade::NodeVitals;
use client::Client;
use cluster::frame::Versions;
use cluster::options::PeerOptions;
use node::backend::Backend;
use node::started::Started;
use node::{DRAIN_DEFAULT, NodeConfig, RunEnd, roles};
use os::activation::Activation;
use os::binaries::{self, BinaryRole};
use os::layout::DataDirectory;
use os::shared_port::Listeners;
use runtime::task;
use upgrade::attend::Interrupts;
use upgrade::leaving::Over;
use upgrade::succession;
use upgrade::succession::{Heir, TrialOutcome};
use upgrade::{ProcessOrigin, attend, leaving};

const HTTP_DEFAULT: &str = "0.0.0.0:8080";
/// The longest wait for a node to answer; recovery of a large store takes seconds.
const START_WAIT_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// The size limit of a node's own log; with the previous one it takes at most twice that.
const LOG_BYTES_MAX: u64 = 10 * 1024 * 1024;

#[derive(Debug, Args)]
pub struct Up {
    /// A directory to push once the node runs
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Where public HTTP listens; applications' own ports are on the same address
    #[arg(
        long,
        value_name = "HOST:PORT",
        default_value = HTTP_DEFAULT,
        value_parser = address::public
    )]
    http: SocketAddr,
    #[command(flatten)]
    https: HttpsArgs,
    #[command(flatten)]
    authority: AuthorityArgs,
    /// Clients come through proxies that say who they are in the PROXY protocol, version 1 or 2,
    /// from these addresses; all others come for themselves
    #[arg(long, value_name = "ADDRESS[/BITS],…", require_equals = true)]
    accept_proxy: Option<Senders>,
    /// Tell applications who asks in Forwarded (RFC 7239), too, besides X-Forwarded-For and its
    /// like
    #[arg(long)]
    forwarded: bool,
    /// Where the store is kept: local, or etcd://HOST:PORT[,HOST:PORT…][/PREFIX]
    #[arg(long, value_name = "WHERE", default_value_t)]
    store: Backend,
    #[command(flatten)]
    peers: PeerArgs,
    /// What this node does: some of store, agent, router and checker, with commas between them
    /// [default: what it did before, else all]
    #[arg(long, value_name = "ROLES")]
    roles: Option<Roles>,
    /// Open the store to Redis clients on this machine, for example at 127.0.0.1:8206
    #[arg(long, value_name = "HOST:PORT", value_parser = address::local)]
    redis: Option<SocketAddr>,
    /// Run in the background, with DATA/node.log
    #[arg(long)]
    detach: bool,
    /// Router threads [default: one per core]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// How long connections may go on in the process from before an upgrade
    #[arg(long, value_name = "SECONDS", default_value = "3600", value_parser = seconds)]
    drain: Duration,
    /// Report this load in percent instead of what /proc says, if that is of a whole host
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100))]
    load: Option<u32>,
    /// Log more
    #[arg(short, long)]
    verbose: bool,
    /// Let tests make parts fail
    #[arg(long, hide = true)]
    fail_points: bool,
    /// Seconds by which tests make this node's clock wrong
    #[arg(
        long,
        hide = true,
        requires = "fail_points",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    clock_off: i64,
    /// Lowest and highest protocol between nodes that tests make this node speak, such as `2-3`
    #[arg(long, hide = true, requires = "fail_points")]
    wire_versions: Option<Versions>,
    /// Set by --detach for the process it starts
    #[arg(long, hide = true)]
    detached: bool,
    /// Set by an upgrade: another process hands the node over to this one
    #[arg(long, hide = true)]
    take_over: bool,
    /// Set by an upgrade: another process stands for this one
    #[arg(long, hide = true)]
    attended: bool,
}

impl Up {
    pub fn run(self, session: &Session) -> anyhow::Result<()> {
        if let Some(directory) = &self.directory {
            anyhow::ensure!(
                directory.is_dir(),
                "{} is not a directory: name one to push",
                directory.display()
            );
        }
        if let Some(roles) = self.roles.as_ref().filter(|_| !self.detached && !self.take_over) {
            for line in roles::changes(&session.layout, roles)? {
                output::say(&line);
            }
        }
        if self.detach {
            return self.run_detached(session);
        }
        self.start_log(&session.layout)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("control")
            .enable_all()
            .build()?;
        let left = runtime.block_on(self.run_node(session))?;
        runtime.shutdown_background();
        match left {
            // The process that started this one goes on seeing it.
            Some((Over::Finished(node), program)) if self.is_first() => {
                Err(attend::become_attendant(&session.layout, &program, node))
            }
            None | Some((Over::Finished(_) | Over::WithNode(0), _)) => Ok(()),
            Some((Over::WithNode(code), _)) => Err(Exit(code).into()),
        }
    }

    /// Returns whether this is the process that a terminal or a service manager started, and sees.
    fn is_first(&self) -> bool {
        !self.detached && !self.attended
    }

    fn config(&self, layout: &DataDirectory) -> anyhow::Result<NodeConfig> {
        Ok(NodeConfig {
            layout: layout.clone(),
            http: self.http,
            https: self.https.options()?,
            announced_by: self.accept_proxy.clone(),
            forwarded: if self.forwarded {
                ForwardedFields::Standard
            } else {
                ForwardedFields::Usual
            },
            peers: PeerOptions {
                versions: self.wire_versions.unwrap_or_default(),
                ..self.peers.options()
            },
            authority: self.authority.options()?,
            platform: self.authority.platform(),
            public: self.authority.public()?,
            store: self.store.clone(),
            roles: self.roles.clone(),
            redis: self.redis,
            threads: self.threads.map(usize::from),
            load: self.load,
            fail_points: self.fail_points,
            drain: self.drain,
            clock_off: self.clock_off,
            search_path: std::env::var("PATH").unwrap_or_default(),
            home: std::env::home_dir(),
            listeners: Arc::default(),
        })
    }

    /// Runs the node until it ends here, and finishes what is under way if another process has
    /// taken over; then it returns the program of that one, too.
    async fn run_node(&self, session: &Session) -> anyhow::Result<Option<(Over, PathBuf)>> {
        let layout = &session.layout;
        let mut config = self.config(layout)?;
        let started = Started::new(self.arguments()?, config.search_path.clone());
        let (mut origin, mut directory) = (ProcessOrigin::Fresh, self.directory.as_deref());
        let (mut says, mut under_way) = (!self.take_over, Vec::new());
        if !self.take_over {
            // What a service manager has bound for this node, such as 80 and 443.
            let activation = Activation {
                pid: std::env::var("LISTEN_PID").ok(),
                count: std::env::var("LISTEN_FDS").ok(),
            };
            config.listeners = Arc::new(Listeners::inheriting(activation.take()));
        }
        if self.take_over {
            let (bound, heir) = Heir::meet(layout)?;
            config.listeners = Arc::new(Listeners::inheriting(bound));
            origin = ProcessOrigin::OnTrial(heir);
        }
        loop {
            let node = node::run(config.clone(), &started, origin);
            let node = std::pin::pin!(node);
            let ended = run_and_push(node, session, directory, says).await?;
            let RunEnd::HandedOver(mut left) = ended else {
                leaving::stop(under_way).await;
                return Ok(None);
            };
            under_way.extend(left.under_way.take());
            let client = Arc::new(Client::new(layout));
            let ask = move || {
                let client = client.clone();
                task::boxed(async move { client.get::<NodeVitals>("/v1/upgrade/vitals").await })
            };
            let tried = succession::attempt(layout, &left, &self.successor(layout)?, &ask).await;
            match tried.unwrap_or_else(|error| TrialOutcome::Returned(format!("{error:#}"))) {
                TrialOutcome::Kept(pid) => {
                    // A port that the next process closes must not stay open for this one's sake.
                    let program = left.testament.path.clone();
                    drop(left);
                    let interrupts = match self.is_first() {
                        true => Interrupts::of_this_process(),
                        false => Interrupts::Ignored,
                    };
                    let over = leaving::leave(layout, pid, interrupts, under_way).await?;
                    let newest = binaries::named(&layout.bin(), BinaryRole::Current);
                    let program = Some(program).filter(|one| one.is_file()).or(newest);
                    return Ok(Some((over, program.unwrap_or_default())));
                }
                TrialOutcome::Stopped => {
                    leaving::stop(under_way).await;
                    return Ok(None);
                }
                TrialOutcome::Returned(why) => {
                    config.listeners = Arc::new(Listeners::inheriting(left.listeners));
                    // An invitation is redeemed only once.
                    (config.peers.join, config.peers.awaits) = (None, false);
                    origin = ProcessOrigin::Returned { roll: left.testament.roll, why };
                    (directory, says) = (None, false);
                }
            }
        }
    }

    /// Returns the arguments of the process that takes over.
    fn successor(&self, layout: &DataDirectory) -> anyhow::Result<Vec<String>> {
        let root = layout.root().to_string_lossy().into_owned();
        let kind = if self.detached { "--detached" } else { "--attended" };
        let mut all: Vec<String> =
            [attend::UP, attend::TAKE_OVER, kind, "--data-dir"].map(str::to_owned).into();
        all.push(root);
        all.extend(self.arguments()?);
        Ok(all)
    }

    /// Returns the options for a process that is to run the same node, without the invitation.
    pub fn arguments(&self) -> anyhow::Result<Vec<String>> {
        let mut all = vec![format!("--http={}", self.http), format!("--store={}", self.store)];
        all.extend(self.https.options()?.iter().flat_map(HttpsArgs::arguments));
        all.extend(self.authority.arguments()?);
        all.extend(self.accept_proxy.as_ref().map(|from| format!("--accept-proxy={from}")));
        all.extend(self.forwarded.then(|| "--forwarded".into()));
        all.extend(self.threads.map(|threads| format!("--threads={threads}")));
        // Only where it was said: a binary from before does not know the option.
        let drain = (self.drain != DRAIN_DEFAULT).then_some(self.drain.as_secs_f64());
        all.extend(drain.map(|seconds| format!("--drain={seconds}")));
        all.extend(self.load.map(|load| format!("--load={load}")));
        all.extend(self.peers.arguments());
        all.extend(self.roles.as_ref().map(|roles| format!("--roles={roles}")));
        all.extend(self.redis.map(|address| format!("--redis={address}")));
        all.extend(self.verbose.then(|| "--verbose".to_owned()));
        all.extend(self.fail_points.then(|| "--fail-points".to_owned()));
        Ok(all)
    }

    /// Checks that a node can be started with these options again and again.
    pub fn check_lasting(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.peers.invitation().is_none() && self.directory.is_none(),
            "an invitation or a directory to push is for one start alone: leave it out, and use \
             it with `cortex up` once"
        );
        anyhow::ensure!(!self.detach && !self.detached, "leave --detach out");
        Ok(())
    }

    /// Starts the log: on the terminal, or in a file that is moved aside when it is full.
    fn start_log(&self, layout: &DataDirectory) -> anyhow::Result<()> {
        // On a terminal the log would bury the messages to people.
        let level = match (self.verbose, self.detached) {
            (true, _) => LevelFilter::DEBUG,
            (false, true) => LevelFilter::INFO,
            (false, false) => LevelFilter::WARN,
        };
        let log = tracing_subscriber::fmt().with_max_level(level).with_target(false);
        if self.detached {
            rustix::process::setsid().ok();
            let path = layout.node_log();
            log.with_ansi(false).with_writer(move || BoundedLog { path: path.clone() }).init();
        } else {
            use std::io::IsTerminal;
            let colours = std::io::stderr().is_terminal();
            log.with_ansi(colours).with_writer(std::io::stderr).init();
        }
        Ok(())
    }

    fn run_detached(&self, session: &Session) -> anyhow::Result<()> {
        let layout = &session.layout;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        if runtime.block_on(session.client.is_answering()) {
            bail!(
                "a node already runs on {}: see `cortex status`, stop it with `cortex down`",
                layout.root().display()
            );
        }
        for path in os::directory::data_directory(layout)? {
            output::say(&format!("{} was open to others and is so no longer", path.display()));
        }
        let log = layout.node_log();
        let errors = open(&log)?;
        let from = errors.metadata()?.len();
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["up", "--detached", "--data-dir"])
            .arg(layout.root())
            .args(self.arguments()?)
            .args(self.peers.invitation())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors);
        let mut child = command.spawn().context("the node cannot be started")?;
        runtime.block_on(async {
            wait_until_answering(session, || match child.try_wait()? {
                None => Ok(()),
                Some(status) => bail!(since(&log, from).unwrap_or_else(|| {
                    format!("the node ended with {status}: see {}", log.display())
                })),
            })
            .await?;
            output::say(&format!("The node runs in the background (pid {})", child.id()));
            output::say(&format!("Its log is {}", log.display()));
            match &self.directory {
                Some(directory) => push::push_directory(session, directory).await,
                None => Ok(()),
            }
        })
    }
}

async fn run_and_push(
    mut node: std::pin::Pin<&mut impl Future<Output = anyhow::Result<RunEnd>>>,
    session: &Session,
    directory: Option<&Path>,
    says: bool,
) -> anyhow::Result<RunEnd> {
    if !says {
        return node.await;
    }
    let pushed = async {
        wait_until_answering(session, || Ok(())).await?;
        output::say(&format!("The node runs on {}", session.layout.root().display()));
        match directory {
            Some(directory) => push::push_directory(session, directory).await,
            None => Ok(()),
        }
    };
    tokio::select! {
        ended = &mut node => return ended,
        pushed = pushed => if let Err(error) = pushed {
            super::report(&error);
            output::say("Nothing else is affected: fix it and push again");
        }
    }
    output::say("Ctrl-C stops the node and its applications; `cortex --help` lists the commands");
    node.await
}

async fn wait_until_answering(
    session: &Session,
    mut check: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + START_WAIT_MAX;
    while !session.client.is_answering().await {
        check()?;
        if Instant::now() >= deadline {
            bail!("the node does not answer within {} s", START_WAIT_MAX.as_secs());
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

fn open(path: &Path) -> anyhow::Result<std::fs::File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o600);
    options.open(path).with_context(|| format!("{} cannot be opened", path.display()))
}

/// Returns what a node that ended at once has written.
fn since(log: &Path, from: u64) -> Option<String> {
    let bytes = std::fs::read(log).ok()?;
    let said = bytes.get(usize::try_from(from).ok()?..)?;
    let text = String::from_utf8_lossy(said).trim().to_string();
    // Where all that it says is why it ended, it is said as if it were said here.
    let text = text.strip_prefix("Error: ").map(str::to_owned).unwrap_or(text);
    (!text.is_empty()).then_some(text)
}

/// A log that is opened for each event: the node itself logs little, and a full file is moved aside
/// between two events.
struct BoundedLog {
    path: PathBuf,
}

impl std::io::Write for BoundedLog {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let full = std::fs::metadata(&self.path).is_ok_and(|log| log.len() >= LOG_BYTES_MAX);
        if full {
            std::fs::rename(&self.path, self.path.with_extension("log.1"))?;
        }
        let mut file = OpenOptions::new().create(true).append(true).mode(0o600).open(&self.path)?;
        file.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_log_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node.log");
        let file = open(&path).unwrap();
        file.set_len(LOG_BYTES_MAX).unwrap();
        BoundedLog { path: path.clone() }.write_all(b"new\n").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new\n");
        assert!(directory.path().join("node.log.1").exists());
        assert_eq!(since(&path, 0).as_deref(), Some("new"));
    }
}
