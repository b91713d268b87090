//! Makes a release runnable on this node: unpacks the source, links what outlives releases, runs
//! the steps, and says how its processes are launched. Releases of one build share its directory.
//! Every part is safe to repeat: a node that was killed half-way starts over.

mod artefact;
mod caps;
mod environment;
mod isolation;
mod network;
mod persist;
mod prune;
mod quiet;
mod running;
mod runtimes;
mod steps;
mod unpack;
mod written;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use agent_core::application::{IncarnationId, StepFailure};
use anyhow::Context;
use model::port::Transport;
use model::value::ContentHash;
use model::{ApplicationName, BuildId, NodeId, ProcessType, Release, Rollout, TypedKey, Wall};
use recipe_core::frameworks::shell_word;

use super::launcher::Launcher;
use super::ports::{self, ReservedPorts};
use os::beneath::Directory;
use os::directory::private_directory;
use os::layout::{BUILT_ENDING, DataDirectory};
use os::observe::process::boot_id;
use os::platform_log;
use runtime::driver::Clock;
use shim::sandbox::Sandbox;
use shim::spec::{LaunchSpec, Purpose};
use store::bulk::ValueName;
use store::values::suspect;
use store::{SharedStore, Value, lookup_record};

pub use environment::shell_command;
use isolation::Reach;
pub use network::NetworkSettings;
use persist::{Persistent, Tree};
use running::RunningSteps;
pub use running::end_all;
use steps::BUILD;

/// The word after the boot id in that file once everything is known to have reached the disk.
const DURABLE: &str = "durable";
/// The maximum number of builds at a time: more would starve what serves; with only one, all would
/// wait for a stuck one.
const BUILDS_AT_ONCE: usize = 2;

type BuildTurn = Arc<tokio::sync::Mutex<()>>;

pub struct Preparer {
    layout: DataDirectory,
    node: NodeId,
    clock: Clock,
    store: SharedStore,
    launcher: Arc<dyn Launcher>,
    /// The search path in which applications find programs: the node's own.
    path: String,
    /// The directories where version managers keep interpreters.
    homes: Vec<PathBuf>,
    network: NetworkSettings,
    builds: tokio::sync::Semaphore,
    /// A lock for each build: an actor that starts again asks for work that goes on already.
    turns: Arc<Mutex<BTreeMap<(ApplicationName, BuildId), BuildTurn>>>,
    /// The directories of builds that are to stay, as last set.
    staying: Arc<Mutex<BTreeMap<ApplicationName, Vec<PathBuf>>>>,
    /// The address at which applications find the bus of this node.
    bus: Option<SocketAddr>,
    running: RunningSteps,
    /// The addresses of members, as last written for networks that are there already.
    members: tokio::sync::Mutex<Option<Vec<IpAddr>>>,
}

impl Preparer {
    pub fn new(
        layout: DataDirectory,
        node: NodeId,
        clock: Clock,
        store: SharedStore,
        launcher: Arc<dyn Launcher>,
        path: String,
    ) -> Preparer {
        let builds = tokio::sync::Semaphore::new(BUILDS_AT_ONCE);
        let (turns, staying) = (Arc::default(), Arc::default());
        let running = RunningSteps::default();
        let (homes, network) = (Vec::new(), NetworkSettings::default());
        Preparer {
            layout,
            node,
            clock,
            store,
            launcher,
            path,
            homes,
            network,
            builds,
            turns,
            staying,
            bus: None,
            running,
            members: Default::default(),
        }
    }

    /// Adds the home directory of the node's own user.
    pub fn with_home(mut self, home: Option<PathBuf>) -> Preparer {
        self.homes.extend(home);
        self
    }

    /// Sets the network for build steps; instances and release steps get what the user configured,
    /// and no more.
    pub fn with_network(mut self, network: NetworkSettings) -> Preparer {
        self.network = network;
        self
    }

    /// Sets where applications find the bus of this node.
    pub fn with_bus(mut self, bus: Option<SocketAddr>) -> Preparer {
        self.bus = bus;
        self
    }

    /// Stops builds and release steps for good: the node is being stopped.
    pub async fn stop_all(&self) {
        self.running.stop_all().await;
    }

    /// Unpacks and builds, unless that was done for this release or another one of the same build.
    pub async fn build(
        &self,
        application: &ApplicationName,
        release: &Release,
    ) -> Result<(), StepFailure> {
        let turn = self.turn(application, release);
        let _turn = turn.lock().await;
        let directory = self.directory(application, release);
        let mark = mark(&directory);
        self.collect(application, release).await.map_err(failure("keeping what persists"))?;
        if is_built(&directory, &mark) {
            let linked = self.link(application, release, Tree::Used).await;
            return linked.map_err(failure("linking what persists"));
        }
        let _slot = match self.builds.try_acquire() {
            Ok(slot) => slot,
            Err(_) => {
                let log = self.layout.build_log(application, &release.id);
                let text = "-----> Waiting: other builds go on on this machine";
                platform_log::append(&log, self.clock.now(), text);
                self.builds.acquire().await.map_err(|error| failure("waiting")(error.into()))?
            }
        };
        self.unpack(application, release, &directory).await.map_err(failure("unpacking"))?;
        self.choose_runtimes(application, release, &directory).await?;
        self.steps(application, release, BUILD, &release.recipe.build).await?;
        set_mark(mark).map_err(failure("finishing the build"))?;
        self.prune_caches(application).await;
        Ok(())
    }

    /// Whether the release's processes can be started here without further work.
    pub fn is_built(&self, application: &ApplicationName, release: &Release) -> bool {
        let directory = self.directory(application, release);
        is_built(&directory, &mark(&directory))
    }

    /// Runs the release steps, such as migrations: once per release.
    pub async fn release_steps(
        &self,
        application: &ApplicationName,
        release: &Release,
    ) -> Result<(), StepFailure> {
        let turn = self.turn(application, release);
        let _turn = turn.lock().await;
        self.steps(application, release, "release", &release.recipe.release).await
    }

    /// Returns the lock of a build. Locks that nobody holds any more are dropped here, so that
    /// there are only as many as builds in progress.
    fn turn(&self, application: &ApplicationName, release: &Release) -> BuildTurn {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        turns.entry((application.clone(), release.build_id())).or_default().clone()
    }

    /// Returns where a release's steps and processes run: in its build.
    fn directory(&self, application: &ApplicationName, release: &Release) -> PathBuf {
        self.layout.build(application, &release.build_id())
    }

    /// Links what persists, in the tree and below `$HOME`. The build's log names what was pushed
    /// and is hidden by that.
    async fn link(
        &self,
        application: &ApplicationName,
        release: &Release,
        tree: Tree,
    ) -> anyhow::Result<()> {
        let places = self.persistent(application, release);
        let linking = runtime::task::spawn_blocking(move || {
            let linked = places.iter().map(|place| place.link(tree));
            Ok(linked.collect::<anyhow::Result<Vec<_>>>()?.concat())
        });
        let log = self.layout.build_log(application, &release.id);
        let hidden: anyhow::Result<Vec<PathBuf>> = linking.await?;
        for path in hidden? {
            let text = format!(
                "       {} was pushed and is not seen: what is kept under that name differs",
                path.display()
            );
            platform_log::append(&log, self.clock.now(), &text);
        }
        Ok(())
    }

    /// Collects what the serving release made of paths that are to persist, before another release
    /// looks for it.
    async fn collect(
        &self,
        application: &ApplicationName,
        release: &Release,
    ) -> anyhow::Result<()> {
        let Some(serving) = self.serving(application).await? else { return Ok(()) };
        let wanted = Release { build: Some(serving.build_id()), ..release.clone() };
        let places = self.persistent(application, &wanted);
        let collecting = move || places.iter().try_for_each(Persistent::collect);
        runtime::task::spawn_blocking(collecting).await?
    }

    /// Collects all that is to persist where it is kept, before it goes to another node.
    pub async fn collect_all(&self, application: &ApplicationName) -> anyhow::Result<()> {
        let Some(serving) = self.serving(application).await? else { return Ok(()) };
        self.collect(application, &serving).await
    }

    /// Writes into the application's log what the old release wrote and leaves behind.
    pub async fn name_written(&self, application: &ApplicationName, old: Release, new: Release) {
        let (layout, name) = (self.layout.clone(), application.clone());
        let look = move || left_behind(&layout, &name, &old, &new);
        if let Ok(Some(text)) = runtime::task::spawn_blocking(look).await {
            self.note(application, &text);
        }
    }

    async fn serving(&self, application: &ApplicationName) -> anyhow::Result<Option<Release>> {
        let rollout = TypedKey::Rollout(application.clone()).key();
        let rollout: Option<Rollout> = lookup_record(&*self.store, rollout).await?;
        let Some(serving) = rollout.and_then(|rollout| rollout.serving) else { return Ok(None) };
        let key = TypedKey::Release(application.clone(), serving).key();
        lookup_record(&*self.store, key).await
    }

    fn persistent(&self, application: &ApplicationName, release: &Release) -> [Persistent; 2] {
        let (kept, build) = (self.layout.persist(application), release.build_id());
        let of_home = |path: &String| path.strip_prefix(HOME_PREFIX).map(str::to_owned);
        let all = &release.recipe.persist;
        let below_home = all.iter().filter_map(of_home).collect();
        let paths = all.iter().filter(|path| of_home(path).is_none()).cloned().collect();
        [
            Persistent {
                root: self.directory(application, release),
                kept: kept.clone(),
                below: PathBuf::new(),
                paths,
            },
            Persistent {
                root: self.layout.home(application, &build),
                kept,
                below: "home".into(),
                paths: below_home,
            },
        ]
    }

    pub async fn launch_spec(
        &self,
        release: &Release,
        process: &ProcessType,
        id: &IncarnationId,
        taken: &ReservedPorts,
    ) -> anyhow::Result<LaunchSpec> {
        let application = &id.instance.application;
        let recipe = release
            .recipe
            .processes
            .get(process)
            .with_context(|| format!("{} has no process type {process}", release.id.short()))?;
        let also = |transport| {
            let those = taken.ports.iter().filter(move |(id, _)| id.transport == transport);
            those.map(|(_, port)| *port)
        };
        let tcp = taken.port.into_iter().chain(also(Transport::Tcp)).collect();
        let reach = Reach { tcp, udp: also(Transport::Udp).collect(), builds: false };
        let (mut environment, sandbox) = self.surroundings(application, release, reach).await?;
        environment.insert("CORTEX_PROCESS".into(), process.to_string());
        environment.insert("CORTEX_SLOT".into(), id.instance.slot.to_string());
        if let Some(port) = taken.port {
            environment::listen_on(&mut environment, port);
        }
        for recipe in ports::of_process(&release.recipe.ports, process) {
            if let Some(port) = taken.ports.get(&recipe.id) {
                environment::listen_also_on(&mut environment, &recipe.env, *port);
            }
        }
        Ok(LaunchSpec {
            purpose: Purpose::Instance { instance: id.instance.clone(), generation: id.generation },
            argv: shell_command(&recipe.command),
            directory: self.directory(application, release),
            sandbox,
            environment,
            log: self.layout.instance_log(&id.instance),
            port: taken.port,
            ports: taken.ports.clone(),
            cap: None,
        })
    }

    /// Returns how to launch a command beside the instances, in the same surroundings.
    pub async fn command_spec(
        &self,
        application: &ApplicationName,
        release: &Release,
        task: &str,
        command: &str,
    ) -> anyhow::Result<LaunchSpec> {
        let (environment, sandbox) =
            self.surroundings(application, release, Reach::default()).await?;
        Ok(LaunchSpec {
            purpose: Purpose::Task { application: application.clone(), name: task.into() },
            argv: shell_command(command),
            directory: self.directory(application, release),
            sandbox,
            environment,
            log: self.layout.logs(application).join(format!("{task}.log")),
            port: None,
            ports: Default::default(),
            cap: None,
        })
    }

    /// Returns what a process of a release runs in: its environment, and its wall.
    async fn surroundings(
        &self,
        application: &ApplicationName,
        release: &Release,
        reach: Reach,
    ) -> anyhow::Result<(BTreeMap<String, String>, Option<Sandbox>)> {
        let release = &self.behind_mark(application, release).await?;
        let directory = self.directory(application, release);
        let chosen = self.runtime_path(application, release, &directory).await?;
        let environment = self.environment(application, release, &chosen).await?;
        let closed = match release.recipe.wall() {
            Some(Wall::FullEgress) => Some(self.note_members().await?),
            _ => None,
        };
        Ok((environment, self.sandbox(application, release, &chosen, reach, closed)))
    }

    async fn unpack(
        &self,
        application: &ApplicationName,
        release: &Release,
        directory: &Path,
    ) -> anyhow::Result<()> {
        let key = TypedKey::Source(application.clone(), release.source).key();
        let entry = self.store.lookup(&key).await?;
        let source = entry.context("the source is not in the store any more: push again")?.value;
        let source = source.here().await?;
        self.unpack_value(application, release, directory, source, release.source).await
    }

    /// Unpacks `archive`, which is on this node.
    async fn unpack_value(
        &self,
        application: &ApplicationName,
        release: &Release,
        directory: &Path,
        archive: Value,
        expected: ContentHash,
    ) -> anyhow::Result<()> {
        let directory = directory.to_path_buf();
        let home = self.layout.home(application, &release.build_id());
        runtime::task::spawn_blocking(move || {
            start_over(&directory, &home)?;
            match archive {
                Value::Inline(bytes) => unpack::unpack(&bytes[..], expected, &directory)?,
                Value::Away { .. } => anyhow::bail!("its bytes are not on this node yet"),
                Value::File { path, hash, size } => {
                    let file = std::fs::File::open(&path)
                        .with_context(|| format!("{} cannot be opened", path.display()))?;
                    unpack::unpack(std::io::BufReader::new(file), expected, &directory)
                        .inspect_err(|_| suspect(&path, &ValueName { hash: hash.0, size }))?;
                }
            }
            anyhow::Ok(())
        })
        .await??;
        self.link(application, release, Tree::Fresh).await
    }
}

fn mark(directory: &Path) -> PathBuf {
    let mut name = directory.as_os_str().to_owned();
    name.push(BUILT_ENDING);
    name.into()
}

/// Whether a build is whole. After a power cut, files may be empty that were written shortly
/// before: only a build of this boot counts, or one that is known to have reached the disk.
fn is_built(directory: &Path, mark: &Path) -> bool {
    let Ok(text) = std::fs::read_to_string(mark) else { return false };
    let of_this_boot = boot_id().is_ok_and(|boot| text.split(' ').next() == Some(&boot));
    directory.is_dir() && (of_this_boot || text.ends_with(DURABLE))
}

/// Marks a build as whole. Whatever is written in its tree from now on is the application's.
fn set_mark(mark: PathBuf) -> anyhow::Result<()> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let text = boot_id()
        .map(|boot| format!("{boot} {}", now.as_nanos()))
        .and_then(|text| std::fs::write(&mark, &text).map(|()| text))
        .context("the build's mark cannot be set")?;
    make_durable(mark, text);
    Ok(())
}

/// Returns when it was built; `None` if it is not built, or was before marks had a time.
fn built_at(mark: &Path) -> Option<SystemTime> {
    let text = std::fs::read_to_string(mark).ok()?;
    let nanoseconds = text.split(' ').nth(1)?.parse().ok()?;
    Some(SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds))
}

/// Returns a line for people on what a release wrote into its tree and below its `$HOME`, if
/// another build takes over. Blocking.
pub fn left_behind(
    layout: &DataDirectory,
    application: &ApplicationName,
    old: &Release,
    new: &Release,
) -> Option<String> {
    let build = old.build_id();
    if build == new.build_id() {
        return None;
    }
    let directory = layout.build(application, &build);
    let built = built_at(&mark(&directory))?;
    let mut written = written::since(&directory, built);
    let home = written::since(&layout.home(application, &build), built);
    written.more += home.more;
    written.paths.extend(home.paths.into_iter().map(|path| format!("{HOME_PREFIX}{path}")));
    if written.paths.is_empty() {
        return None;
    }
    let each = |path: &dyn Fn(&String) -> String, between: &str| {
        written.paths.iter().map(path).collect::<Vec<_>>().join(between)
    };
    let (short, all) = (old.id.short(), each(&String::clone, ", "));
    let listed = each(&|path| format!("\"{path}\""), ", ");
    let given = each(&|path| shell_word(path), " ");
    let (more, others) = match written.more {
        0 => (String::new(), ""),
        more => (format!(" and {more} more"), ", and the others"),
    };
    Some(format!(
        "{short} wrote {all}{more} here; it stays behind. Keep it: persist = [{listed}] in \
         cortex.toml{others}. To have this back: `cortex rollback {short} -a {application}`, `cortex \
         persist add {given} -a {application}`{others}, then push again"
    ))
}

/// The prefix of a persistent path that lies below `$HOME` rather than in the tree.
const HOME_PREFIX: &str = "~/";

/// Makes a build durable in the background: nobody who pushes waits for a slow disk.
fn make_durable(mark: PathBuf, text: String) {
    runtime::task::spawn_blocking(move || {
        let settle = || {
            rustix::fs::syncfs(std::fs::File::open(&mark)?)?;
            // The file is not created anew if the release was removed meanwhile.
            let mut file = std::fs::OpenOptions::new().write(true).open(&mark)?;
            std::io::Write::write_all(&mut file, format!("{text} {DURABLE}").as_bytes())?;
            file.sync_all()
        };
        if let Err(error) = settle() {
            tracing::warn!(path = %mark.display(), %error, "prepare.not_durable");
        }
    });
}

/// Removes all that an earlier attempt left, starting with its mark.
fn start_over(directory: &Path, home: &Path) -> anyhow::Result<()> {
    let clear = || {
        for old in [&mark(directory), &runtimes::choice(directory)] {
            match std::fs::remove_file(old) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        for old in [directory, home] {
            let parent = old.parent().zip(old.file_name());
            let (parent, name) = parent.ok_or(std::io::ErrorKind::InvalidInput)?;
            private_directory(parent)?;
            Directory::open(parent)?.place(Path::new(name))?.remove()?;
        }
        private_directory(directory)
    };
    clear().with_context(|| format!("{} cannot be made", directory.display()))
}

fn failure(doing: &'static str) -> impl Fn(anyhow::Error) -> StepFailure {
    move |error| StepFailure { why: format!("{doing} failed: {error:#}"), ..StepFailure::default() }
}

#[cfg(test)]
mod tests;
