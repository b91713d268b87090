//! The shell of a witness: it finds out about which instances on nodes without a checker this node
//! testifies, asks those nodes, and writes what it heard. It never writes about instances of nodes
//! that have a checker, and nothing at all about what it could not ask.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use checker_core::{Checker, Effect, Event, ProbeOutcome, Target, Witnessed, is_witness};
use model::node::NodeInfo;
use model::probe::Verdict;
use model::role::Role;
use model::{Claim, Key, NodeId, Prefix, TypedKey};
use tokio::io::BufReader;
use tokio::sync::{mpsc, watch};

use super::frame::{VERSION, WitnessAnswer, WitnessQuestion, read, write};
use super::targets::Targets;
use super::write_verdict;
use runtime::driver::{Clock, Shell, drive};
use runtime::members::{Members, StreamKind};
use store::{SharedStore, Value, WatchEvent, readable};

/// The maximum number of events that wait, as for the node's own checker.
const EVENTS_MAX: usize = 1024;
/// The minimum interval between questions: each is a connection of its own to another machine.
/// Processes that end are noticed there at once, so this is about those that hang.
const INTERVAL_MIN: Duration = Duration::from_secs(3);
/// The maximum time for the way there and back, on top of the probe itself.
const WAY_MAX: Duration = Duration::from_secs(5);

/// Runs until the store stops.
pub async fn run(
    store: SharedStore,
    node: NodeId,
    peers: Arc<dyn Members>,
    clock: Clock,
) -> anyhow::Result<()> {
    let (sender, mut receiver) = mpsc::channel(EVENTS_MAX);
    let mut checker = Checker::<Witnessed>::new(clock.now().0);
    let mut shell = WitnessShell {
        store: store.clone(),
        node: node.clone(),
        peers: peers.clone(),
        events: sender.clone(),
    };
    let view = View::new(node);
    tokio::select! {
        result = follow(store, view, peers.alive(), sender) => result,
        result = drive(&mut checker, &mut shell, &mut receiver, clock) => result,
    }
}

/// The records and live nodes that decide which instances this node watches.
struct View {
    node: NodeId,
    targets: Targets,
    /// The claims of other nodes.
    claims: BTreeMap<Witnessed, Claim>,
    /// Whether a node has a checker, for the nodes whose record is known.
    roles: BTreeMap<NodeId, bool>,
    alive: BTreeSet<NodeId>,
    /// The instances that the machine was told to watch.
    told: BTreeMap<Witnessed, Target>,
}

impl View {
    fn new(node: NodeId) -> View {
        View {
            node,
            targets: Targets::default(),
            claims: BTreeMap::new(),
            roles: BTreeMap::new(),
            alive: BTreeSet::new(),
            told: BTreeMap::new(),
        }
    }

    /// Records a change; returns which instances have to be looked at anew.
    fn note(&mut self, key: &Key, value: Option<&Value>) -> Concerned {
        match TypedKey::parse(key) {
            Some(TypedKey::Claim(instance, owner)) if owner != self.node => {
                let witnessed = (instance, owner);
                match readable::<Claim>(key, value) {
                    Some(claim) => drop(self.claims.insert(witnessed.clone(), claim)),
                    None => drop(self.claims.remove(&witnessed)),
                }
                Concerned::One(witnessed)
            }
            Some(TypedKey::Release(application, id)) => {
                self.targets.release(&application, &id, readable(key, value));
                Concerned::None
            }
            Some(TypedKey::NodeInfo(node)) => {
                let checks =
                    readable::<NodeInfo>(key, value).map(|info| info.roles.has(Role::Checker));
                let before = match checks {
                    Some(checks) => self.roles.insert(node, checks),
                    None => self.roles.remove(&node),
                };
                if before == checks { Concerned::None } else { Concerned::All }
            }
            _ => Concerned::None,
        }
    }

    /// Returns how this node is to probe an instance, if at all.
    fn target(&self, witnessed: &Witnessed) -> Option<Target> {
        let (instance, owner) = witnessed;
        let unchecked = self.roles.get(owner) == Some(&false);
        let claim = self.claims.get(witnessed).filter(|_| unchecked)?;
        if !self.alive.contains(owner) {
            return None;
        }
        let checkers = self.roles.iter().filter(|(_, checks)| **checks).map(|(node, _)| node);
        let checkers = checkers.filter(|node| self.alive.contains(*node) || **node == self.node);
        if !is_witness(&self.node, witnessed, checkers) {
            return None;
        }
        let target = self.targets.target(instance, claim)?;
        Some(Target { interval: target.interval.max(INTERVAL_MIN), ..target })
    }

    fn events(&mut self, concerned: Concerned) -> Vec<Event<Witnessed>> {
        let which: BTreeSet<Witnessed> = match concerned {
            Concerned::None => return Vec::new(),
            Concerned::One(witnessed) => BTreeSet::from([witnessed]),
            Concerned::All => self.claims.keys().chain(self.told.keys()).cloned().collect(),
        };
        let mut events = Vec::new();
        for witnessed in which {
            let target = self.target(&witnessed);
            if self.told.get(&witnessed) == target.as_ref() {
                continue;
            }
            match &target {
                Some(target) => drop(self.told.insert(witnessed.clone(), target.clone())),
                None => drop(self.told.remove(&witnessed)),
            }
            events.push(Event::Target(witnessed, target));
        }
        events
    }
}

enum Concerned {
    None,
    One(Witnessed),
    All,
}

/// Translates records, and who is alive, into events.
async fn follow(
    store: SharedStore,
    mut view: View,
    mut alive: watch::Receiver<BTreeSet<NodeId>>,
    events: mpsc::Sender<Event<Witnessed>>,
) -> anyhow::Result<()> {
    let mut watch = store.watch(Prefix::all(), None).await?;
    view.alive.clone_from(&alive.borrow_and_update());
    read_all(&store, &mut view, &events).await?;
    loop {
        let concerned = tokio::select! {
            change = watch.next() => match change {
                None => return Ok(()),
                Some(WatchEvent::Resync { .. }) => {
                    (view.claims, view.roles) = (BTreeMap::new(), BTreeMap::new());
                    read_all(&store, &mut view, &events).await?;
                    Concerned::None
                }
                Some(WatchEvent::Changed { key, value, .. }) => view.note(&key, value.as_ref()),
            },
            changed = alive.changed() => {
                changed?;
                view.alive.clone_from(&alive.borrow_and_update());
                Concerned::All
            }
        };
        for event in view.events(concerned) {
            events.send(event).await?;
        }
    }
}

async fn read_all(
    store: &SharedStore,
    view: &mut View,
    events: &mpsc::Sender<Event<Witnessed>>,
) -> anyhow::Result<()> {
    for prefix in ["app", "node", "instance"] {
        for entry in store.prefix(&Prefix::from(prefix.parse::<Key>()?)).await? {
            view.note(&entry.key, Some(&entry.value));
        }
    }
    let said: Key = format!("probe::{}", view.node).parse()?;
    for entry in store.prefix(&Prefix::from(said)).await? {
        let Some(TypedKey::Testimony(_, instance, owner)) = TypedKey::parse(&entry.key) else {
            continue;
        };
        if let Some(verdict) = readable::<Verdict>(&entry.key, Some(&entry.value)) {
            let witnessed = (instance, owner);
            events.send(Event::Written(witnessed.clone(), verdict)).await?;
            if view.target(&witnessed).is_none() {
                events.send(Event::Target(witnessed, None)).await?;
            }
        }
    }
    for event in view.events(Concerned::All) {
        events.send(event).await?;
    }
    Ok(())
}

struct WitnessShell {
    store: SharedStore,
    node: NodeId,
    peers: Arc<dyn Members>,
    events: mpsc::Sender<Event<Witnessed>>,
}

impl Shell for WitnessShell {
    type Effect = Effect<Witnessed>;

    async fn perform(&mut self, effect: Effect<Witnessed>) -> anyhow::Result<()> {
        match effect {
            Effect::Probe { instance, target } => {
                let (events, peers) = (self.events.clone(), self.peers.clone());
                runtime::task::spawn(async move {
                    let generation = target.generation;
                    let asking = ask(&*peers, &instance, generation);
                    let outcome = match tokio::time::timeout(WAY_MAX + target.timeout, asking).await
                    {
                        Ok(Ok(outcome)) => outcome,
                        // A node that cannot be asked is the business of the parts that watch over
                        // nodes.
                        Ok(Err(_)) | Err(_) => ProbeOutcome::Unreached,
                    };
                    events.send(Event::Probed { instance, generation, outcome }).await.ok();
                });
            }
            Effect::WriteVerdict { instance: (instance, owner), verdict } => {
                let key = TypedKey::Testimony(self.node.clone(), instance.clone(), owner);
                write_verdict(&self.store, key, &instance, verdict.as_ref(), "witness").await?;
            }
        }
        Ok(())
    }
}

async fn ask(
    peers: &dyn Members,
    (instance, owner): &Witnessed,
    generation: u64,
) -> anyhow::Result<ProbeOutcome> {
    let mut stream = BufReader::new(peers.open(owner, StreamKind::Probe).await?);
    let question = WitnessQuestion { v: VERSION, instance: instance.clone(), generation };
    write(&mut stream, &question).await?;
    let answer: WitnessAnswer = read(&mut stream).await?.context("it answered nothing")?;
    Ok(answer.into_outcome())
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::record::{self, RECORD_VERSION, Unknown};
    use model::role::Roles;
    use model::{Incarnation, InstanceId, InstanceState, ProcessType, Timestamp};

    fn node(name: &str) -> NodeId {
        name.parse().unwrap()
    }

    fn witnessed() -> Witnessed {
        let process = ProcessType::web();
        (InstanceId { application: "shop".parse().unwrap(), process, slot: 1 }, node("host"))
    }

    fn info(view: &mut View, name: &str, roles: &str) -> Vec<Event<Witnessed>> {
        let info = NodeInfo {
            v: RECORD_VERSION,
            hostname: name.into(),
            version: "1".into(),
            cores: 1,
            memory_bytes: 1,
            platform: String::new(),
            started_at: Timestamp(0),
            http: String::new(),
            roles: roles.parse::<Roles>().unwrap(),
            walls: Vec::new(),
            features: Vec::new(),
            unknown: Unknown::new(),
        };
        let value = Value::Inline(record::encode(&info).into());
        let concerned = view.note(&TypedKey::NodeInfo(node(name)).key(), Some(&value));
        view.events(concerned)
    }

    fn live(view: &mut View, names: &[&str]) -> Vec<Event<Witnessed>> {
        view.alive = names.iter().map(|name| node(name)).collect();
        view.events(Concerned::All)
    }

    fn claimed() -> View {
        let mut view = View::new(node("here"));
        let mut claim = Claim::new(Timestamp(0));
        claim.incarnations.push(Incarnation {
            generation: 4,
            release: "v1.a".parse().unwrap(),
            restart: 0,
            state: InstanceState::Ready,
            port: Some(20_001),
            ports: Default::default(),
            process: None,
            started_at: None,
            concurrency: None,
            restarts: 0,
            reason: None,
            remark: None,
        });
        let (instance, owner) = witnessed();
        let value = Value::Inline(record::encode(&claim).into());
        let concerned = view.note(&TypedKey::Claim(instance, owner).key(), Some(&value));
        assert!(view.events(concerned).is_empty(), "nothing is known of its node");
        view
    }

    #[test]
    fn instances_of_nodes_without_a_checker_are_watched_while_these_are_alive() {
        let mut view = claimed();
        live(&mut view, &["host"]);
        info(&mut view, "here", "store,checker");
        let events = info(&mut view, "host", "agent");
        let [Event::Target(of, Some(target))] = &events[..] else { panic!("{events:?}") };
        assert_eq!((of, target.generation), (&witnessed(), 4));
        assert_eq!(target.interval, INTERVAL_MIN);
        assert_eq!(live(&mut view, &[]), [Event::Target(witnessed(), None)]);
        assert_eq!(live(&mut view, &["host"]).len(), 1);
        let events = info(&mut view, "host", "agent,checker");
        assert_eq!(events, [Event::Target(witnessed(), None)], "it looks after its own");
    }

    #[test]
    fn of_many_checkers_a_few_watch_and_a_dead_one_is_replaced() {
        let mut view = claimed();
        info(&mut view, "here", "store,checker");
        info(&mut view, "host", "agent");
        let others: Vec<String> = (0..40).map(|n| format!("n{n}")).collect();
        for other in &others {
            info(&mut view, other, "checker");
        }
        let mut all: Vec<&str> = others.iter().map(String::as_str).collect();
        all.push("host");
        assert!(live(&mut view, &["host"]).len() == 1, "it alone is there");
        assert_eq!(live(&mut view, &all), [Event::Target(witnessed(), None)], "others come first");
        assert_eq!(live(&mut view, &["host"]).len(), 1);
    }
}
