//! A router over records in memory, back ends that answer as they are told, and a client that reads
//! exact bytes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use model::application::Settings;
use model::key::BoardKey;
use model::port::PortRecipe;
use model::release::{ProcessRecipe, StaticMount};
use model::request::RequestLimits;
use model::value::ContentHash;
use model::{
    ApplicationName, ApplicationSpec, Claim, Incarnation, InstanceId, InstanceState, Key, NodeId,
    Prefix, ProcessSpec, ProcessType, Recipe, Release, ReleaseId, Rollout, Timestamp, TypedKey,
    record,
};
use router_core::http::request::ForwardedFields;
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::queue::QueueLimits;
use crate::records::{RecordChange, Records};
use crate::{CONNECTIONS_MAX, RouterConfig, RouterHandle, Secure, start};
use metrics::Metrics;
use os::layout::DataDirectory;
use runtime::driver::Clock;
use runtime::faults::Faults;
use tls::Tls;

pub const DEADLINE: Duration = Duration::from_secs(20);

type Followers = Vec<(Vec<Prefix>, mpsc::Sender<RecordChange>)>;

/// Records in memory, all of which are told as they change.
#[derive(Default)]
pub struct MemoryRecords {
    records: Mutex<BTreeMap<Key, Bytes>>,
    followers: Mutex<Followers>,
}

impl MemoryRecords {
    fn change(&self, key: &Key, record: Option<Bytes>) {
        let mut records = self.records.lock().unwrap();
        match &record {
            Some(record) => drop(records.insert(key.clone(), record.clone())),
            None => drop(records.remove(key)),
        }
        for (prefixes, follower) in self.followers.lock().unwrap().iter() {
            if prefixes.iter().any(|prefix| prefix.matches(key)) {
                follower.try_send(RecordChange::One(key.clone(), record.clone())).ok();
            }
        }
    }

    pub fn has(&self, key: &TypedKey) -> bool {
        self.records.lock().unwrap().contains_key(&key.key())
    }

    pub fn delete(&self, key: &TypedKey) {
        self.change(&key.key(), None);
    }
}

#[async_trait]
impl Records for MemoryRecords {
    async fn follow(
        &self,
        prefixes: Vec<Prefix>,
        changes: mpsc::Sender<RecordChange>,
    ) -> anyhow::Result<()> {
        self.followers.lock().unwrap().push((prefixes, changes.clone()));
        changes.send(RecordChange::ReadAgain).await?;
        changes.closed().await;
        Ok(())
    }

    async fn read(&self, prefix: &Prefix) -> anyhow::Result<Vec<(Key, Bytes)>> {
        let records = self.records.lock().unwrap();
        let found = records.iter().filter(|(key, _)| prefix.matches(key));
        Ok(found.map(|(key, record)| (key.clone(), record.clone())).collect())
    }

    async fn note(&self, board: BoardKey, text: &'static str) -> anyhow::Result<()> {
        self.change(&TypedKey::Board(board).key(), Some(Bytes::from_static(text.as_bytes())));
        Ok(())
    }

    async fn forget(&self, board: BoardKey) -> anyhow::Result<()> {
        self.change(&TypedKey::Board(board).key(), None);
        Ok(())
    }
}

pub fn app() -> ApplicationName {
    "shop".parse().unwrap()
}

pub fn node() -> NodeId {
    "n1".parse().unwrap()
}

pub fn release_id() -> ReleaseId {
    ReleaseId { number: 1, node: node() }
}

pub fn instance(slot: u32) -> InstanceId {
    InstanceId { application: app(), process: ProcessType::web(), slot }
}

pub struct World {
    pub records: Arc<MemoryRecords>,
    pub router: RouterHandle,
    pub metrics: Metrics,
    pub faults: Faults,
    pub layout: DataDirectory,
    _directory: tempfile::TempDir,
}

/// Leaves at once, as the tests of one process share its descriptors.
impl Drop for World {
    fn drop(&mut self) {
        self.router.leave(Duration::ZERO, Duration::ZERO);
    }
}

impl World {
    pub fn new() -> World {
        World::with_threads(2)
    }

    pub fn with_threads(threads: usize) -> World {
        World::with(threads, QueueLimits::default())
    }

    pub fn with(threads: usize, queue: QueueLimits) -> World {
        World::of(node(), threads, queue, |_| ())
    }

    /// Starts the router of `node`; `connect` comes before it reads the store.
    pub fn of(
        node: NodeId,
        threads: usize,
        queue: QueueLimits,
        connect: impl FnOnce(&RouterHandle),
    ) -> World {
        let public = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        let (threads, listeners) = (Some(threads), Arc::default());
        let connections_max = CONNECTIONS_MAX;
        let config = RouterConfig {
            public,
            secure: None,
            announced_by: None,
            forwarded: ForwardedFields::Usual,
            threads,
            queue,
            connections_max,
            listeners,
        };
        World::configured(node, &config, connect)
    }

    /// Starts a router with a port inside TLS, too.
    pub fn secured(tls: Tls) -> World {
        World::secured_with(tls, 2, CONNECTIONS_MAX)
    }

    pub fn secured_with(tls: Tls, threads: usize, connections_max: usize) -> World {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let config = RouterConfig {
            public: Some(any),
            secure: Some(Secure { address: any, tls, port: None }),
            announced_by: None,
            forwarded: ForwardedFields::Usual,
            threads: Some(threads),
            queue: QueueLimits::default(),
            connections_max,
            listeners: Arc::default(),
        };
        World::configured(node(), &config, |_| ())
    }

    pub fn configured(
        node: NodeId,
        config: &RouterConfig,
        connect: impl FnOnce(&RouterHandle),
    ) -> World {
        let directory = tempfile::tempdir().unwrap();
        let layout = DataDirectory::new(directory.path().join("data"), directory.path());
        let records = Arc::new(MemoryRecords::default());
        let (metrics, faults) = (Metrics::default(), Faults::default());
        let router = start(
            config,
            records.clone(),
            node,
            layout.clone(),
            Clock::start(),
            faults.clone(),
            metrics.clone(),
        )
        .unwrap();
        connect(&router);
        let world = World { records, router, metrics, faults, layout, _directory: directory };
        let shared = world.router.shared.clone();
        let records = world.records.clone();
        tokio::spawn(runtime::supervise::supervise("router.control", move || {
            crate::control::run(shared.clone(), records.clone())
        }));
        tokio::spawn(world.router.suspicions());
        world
    }

    pub fn put<T: Serialize>(&self, key: TypedKey, record: &T) {
        self.records.change(&key.key(), Some(record::encode(record).into()));
    }

    /// Adds an application that serves its first release.
    pub fn application(&self, spec: impl FnOnce(&mut ApplicationSpec), statics: Vec<StaticMount>) {
        self.application_set(spec, Recipe { statics, ..Recipe::default() }, Settings::default());
    }

    /// Adds an application with ports of its own.
    pub fn ported(&self, ports: Vec<PortRecipe>) {
        let recipe = Recipe { ports, ..Recipe::default() };
        self.application_set(|_| (), recipe, Settings::default());
    }

    /// Adds an application whose requests are limited.
    pub fn limited(&self, requests: RequestLimits) {
        self.set(|settings| settings.requests = requests);
    }

    /// Adds an application whose release has such settings.
    pub fn set(&self, change: impl FnOnce(&mut Settings)) {
        let mut settings = Settings::default();
        change(&mut settings);
        self.application_set(|_| (), Recipe::default(), settings);
    }

    pub fn application_set(
        &self,
        spec: impl FnOnce(&mut ApplicationSpec),
        mut recipe: Recipe,
        settings: Settings,
    ) {
        let mut record = ApplicationSpec::new(Timestamp(0));
        let process = ProcessSpec { count: 1, ..ProcessSpec::default() };
        record.processes.insert(ProcessType::web(), process);
        spec(&mut record);
        if recipe.framework != "static" {
            recipe.processes.insert(ProcessType::web(), ProcessRecipe::default());
        }
        let release = Release {
            v: 1,
            id: release_id(),
            source: ContentHash([0; 32]),
            source_bytes: 0,
            build: None,
            recipe,
            settings,
            created_at: Timestamp(0),
            author: String::new(),
            note: String::new(),
            revision: None,
            replaces: None,
            remark: None,
            takes_back: None,
            unknown: BTreeMap::default(),
        };
        let mut rollout = Rollout::new(node(), Timestamp(0));
        rollout.serving = Some(release_id());
        self.put(TypedKey::Release(app(), release_id()), &release);
        self.put(TypedKey::Rollout(app()), &rollout);
        self.put(TypedKey::Spec(app()), &record);
    }

    /// Claims slot `slot` with processes at these ports, by generation and state.
    pub fn claim(
        &self,
        slot: u32,
        concurrency: Option<u32>,
        processes: &[(u64, InstanceState, u16)],
    ) {
        self.claim_on(node(), slot, concurrency, processes);
    }

    pub fn claim_on(
        &self,
        node: NodeId,
        slot: u32,
        concurrency: Option<u32>,
        processes: &[(u64, InstanceState, u16)],
    ) {
        let mut claim = Claim::new(Timestamp(0));
        for (generation, state, port) in processes {
            claim.incarnations.push(Incarnation {
                generation: *generation,
                release: release_id(),
                restart: 0,
                state: *state,
                port: Some(*port),
                ports: Default::default(),
                process: None,
                started_at: None,
                concurrency,
                restarts: 0,
                reason: None,
                remark: None,
            });
        }
        self.put(TypedKey::Claim(instance(slot), node), &claim);
    }

    pub async fn routed(&self) {
        let shared = self.router.shared.clone();
        wait(|| shared.table.load().by_host(b"shop.localhost").is_some()).await;
    }

    /// Returns whether the router says that nothing is in flight there.
    pub fn is_drained(&self, slot: u32, generation: u64) -> bool {
        self.records.has(&TypedKey::Board(BoardKey::Drained(instance(slot), generation)))
    }

    pub async fn connect(&self) -> Client {
        Client(TcpStream::connect(self.router.public().unwrap()).await.unwrap())
    }

    /// Connects as a client with another address.
    pub async fn connect_as(&self, address: [u8; 4]) -> Client {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((address, 0))).unwrap();
        Client(socket.connect(self.router.public().unwrap()).await.unwrap())
    }

    /// Connects as a client whose socket takes `receive_buffer` bytes; the kernel counts twice
    /// that, what it needs itself included.
    pub async fn connect_with(&self, receive_buffer: u32) -> Client {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(receive_buffer).unwrap();
        Client(socket.connect(self.router.public().unwrap()).await.unwrap())
    }

    pub async fn get(&self, path: &str) -> Reply {
        let mut client = self.connect().await;
        client.send(&format!("GET {path} HTTP/1.1\r\nHost: shop.localhost\r\n\r\n")).await;
        client.reply().await
    }
}

/// Waits until it is so, within the deadline.
pub async fn wait(mut is_so: impl FnMut() -> bool) {
    let poll = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(DEADLINE, poll).await.expect("it came to pass in time");
}

pub struct Client(pub TcpStream);

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Client {
    pub async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads one answer; panics if it is truncated.
    pub async fn reply(&mut self) -> Reply {
        tokio::time::timeout(DEADLINE, self.try_reply(false)).await.unwrap().expect("an answer")
    }

    pub async fn try_reply(&mut self, head_only: bool) -> std::io::Result<Reply> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.0.read_u8().await?);
        }
        let head = String::from_utf8(head).unwrap();
        let status: u16 = head[9..12].parse().unwrap();
        let lower = head.to_lowercase();
        let field = |name: &str| {
            let at = lower.find(&format!("\r\n{name}: "))? + name.len() + 4;
            lower[at..].split("\r\n").next().map(str::to_owned)
        };
        let mut body = Vec::new();
        if head_only || status < 200 || status == 204 || status == 304 {
        } else if field("transfer-encoding").is_some() {
            loop {
                let mut line = Vec::new();
                while !line.ends_with(b"\r\n") {
                    line.push(self.0.read_u8().await?);
                }
                let size = std::str::from_utf8(&line).unwrap();
                let size = size.split(';').next().unwrap().trim();
                let size = usize::from_str_radix(size, 16).unwrap();
                let mut chunk = vec![0; size + 2];
                self.0.read_exact(&mut chunk).await?;
                body.extend_from_slice(&chunk[..size]);
                if size == 0 {
                    break;
                }
            }
        } else if let Some(length) = field("content-length") {
            body.resize(length.parse().unwrap(), 0);
            self.0.read_exact(&mut body).await?;
        } else {
            self.0.read_to_end(&mut body).await?;
        }
        Ok(Reply { status, head, body })
    }
}

/// A back end, which hands each connection to `serve`.
pub struct Backend {
    pub port: u16,
    pub connections: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Backend {
    pub async fn start<F, R>(serve: F) -> Backend
    where
        F: Fn(Client) -> R + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = connections.clone();
        let task = tokio::spawn(async move {
            let mut tasks = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                tasks.spawn(serve(Client(stream)));
            }
        });
        Backend { port, connections, task }
    }

    /// Answers every request, keeping the connection, with what `answer` makes of it.
    pub async fn answering(
        answer: impl Fn(&str) -> String + Send + Sync + Clone + 'static,
    ) -> Backend {
        Backend::start(move |mut client| {
            let answer = answer.clone();
            async move {
                while let Some(request) = client.request().await {
                    if client.0.write_all(answer(&request).as_bytes()).await.is_err() {
                        return;
                    }
                    if request.contains("Connection: close") {
                        return;
                    }
                }
            }
        })
        .await
    }

    /// Answers with its name.
    pub async fn named(name: &'static str) -> Backend {
        Backend::answering(move |_| ok(name)).await
    }
}

pub fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

impl Client {
    /// Reads a request with its body, by length or in chunks; `None` at the end.
    pub async fn request(&mut self) -> Option<String> {
        let mut text = Vec::new();
        while !text.ends_with(b"\r\n\r\n") {
            text.push(self.0.read_u8().await.ok()?);
        }
        let head = String::from_utf8(text.clone()).unwrap();
        if let Some((_, rest)) = head.split_once("Content-Length: ") {
            let length: usize = rest.split("\r\n").next()?.parse().ok()?;
            let mut body = vec![0; length];
            self.0.read_exact(&mut body).await.ok()?;
            text.extend(body);
        } else if head.contains("Transfer-Encoding: chunked") {
            let is_last = |end: &[u8]| end == b"\r\n0\r\n";
            let start = text.len() - b"\r\n".len();
            while !(text.ends_with(b"\r\n\r\n") && text[start..].windows(5).any(is_last)) {
                text.push(self.0.read_u8().await.ok()?);
            }
        }
        Some(String::from_utf8_lossy(&text).into_owned())
    }
}
