//! The node and its parts come and go: crash, shutdown, panic, start and adoption.

use std::collections::{BTreeMap, BTreeSet};

use agent_core::application::{Adopted, Application, Event};
use checker_core::Checker;
use model::ApplicationName;

use crate::fault::Fault;
use crate::world::{Agent, Happening, Node, World};

/// The time limit for a shutdown; a launch under way, a drain and a grace end long before.
const SHUTDOWN_MAX_MS: u64 = 180_000;

/// A shutdown by `cortex down`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopping {
    /// How long the node is down until it is started again, in milliseconds.
    pub down: u64,
}

impl World {
    pub fn node_crash(&mut self, down: u64) {
        if self.node.take().is_some() {
            self.count(Fault::NodeCrash);
            self.tell(|| "node crash".into());
            self.lives += 1;
            self.life = self.lives;
            if self.storm(20)
                && let Some(instance) = self.records.claims.keys().next().cloned()
            {
                self.count(Fault::LostClaim);
                self.records.claims.remove(&instance);
            }
            self.later(down, Happening::NodeUp);
        }
    }

    /// Stops everything, then the node: orderly, and within a limit.
    pub fn node_shutdown(&mut self, down: u64) {
        let Some(node) = self.node.as_mut().filter(|node| node.stopping.is_none()) else { return };
        node.stopping = Some(Stopping { down });
        let names: Vec<ApplicationName> = node.agents.keys().cloned().collect();
        let life = self.life;
        self.count(Fault::Shutdown);
        self.tell(|| "shutdown".into());
        // No request finds a process until each application is rolled out again.
        self.served.clear();
        self.later(SHUTDOWN_MAX_MS, Happening::MustBeDown { life });
        for name in names {
            self.agent(&name, None, Event::Shutdown);
        }
        self.end_if_stopped();
    }

    pub(crate) fn end_if_stopped(&mut self) {
        let stopping =
            self.node.as_ref().filter(|node| node.agents.is_empty() && node.pausing.is_empty());
        let Some(Stopping { down }) = stopping.and_then(|node| node.stopping) else { return };
        self.tell(|| "node down".into());
        let left = self.processes.values().filter(|process| process.is_alive()).count();
        assert_eq!(left, 0, "processes outlive the node that was shut down");
        self.node = None;
        self.lives += 1;
        self.life = self.lives;
        self.later(down, Happening::NodeUp);
    }

    pub fn actor_panic(&mut self, name: &ApplicationName) {
        let life = self.life;
        if let Some(node) = &mut self.node
            && node.agents.remove(name).is_some()
        {
            node.pausing.insert(name.clone());
            self.disturbed_at = self.now;
            // Its next actor begins with a back-off of its own.
            self.asked(name);
            self.count(Fault::ActorPanic);
            self.tell(|| format!("panic {name}"));
            self.later(100, Happening::ActorUp { name: name.clone(), life });
        }
    }

    pub(crate) fn node_up(&mut self) {
        if self.node.is_some() {
            return;
        }
        self.tell(|| "node up".into());
        self.disturbed_at = self.now;
        self.starts.clear();
        let (agents, checker) = (BTreeMap::new(), Checker::new(self.random.draw()));
        self.node = Some(Node {
            agents,
            pausing: BTreeSet::new(),
            checker,
            checker_tick: None,
            stopping: None,
        });
        for (instance, verdict) in self.records.verdicts.clone() {
            self.checker(checker_core::Event::Written(instance, verdict));
        }
        let mut names: BTreeSet<ApplicationName> = self.records.specs.keys().cloned().collect();
        names.extend(self.records.kept.keys().cloned());
        names.extend(self.processes.keys().map(|id| id.instance.application.clone()));
        names.extend(self.records.claims.keys().map(|id| id.application.clone()));
        for name in names {
            self.agent_up(&name);
        }
        for instance in self.records.claims.keys().cloned().collect::<Vec<_>>() {
            self.look_at_claim(&instance);
        }
    }

    pub(crate) fn agent_up(&mut self, name: &ApplicationName) {
        self.lives += 1;
        let life = self.lives;
        let machine = Application::new(self.id.clone(), name.clone());
        let Some(node) = &mut self.node else { return };
        node.pausing.remove(name);
        if node.agents.contains_key(name) {
            return;
        }
        let agent = Agent { machine, life, tick: None, wanted: BTreeMap::new() };
        node.agents.insert(name.clone(), agent);
        let mut events = vec![Event::Spec(self.records.spec(name))];
        for ((owner, id), release) in &self.records.releases {
            if owner == name {
                events.push(Event::Release(id.clone(), Some(release.clone())));
            }
        }
        events.push(Event::Rollout(self.records.rollouts.get(name).cloned()));
        for (instance, claim) in self.records.claims_of(name) {
            events.push(Event::Claim(instance.clone(), claim.clone()));
        }
        for (instance, verdict) in &self.records.verdicts {
            if instance.application == *name {
                events.push(Event::Verdict(instance.clone(), Some(verdict.clone())));
            }
        }
        let held = self.processes.values().filter(|p| p.id.instance.application == *name);
        let adopted = held.map(|process| Adopted {
            id: process.id.clone(),
            process: process.identity.clone(),
            port: process.port,
            ports: Default::default(),
            exit: process.exit.clone(),
        });
        events.push(Event::Adopted(adopted.collect()));
        if node.stopping.is_some() {
            events.push(Event::Shutdown);
        }
        for event in events {
            self.agent(name, Some(life), event);
        }
    }
}
