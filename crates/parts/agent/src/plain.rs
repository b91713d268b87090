//! The plain launcher: every process under a shim of its own, without a sandbox. Starts shims,
//! finds those of earlier node processes again, and buries what a lost shim left behind. Must not
//! know what the processes are for; driven by applications' actors.

mod held;
mod leftovers;
mod link;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use model::Wall;
use tokio::sync::{OnceCell, watch};

use super::launcher::{Held, Launcher};
use held::PlainHeld;
use link::ShimLink;
use os::binaries;
use os::layout::DataDirectory;
use shim::message::{ShimCommand, Tell};
use shim::record::{self, ExitRecord, Holding};
use shim::spec::{LaunchSpec, SessionSpec};

/// The maximum time from the start of a shim to the running program; the shim itself gives up after
/// 30 s.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(40);
/// The maximum wait for a shim's greeting, which comes at once unless the shim or the machine is
/// stopped.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

pub struct PlainLauncher {
    place: Arc<ShimDirectories>,
    /// The program that is copied for shims to run from.
    source: Option<PathBuf>,
    binary: OnceCell<PathBuf>,
    launching: Arc<Mutex<BTreeSet<String>>>,
}

/// The directories in which shims are found, and the lease that they are given.
struct ShimDirectories {
    layout: DataDirectory,
    lease: watch::Sender<Renewal>,
}

/// The lease that shims are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Renewal {
    /// The limit that an earlier node process set.
    AsBefore,
    Limit(Option<Duration>),
}

impl Renewal {
    fn limit(self) -> Option<Duration> {
        match self {
            Renewal::AsBefore => None,
            Renewal::Limit(limit) => limit,
        }
    }

    fn limit_ms(self) -> Option<u64> {
        self.limit().map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX))
    }

    fn ask(self) -> ShimCommand {
        match self {
            Renewal::AsBefore => ShimCommand::Greet,
            Renewal::Limit(_) => ShimCommand::Renew { lease_ms: self.limit_ms() },
        }
    }
}

impl ShimDirectories {
    fn new(layout: DataDirectory) -> ShimDirectories {
        ShimDirectories { layout, lease: watch::channel(Renewal::AsBefore).0 }
    }

    fn run(&self, id: &str) -> PathBuf {
        self.layout.run().join(id)
    }
}

impl PlainLauncher {
    pub fn new(layout: DataDirectory) -> PlainLauncher {
        PlainLauncher::from_binary(layout, None)
    }

    /// Creates a launcher where the running program is not `cortex` itself, as in tests.
    pub fn with_binary(layout: DataDirectory, source: PathBuf) -> PlainLauncher {
        PlainLauncher::from_binary(layout, Some(source))
    }

    fn from_binary(layout: DataDirectory, source: Option<PathBuf>) -> PlainLauncher {
        PlainLauncher {
            place: Arc::new(ShimDirectories::new(layout)),
            source,
            binary: OnceCell::new(),
            launching: Arc::default(),
        }
    }

    async fn binary(&self) -> anyhow::Result<&Path> {
        let path = self
            .binary
            .get_or_try_init(|| async {
                let (source, directory) = (self.source.clone(), self.place.layout.bin());
                let installed = runtime::task::spawn_blocking(move || match source {
                    Some(source) => binaries::install(&source, &directory),
                    None => binaries::install_own(&directory),
                });
                installed.await?.map(|copy| copy.path)
            })
            .await?;
        Ok(path)
    }

    /// Frees the place of `id`: an ended process is forgotten, a live one is an error.
    async fn clear(&self, id: &str) -> anyhow::Result<()> {
        let run = self.place.run(id);
        if !run.exists() {
            return Ok(());
        }
        match find(&self.place, id).await? {
            FoundProcess::Running(_, holding) => {
                anyhow::bail!("{id} is already running, as process {}", holding.process.pid)
            }
            FoundProcess::Waiting(mut link) | FoundProcess::Ended(Some(mut link), _) => {
                link.ask(ShimCommand::Forget).await?;
                link.closed(GREETING_TIMEOUT).await;
            }
            FoundProcess::Ended(None, _) | FoundProcess::Nothing => {}
        }
        record::remove(&run).with_context(|| format!("cannot remove {}", run.display()))
    }

    async fn launch_with(
        &self,
        spec: LaunchSpec,
        session: Option<SessionSpec>,
    ) -> anyhow::Result<Box<dyn Held>> {
        let id = spec.purpose.id();
        anyhow::ensure!(
            id.split('/').count() == 2 && !id.contains(".."),
            "'{id}' does not name a directory; tasks have names like build-v3"
        );
        let _launching = Launching::claim(&self.launching, &id)?;
        self.clear(&id).await?;
        let result = tokio::time::timeout(LAUNCH_TIMEOUT, async {
            let mut link = self.start_shim(&id).await?;
            let lease_ms = self.place.lease.borrow().limit_ms();
            link.ask(ShimCommand::Launch { spec, lease_ms, session }).await?;
            launched(&self.place, &id, link).await
        });
        let error = match result.await {
            Ok(Ok(held)) => return Ok(Box::new(held)),
            Ok(Err(error)) => error,
            Err(_) => anyhow::anyhow!("starting took longer than {} s", LAUNCH_TIMEOUT.as_secs()),
        };
        // The shim goes by itself; its directory is of no more use.
        record::remove(&self.place.run(&id))?;
        Err(error)
    }

    async fn start_shim(&self, id: &str) -> anyhow::Result<ShimLink> {
        let binary = self.binary().await?.to_owned();
        let (run, socket) = (self.place.run(id), self.place.layout.shim_socket(id));
        let address = socket.clone();
        runtime::task::spawn_blocking(move || start_shim(&binary, &run, &socket)).await??;
        ShimLink::connect(&address).await.context("the shim is gone at once")
    }
}

/// Starts a shim. Blocking. The shim can be connected to when this returns, even if it is not
/// running yet.
fn start_shim(binary: &Path, run: &Path, socket: &Path) -> anyhow::Result<()> {
    for directory in run.parent().into_iter().chain(socket.parent()).chain([run]) {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .with_context(|| format!("cannot create directory {}", directory.display()))?;
    }
    match fs::remove_file(socket) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove {}", socket.display()));
        }
        _ => {}
    }
    let listener = UnixListener::bind(socket)
        .with_context(|| format!("cannot listen on {}", socket.display()))?;
    let complaints = fs::File::create(run.join(record::COMPLAINTS))
        .with_context(|| format!("cannot write in {}", run.display()))?;
    let mut command = shim::command(binary, run, socket, listener);
    command.stderr(Stdio::from(complaints));
    let status = binaries::spawn(&mut command)
        .and_then(|mut child| child.wait())
        .with_context(|| format!("cannot start {}", binary.display()))?;
    anyhow::ensure!(status.success(), "no shim could be started: {}", complaint(run));
    Ok(())
}

/// Returns what the shim said last, for an error message.
fn complaint(run: &Path) -> String {
    let text = fs::read_to_string(run.join(record::COMPLAINTS)).unwrap_or_default();
    match text.trim() {
        "" => "it gave no reason".to_owned(),
        text => text.to_owned(),
    }
}

#[async_trait]
impl Launcher for PlainLauncher {
    async fn launch(&self, spec: LaunchSpec) -> anyhow::Result<Box<dyn Held>> {
        self.launch_with(spec, None).await
    }

    async fn launch_session(
        &self,
        spec: LaunchSpec,
        session: SessionSpec,
    ) -> anyhow::Result<Box<dyn Held>> {
        self.launch_with(spec, Some(session)).await
    }

    async fn try_wall(&self, wall: Wall) -> anyhow::Result<()> {
        let binary = self.binary().await?.to_owned();
        runtime::task::spawn_blocking(move || shim::sandbox::attempt::run(&binary, wall)).await?
    }

    fn lease(&self, limit: Option<Duration>) {
        let renewal = Renewal::Limit(limit);
        self.place.lease.send_if_modified(|before| std::mem::replace(before, renewal) != renewal);
    }

    async fn adopt(&self) -> anyhow::Result<Vec<Box<dyn Held>>> {
        let held = adopt(&self.place).await?;
        // A full disk keeps new processes from starting; what runs is held and can be stopped.
        let binary = match self.binary().await {
            Ok(binary) => binary.to_owned(),
            Err(error) => {
                tracing::error!(error = format!("{error:#}"), "agent.no_binary_for_shims");
                return Ok(boxed(held));
            }
        };
        let in_use: BTreeSet<PathBuf> =
            held.iter().map(|held| held.holding().binary.clone()).chain([binary]).collect();
        let directory = self.place.layout.bin();
        let pruned = runtime::task::spawn_blocking(move || binaries::prune(&directory, &in_use));
        if let Err(error) = pruned.await? {
            tracing::warn!(error = format!("{error:#}"), "agent.binaries_not_pruned");
        }
        Ok(boxed(held))
    }
}

fn boxed(held: Vec<PlainHeld>) -> Vec<Box<dyn Held>> {
    held.into_iter().map(|held| Box::new(held) as Box<dyn Held>).collect()
}

async fn launched(
    place: &Arc<ShimDirectories>,
    id: &str,
    mut link: ShimLink,
) -> anyhow::Result<PlainHeld> {
    loop {
        match link.hear().await? {
            Some(Tell::Waiting) => {}
            Some(Tell::Running { holding }) => {
                return Ok(PlainHeld::running(place.clone(), link, holding));
            }
            Some(Tell::Ended { ended }) => {
                return Ok(PlainHeld::ended(place.clone(), Some(link), ended));
            }
            Some(Tell::Failed { why } | Tell::Refused { why }) => anyhow::bail!(why),
            Some(
                Tell::Stopping
                | Tell::Signalled
                | Tell::Renewed
                | Tell::Forgotten
                | Tell::Attaching,
            ) => {
                anyhow::bail!("the shim was told to stop")
            }
            None => anyhow::bail!("the shim failed: {}", complaint(&place.run(id))),
        }
    }
}

/// A guard against two launches of one id at the same time: the second one is an error.
struct Launching {
    all: Arc<Mutex<BTreeSet<String>>>,
    id: String,
}

impl Launching {
    fn claim(all: &Arc<Mutex<BTreeSet<String>>>, id: &str) -> anyhow::Result<Launching> {
        let fresh = all.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned());
        anyhow::ensure!(fresh, "{id} is being started already");
        Ok(Launching { all: all.clone(), id: id.to_owned() })
    }
}

impl Drop for Launching {
    fn drop(&mut self) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

/// The state of what an id stands for.
enum FoundProcess {
    Running(ShimLink, Holding),
    /// An ended process, with a link if the shim still waits to be told that its end was noted.
    Ended(Option<ShimLink>, ExitRecord),
    /// A shim that was never told what to run.
    Waiting(ShimLink),
    Nothing,
}

async fn find(place: &ShimDirectories, id: &str) -> anyhow::Result<FoundProcess> {
    if let Ok(mut link) = ShimLink::connect(&place.layout.shim_socket(id)).await {
        match tokio::time::timeout(GREETING_TIMEOUT, link.hear()).await {
            Ok(Ok(Some(Tell::Running { holding }))) => {
                return Ok(FoundProcess::Running(link, holding));
            }
            Ok(Ok(Some(Tell::Ended { ended }))) => {
                return Ok(FoundProcess::Ended(Some(link), ended));
            }
            Ok(Ok(Some(Tell::Waiting))) => return Ok(FoundProcess::Waiting(link)),
            Ok(Ok(Some(_))) => anyhow::bail!("the shim of {id} said something odd"),
            // The shim went just now, or cannot speak: what it wrote counts.
            Ok(Ok(None) | Err(_)) => {}
            Err(_) => tracing::warn!(id, "shim.silent"),
        }
    }
    let run = place.run(id);
    let ended = runtime::task::spawn_blocking(move || leftovers::bury(&run)).await??;
    Ok(ended.map_or(FoundProcess::Nothing, |ended| FoundProcess::Ended(None, ended)))
}

async fn adopt(place: &Arc<ShimDirectories>) -> anyhow::Result<Vec<PlainHeld>> {
    let mut held = Vec::new();
    for id in leftovers::ids(&place.layout.run())? {
        match find(place, &id).await {
            Ok(FoundProcess::Running(link, holding)) => {
                held.push(PlainHeld::running(place.clone(), link, holding));
            }
            Ok(FoundProcess::Ended(link, ended)) => {
                held.push(PlainHeld::ended(place.clone(), link, ended));
            }
            // A node that was killed meanwhile left it; the next look finds it gone.
            Ok(FoundProcess::Waiting(mut link)) => {
                let _ = link.ask(ShimCommand::Forget).await;
            }
            Ok(FoundProcess::Nothing) => {
                if let Err(error) = record::remove(&place.run(&id)) {
                    tracing::warn!(id, %error, "shim.leftovers_not_removed");
                }
            }
            // A process whose state cannot be read must not keep the others from being adopted.
            Err(error) => tracing::error!(id, error = format!("{error:#}"), "shim.not_adopted"),
        }
    }
    Ok(held)
}

/// Stops everything that shims hold on this directory, and forgets it: for `cortex down` where no
/// node runs. Returns how many processes were running.
pub async fn stop_all(layout: DataDirectory, grace: Duration) -> anyhow::Result<usize> {
    let place = Arc::new(ShimDirectories::new(layout));
    let held = adopt(&place).await?;
    let mut running = 0;
    for one in &held {
        if one.exit().borrow().is_none() {
            running += 1;
            one.stop(grace).await?;
        }
    }
    for one in &held {
        one.exit().wait_for(Option::is_some).await?;
        one.forget().await?;
    }
    Ok(running)
}
