//! The store of a node that keeps none: another node's, over mutual TLS. `choice` decides which
//! one; requests that were not answered are sent to the next one, and watchers read again there.
//! Notes stay on this node. Must not know who asks; opened when a node without the role `store`
//! starts.

mod calls;
mod choice;
mod hub;
mod keepers;
mod ledger;
mod requests;
pub mod serve;
#[cfg(test)]
mod tests;
mod upload;
mod wire;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use model::{Key, NodeId};
use store_core::sync::message::ClusterId;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use self::calls::KeeperCalls;
use self::choice::{Event, KeeperChoice};
use self::hub::Hub;
use self::keepers::Keepers;
use self::ledger::Ledger;
use self::wire::{AnswerPart, At, StoreRequest, WireValue};
use crate::apart;
use crate::identity::{Authority, Membership, node_key, random};
use crate::roster;
use crate::tls::ClusterTls;
use os::layout::DataDirectory;
use os::lockfile::FileLock;
use runtime::driver::{Clock, drive};
use runtime::supervise::supervise;
use runtime::task;
use store::bulk::fetch_board::FetchBoard;
use store::bulk::schedule::MissingValues;
use store::bulk::{StatedHash, ValueName};
use store::options;
use store::options::{OpenError, Options};
use store::values::ValueFiles;
use store::{SharedStore, Store, Value};

/// The number of events that may wait: calls, losses and signs of life of one connection.
const EVENTS_MAX: usize = 1024;
/// The interval at which it is checked whether a caller has waited too long.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// The time between two collections of value files. Fetched and forwarded values are copies: they
/// go when nobody has used them lately.
const COLLECT_INTERVAL: Duration = Duration::from_secs(600);
/// The pause before a roster that could not be read is read again.
const ROSTER_PAUSE: Duration = Duration::from_secs(1);

/// The transport's handle on the store of a node that keeps none.
#[derive(Clone)]
pub struct GuestHandle {
    pub cluster: ClusterId,
    pub large: Arc<FetchBoard>,
    ledger: Arc<Ledger>,
}

impl GuestHandle {
    /// Returns the node whose store is used now.
    pub fn in_use(&self) -> Option<NodeId> {
        self.ledger.in_use()
    }

    /// Returns the members that are alive and exchange nothing with the store in use, as its node
    /// says; `None` if it does not answer.
    pub async fn apart(&self) -> Option<BTreeSet<NodeId>> {
        let what = StoreRequest::Lookup { key: apart::note() };
        let answer = self.ledger.ask(what, Bytes::new()).ok()?.await.ok()?.ok()?;
        let mut said = BTreeSet::new();
        for (part, bytes) in answer {
            let AnswerPart::Entries(entries) = part else { return None };
            if !entries.is_empty() {
                said.extend(apart::of_note(&bytes));
            }
        }
        Some(said)
    }
}

/// The wants of a store that keeps nothing: nothing is missing, and what is read is fetched.
pub struct Nothing;

impl MissingValues for Nothing {
    fn missing(&self, _max: usize, _skip: &dyn Fn(&ValueName) -> bool) -> Vec<ValueName> {
        Vec::new()
    }

    fn is_missing(&self, _value: &ValueName) -> bool {
        false
    }

    fn claims(&self, _value: &ValueName) -> Vec<StatedHash> {
        Vec::new()
    }

    fn arrived(&self, _values: &[ValueName]) {}
}

pub struct Shared {
    node: NodeId,
    clock: Clock,
    cluster: ClusterId,
    tls: ClusterTls,
    keepers: Keepers,
    ledger: Arc<Ledger>,
    hub: Hub,
    values: Arc<ValueFiles>,
    large: Arc<FetchBoard>,
    /// Whether there is a feed of changes, and its cursor at the node in use.
    fed: Mutex<(bool, Option<At>)>,
    closing: watch::Sender<bool>,
    /// The lock of the directory, held until the store is closed.
    lock: Mutex<Option<FileLock>>,
}

/// Opens the store. No node need be reachable for this: requests wait for a while.
pub async fn open(
    layout: &DataDirectory,
    node: NodeId,
    clock: Clock,
    options: Options,
) -> Result<(SharedStore, GuestHandle), OpenError> {
    let layout = layout.clone();
    let made = runtime::task::spawn_blocking(move || prepare(&layout, node, clock, options)).await;
    let shared = made.unwrap_or_else(|_| Err(OpenError::Interrupted))?;
    let (running, keeping) = (shared.clone(), shared.clone());
    shared.spawn(supervise("remote", move || running.clone().run()));
    shared.spawn(async move { keeping.collect().await });
    shared.spawn(shared.tls.credential.clone().keep());
    let (large, ledger) = (shared.large.clone(), shared.ledger.clone());
    let guest = GuestHandle { cluster: shared.cluster, large, ledger };
    Ok((shared, guest))
}

fn prepare(
    layout: &DataDirectory,
    node: NodeId,
    clock: Clock,
    options: Options,
) -> Result<Arc<Shared>, OpenError> {
    options::make_dir(&layout.store())?;
    let lock = options::lock(&layout.store())?;
    options::make_dir(&layout.values())?;
    let values = ValueFiles::open(layout.values(), options.value_age_min)
        .map_err(OpenError::io(&layout.values()))?;
    let secrets = || -> anyhow::Result<(ClusterId, ClusterTls, Keepers, u64)> {
        let dir = layout.cluster();
        let membership = Membership::load(&dir)?.context("this node belongs to no cluster")?;
        ensure!(membership.guest, "this node joined its cluster as one that keeps the store");
        let authority = Authority::load_or_make(&dir, membership.id())?;
        let tls = ClusterTls::new(&authority, membership.id(), &node, &node_key(&dir)?)?;
        let keepers = Keepers::load(dir.join("keepers.json"), membership.seeds.clone())?;
        Ok((membership.id(), tls, keepers, u64::from_le_bytes(random()?)))
    };
    let failed = |error: anyhow::Error| OpenError::Backend(format!("{error:#}"));
    let (cluster, tls, keepers, incarnation) = secrets().map_err(failed)?;
    Ok(Arc::new(Shared {
        ledger: Arc::new(Ledger::new(node.clone())),
        node,
        clock,
        cluster,
        tls,
        keepers,
        hub: Hub::new(incarnation),
        large: FetchBoard::new(values.clone()),
        values,
        fed: Mutex::default(),
        closing: watch::channel(false).0,
        lock: Mutex::new(Some(lock)),
    }))
}

impl Shared {
    /// Runs work until it ends, or the store is closed.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let (mut closing, work) = (self.closing.subscribe(), task::boxed(work));
        let task = task::spawn(async move {
            tokio::select! {
                () = work => {}
                _ = closing.wait_for(|closing| *closing) => {}
            }
        });
        task.abort_handle()
    }

    async fn run(self: Arc<Self>) -> anyhow::Result<()> {
        let (events, mut inbox) = mpsc::channel(EVENTS_MAX);
        let mut machine = KeeperChoice::new(self.node.clone());
        let mut calls = KeeperCalls::new(self.clone(), events.clone());
        events.send(Event::Known(self.keepers.ids())).await?;
        tokio::select! {
            ended = drive(&mut machine, &mut calls, &mut inbox, self.clock) => ended,
            ended = self.follow_roster(&events) => ended,
            ended = self.watch_over(&events) => ended,
        }
    }

    /// Keeps the list of nodes that keep the store up to date.
    async fn follow_roster(&self, events: &mpsc::Sender<Event>) -> anyhow::Result<()> {
        let mut members = self.watch(roster::prefix(), None).await?;
        let mut moved = self.watch(roster::addresses_prefix(), None).await?;
        loop {
            let keepers = match roster::read(self).await {
                Ok(keepers) => keepers,
                Err(error) => {
                    tracing::debug!(error = format!("{error:#}"), "remote.roster_unread");
                    tokio::time::sleep(ROSTER_PAUSE).await;
                    continue;
                }
            };
            if self.keepers.replace(keepers) {
                events.send(Event::Known(self.keepers.ids())).await?;
            }
            tokio::select! {
                event = members.next() => event.map(drop).context("the store was closed")?,
                known = roster::next_address(&mut moved) => ensure!(known, "the store was closed"),
            }
            while members.events.try_recv().is_ok() {}
        }
    }

    async fn watch_over(&self, events: &mpsc::Sender<Event>) -> anyhow::Result<()> {
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            if let Some(node) = self.ledger.look() {
                tracing::warn!(%node, "remote.stalls: it does not write");
                events.send(Event::Lost(node)).await?;
            }
        }
    }

    async fn collect(&self) {
        loop {
            tokio::time::sleep(COLLECT_INTERVAL).await;
            let values = self.values.clone();
            let removed = runtime::task::spawn_blocking(move || values.collect(|_| false)).await;
            if let Ok(Err(error)) = removed {
                tracing::warn!(%error, "remote.collect_failed");
            }
        }
    }

    /// Starts to use a connection for everything.
    fn begin(&self, node: NodeId, out: mpsc::UnboundedSender<Bytes>) {
        let mut fed = self.fed.lock().unwrap_or_else(PoisonError::into_inner);
        let (was_fed, from) = *fed;
        fed.0 = true;
        self.ledger.connect(node, out, from);
        if was_fed && from.is_none() {
            // It is not known where the feed was before, so neither is what it missed.
            self.hub.resync();
        }
    }

    fn resync(&self, at: At) {
        self.fed.lock().unwrap_or_else(PoisonError::into_inner).1 = Some(at);
        self.hub.resync();
    }

    fn changed(&self, at: At, key: &Key, value: Option<Value>, expired: bool) {
        self.fed.lock().unwrap_or_else(PoisonError::into_inner).1 = Some(at);
        self.hub.changed(key, value, expired);
    }

    /// Decodes a value; `bytes` begins with it, if it was sent along.
    fn value(&self, shape: WireValue, bytes: &mut Bytes) -> anyhow::Result<Value> {
        match shape {
            WireValue::Inline(length) => {
                ensure!(length <= bytes.len(), "a value is longer than what came of it");
                Ok(Value::Inline(bytes.split_to(length)))
            }
            WireValue::Large { hash, size } => {
                let held = self.values.holds(&ValueName { hash: hash.0, size });
                Ok(match held {
                    Ok(true) => Value::File { hash, size, path: self.values.path(&hash.0) },
                    _ => Value::Away { hash, size, fetch_board: self.large.clone() },
                })
            }
        }
    }
}
