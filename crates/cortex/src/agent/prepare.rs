//! Makes a release runnable on this node: unpacks the source, links what outlives releases, runs
//! the steps, and says how its processes are launched. Every part is safe to repeat: a node that
//! was killed half-way starts over.

mod environment;
mod persist;
mod prune;
mod steps;
mod unpack;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use agent::application::{Failure, IncarnationId};
use anyhow::Context;
use model::{ApplicationName, NodeId, ProcessType, Release, TypedKey};

use super::launcher::{LaunchSpec, Launcher, Purpose};
use crate::driver::Clock;
use crate::layout::DataDirectory;
use crate::store::{SharedStore, Value};

pub use environment::shell_command;

/// Lies in a release's directory until it is built. Virtual environments hard-code their path, so
/// a release is built where it will run, and this file tells a half-built one.
const BUILDING: &str = ".cortex-building";

pub struct Preparer {
    layout: DataDirectory,
    node: NodeId,
    clock: Clock,
    store: SharedStore,
    launcher: Arc<dyn Launcher>,
    /// What applications find programs with: the node's own search path.
    path: String,
    /// One build at a time: builds of several applications at once would starve what serves.
    builds: tokio::sync::Semaphore,
    secrets: Mutex<()>,
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
        let builds = tokio::sync::Semaphore::new(1);
        Preparer { layout, node, clock, store, launcher, path, builds, secrets: Mutex::new(()) }
    }

    /// Unpacks and builds, unless that was done.
    pub async fn build(
        &self,
        application: &ApplicationName,
        release: &Release,
    ) -> Result<(), Failure> {
        let directory = self.layout.release(application, &release.id);
        if is_built(&directory) {
            return Ok(());
        }
        let _turn = self.builds.acquire().await;
        self.unpack(application, release, &directory).await.map_err(failure("unpacking"))?;
        for (number, step) in release.recipe.build.iter().enumerate() {
            self.step(application, release, step, &format!("build-{number}")).await?;
        }
        std::fs::remove_file(directory.join(BUILDING))
            .context("the build's mark cannot be removed")
            .map_err(failure("finishing the build"))?;
        self.prune_caches(application).await;
        Ok(())
    }

    /// Migrations and the like: once per release.
    pub async fn release_steps(
        &self,
        application: &ApplicationName,
        release: &Release,
    ) -> Result<(), Failure> {
        for (number, step) in release.recipe.release.iter().enumerate() {
            self.step(application, release, step, &format!("release-{number}")).await?;
        }
        Ok(())
    }

    pub async fn launch_spec(
        &self,
        release: &Release,
        process: &ProcessType,
        id: &IncarnationId,
        port: Option<u16>,
    ) -> anyhow::Result<LaunchSpec> {
        let application = &id.instance.application;
        let recipe = release
            .recipe
            .processes
            .get(process)
            .with_context(|| format!("{} has no process type {process}", release.id.short()))?;
        let mut environment = self.environment(application, release).await?;
        environment.insert("CORTEX_PROCESS".into(), process.to_string());
        environment.insert("CORTEX_SLOT".into(), id.instance.slot.to_string());
        if let Some(port) = port {
            environment::listen_on(&mut environment, port);
        }
        Ok(LaunchSpec {
            purpose: Purpose::Instance { instance: id.instance.clone(), generation: id.generation },
            argv: shell_command(&recipe.command),
            directory: self.layout.release(application, &release.id),
            environment,
            log: self.layout.instance_log(&id.instance),
            port,
        })
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
        let persist = self.layout.persist(application);
        let (directory, paths) = (directory.to_path_buf(), release.recipe.persist.clone());
        tokio::task::spawn_blocking(move || {
            start_over(&directory)?;
            match source {
                Value::Inline(bytes) => unpack::unpack(&bytes[..], &directory)?,
                Value::File { path, .. } => {
                    let file = std::fs::File::open(&path)
                        .with_context(|| format!("{} cannot be opened", path.display()))?;
                    unpack::unpack(std::io::BufReader::new(file), &directory)?;
                }
            }
            persist::link(&directory, &persist, &paths)
        })
        .await?
    }
}

fn is_built(directory: &Path) -> bool {
    directory.is_dir() && !directory.join(BUILDING).exists()
}

/// An empty directory that is marked as being built.
fn start_over(directory: &PathBuf) -> anyhow::Result<()> {
    let make = || {
        if directory.exists() {
            std::fs::remove_dir_all(directory)?;
        }
        crate::node::identity::private_directory(directory)?;
        std::fs::File::create(directory.join(BUILDING)).map(drop)
    };
    make().with_context(|| format!("{} cannot be made", directory.display()))
}

fn failure(doing: &'static str) -> impl Fn(anyhow::Error) -> Failure {
    move |error| Failure { why: format!("{doing} failed: {error:#}"), last_words: String::new() }
}
