//! The witness of a node with a checker, which testifies of instances of nodes without one: as the
//! shell of the witness chooses them, and over a network that may be cut.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use checker_core::{Effect, Event, ProbeOutcome, Witnessed, is_witness};
use model::probe::Verdict;
use model::{Generation, NodeId};

use super::{Driven, INTERVAL, Part, ready, target};
use crate::placement::happening::Happening;
use crate::placement::replica::{Key, Record};
use crate::placement::world::World;

/// The time from one machine to another, in milliseconds.
pub(super) const WAY_MS: (u64, u64) = (1, 150);
/// The time after which a call that is not answered ends.
pub(super) const CALL_MAX_MS: u64 = 6_000;
const INTERVAL_MIN: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(in crate::placement) struct Watching {
    pub(super) driven: Driven<Witnessed>,
    /// The ready incarnations of others' claims.
    claims: BTreeMap<Witnessed, Generation>,
    /// Whether a node has a checker, for those that said what they are.
    roles: BTreeMap<NodeId, bool>,
    alive: BTreeSet<NodeId>,
    told: BTreeMap<Witnessed, Generation>,
}

impl Watching {
    fn wanted(&self, here: &NodeId, of: &Witnessed) -> Option<Generation> {
        let unchecked = self.roles.get(&of.1) == Some(&false);
        let generation = *self.claims.get(of).filter(|_| unchecked)?;
        if !self.alive.contains(&of.1) {
            return None;
        }
        let checkers = self.roles.iter().filter(|(_, checks)| **checks).map(|(node, _)| node);
        let checkers = checkers.filter(|node| self.alive.contains(*node) || *node == here);
        is_witness(here, of, checkers).then_some(generation)
    }

    fn events(&mut self, here: &NodeId, which: Vec<Witnessed>) -> Vec<Event<Witnessed>> {
        let mut events = Vec::new();
        for of in which {
            let wanted = self.wanted(here, &of);
            if self.told.get(&of).copied() == wanted {
                continue;
            }
            match wanted {
                Some(generation) => drop(self.told.insert(of.clone(), generation)),
                None => drop(self.told.remove(&of)),
            }
            let interval = INTERVAL.max(INTERVAL_MIN);
            events.push(Event::Target(of, wanted.map(|generation| target(generation, interval))));
        }
        events
    }

    fn all(&self) -> Vec<Witnessed> {
        let all: BTreeSet<&Witnessed> = self.claims.keys().chain(self.told.keys()).collect();
        all.into_iter().cloned().collect()
    }
}

impl World {
    pub(super) fn witness_up(&mut self, at: usize) {
        let (number, seed) = (self.lives, self.random.draw());
        let alive = self.seen_from(at);
        let node = &self.nodes[at];
        let claims = node.replica.claims().filter(|(_, owner, _)| **owner != node.id);
        let claims = claims.filter_map(|(instance, owner, claim)| {
            Some(((instance.clone(), owner.clone()), ready(claim)?))
        });
        let claims = claims.collect();
        let roles = node.replica.roles().map(|(id, checks)| (id.clone(), checks)).collect();
        let said = node.replica.testimonies().filter(|(witness, ..)| **witness == node.id);
        let said: Vec<(Witnessed, Verdict)> = said
            .map(|(_, of, owner, verdict)| ((of.clone(), owner.clone()), verdict.clone()))
            .collect();
        let told = BTreeMap::new();
        let watching = Watching { driven: Driven::new(number, seed), claims, roles, alive, told };
        let Some(checking) = self.checking(at) else { return };
        checking.witness = Some(watching);
        let here = self.nodes[at].id.clone();
        for (of, verdict) in said {
            let watching = self.checking(at).and_then(|checking| checking.witness.as_ref());
            let wanted = watching.and_then(|watching| watching.wanted(&here, &of));
            self.witness(at, Event::Written(of.clone(), verdict));
            if wanted.is_none() {
                self.witness(at, Event::Target(of, None));
            }
        }
        self.choose(at, None);
    }

    pub(super) fn witness_noticed(&mut self, at: usize, key: &Key) {
        let node = &mut self.nodes[at];
        let Some(machines) = &mut node.machines else { return };
        let Some(watching) = &mut machines.checking.witness else { return };
        match (key, node.replica.get(key)) {
            (Key::Claim(instance, owner), record) if *owner != node.id => {
                let of = (instance.clone(), owner.clone());
                let generation = match record {
                    Some(Record::Claim(claim)) => ready(claim),
                    _ => None,
                };
                match generation {
                    Some(generation) => drop(watching.claims.insert(of.clone(), generation)),
                    None => drop(watching.claims.remove(&of)),
                }
                self.choose(at, Some(of));
            }
            (Key::Roles(id), record) => {
                let checks = match record {
                    Some(Record::Roles { checks }) => Some(*checks),
                    _ => None,
                };
                let before = match checks {
                    Some(checks) => watching.roles.insert(id.clone(), checks),
                    None => watching.roles.remove(id),
                };
                if before != checks {
                    self.choose(at, None);
                }
            }
            _ => {}
        }
    }

    pub(super) fn witness_sees(&mut self, at: usize) {
        let alive = self.seen_from(at);
        let Some(checking) = self.checking(at) else { return };
        if let Some(watching) = &mut checking.witness {
            watching.alive = alive;
            self.choose(at, None);
        }
    }

    pub(super) fn seen_from(&self, at: usize) -> BTreeSet<NodeId> {
        self.nodes[at].alive.iter().map(|of| self.nodes[*of].id.clone()).collect()
    }

    /// Chooses of which instances it testifies: looks at one anew, or at all.
    fn choose(&mut self, at: usize, which: Option<Witnessed>) {
        let here = self.nodes[at].id.clone();
        let Some(checking) = self.checking(at) else { return };
        let Some(watching) = &mut checking.witness else { return };
        let which = which.map_or_else(|| watching.all(), |one| vec![one]);
        for event in watching.events(&here, which) {
            self.witness(at, event);
        }
    }

    fn witness(&mut self, at: usize, event: Event<Witnessed>) {
        let now = self.clock(at);
        let Some(checking) = self.checking(at) else { return };
        let Some(watching) = &mut checking.witness else { return };
        let effects = watching.driven.handle(now, event);
        self.witnessed(at, effects);
    }

    pub(super) fn witnessed(&mut self, at: usize, effects: Vec<Effect<Witnessed>>) {
        let now = self.clock(at);
        let Some(checking) = self.checking(at) else { return };
        let Some(watching) = &mut checking.witness else { return };
        let (number, wait) = (watching.driven.number, watching.driven.wait(now));
        if let Some(wait) = wait {
            self.later(wait, Happening::CheckerTick { at, number });
        }
        for effect in effects {
            match effect {
                Effect::Probe { instance: of, target } => {
                    let wait = self.random.between(WAY_MS.0, WAY_MS.1);
                    let generation = target.generation;
                    self.later(wait, Happening::Asked { from: at, number, of, generation });
                }
                Effect::WriteVerdict { instance: of, verdict } => {
                    if self.nodes[at].disk_full {
                        self.count("write refused");
                        return self.part_fails(at, Part::Witness);
                    }
                    self.tell(|| {
                        let said = verdict.as_ref().map(|verdict| verdict.health);
                        format!("testimony of {at} on {} of {}: {said:?}", of.0, of.1)
                    });
                    let key = Key::Testimony(self.nodes[at].id.clone(), of.0, of.1);
                    self.write(at, key, verdict.map(Record::Verdict));
                }
            }
        }
    }

    pub(in crate::placement) fn answered(
        &mut self,
        at: usize,
        number: u64,
        of: Witnessed,
        generation: Generation,
        outcome: ProbeOutcome,
    ) {
        let Some(checking) = self.checking(at) else { return };
        let asks = |watching: &Watching| watching.driven.number == number;
        if checking.witness.as_ref().is_some_and(asks) {
            self.witness(at, Event::Probed { instance: of, generation, outcome });
        }
    }
}
