//! The placement machine's shell: it feeds the machine from the store, hears which nodes are alive,
//! and publishes the places that this node holds. The applications' actors read them here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agent_core::lease::LEASE;
use agent_core::placement::{Effect, Event, Hold, NodeView, Placement, SlotId, capacity, wanted};
use agent_core::remains::Owner;
use model::application::Holder;
use model::node::{NodeInfo, NodeLoad};
use model::role::Role;
use model::{
    ApplicationName, ApplicationSpec, Claim, Key, NodeId, Prefix, Release, ReleaseId, Rollout,
    TypedKey, key,
};
use tokio::sync::{broadcast, mpsc, watch};

use super::launcher::Launcher;
use super::roster::is_listed;
use super::specification::specification;
use super::{AgentContext, claims, remains};
use runtime::driver::{Shell, drive};
use runtime::members::Members;
use store::{SharedStore, WatchEvent, lookup_record, readable};

/// The maximum number of events that wait; far more than change while the machine decides.
const EVENTS_MAX: usize = 4096;
/// The maximum number of reports on applications that can or cannot be prepared and that placement
/// has not read yet; a lost one is sent again.
const UNFIT_MAX: usize = 64;
/// The interval at which a joining node is checked for having what its cluster has.
const JOIN_POLL: Duration = Duration::from_millis(100);

/// The places that this node holds, as placement has decided.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Assignments {
    pub live: BTreeSet<NodeId>,
    pub places: BTreeMap<ApplicationName, BTreeMap<SlotId, Hold>>,
}

/// The meeting point of placement and the actors.
pub struct Placing {
    /// The places that this node is to run; `None` until the first decision.
    decided: watch::Sender<Option<Arc<Assignments>>>,
    /// Reports whether this node can run what is to be run of an application.
    fit: broadcast::Sender<(ApplicationName, bool)>,
    paused: watch::Sender<BTreeSet<ApplicationName>>,
}

/// A guard that keeps an application from running on this node, from soon after its creation until
/// it is dropped.
pub struct Pause {
    name: ApplicationName,
    paused: watch::Sender<BTreeSet<ApplicationName>>,
}

impl Drop for Pause {
    fn drop(&mut self) {
        self.paused.send_if_modified(|paused| paused.remove(&self.name));
    }
}

impl Default for Placing {
    fn default() -> Placing {
        let fit = broadcast::channel(UNFIT_MAX).0;
        Placing { decided: watch::channel(None).0, fit, paused: watch::Sender::default() }
    }
}

impl Placing {
    pub fn decided(&self) -> watch::Receiver<Option<Arc<Assignments>>> {
        self.decided.subscribe()
    }

    pub fn pause(&self, name: &ApplicationName) -> Pause {
        self.paused.send_if_modified(|paused| paused.insert(name.clone()));
        Pause { name: name.clone(), paused: self.paused.clone() }
    }

    pub fn set_fit(&self, name: ApplicationName, fit: bool) {
        // Nobody listens while placement starts again; it is told about the next failure.
        self.fit.send((name, fit)).ok();
    }
}

/// Runs until the store stops. Without peers every node on the roster counts as alive.
pub async fn run(
    context: Arc<AgentContext>,
    peers: Option<Arc<dyn Members>>,
    shutdown: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let Some(placing) = &context.placing else { return std::future::pending().await };
    while peers.as_ref().is_some_and(|peers| peers.is_joining()) {
        tokio::time::sleep(JOIN_POLL).await;
    }
    let (events, mut inbox) = mpsc::channel(EVENTS_MAX);
    let mut machine = Placement::new(context.node.clone());
    // The decisions of an earlier run of this part stand until the first decision is whole.
    let assignments = Assignments::default();
    let mut shell = PlacingShell { decided: placing.decided.clone(), assignments };
    let feed = Feed {
        store: context.store.clone(),
        launcher: context.launcher.clone(),
        events,
        node: context.node.clone(),
        alive: peers.as_ref().map(|peers| peers.in_touch()),
        removed: peers.as_ref().map(|peers| peers.removed()),
        members: BTreeSet::new(),
        known: BTreeSet::new(),
    };
    tokio::select! {
        result = feed.run(placing, shutdown) => result,
        result = drive(&mut machine, &mut shell, &mut inbox, context.clock) => result,
    }
}

struct Feed {
    store: SharedStore,
    launcher: Arc<dyn Launcher>,
    events: mpsc::Sender<Event>,
    node: NodeId,
    /// Whether other members say that this node is no longer one of them.
    removed: Option<watch::Receiver<bool>>,
    alive: Option<watch::Receiver<BTreeSet<NodeId>>>,
    members: BTreeSet<NodeId>,
    /// The keys that the machine was told about, so that it hears of those whose deletion went
    /// unseen.
    known: BTreeSet<Key>,
}

impl Feed {
    async fn run(
        mut self,
        placing: &Placing,
        mut shutdown: watch::Receiver<bool>,
    ) -> anyhow::Result<()> {
        let (mut fit, mut paused) = (placing.fit.subscribe(), placing.paused.subscribe());
        let mut watch = self.store.watch(Prefix::all(), None).await?;
        let (mut alive, mut removed) = (self.alive.clone(), self.removed.clone());
        self.read_all().await?;
        self.tell_alive(&BTreeSet::new()).await?;
        let names = paused.borrow_and_update().clone();
        self.events.send(Event::Paused(names)).await?;
        self.events.send(Event::Read).await?;
        let mut lived = alive.as_mut().map(|alive| alive.borrow_and_update().clone());
        loop {
            self.tell_lease();
            tokio::select! {
                change = watch.next() => match change {
                    None => return Ok(()),
                    Some(WatchEvent::Resync { .. }) => self.read_all().await?,
                    Some(WatchEvent::Changed { key, .. }) => self.changed(&key).await?,
                },
                Ok(()) = heard(alive.as_mut()) => {
                    let before = lived.take().unwrap_or_default();
                    lived = alive.as_mut().map(|alive| alive.borrow_and_update().clone());
                    self.tell_alive(&before).await?;
                }
                Ok(()) = paused.changed() => {
                    let names = paused.borrow_and_update().clone();
                    self.events.send(Event::Paused(names)).await?;
                }
                Ok(()) = heard(removed.as_mut()) => self.member(self.node.clone()).await?,
                Ok((name, fit)) = fit.recv() => {
                    let event = if fit { Event::Fit(name) } else { Event::Unfit(name) };
                    self.events.send(event).await?;
                }
                Ok(()) = shutdown.changed() => {
                    if *shutdown.borrow() {
                        self.events.send(Event::Shutdown).await?;
                    }
                }
            }
        }
    }

    async fn read_all(&mut self) -> anyhow::Result<()> {
        let mut gone = std::mem::take(&mut self.known);
        let mut prefixes = vec![key::unkept_prefix(None)];
        for word in ["cluster", "node", "app", "instance"] {
            prefixes.push(Prefix::from(word.parse::<Key>()?));
        }
        for prefix in prefixes {
            for key in self.store.keys(&prefix).await? {
                gone.remove(&key);
                // One of an application's records speaks for all of them.
                let typed = TypedKey::parse(&key);
                if !matches!(typed, Some(TypedKey::Release(..) | TypedKey::Rollout(_))) {
                    self.changed(&key).await?;
                }
                self.known.insert(key);
            }
        }
        for key in gone {
            self.changed(&key).await?;
        }
        Ok(())
    }

    async fn changed(&mut self, key: &Key) -> anyhow::Result<()> {
        let Some(typed) = TypedKey::parse(key) else { return Ok(()) };
        let event = match typed {
            TypedKey::Member(node)
            | TypedKey::Guest(node)
            | TypedKey::Drained(node)
            | TypedKey::NodeInfo(node)
            | TypedKey::NodeLoad(node) => return self.member(node).await,
            TypedKey::Spec(name)
            | TypedKey::Release(name, _)
            | TypedKey::Rollout(name)
            | TypedKey::Destroyed(name, _)
            | TypedKey::Holder(name) => {
                let Some(wanted) = self.wanted(&name).await? else { return Ok(()) };
                Event::Wanted(name, wanted)
            }
            typed => {
                let Some((instance, node)) = claims::changed_by(&typed) else { return Ok(()) };
                let (at, value) = claims::newest(&*self.store, instance, node).await?;
                let claim = readable::<Claim>(&at, value.as_ref());
                Event::Claim(instance.clone(), node.clone(), claim)
            }
        };
        if self.store.lookup(key).await?.is_some() {
            self.known.insert(key.clone());
        } else {
            self.known.remove(key);
        }
        Ok(self.events.send(event).await?)
    }

    async fn member(&mut self, node: NodeId) -> anyhow::Result<()> {
        let store = &*self.store;
        let listed = is_listed(store, &node).await?;
        let removed = self.removed.as_ref().is_some_and(|removed| *removed.borrow());
        let info = lookup_record::<NodeInfo>(store, TypedKey::NodeInfo(node.clone()).key()).await?;
        // A node without an agent takes no part in placement.
        let runs = info.as_ref().is_none_or(|info| info.roles.has(Role::Agent));
        if !listed || !runs || (removed && node == self.node) {
            self.members.remove(&node);
            return Ok(self.events.send(Event::Node(node, None)).await?);
        }
        let load = lookup_record::<NodeLoad>(store, TypedKey::NodeLoad(node.clone()).key()).await?;
        let drained = store.lookup(&TypedKey::Drained(node.clone()).key()).await?.is_some();
        let view = NodeView {
            started_at: info.as_ref().map(|info| info.started_at),
            walls: info.as_ref().map(NodeInfo::walls).unwrap_or_default(),
            capacity: info.map(|info| capacity(info.cores, info.memory_bytes)),
            load: load.map(|load| load.percent),
            drained,
        };
        self.events.send(Event::Node(node.clone(), Some(view))).await?;
        if self.members.insert(node.clone()) {
            let lives = self.alive.as_ref().is_none_or(|alive| alive.borrow().contains(&node));
            if lives {
                self.events.send(Event::Alive(node, true)).await?;
            }
        }
        Ok(())
    }

    /// Sets the lease of shims. Alone, or where no other node takes over, applications outlive this
    /// node process for as long as it takes.
    fn tell_lease(&self) {
        let others_take_over = self.alive.is_some() && self.members.len() > 1;
        self.launcher.lease(others_take_over.then_some(LEASE));
    }

    /// Sends which nodes have come and gone. A node that was never alive is not reported as dead:
    /// it may be about to come up.
    async fn tell_alive(&mut self, before: &BTreeSet<NodeId>) -> anyhow::Result<()> {
        let Some(alive) = &self.alive else { return Ok(()) };
        let now = alive.borrow().clone();
        for node in before.difference(&now) {
            self.events.send(Event::Alive(node.clone(), false)).await?;
        }
        for node in now.difference(before) {
            self.events.send(Event::Alive(node.clone(), true)).await?;
        }
        Ok(())
    }

    /// Returns what is wanted; `None` while the specification of the application that is there
    /// has to be written again, as what was wanted before goes on.
    async fn wanted(
        &self,
        name: &ApplicationName,
    ) -> anyhow::Result<Option<Option<agent_core::placement::Wanted>>> {
        let store = &*self.store;
        match remains::read(store, name).await? {
            remains if remains.destroyed.is_empty() => {}
            remains => match remains.owner() {
                Owner::Nobody => return Ok(Some(None)),
                Owner::Unstored => return Ok(None),
                Owner::Stored => {}
            },
        }
        let spec = specification(store, name).await?;
        let Some(spec) = spec.and_then(ApplicationSpec::unless_ended) else {
            return Ok(Some(None));
        };
        let rollout =
            lookup_record::<Rollout>(store, TypedKey::Rollout(name.clone()).key()).await?;
        let holder = lookup_record::<Holder>(store, TypedKey::Holder(name.clone()).key()).await?;
        let mut releases: BTreeMap<ReleaseId, Release> = BTreeMap::new();
        for key in store.keys(&key::application_prefix(name)).await? {
            let Some(TypedKey::Release(_, id)) = TypedKey::parse(&key) else { continue };
            let named = rollout.as_ref().is_some_and(|rollout| {
                rollout.serving.as_ref() == Some(&id) || rollout.target.as_ref() == Some(&id)
            });
            if let Some(release) = if named { lookup_record(store, key).await? } else { None } {
                releases.insert(id, release);
            }
        }
        let holder = holder.filter(|holder| holder.is_of(spec.created_at));
        let holder = holder.map(|holder| holder.node);
        Ok(Some(Some(wanted(&spec, &releases, rollout.as_ref(), holder.as_ref()))))
    }
}

/// Resolves when there is news; never without peers.
async fn heard<T>(told: Option<&mut watch::Receiver<T>>) -> Result<(), ()> {
    match told {
        Some(told) => told.changed().await.map_err(drop),
        None => std::future::pending().await,
    }
}

struct PlacingShell {
    decided: watch::Sender<Option<Arc<Assignments>>>,
    assignments: Assignments,
}

impl Shell for PlacingShell {
    type Effect = Effect;

    async fn perform(&mut self, effect: Effect) -> anyhow::Result<()> {
        match effect {
            Effect::Hold { application, places } => {
                tracing::info!(%application, ?places, "placement.holds");
                if places.is_empty() {
                    self.assignments.places.remove(&application);
                } else {
                    self.assignments.places.insert(application, places);
                }
                // The first decision is whole only once it is known who is alive.
                if self.assignments.live.is_empty() {
                    return Ok(());
                }
            }
            Effect::Live(live) => {
                tracing::info!(?live, "placement.alive");
                self.assignments.live = live;
            }
        }
        self.decided.send_replace(Some(Arc::new(self.assignments.clone())));
        Ok(())
    }
}
