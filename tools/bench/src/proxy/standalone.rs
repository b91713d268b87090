//! The router alone in a process, for a measurement: one thread, and a store of its own with one
//! application whose instances are the backends and one that has files. A request takes the same
//! path as in a node, records for the metrics included. The process ends with its standard input,
//! so that it never outlives the measurement.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use model::application::Settings;
use model::release::{ProcessRecipe, StaticMount};
use model::value::ContentHash;
use model::{
    ApplicationName, ApplicationSpec, BuildId, Claim, Incarnation, InstanceId, InstanceState,
    NodeId, ProcessType, Recipe, Release, ReleaseId, Rollout, TypedKey, record,
};
use router_core::http::request::ForwardedFields;
use serde::Serialize;

use super::FILE_PATH;
use metrics::Metrics;
use node::records::StoredRecords;
use os::layout::DataDirectory;
use router::queue::QueueLimits;
use router::{CONNECTIONS_MAX, RouterConfig, Secure};
use runtime::driver::Clock;
use runtime::faults::Faults;
use runtime::supervise::supervise;
use store::SharedStore;
use store::options::Options;
use tls::{CertificateFiles, Tls};

const PUBLIC: &str = "public";

#[derive(Debug, Args)]
pub struct StandaloneArgs {
    #[arg(long)]
    listen: SocketAddr,
    /// The address on which clients speak TLS
    #[arg(long, requires_all = ["certificate", "key"])]
    secure: Option<SocketAddr>,
    #[arg(long)]
    certificate: Option<PathBuf>,
    #[arg(long)]
    key: Option<PathBuf>,
    /// The backends' ports on loopback
    #[arg(long, value_delimiter = ',', required = true)]
    to: Vec<u16>,
    /// Requests at a time per backend; no limit if left out
    #[arg(long)]
    concurrency: Option<u32>,
    /// A directory with a page to serve; left out if only backends are asked
    #[arg(long)]
    files: Option<PathBuf>,
    /// A directory to create and fill with what the router needs
    #[arg(long = "router-data")]
    data: PathBuf,
}

pub fn run(args: &StandaloneArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(serve(args));
    // The thread that waits for standard input must not delay the end.
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
        tokio::task::spawn_blocking(move || {
            store::open::open_alone(&layout, node, clock, Options::default())
        })
        .await??
    };
    world.fill(&store, args).await?;
    let metrics = Metrics::default();
    let router = router::start(
        &RouterConfig {
            public: Some(args.listen),
            secure: args.secure()?,
            announced_by: None,
            forwarded: ForwardedFields::Usual,
            threads: Some(1),
            queue: QueueLimits::default(),
            connections_max: CONNECTIONS_MAX,
            listeners: Arc::default(),
        },
        Arc::new(StoredRecords(store.clone())),
        world.node.clone(),
        layout,
        clock,
        faults.clone(),
        metrics.clone(),
    )?;
    tokio::spawn(runtime::settle::settle());
    let input_ended = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0; 1]));
    let suspicions = router.suspicions();
    tokio::select! {
        () = supervise("router.control", move || router.control()) => {}
        () = supervise("metrics", move || metrics.clone().run(faults.clone())) => {}
        () = suspicions => {}
        _ = input_ended => {}
    }
    Ok(())
}

impl StandaloneArgs {
    /// Returns the configuration of TLS, without tickets: no client comes again in a measurement,
    /// and every handshake is a full one.
    fn secure(&self) -> anyhow::Result<Option<Secure>> {
        let Some(address) = self.secure else { return Ok(None) };
        let chain = self.certificate.clone().context("--secure needs --certificate")?;
        let key = self.key.clone().context("--secure needs --key")?;
        let tls = Tls::load(vec![CertificateFiles { chain, key }])?.without_tickets();
        Ok(Some(Secure { address, tls, port: None }))
    }
}

/// What a router needs of a node.
pub struct World {
    pub node: NodeId,
    pub clock: Clock,
    pub layout: DataDirectory,
}

/// Returns the recipe of an application with one process that takes requests.
pub fn web() -> Recipe {
    let mut recipe = Recipe::default();
    let process = ProcessRecipe { default_count: 1, ..ProcessRecipe::default() };
    recipe.processes.insert(ProcessType::web(), process);
    recipe
}

impl World {
    async fn fill(&self, store: &SharedStore, args: &StandaloneArgs) -> anyhow::Result<()> {
        let proxy: ApplicationName = "proxy".parse()?;
        self.release(store, &proxy, web()).await?;
        for (slot, port) in (1..).zip(&args.to) {
            self.claim(store, &proxy, (slot, 1), *port, args.concurrency).await?;
        }
        match &args.files {
            Some(files) => self.fill_files(store, files).await,
            None => Ok(()),
        }
    }

    /// Writes the claim of a ready instance in this slot and generation.
    pub async fn claim(
        &self,
        store: &SharedStore,
        name: &ApplicationName,
        (slot, generation): (u32, u64),
        port: u16,
        concurrency: Option<u32>,
    ) -> anyhow::Result<()> {
        let (application, process) = (name.clone(), ProcessType::web());
        let instance = InstanceId { application, process, slot };
        let mut claim = Claim::new(self.clock.now());
        claim.incarnations.push(Incarnation {
            generation,
            release: self.release_id(),
            restart: 0,
            state: InstanceState::Ready,
            port: Some(port),
            ports: Default::default(),
            process: None,
            started_at: None,
            concurrency,
            restarts: 0,
            reason: None,
            remark: None,
        });
        put(store, TypedKey::Claim(instance, self.node.clone()), &claim).await
    }

    async fn fill_files(&self, store: &SharedStore, files: &Path) -> anyhow::Result<()> {
        let name: ApplicationName = "files".parse()?;
        let id = BuildId::Of(self.release_id());
        let target = self.layout.build(&name, &id).join(PUBLIC).join(FILE_PATH);
        std::fs::create_dir_all(target.parent().unwrap_or(&target))?;
        std::fs::copy(files.join(FILE_PATH), &target)?;
        std::fs::write(self.layout.build_mark(&name, &id), "")?;
        let mount = StaticMount { prefix: "/".into(), directory: PUBLIC.into(), fallback: None };
        let recipe = Recipe { statics: vec![mount], ..Recipe::default() };
        self.release(store, &name, recipe).await
    }

    /// Writes a release that serves from now on.
    pub async fn release(
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
            build: None,
            recipe,
            settings: Settings::default(),
            created_at: self.clock.now(),
            author: String::new(),
            note: String::new(),
            revision: None,
            replaces: None,
            remark: None,
            takes_back: None,
            unknown: BTreeMap::default(),
        };
        let mut rollout = Rollout::new(self.node.clone(), self.clock.now());
        rollout.serving = Some(id.clone());
        let spec = ApplicationSpec::new(self.clock.now());
        put(store, TypedKey::Release(name.clone(), id), &release).await?;
        put(store, TypedKey::Rollout(name.clone()), &rollout).await?;
        put(store, TypedKey::Spec(name.clone()), &spec).await
    }

    pub fn release_id(&self) -> ReleaseId {
        ReleaseId { number: 1, node: self.node.clone() }
    }
}

async fn put<T: Serialize>(store: &SharedStore, key: TypedKey, record: &T) -> anyhow::Result<()> {
    store.set(key.key(), record::encode(record).into()).await?;
    Ok(())
}
