//! One node: its machines, which live while its process does; its replica and its instances'
//! processes, which live longer.

use std::collections::{BTreeMap, BTreeSet};

use agent_core::application::{Adopted, Application, Event, Exit, IncarnationId};
use agent_core::lease::Lease;
use agent_core::placement::{self, Hold, NodeView, Placement, SlotId, wanted};
use agent_core::remains::Owner;
use model::instance::ProcessIdentity;
use model::{ApplicationName, Machine, NodeId, ReleaseId, Timestamp};

use super::checking::{Checking, Condition};
use super::happening::Happening;
use super::replica::{Key, Record, Replica};
use super::world::World;

#[derive(Debug)]
pub(super) struct Node {
    pub id: NodeId,
    pub replica: Replica,
    pub processes: BTreeMap<IncarnationId, Process>,
    pub machines: Option<Machines>,
    /// Whether the whole machine stands still.
    pub frozen: bool,
    /// Whether the node process alone stands still.
    pub hung: bool,
    pub disk_full: bool,
    /// The deviation of the wall clock as its node process read it when it started.
    pub clock_off: i64,
    /// Whether it has a checker.
    pub checks: bool,
    /// The time since which it works as it should.
    pub free_since: u64,
    /// Whether it is on the roster.
    pub member: bool,
    /// Whether it has not joined yet.
    pub is_spare: bool,
    /// The lease as its shims have it.
    pub lease: Lease,
    /// The time since which shims hear of no node process; `None` if that ends nothing.
    pub away_since: Option<u64>,
    /// The other nodes that it takes for alive.
    pub alive: BTreeSet<usize>,
}

#[derive(Debug)]
pub(super) struct Machines {
    pub life: u64,
    pub placement: Placement,
    pub checking: Checking,
    /// The claims in which slots are given up, and which the full disk did not take.
    pub unwritten: BTreeMap<Key, Option<Record>>,
    tick: Option<Timestamp>,
    pub applications: BTreeMap<ApplicationName, App>,
    /// The actors that faulted, until they start again.
    pub resting: BTreeSet<ApplicationName>,
    /// The live nodes, from placement; empty before its first decision.
    pub live: BTreeSet<NodeId>,
    pub places: BTreeMap<ApplicationName, BTreeMap<SlotId, Hold>>,
}

#[derive(Debug)]
pub(super) struct App {
    /// The number of the actor; answers to one that faulted meanwhile are lost.
    pub number: u64,
    pub machine: Application,
    tick: Option<Timestamp>,
}

#[derive(Clone, Debug)]
pub(super) struct Process {
    pub release: ReleaseId,
    pub identity: ProcessIdentity,
    pub ready: bool,
    pub leaving: bool,
    pub exit: Option<Exit>,
    pub condition: Condition,
    pub changed_at: u64,
    pub was_ill: bool,
}

impl Node {
    pub fn new(id: NodeId) -> Node {
        Node {
            id,
            replica: Replica::default(),
            processes: BTreeMap::new(),
            machines: None,
            frozen: false,
            hung: false,
            disk_full: false,
            clock_off: 0,
            checks: true,
            free_since: 0,
            member: true,
            is_spare: false,
            lease: Lease::new(None, Timestamp(0)),
            away_since: None,
            alive: BTreeSet::new(),
        }
    }
}

impl Node {
    pub fn runs(&self) -> bool {
        self.machines.is_some() && !self.frozen && !self.hung
    }
}

impl World {
    // --- life and death

    pub(super) fn up(&mut self, at: usize) {
        if self.nodes[at].machines.is_some() || !self.nodes[at].member {
            return;
        }
        self.lives += 1;
        self.speaks(at);
        let now = self.now;
        let node = &mut self.nodes[at];
        node.alive.clear();
        node.free_since = now;
        node.machines = Some(Machines {
            life: self.lives,
            placement: Placement::new(node.id.clone()),
            checking: Checking::default(),
            unwritten: BTreeMap::new(),
            tick: None,
            applications: BTreeMap::new(),
            resting: BTreeSet::new(),
            live: BTreeSet::new(),
            places: BTreeMap::new(),
        });
        let keys: Vec<Key> = node.replica.records.keys().cloned().collect();
        self.tell(|| format!("up {at}"));
        for key in keys {
            self.tell_placement(at, &key);
        }
        self.placement(at, placement::Event::Read);
        self.checking_up(at);
        let key = Key::Node(self.nodes[at].id.clone());
        if let Some(Record::Node(view)) = self.nodes[at].replica.get(&key) {
            let started_at = Some(self.clock(at));
            let view = NodeView { started_at, ..view.clone() };
            self.write(at, key, Some(Record::Node(view)));
        }
        self.disturbed();
    }

    pub(super) fn look(&mut self, at: usize, of: usize) {
        let (connected, id) = (self.is_connected(at, of), self.nodes[of].id.clone());
        let node = &mut self.nodes[at];
        let changed = if connected { node.alive.insert(of) } else { node.alive.remove(&of) };
        if changed && node.machines.is_some() {
            self.placement(at, placement::Event::Alive(id, connected));
            self.checking_sees(at);
        }
    }

    // --- records

    pub(super) fn noticed(&mut self, at: usize, key: &Key) {
        self.tell_placement(at, key);
        self.checking_noticed(at, key);
        let Some(name) = key.application().cloned() else { return };
        let node = &self.nodes[at];
        let Some(machines) = &node.machines else { return };
        let life = machines.life;
        if !machines.applications.contains_key(&name) {
            let ended = matches!(key, Key::Destroyed(..));
            return self.application_up(at, &name, ended);
        }
        if let Some(event) = self.event(at, key) {
            self.application(at, life, &name, event);
        }
    }

    fn event(&self, at: usize, key: &Key) -> Option<Event> {
        let node = &self.nodes[at];
        let record = node.replica.get(key).cloned();
        Some(match (key, record) {
            (Key::Spec(_), Some(Record::Spec(spec))) => Event::Spec(Some(spec)),
            (Key::Spec(_), None) => Event::Spec(None),
            (Key::Destroyed(_, created_at), record) => {
                Event::Destroyed { created_at: *created_at, destroyed: record.is_some() }
            }
            (Key::Outcome(_, id), Some(Record::Outcome(outcome))) => {
                Event::Outcome(id.clone(), Some(outcome))
            }
            (Key::Outcome(_, id), None) => Event::Outcome(id.clone(), None),
            (Key::Release(_, id), Some(Record::Release(release))) => {
                Event::Release(id.clone(), Some(release))
            }
            (Key::Release(_, id), None) => Event::Release(id.clone(), None),
            (Key::Rollout(_), None) => Event::Rollout(None),
            (Key::Holder(_), None) => Event::Holder(None),
            (Key::Artefact(_, build, builder), record) => {
                let (build, builder) = (build.clone(), builder.clone());
                Event::Artefact { build, builder, fits: record.map(|_| true) }
            }
            (Key::Rollout(_), Some(Record::Rollout(rollout))) => Event::Rollout(Some(rollout)),
            (Key::Holder(_), Some(Record::Holder(holder))) => Event::Holder(Some(holder)),
            (Key::Verdict(owner, instance), record) if *owner == node.id => {
                let verdict = match record {
                    Some(Record::Verdict(verdict)) => Some(verdict),
                    _ => None,
                };
                Event::Verdict(instance.clone(), verdict)
            }
            (Key::Claim(instance, owner), record) => {
                let claim = match record {
                    Some(Record::Claim(claim)) => Some(claim),
                    _ => None,
                };
                if *owner == node.id {
                    Event::Claim(instance.clone(), claim?)
                } else {
                    Event::Other(instance.clone(), owner.clone(), claim)
                }
            }
            _ => return None,
        })
    }

    fn tell_placement(&mut self, at: usize, key: &Key) {
        let replica = &self.nodes[at].replica;
        let event = match (key, replica.get(key)) {
            (Key::Node(id), Some(Record::Node(view))) => {
                placement::Event::Node(id.clone(), Some(view.clone()))
            }
            (Key::Claim(instance, owner), record) => {
                let claim = match record {
                    Some(Record::Claim(claim)) => Some(claim.clone()),
                    _ => None,
                };
                placement::Event::Claim(instance.clone(), owner.clone(), claim)
            }
            (
                Key::Spec(name)
                | Key::Destroyed(name, _)
                | Key::Release(name, _)
                | Key::Rollout(name)
                | Key::Holder(name),
                _,
            ) => {
                let remains = replica.remains(name);
                let counts = match remains.owner() {
                    Owner::Unstored => return,
                    Owner::Stored => true,
                    Owner::Nobody => remains.destroyed.is_empty(),
                };
                let wanted = replica.spec(name).filter(|_| counts).map(|spec| {
                    let holder = replica.holder(name).map(|holder| &holder.node);
                    wanted(spec, &replica.releases(name), replica.rollout(name), holder)
                });
                placement::Event::Wanted(name.clone(), wanted)
            }
            _ => return,
        };
        let known = match &event {
            placement::Event::Node(id, Some(_)) => Some(id.clone()),
            _ => None,
        };
        self.placement(at, event);
        // It may have been heard before it was known.
        if let Some(id) = known
            && self.nodes[at].alive.iter().any(|of| self.nodes[*of].id == id)
        {
            self.placement(at, placement::Event::Alive(id, true));
        }
    }

    // --- machines

    pub(super) fn placement(&mut self, at: usize, event: placement::Event) {
        let now = self.clock(at);
        let Some(machines) = &mut self.nodes[at].machines else { return };
        let mut effects = Vec::new();
        machines.placement.handle(now, event, &mut effects);
        self.placed(at, effects);
    }

    pub(super) fn placement_tick(&mut self, at: usize, life: u64) {
        let now = self.clock(at);
        let machines = self.nodes[at].machines.as_mut().filter(|machines| machines.life == life);
        let Some(machines) = machines else { return };
        machines.tick = None;
        let mut effects = Vec::new();
        if machines.placement.deadline().is_some_and(|deadline| deadline <= now) {
            machines.placement.tick(now, &mut effects);
        }
        self.placed(at, effects);
    }

    fn placed(&mut self, at: usize, effects: Vec<placement::Effect>) {
        let now = self.clock(at);
        let Some(machines) = &mut self.nodes[at].machines else { return };
        machines.placement.check_invariants();
        let life = machines.life;
        if let Some(deadline) = machines.placement.deadline()
            && machines.tick.is_none_or(|tick| tick > deadline)
        {
            assert!(deadline > now, "placement would be asked again at once");
            machines.tick = Some(deadline);
            self.later(deadline.0 - now.0, Happening::PlacementTick { at, life });
        }
        for effect in effects {
            let Some(machines) = &mut self.nodes[at].machines else { return };
            match effect {
                placement::Effect::Hold { application, places } => {
                    machines.places.insert(application.clone(), places.clone());
                    if !machines.live.is_empty() {
                        self.application(at, life, &application, Event::Places(places));
                    }
                }
                placement::Effect::Live(live) => {
                    let first = machines.live.is_empty();
                    machines.live.clone_from(&live);
                    let mut names: Vec<_> = machines.applications.keys().cloned().collect();
                    if first {
                        let keys = self.nodes[at].replica.records.keys();
                        names.extend(keys.filter_map(Key::application).cloned());
                        names.sort();
                        names.dedup();
                        names.iter().for_each(|name| self.application_up(at, name, false));
                    } else {
                        for name in names {
                            self.application(at, life, &name, Event::Live(live.clone()));
                        }
                    }
                }
            }
        }
    }

    /// Starts an actor, if there is a specification, or something may be left of one that ended.
    fn application_up(&mut self, at: usize, name: &ApplicationName, ended: bool) {
        let node = &self.nodes[at];
        let Some(machines) = node.machines.as_ref().filter(|m| !m.live.is_empty()) else { return };
        let there = machines.applications.contains_key(name) || machines.resting.contains(name);
        if there || (node.replica.spec(name).is_none() && !ended) {
            return;
        }
        let life = machines.life;
        let mut events = vec![
            Event::Live(machines.live.clone()),
            Event::Places(machines.places.get(name).cloned().unwrap_or_default()),
        ];
        let keys = node.replica.records.keys().filter(|key| key.application() == Some(name));
        events.extend(keys.filter_map(|key| self.event(at, key)));
        let held = node.processes.iter().filter(|(id, _)| id.instance.application == *name);
        let adopted = held.map(|(id, process)| Adopted {
            id: id.clone(),
            process: process.identity.clone(),
            port: None,
            ports: Default::default(),
            exit: process.exit.clone(),
        });
        events.push(Event::Adopted(adopted.collect()));
        let machine = Application::new(node.id.clone(), name.clone());
        self.lives += 1;
        let number = self.lives;
        let Some(machines) = &mut self.nodes[at].machines else { return };
        machines.applications.insert(name.clone(), App { number, machine, tick: None });
        for event in events {
            self.application(at, life, name, event);
        }
    }

    pub(super) fn application(
        &mut self,
        at: usize,
        life: u64,
        name: &ApplicationName,
        event: Event,
    ) {
        let now = self.clock(at);
        let machines = self.nodes[at].machines.as_mut().filter(|machines| machines.life == life);
        let Some(app) = machines.and_then(|machines| machines.applications.get_mut(name)) else {
            return;
        };
        let mut effects = Vec::new();
        app.machine.handle(now, event, &mut effects);
        self.acted(at, life, name, effects);
    }

    pub(super) fn application_tick(&mut self, at: usize, life: u64, name: &ApplicationName) {
        let now = self.clock(at);
        let machines = self.nodes[at].machines.as_mut().filter(|machines| machines.life == life);
        let Some(app) = machines.and_then(|machines| machines.applications.get_mut(name)) else {
            return;
        };
        app.tick = None;
        let mut effects = Vec::new();
        if app.machine.deadline().is_some_and(|deadline| deadline <= now) {
            app.machine.tick(now, &mut effects);
        }
        self.acted(at, life, name, effects);
    }

    fn acted(
        &mut self,
        at: usize,
        life: u64,
        name: &ApplicationName,
        effects: Vec<agent_core::application::Effect>,
    ) {
        let now = self.clock(at);
        let Some(machines) = &mut self.nodes[at].machines else { return };
        let Some(app) = machines.applications.get_mut(name) else { return };
        app.machine.check_invariants();
        let mut wait = None;
        if let Some(deadline) = app.machine.deadline()
            && app.tick.is_none_or(|tick| tick > deadline)
        {
            assert!(deadline > now, "{name} would be asked again at once");
            app.tick = Some(deadline);
            wait = Some(deadline.0 - now.0);
        }
        if let Some(wait) = wait {
            self.later(wait, Happening::ApplicationTick { at, life, name: name.clone() });
        }
        for effect in effects {
            if !self.perform(at, life, name, effect) {
                return self.actor_fails(at, life, name);
            }
        }
    }

    /// Ends an actor, which starts again from the records.
    pub(super) fn actor_fails(&mut self, at: usize, life: u64, name: &ApplicationName) {
        let Some(machines) = &mut self.nodes[at].machines else { return };
        machines.applications.remove(name);
        // What runs here is found and written by the next one.
        machines.unwritten.retain(|key, _| key.application() != Some(name));
        machines.resting.insert(name.clone());
        let wait = self.random.between(500, 5_000);
        self.later(wait, Happening::ActorUp { at, life, name: name.clone() });
    }

    pub(super) fn is_actor(&self, at: usize, name: &ApplicationName, actor: u64) -> bool {
        let machines = self.nodes[at].machines.as_ref();
        let app = machines.and_then(|machines| machines.applications.get(name));
        app.is_some_and(|app| app.number == actor)
    }

    pub(super) fn actor_up(&mut self, at: usize, life: u64, name: &ApplicationName) {
        let machines = self.nodes[at].machines.as_mut().filter(|machines| machines.life == life);
        let Some(machines) = machines else { return };
        machines.resting.remove(name);
        let ended = !self.nodes[at].replica.remains(name).destroyed.is_empty();
        self.application_up(at, name, ended);
    }
}
