//! The shell of the orders for certificates: it keeps the machine informed of the store and of the
//! other nodes, speaks with the authority, and writes what comes of it. The router serves from the
//! store what is written here; neither knows the other.

mod account;
mod arrival;
mod authority;
mod failure;
mod leaf;
mod ordering;
mod peers;
mod proving;
mod registrar;
mod tasks;
mod view;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use acme_core::{Event, Orderer};
use model::{NodeId, Prefix};
use runtime::driver::{Clock, drive};
use runtime::members::Members;
use store::{SharedStore, Value, WatchEvent};
use tokio::sync::{mpsc, watch};

pub use self::account::{is_registered, terms};
pub use self::arrival::{Answer, Answered, Found};
pub use self::authority::roots_of;
pub use self::leaf::facts;
pub use self::peers::find;
use self::tasks::TaskShell;
pub use self::tasks::nonce;
use self::view::View;
pub use self::view::is_public;

/// The directory of the authority that is used if a person names none.
pub const LETS_ENCRYPT: &str = instant_acme::LetsEncrypt::Production.url();
/// Events that wait while a claim is being written; a full queue makes the watch fall behind, which
/// ends in a resync.
const EVENTS_MAX: usize = 1024;
/// How often it is looked whether something has expired that nobody wants.
const TIDY_INTERVAL: Duration = Duration::from_secs(600);
/// How long what is known of a name is kept that nobody wants: an application may come back, and
/// budgets are for a week.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// What the part needs of its node.
#[derive(Clone)]
pub struct CertificatesContext {
    pub store: SharedStore,
    pub node: NodeId,
    pub clock: Clock,
    /// The other nodes; `None` where there are none.
    pub members: Option<Arc<dyn Members>>,
    /// Whether this node serves public HTTPS.
    pub https: bool,
}

impl CertificatesContext {
    /// Answers the questions of other nodes from now on.
    pub fn answer(&self) {
        if let Some(members) = &self.members {
            peers::serve(&**members, self.store.clone());
        }
    }
}

/// Runs until the store stops.
pub async fn run(context: CertificatesContext) -> anyhow::Result<()> {
    let (sender, mut receiver) = mpsc::channel(EVENTS_MAX);
    let mut orderer = Orderer::new(context.node.clone());
    let (needs, needed) = watch::channel(None);
    let mut shell = TaskShell::new(context.clone(), sender.clone());
    tokio::select! {
        result = follow(&context, sender, needs) => result,
        result = registrar::run(context.clone(), needed) => result,
        result = drive(&mut orderer, &mut shell, &mut receiver, context.clock) => result,
    }
}

/// Translates records and nodes into events. `needs` has the settings for which an account is to be
/// made.
async fn follow(
    context: &CertificatesContext,
    events: mpsc::Sender<Event>,
    needs: watch::Sender<Option<registrar::Need>>,
) -> anyhow::Result<()> {
    let mut watch = context.store.watch(Prefix::all(), None).await?;
    let mut alive = context.members.as_ref().map(|members| members.alive());
    let mut view = View::default();
    let (late, mut came) = mpsc::channel(EVENTS_MAX);
    read_all(context, &mut view, &events, &late).await?;
    let mut tidying = tokio::time::interval(TIDY_INTERVAL);
    // Most that is written is of no interest here.
    let mut stale = true;
    loop {
        if std::mem::take(&mut stale) {
            for event in view.changes(context.clock.now(), context) {
                events.send(event).await?;
            }
            needs.send_if_modified(|known| {
                let need = registrar::Need::of(&view);
                let changed = *known != need;
                *known = need;
                changed
            });
        }
        tokio::select! {
            change = watch.next() => match change {
                None => return Ok(()),
                Some(WatchEvent::Resync { .. }) => {
                    let before = std::mem::take(&mut view);
                    read_all(context, &mut view, &events, &late).await?;
                    tell_ends(context, &before, &view, &events).await?;
                    stale = true;
                }
                Some(WatchEvent::Changed { key, value, .. }) => {
                    stale = View::reads(&key);
                    note(&mut view, &events, &late, key, value).await?;
                }
            },
            // A large value whose bytes had to come from another node; it may be another by now.
            Some(key) = came.recv() => {
                let value = context.store.lookup(&key).await?.map(|entry| entry.value);
                note(&mut view, &events, &late, key, value).await?;
                stale = true;
            }
            others = others(&mut alive) => events.send(Event::Alive(others)).await?,
            _ = tidying.tick() => {
                stale = true;
                let kept = u64::try_from(KEPT.as_millis()).unwrap_or(u64::MAX);
                for key in view.leftovers(context.clock.now(), kept) {
                    context.store.delete(key).await?;
                }
            }
        }
    }
}

/// Returns the other nodes that are alive, when they are others than before.
async fn others(alive: &mut Option<watch::Receiver<BTreeSet<NodeId>>>) -> BTreeSet<NodeId> {
    let Some(receiver) = alive else { return std::future::pending().await };
    match receiver.changed().await {
        Ok(()) => receiver.borrow_and_update().clone(),
        Err(_) => std::future::pending().await,
    }
}

/// Tells of records that ended while nothing was heard of the store.
async fn tell_ends(
    context: &CertificatesContext,
    before: &View,
    now: &View,
    events: &mpsc::Sender<Event>,
) -> anyhow::Result<()> {
    for (key, ended) in before.ends_since(now) {
        // Others are still to come from another node.
        if context.store.lookup(&key).await?.is_none() {
            events.send(ended).await?;
        }
    }
    Ok(())
}

async fn read_all(
    context: &CertificatesContext,
    view: &mut View,
    events: &mpsc::Sender<Event>,
    late: &mpsc::Sender<model::Key>,
) -> anyhow::Result<()> {
    // Settings first: whose a certificate is depends on them.
    for prefix in ["acme", "app", "node", "cluster::nodes", "cluster::address", "cert"] {
        for entry in context.store.prefix(&prefix.parse::<Prefix>()?).await? {
            note(view, events, late, entry.key, Some(entry.value)).await?;
        }
    }
    if let Some(members) = &context.members {
        let alive = members.alive().borrow().clone();
        events.send(Event::Alive(alive)).await?;
    }
    Ok(())
}

async fn note(
    view: &mut View,
    events: &mpsc::Sender<Event>,
    late: &mpsc::Sender<model::Key>,
    key: model::Key,
    value: Option<Value>,
) -> anyhow::Result<()> {
    if let Some(away @ Value::Away { .. }) = value {
        let late = late.clone();
        if View::reads(&key) {
            runtime::task::spawn(async move {
                if away.here().await.is_ok() {
                    late.send(key).await.ok();
                }
            });
        }
        return Ok(());
    }
    if let Some(event) = view.note(&key, value.as_ref()) {
        events.send(event).await?;
    }
    Ok(())
}
