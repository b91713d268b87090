//! The checker's shell: it keeps the machine informed about this node's instances, probes them, and
//! writes the verdicts. It reads the store and nothing else; the agent and the router never hear of
//! it.

pub mod answers;
mod frame;
pub mod hanging;
pub mod jury;
mod targets;
pub mod witness;

use std::net::{Ipv4Addr, SocketAddr};

use checker_core::{Checker, Effect, Event, Method, ProbeOutcome, Target};
use model::key::BoardKey;
use model::probe::Verdict;
use model::{InstanceId, Key, NodeId, Prefix, TypedKey, record};
use tokio::sync::{mpsc, watch};

use self::hanging::Beating;
use self::targets::Targets;
use os::observe::process;
use runtime::driver::{Clock, Shell, drive};
use runtime::faults::Faults;
use runtime::probe::{self, ProbeError};
use store::{SharedStore, Value, WatchEvent, readable};

/// The name of this part's fail point.
pub const FAIL_POINT: &str = "checker";
/// The maximum number of events that wait while a verdict is being written; a full queue makes the
/// watch fall behind, which ends in a resync.
const EVENTS_MAX: usize = 1024;

/// Runs until the store stops.
pub async fn run(
    store: SharedStore,
    node: NodeId,
    clock: Clock,
    faults: Faults,
    beats: watch::Sender<()>,
) -> anyhow::Result<()> {
    let (sender, mut receiver) = mpsc::channel(EVENTS_MAX);
    let mut checker = Beating::new(Checker::new(clock.now().0), beats, clock.now());
    let mut shell =
        ProbeShell { store: store.clone(), node: node.clone(), events: sender.clone(), faults };
    tokio::select! {
        result = follow(store, node, sender) => result,
        result = drive(&mut checker, &mut shell, &mut receiver, clock) => result,
    }
}

/// Translates records into events.
async fn follow(
    store: SharedStore,
    node: NodeId,
    events: mpsc::Sender<Event>,
) -> anyhow::Result<()> {
    let mut watch = store.watch(Prefix::all(), None).await?;
    let mut targets = read_all(&store, &node, &events).await?;
    while let Some(change) = watch.next().await {
        match change {
            WatchEvent::Resync { .. } => {
                let fresh = read_all(&store, &node, &events).await?;
                for instance in targets.instances().filter(|id| !fresh.watches(id)) {
                    events.send(Event::Target(instance.clone(), None)).await?;
                }
                targets = fresh;
            }
            WatchEvent::Changed { key, value, .. } => {
                for event in changed(&mut targets, &node, &key, value.as_ref()) {
                    events.send(event).await?;
                }
            }
        }
    }
    Ok(())
}

async fn read_all(
    store: &SharedStore,
    node: &NodeId,
    events: &mpsc::Sender<Event>,
) -> anyhow::Result<Targets> {
    let mut targets = Targets::default();
    for entry in store.prefix(&Prefix::from("app".parse::<Key>()?)).await? {
        changed(&mut targets, node, &entry.key, Some(&entry.value));
    }
    let mut found = Vec::new();
    for entry in store.prefix(&Prefix::from("instance".parse::<Key>()?)).await? {
        found.extend(changed(&mut targets, node, &entry.key, Some(&entry.value)));
    }
    let probes: Key = format!("probe::{node}").parse()?;
    for entry in store.prefix(&Prefix::from(probes)).await? {
        let Some(TypedKey::Probe(_, instance)) = TypedKey::parse(&entry.key) else { continue };
        if let Some(verdict) = readable::<Verdict>(&entry.key, Some(&entry.value)) {
            events.send(Event::Written(instance.clone(), verdict)).await?;
        }
        if !targets.watches(&instance) {
            events.send(Event::Target(instance, None)).await?;
        }
    }
    for event in found {
        events.send(event).await?;
    }
    Ok(targets)
}

/// Returns what one changed record means for the probes.
fn changed(targets: &mut Targets, node: &NodeId, key: &Key, value: Option<&Value>) -> Vec<Event> {
    match TypedKey::parse(key) {
        Some(TypedKey::Claim(instance, owner)) if owner == *node => {
            let target = targets.claim(&instance, readable(key, value));
            vec![Event::Target(instance, target)]
        }
        Some(TypedKey::Release(application, id)) => {
            targets.release(&application, &id, readable(key, value));
            Vec::new()
        }
        Some(TypedKey::Board(BoardKey::Suspect(instance, generation))) if value.is_some() => {
            vec![Event::Suspect(instance, generation)]
        }
        _ => Vec::new(),
    }
}

struct ProbeShell {
    store: SharedStore,
    node: NodeId,
    events: mpsc::Sender<Event>,
    faults: Faults,
}

impl Shell for ProbeShell {
    type Effect = Effect;

    async fn perform(&mut self, effect: Effect) -> anyhow::Result<()> {
        self.faults.check_async(FAIL_POINT).await?;
        match effect {
            Effect::Probe { instance, target } => {
                let events = self.events.clone();
                runtime::task::spawn(async move {
                    let generation = target.generation;
                    let outcome = probe(&target).await;
                    events.send(Event::Probed { instance, generation, outcome }).await.ok();
                });
            }
            Effect::WriteVerdict { instance, verdict } => {
                let key = TypedKey::Probe(self.node.clone(), instance.clone());
                write_verdict(&self.store, key, &instance, verdict.as_ref(), "probe").await?;
            }
        }
        Ok(())
    }
}

/// Writes this node's verdict on an instance, and logs what it rests on; `None` deletes it.
async fn write_verdict(
    store: &SharedStore,
    key: TypedKey,
    instance: &InstanceId,
    verdict: Option<&Verdict>,
    by: &str,
) -> anyhow::Result<()> {
    let Some(verdict) = verdict else {
        store.delete(key.key()).await?;
        return Ok(());
    };
    let Verdict { generation, health, detail, .. } = verdict;
    tracing::info!(%instance, generation, ?health, detail, by, "checker.verdict");
    store.set(key.key(), record::encode(verdict).into()).await?;
    Ok(())
}

/// Probes an instance of this node.
async fn probe(target: &Target) -> ProbeOutcome {
    let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let result = match &target.method {
        Method::Tcp { port } => probe::tcp(loopback(*port), target.timeout).await,
        Method::Http { port, path, host, headers } => {
            match probe::http_get(loopback(*port), host, path, headers, target.timeout).await {
                Ok(200..=399) => Ok(()),
                Ok(status) => {
                    return ProbeOutcome::Unwell {
                        detail: format!("GET {path} answered {status}"),
                    };
                }
                Err(error) => Err(error),
            }
        }
        Method::Process { pid, start_ticks } => {
            let stat = process::stat(*pid).filter(|stat| !stat.is_dead());
            return if stat.is_some_and(|stat| stat.start_ticks == *start_ticks) {
                ProbeOutcome::Well
            } else {
                ProbeOutcome::Absent { detail: format!("process {pid} is gone") }
            };
        }
    };
    match result {
        Ok(()) => ProbeOutcome::Well,
        Err(error @ ProbeError::Refused) => ProbeOutcome::Absent { detail: error.to_string() },
        Err(error) => ProbeOutcome::Unwell { detail: error.to_string() },
    }
}
