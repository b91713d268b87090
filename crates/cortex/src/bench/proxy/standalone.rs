//! The router alone in a process, for a measurement: one thread, a store of its own with one
//! application whose instance is the backend and one that has files. The path of a request is the
//! node's, records for the metrics included. Ends with its standard input, so that it never
//! outlives the measurement.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use model::application::Settings;
use model::release::{ProcessRecipe, StaticMount};
use model::value::ContentHash;
use model::{
    ApplicationName, ApplicationSpec, Claim, Incarnation, InstanceId, InstanceState, NodeId,
    ProcessType, Recipe, Release, ReleaseId, Rollout, TypedKey, record,
};
use serde::Serialize;

use super::FILE_PATH;
use crate::driver::Clock;
use crate::faults::Faults;
use crate::layout::DataDirectory;
use crate::metrics::Metrics;
use crate::node::parts::supervise;
use crate::router::RouterConfig;
use crate::router::queue::QueueLimits;
use crate::store::SharedStore;

const PUBLIC: &str = "public";

#[derive(Debug, Args)]
pub struct StandaloneArgs {
    #[arg(long)]
    listen: SocketAddr,
    /// The backend's port on loopback
    #[arg(long)]
    to: u16,
    #[arg(long)]
    files: PathBuf,
    /// Made, and filled with what the router needs
    #[arg(long = "router-data")]
    data: PathBuf,
}

pub fn run(args: &StandaloneArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(serve(args));
    // A thread that waits for standard input must not keep it.
    runtime.shutdown_background();
    ended
}

async fn serve(args: &StandaloneArgs) -> anyhow::Result<()> {
    let clock = Clock::start();
    let faults = Faults::default();
    let layout = DataDirectory::new(args.data.clone(), &args.data);
    let world = World { node: "bench".parse()?, clock, layout: layout.clone() };
    let store = {
        let (layout, node) = (layout.clone(), world.node.clone());
        tokio::task::spawn_blocking(move || crate::store::open::open(&layout, node, clock))
            .await??
    };
    world.fill(&store, args.to, &args.files).await?;
    let metrics = Metrics::default();
    let router = crate::router::start(
        &RouterConfig {
            public: Some(args.listen),
            secure: None,
            threads: Some(1),
            queue: QueueLimits::default(),
            listeners: Arc::default(),
        },
        store.clone(),
        world.node.clone(),
        layout,
        clock,
        faults.clone(),
        metrics.clone(),
    )?;
    let input_ended = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0; 1]));
    tokio::select! {
        () = supervise("router.control", || router.control()) => {}
        () = supervise("metrics", || metrics.clone().run(faults.clone())) => {}
        () = router.suspicions() => {}
        _ = input_ended => {}
    }
    Ok(())
}

struct World {
    node: NodeId,
    clock: Clock,
    layout: DataDirectory,
}

impl World {
    async fn fill(&self, store: &SharedStore, backend: u16, files: &Path) -> anyhow::Result<()> {
        let proxy: ApplicationName = "proxy".parse()?;
        let mut recipe = Recipe::default();
        let process = ProcessRecipe { default_count: 1, ..ProcessRecipe::default() };
        recipe.processes.insert(ProcessType::web(), process);
        self.release(store, &proxy, recipe).await?;
        let instance = InstanceId { application: proxy, process: ProcessType::web(), slot: 1 };
        let mut claim = Claim::new(self.clock.now());
        claim.incarnations.push(Incarnation {
            generation: 1,
            release: self.release_id(),
            restart: 0,
            state: InstanceState::Ready,
            port: Some(backend),
            process: None,
            started_at: None,
            concurrency: None,
            restarts: 0,
            reason: None,
        });
        put(store, TypedKey::Claim(instance, self.node.clone()), &claim).await?;

        let name: ApplicationName = "files".parse()?;
        let target = self.layout.release(&name, &self.release_id()).join(PUBLIC).join(FILE_PATH);
        std::fs::create_dir_all(target.parent().unwrap_or(&target))?;
        std::fs::copy(files.join(FILE_PATH), &target)?;
        let mount = StaticMount { prefix: "/".into(), directory: PUBLIC.into(), fallback: None };
        let recipe = Recipe { statics: vec![mount], ..Recipe::default() };
        self.release(store, &name, recipe).await
    }

    async fn release(
        &self,
        store: &SharedStore,
        name: &ApplicationName,
        recipe: Recipe,
    ) -> anyhow::Result<()> {
        let id = self.release_id();
        let release = Release {
            v: record::RECORD_VERSION,
            id: id.clone(),
            source: ContentHash([0; 32]),
            source_bytes: 0,
            recipe,
            settings: Settings::default(),
            created_at: self.clock.now(),
            author: String::new(),
            note: String::new(),
            replaces: None,
            unknown: BTreeMap::default(),
        };
        let mut rollout = Rollout::new(self.node.clone(), self.clock.now());
        rollout.serving = Some(id.clone());
        let spec = ApplicationSpec::new(self.clock.now());
        put(store, TypedKey::Release(name.clone(), id), &release).await?;
        put(store, TypedKey::Rollout(name.clone()), &rollout).await?;
        put(store, TypedKey::Spec(name.clone()), &spec).await
    }

    fn release_id(&self) -> ReleaseId {
        ReleaseId { number: 1, node: self.node.clone() }
    }
}

async fn put<T: Serialize>(store: &SharedStore, key: TypedKey, record: &T) -> anyhow::Result<()> {
    store.set(key.key(), record::encode(record).into()).await?;
    Ok(())
}
