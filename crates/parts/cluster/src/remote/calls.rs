//! The shell of the choice: calls nodes that keep the store, reads and writes the connection in
//! use, and reports what becomes of each.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{anyhow, bail};
use bytes::Bytes;
use model::NodeId;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};
use tokio_rustls::client::TlsStream;

use super::Shared;
use super::choice::{Effect, Event};
use super::wire::{self, FromStore};
use crate::dial;
use crate::dial::CallingNode;
use crate::frame::Versions;
use crate::tls::ALPN_STORE;
use runtime::driver::Shell;

/// The time limit of a call: a node that takes longer to greet is not to be used now.
const CALL_MAX: Duration = Duration::from_secs(3);
/// The shortest time between two reports that something was heard.
const HEARD_INTERVAL: Duration = Duration::from_millis(50);
/// The time limit of a write; a node that takes in nothing for so long has been left before, for
/// its silence.
const WRITE_MAX: Duration = Duration::from_secs(5);

pub type KeeperStream = TlsStream<TcpStream>;

pub struct KeeperCalls {
    pub shared: Arc<Shared>,
    pub events: mpsc::Sender<Event>,
    /// The streams that were made and are not used yet.
    ready: Arc<Mutex<BTreeMap<NodeId, KeeperStream>>>,
    in_use: Option<AbortHandle>,
}

/// Opens a stream for requests to a node that keeps the store.
pub async fn connect(shared: &Shared, node: &NodeId) -> anyhow::Result<KeeperStream> {
    let addresses = shared.keepers.addresses();
    let pin = shared.keepers.pin_of(node);
    let versions = Versions::default();
    let caller = CallingNode { tls: &shared.tls, node: &shared.node, versions, pin };
    let config = shared.tls.store_client();
    let made = dial::reach(caller, node, &addresses, config, ALPN_STORE);
    timeout(CALL_MAX, made).await.map_err(|_| anyhow!("no answer in time"))?
}

impl KeeperCalls {
    pub fn new(shared: Arc<Shared>, events: mpsc::Sender<Event>) -> KeeperCalls {
        KeeperCalls { shared, events, ready: Arc::default(), in_use: None }
    }

    fn call(&self, node: NodeId) {
        let (shared, events, ready) =
            (self.shared.clone(), self.events.clone(), self.ready.clone());
        self.shared.spawn(async move {
            let event = match connect(&shared, &node).await {
                Ok(stream) => {
                    let mut ready = ready.lock().unwrap_or_else(PoisonError::into_inner);
                    ready.insert(node.clone(), stream);
                    Event::Connected(node)
                }
                Err(error) => {
                    tracing::debug!(%node, error = format!("{error:#}"), "remote.not_reached");
                    shared.ledger.set_trouble(format!("{node}: {error:#}"));
                    Event::Failed(node)
                }
            };
            events.send(event).await.ok();
        });
    }

    fn take(&self, node: &NodeId) -> Option<KeeperStream> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).remove(node)
    }

    fn use_it(&mut self, node: NodeId) {
        let Some(stream) = self.take(&node) else {
            self.events.try_send(Event::Lost(node)).ok();
            return;
        };
        let (out, frames) = mpsc::unbounded_channel();
        let (shared, events) = (self.shared.clone(), self.events.clone());
        tracing::info!(%node, "remote.uses");
        shared.begin(node.clone(), out);
        let in_use = self.shared.spawn(async move {
            let (reader, writer) = tokio::io::split(stream);
            let ended = tokio::select! {
                ended = read(&shared, &node, reader, &events) => ended,
                ended = write(writer, frames) => ended,
            };
            let why =
                ended.err().map_or_else(|| "it was closed".into(), |error| format!("{error:#}"));
            tracing::warn!(%node, why, "remote.lost");
            shared.ledger.set_trouble(format!("{node}: {why}"));
            events.send(Event::Lost(node)).await.ok();
        });
        self.in_use = Some(in_use);
    }
}

/// Ends the connection in use, since new calls begin without it.
impl Drop for KeeperCalls {
    fn drop(&mut self) {
        if let Some(in_use) = self.in_use.take() {
            in_use.abort();
        }
        self.shared.ledger.disconnect();
    }
}

impl Shell for KeeperCalls {
    type Effect = Effect;

    async fn perform(&mut self, effect: Effect) -> anyhow::Result<()> {
        match effect {
            Effect::Call(node) => self.call(node),
            Effect::Use(node) => self.use_it(node),
            Effect::Discard(node) => drop(self.take(&node)),
            Effect::Leave(node) => {
                tracing::info!(%node, "remote.leaves");
                if let Some(in_use) = self.in_use.take() {
                    in_use.abort();
                }
                self.shared.ledger.disconnect();
            }
            Effect::Ping(_) => self.shared.ledger.ping(),
        }
        Ok(())
    }
}

async fn write(
    mut writer: impl AsyncWrite + Unpin,
    mut frames: mpsc::UnboundedReceiver<Bytes>,
) -> anyhow::Result<()> {
    while let Some(frame) = frames.recv().await {
        wire::write(&mut writer, &frame, frames.is_empty(), WRITE_MAX).await?;
    }
    Ok(())
}

async fn read(
    shared: &Shared,
    node: &NodeId,
    mut reader: impl AsyncRead + Unpin,
    events: &mpsc::Sender<Event>,
) -> anyhow::Result<()> {
    let mut told: Option<Instant> = None;
    loop {
        let (head, bytes) = wire::read::<FromStore>(&mut reader).await?;
        if told.is_none_or(|told| told.elapsed() >= HEARD_INTERVAL) {
            told = Some(Instant::now());
            // An event that finds no room is followed by another.
            events.try_send(Event::Heard(node.clone())).ok();
        }
        match head {
            FromStore::Pong => {}
            FromStore::Resync { at } => shared.resync(at),
            FromStore::Changed { at, key, value, expired } => {
                let value =
                    value.map(|shape| shared.value(shape, &mut bytes.clone())).transpose()?;
                if key.is_local() {
                    bail!("it tells of its own board");
                }
                shared.changed(at, &key, value, expired);
            }
            FromStore::Answer { id, part, last } => {
                if !shared.ledger.answered(id, part, bytes, last) {
                    bail!("its answer was too large");
                }
            }
        }
    }
}
