//! A world of nodes with a directory each, and streams between them that fail as a test wants.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use model::NodeId;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex, split};

use crate::bulk::links::BulkLinks;
use crate::bulk::serve::BulkServer;
use crate::bulk::{BulkError, BulkPeers, ValueName, fetch};
use crate::values::ValueFiles;
use runtime::members::BoxedStream;

/// The bytes that two streams in a row hold on their way, about as many as two sockets.
const PIPE_BYTES: usize = 32 << 10;

pub struct Node {
    dir: Arc<TempDir>,
    pub values: Arc<ValueFiles>,
}

impl Node {
    pub fn new() -> Node {
        let dir = Arc::new(TempDir::new().unwrap());
        Node { values: open(&dir), dir }
    }

    /// Restarts the node as after a crash: what is in memory is gone.
    pub fn restart(&mut self) {
        self.values = open(&self.dir);
    }

    pub fn store(&self, bytes: &[u8]) -> ValueName {
        let mut writer = self.values.create().unwrap();
        writer.write(bytes).unwrap();
        let file = writer.finish().unwrap();
        ValueName { hash: file.hash.0, size: file.size }
    }

    pub fn load(&self, value: &ValueName) -> Option<Vec<u8>> {
        std::fs::read(self.values.path(&value.hash)).ok()
    }

    pub fn partial(&self, value: &ValueName) -> std::path::PathBuf {
        self.dir.path().join("partial").join(value.text())
    }
}

fn open(dir: &TempDir) -> Arc<ValueFiles> {
    ValueFiles::open(dir.path().to_path_buf(), Duration::from_secs(3600)).unwrap()
}

/// Returns a runtime whose clock moves only when nothing else is to be done, so that stalls and
/// pauses cost no time.
pub fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().start_paused(true).build().unwrap()
}

/// Returns bytes such that no two groups are the same.
pub fn bytes(size: usize, seed: u64) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    let mut bytes = vec![0; size];
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

/// What happens to the bytes that one stream brings to the asking side.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fate {
    /// The number of bytes after which the stream ends.
    pub cut_after: Option<u64>,
    /// The offset of a byte, and which of its bits are flipped.
    pub flip: Option<(u64, u8)>,
}

#[derive(Default)]
struct Traffic {
    fates: VecDeque<Fate>,
    /// What each stream brought, in the order in which they were opened.
    brought: Vec<Vec<u8>>,
    streams: usize,
    is_down: bool,
}

/// Peers by number, each with the fates of its next streams.
#[derive(Default)]
pub struct Peers {
    servers: Mutex<BTreeMap<NodeId, Arc<BulkServer>>>,
    traffic: Arc<Mutex<BTreeMap<NodeId, Traffic>>>,
}

pub fn node(number: u64) -> NodeId {
    format!("{number:016x}").parse().unwrap()
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Peers {
    pub fn of(nodes: &[&Node]) -> Arc<Peers> {
        let peers = Arc::new(Peers::default());
        (0..).zip(nodes).for_each(|(number, of)| peers.add(number, of));
        peers
    }

    pub fn add(&self, number: u64, of: &Node) {
        let server = Arc::new(BulkServer::new(of.values.clone()));
        locked(&self.servers).insert(node(number), server);
    }

    pub fn fates(&self, number: u64, fates: impl IntoIterator<Item = Fate>) {
        locked(&self.traffic).entry(node(number)).or_default().fates.extend(fates);
    }

    pub fn set_down(&self, number: u64, is_down: bool) {
        locked(&self.traffic).entry(node(number)).or_default().is_down = is_down;
    }

    /// Returns what the streams of a peer brought.
    pub fn brought(&self, number: u64) -> Vec<Vec<u8>> {
        locked(&self.traffic).get(&node(number)).map_or(Vec::new(), |t| t.brought.clone())
    }

    pub fn all_brought(&self) -> u64 {
        let traffic = locked(&self.traffic);
        traffic.values().flat_map(|t| &t.brought).map(|bytes| bytes.len() as u64).sum()
    }

    pub fn forget(&self) {
        locked(&self.traffic).clear();
    }

    pub async fn fetch(self: &Arc<Self>, to: &Node, value: ValueName) -> Result<(), BulkError> {
        let links = BulkLinks::new(self.clone());
        let holders = self.reachable();
        fetch::fetch(&to.values, &links, value, &holders, Vec::new(), &|_| ()).await
    }
}

#[async_trait]
impl BulkPeers for Peers {
    fn reachable(&self) -> Vec<NodeId> {
        let traffic = locked(&self.traffic);
        let is_up = |id: &&NodeId| !traffic.get(*id).is_some_and(|t| t.is_down);
        locked(&self.servers).keys().filter(is_up).cloned().collect()
    }

    async fn connect(&self, peer: &NodeId) -> io::Result<BoxedStream> {
        let server = locked(&self.servers).get(peer).cloned();
        let server = server.ok_or(io::ErrorKind::ConnectionRefused)?;
        let (fate, number) = {
            let mut traffic = locked(&self.traffic);
            let traffic = traffic.entry(peer.clone()).or_default();
            if traffic.is_down {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            traffic.brought.push(Vec::new());
            traffic.streams += 1;
            (traffic.fates.pop_front().unwrap_or_default(), traffic.streams - 1)
        };
        let (near, relay_near) = duplex(PIPE_BYTES);
        let (relay_far, far) = duplex(PIPE_BYTES);
        tokio::spawn(async move { server.serve(far).await });
        tokio::spawn(relay(
            relay_near,
            relay_far,
            fate,
            self.traffic.clone(),
            peer.clone(),
            number,
        ));
        Ok(Box::new(near))
    }
}

async fn relay(
    near: tokio::io::DuplexStream,
    far: tokio::io::DuplexStream,
    fate: Fate,
    traffic: Arc<Mutex<BTreeMap<NodeId, Traffic>>>,
    peer: NodeId,
    number: usize,
) {
    let ((mut from_near, mut to_near), (mut from_far, mut to_far)) = (split(near), split(far));
    let asking = async { tokio::io::copy(&mut from_near, &mut to_far).await };
    let answering = async {
        let mut passed = 0u64;
        let mut buffer = vec![0; 4096];
        loop {
            let left = fate.cut_after.map_or(u64::MAX, |cut| cut - passed);
            let room = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            if room == 0 {
                return;
            }
            let Ok(count @ 1..) = from_far.read(&mut buffer[..room]).await else { return };
            let now = &mut buffer[..count];
            if let Some((at, bits)) = fate.flip
                && (passed..passed + count as u64).contains(&at)
            {
                now[(at - passed) as usize] ^= bits;
            }
            if to_near.write_all(now).await.is_err() {
                return;
            }
            if let Some(traffic) = locked(&traffic).get_mut(&peer)
                && let Some(brought) = traffic.brought.get_mut(number)
            {
                brought.extend_from_slice(now);
            }
            passed += count as u64;
        }
    };
    tokio::select! { _ = asking => {}, () = answering => {} }
}
