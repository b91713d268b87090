//! The shell of the jury: on a node that runs instances and has no checker, it tells the machine
//! what witnesses say and writes what that rules as this node's own verdicts, which router and
//! agent read.

use std::collections::{BTreeMap, BTreeSet};

use checker_core::{Evidence, Jury, Ruling};
use model::node::NodeInfo;
use model::probe::Verdict;
use model::role::Role;
use model::{Claim, InstanceState, Key, NodeId, Prefix, TypedKey};
use tokio::sync::{mpsc, watch};

use super::write_verdict;
use runtime::driver::{Clock, Shell, drive};
use store::{SharedStore, Value, WatchEvent, readable};

const EVENTS_MAX: usize = 1024;

/// Runs until the store stops.
pub async fn run(
    store: SharedStore,
    node: NodeId,
    alive: watch::Receiver<BTreeSet<NodeId>>,
    clock: Clock,
) -> anyhow::Result<()> {
    let (sender, mut receiver) = mpsc::channel(EVENTS_MAX);
    let mut shell = RulingShell { store: store.clone(), node: node.clone() };
    loop {
        // The machine's knowledge is thrown away with each reading of everything.
        let mut jury = Jury::new();
        tokio::select! {
            result = follow(&store, &node, alive.clone(), &sender) => match result? {
                Follow::ReadAgain => while receiver.try_recv().is_ok() {},
                Follow::Over => return Ok(()),
            },
            result = drive(&mut jury, &mut shell, &mut receiver, clock) => return result,
        }
    }
}

enum Follow {
    ReadAgain,
    Over,
}

/// The nodes on the roster, and which nodes' records say that they have a checker.
#[derive(Default)]
struct Checkers {
    listed: BTreeSet<NodeId>,
    checking: BTreeMap<NodeId, bool>,
}

impl Checkers {
    fn said(&self, here: &NodeId) -> Evidence {
        let checks = |node: &&NodeId| self.checking.get(*node) == Some(&true) && *node != here;
        Evidence::Checkers(self.listed.iter().filter(checks).cloned().collect())
    }

    fn note(&mut self, here: &NodeId, key: &Key, value: Option<&Value>) -> Option<Evidence> {
        match TypedKey::parse(key)? {
            TypedKey::Member(node) | TypedKey::Guest(node) => match value {
                Some(_) => drop(self.listed.insert(node)),
                None => drop(self.listed.remove(&node)),
            },
            TypedKey::NodeInfo(node) => match readable::<NodeInfo>(key, value) {
                Some(info) => drop(self.checking.insert(node, info.roles.has(Role::Checker))),
                None => drop(self.checking.remove(&node)),
            },
            TypedKey::Testimony(witness, instance, owner) if owner == *here => {
                let verdict = readable::<Verdict>(key, value);
                return Some(Evidence::Testimony(instance, witness, verdict));
            }
            TypedKey::Claim(instance, owner) if owner == *here => {
                let claim = readable::<Claim>(key, value);
                let ready = claim.and_then(|claim| {
                    let mut newest = claim.incarnations.into_iter().rev();
                    newest.find(|one| one.state == InstanceState::Ready)
                });
                return Some(Evidence::Ready(instance, ready.map(|one| one.generation)));
            }
            _ => return None,
        }
        Some(self.said(here))
    }
}

async fn follow(
    store: &SharedStore,
    node: &NodeId,
    mut alive: watch::Receiver<BTreeSet<NodeId>>,
    events: &mpsc::Sender<Evidence>,
) -> anyhow::Result<Follow> {
    let mut watch = store.watch(Prefix::all(), None).await?;
    let mut checkers = Checkers::default();
    let now = alive.borrow_and_update().clone();
    events.send(Evidence::Alive(now)).await?;
    let mut own = Vec::new();
    for prefix in ["cluster", "node", "probe", "instance"] {
        for entry in store.prefix(&Prefix::from(prefix.parse::<Key>()?)).await? {
            if let Some(said) = checkers.note(node, &entry.key, Some(&entry.value)) {
                events.send(said).await?;
            }
            if let Some(TypedKey::Probe(of, instance)) = TypedKey::parse(&entry.key)
                && of == *node
                && let Some(verdict) = readable::<Verdict>(&entry.key, Some(&entry.value))
            {
                own.push(Evidence::Written(instance, verdict));
            }
        }
    }
    // These come last, so that what still holds is not taken back first.
    for said in own {
        events.send(said).await?;
    }
    loop {
        tokio::select! {
            change = watch.next() => match change {
                None => return Ok(Follow::Over),
                Some(WatchEvent::Resync { .. }) => return Ok(Follow::ReadAgain),
                Some(WatchEvent::Changed { key, value, .. }) => {
                    if let Some(said) = checkers.note(node, &key, value.as_ref()) {
                        events.send(said).await?;
                    }
                }
            },
            changed = alive.changed() => {
                changed?;
                let now = alive.borrow_and_update().clone();
                events.send(Evidence::Alive(now)).await?;
            }
        }
    }
}

struct RulingShell {
    store: SharedStore,
    node: NodeId,
}

impl Shell for RulingShell {
    type Effect = Ruling;

    async fn perform(&mut self, Ruling { instance, verdict }: Ruling) -> anyhow::Result<()> {
        let key = TypedKey::Probe(self.node.clone(), instance.clone());
        write_verdict(&self.store, key, &instance, verdict.as_ref(), "witnesses").await
    }
}
