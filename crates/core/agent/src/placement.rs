//! The placement of slots: which ones this node runs. It claims what is free, gives way to a node
//! that wins, sheds what is too much. Every node decides alone from the same replicated picture;
//! there are no locks and no main node. Pure; driven by the node's placement task, which feeds it
//! records and who is alive, and hands the places it holds to the machines of the applications.
//! Must not know how anything is started.

mod claims;
mod field;
mod fill;
mod node;
mod shed;
mod wanted;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::instance::Offer;
use model::{ApplicationName, Claim, InstanceId, Machine, NodeId, Timestamp};

pub use claims::SlotId;
use claims::{ClaimStanding, ClaimView, Claims};
use field::{Field, Seat};
use node::ObservedNode;
pub use node::{NodeView, UNHEARD_MAX, capacity};
use shed::Shedding;
pub use wanted::{SLOTS_MAX, Wanted, count, wanted};

/// The time in which changes are gathered, as they come in swarms: one decision for all of them.
const GATHER: Duration = Duration::from_millis(20);

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A member of the roster as its records describe it; `None` if it was removed.
    Node(NodeId, Option<NodeView>),
    /// Whether another node is alive.
    Alive(NodeId, bool),
    Wanted(ApplicationName, Option<Wanted>),
    Claim(InstanceId, NodeId, Option<Claim>),
    /// Everything that is stored was read: only now is anything decided.
    Read,
    /// This node cannot prepare the application.
    Unfit(ApplicationName),
    /// This node can prepare the application again, or need not.
    Fit(ApplicationName),
    /// The applications whose files are about to leave this node: what runs of them is stopped
    /// here.
    Paused(BTreeSet<ApplicationName>),
    /// Nothing more is claimed; what runs is stopped by others.
    Shutdown,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// The nodes that count as alive from now on, this one included; in the first decision the last
    /// effect.
    Live(BTreeSet<NodeId>),
    /// All places that this node holds of an application from now on.
    Hold { application: ApplicationName, places: BTreeMap<SlotId, Hold> },
}

/// The way in which a place is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    Keep,
    /// The place is held until another node has it.
    Offered(Offer),
}

#[derive(Clone, Debug)]
struct HeldSlot {
    since: Timestamp,
    offer: Option<(Offer, Timestamp)>,
    /// The time before which there is no other offer, as one that was taken back may still be under
    /// way.
    offered_again: Timestamp,
}

impl HeldSlot {
    fn new(since: Timestamp) -> HeldSlot {
        HeldSlot { since, offer: None, offered_again: Timestamp(0) }
    }
}

/// One node's part in the placement of everything.
#[derive(Debug)]
pub struct Placement {
    node: NodeId,
    nodes: BTreeMap<NodeId, ObservedNode>,
    wanted: BTreeMap<ApplicationName, Wanted>,
    claims: Claims,
    held: BTreeMap<ApplicationName, BTreeMap<SlotId, HeldSlot>>,
    live: BTreeSet<NodeId>,
    told: BTreeMap<ApplicationName, BTreeMap<SlotId, Hold>>,
    /// The slots that nobody runs, or that are offered, and since when.
    free: BTreeMap<(ApplicationName, SlotId), Timestamp>,
    unfit: BTreeMap<ApplicationName, Timestamp>,
    paused: BTreeSet<ApplicationName>,
    shedding: Shedding,
    read: bool,
    shutdown: bool,
    queue: Vec<Effect>,
    wake: Option<Timestamp>,
}

impl Placement {
    /// Creates the machine, which decides nothing before `Event::Read`.
    pub fn new(node: NodeId) -> Placement {
        Placement {
            node,
            nodes: BTreeMap::new(),
            wanted: BTreeMap::new(),
            claims: Claims::default(),
            held: BTreeMap::new(),
            live: BTreeSet::new(),
            told: BTreeMap::new(),
            free: BTreeMap::new(),
            unfit: BTreeMap::new(),
            paused: BTreeSet::new(),
            shedding: Shedding::default(),
            read: false,
            shutdown: false,
            queue: Vec::new(),
            wake: None,
        }
    }

    /// Takes note of an event, and returns true if it may change what is decided.
    fn take_note(&mut self, now: Timestamp, event: Event) -> bool {
        match event {
            Event::Node(id, Some(view)) => {
                if let Some(node) = self.nodes.get_mut(&id) {
                    let changed = node.view != view;
                    node.view = view;
                    return changed;
                }
                let mut node = ObservedNode::new(view, now);
                if id == self.node {
                    node.set_alive(now, true);
                }
                self.nodes.insert(id, node);
            }
            Event::Node(id, None) => return self.nodes.remove(&id).is_some(),
            Event::Alive(id, _) if id == self.node => return false,
            Event::Alive(id, alive) => match self.nodes.get_mut(&id) {
                Some(node) => node.set_alive(now, alive),
                None => return false,
            },
            Event::Wanted(name, Some(wanted)) => {
                return self.wanted.insert(name, wanted.clone()) != Some(wanted);
            }
            Event::Wanted(name, None) => return self.wanted.remove(&name).is_some(),
            Event::Claim(instance, node, claim) => {
                let place = (instance.process, instance.slot);
                let (name, claim) = (&instance.application, claim.as_ref());
                return self.claims.set(now, name, &place, &node, claim);
            }
            Event::Read => {
                self.read = true;
                self.nodes.values_mut().for_each(ObservedNode::was_there);
                self.resume(now);
            }
            Event::Unfit(name) => drop(self.unfit.insert(name, now)),
            Event::Fit(name) => return self.unfit.remove(&name).is_some(),
            Event::Paused(names) => {
                return std::mem::replace(&mut self.paused, names) != self.paused;
            }
            Event::Shutdown => self.shutdown = true,
        }
        true
    }

    /// Resumes what an earlier process of this node claimed: it is still this node's own.
    fn resume(&mut self, now: Timestamp) {
        let own = self.claims.all().filter(|(_, _, node, _)| **node == self.node);
        for (name, place, _, seen) in
            own.filter(|(.., seen)| seen.standing != ClaimStanding::Leaving)
        {
            // A claim from a clock that was ahead then must not keep it here until that time has
            // come.
            let mut held = HeldSlot::new(seen.claimed_at.min(now));
            held.offer = seen.offer.map(|offer| (offer, now));
            self.held.entry(name.clone()).or_default().insert(place.clone(), held);
        }
    }

    fn decide(&mut self, now: Timestamp) {
        self.wake = None;
        if self.shutdown {
            // A task that waits for a first decision has to hear of one.
            return self.tell(now);
        }
        self.nodes.values_mut().for_each(|node| node.note_arrival(now));
        self.drop_unwanted();
        if !self.nodes.contains_key(&self.node) {
            // This node was removed: others run what it ran, and nobody hears what it says.
            self.held.clear();
        } else if self.is_alone() {
            self.hold_everything(now);
        } else {
            self.give_way(now);
            self.fill(now);
            self.shed(now);
        }
        self.tell(now);
        let next = self.nodes.values().map(ObservedNode::lost_at).filter(|at| *at > now).min();
        if let Some(next) = next {
            self.wake_at(next);
        }
    }

    fn is_wanted(&self, name: &ApplicationName, place: &SlotId) -> bool {
        let wanted = self.wanted.get(name).and_then(|wanted| wanted.counts.get(&place.0));
        wanted.is_some_and(|count| (1..=*count.min(&SLOTS_MAX)).contains(&place.1))
    }

    fn drop_unwanted(&mut self) {
        let mut held = std::mem::take(&mut self.held);
        for (name, places) in &mut held {
            let runs = !self.paused.contains(name);
            places.retain(|place, _| runs && self.is_wanted(name, place));
        }
        held.retain(|_, places| !places.is_empty());
        self.held = held;
        self.unfit.retain(|name, _| self.wanted.contains_key(name));
    }

    /// Returns whether no other node could run anything.
    fn is_alone(&self) -> bool {
        self.nodes.len() == 1 && self.nodes.contains_key(&self.node)
    }

    fn hold_everything(&mut self, now: Timestamp) {
        let drained = self.nodes.values().any(|node| node.view.drained);
        self.free.clear();
        for (name, wanted) in &self.wanted {
            let elsewhere = wanted.holder.as_ref().is_some_and(|holder| *holder != self.node);
            let held = self.held.entry(name.clone()).or_default();
            held.values_mut().for_each(|held| held.offer = None);
            if elsewhere || drained || self.paused.contains(name) {
                continue;
            }
            for (process, count) in &wanted.counts {
                for slot in 1..=(*count).min(SLOTS_MAX) {
                    held.entry((process.clone(), slot)).or_insert_with(|| HeldSlot::new(now));
                }
            }
        }
        self.held.retain(|_, places| !places.is_empty());
    }

    /// Returns this node's claim as it is on record, or is about to be.
    fn own(&self, name: &ApplicationName, place: &SlotId, held: &HeldSlot) -> ClaimView {
        let recorded = self.claims.on(name, place).find(|(node, _)| **node == self.node);
        let recorded = recorded.filter(|(_, seen)| seen.standing != ClaimStanding::Leaving);
        let own = recorded.map_or_else(|| ClaimView::fresh(held.since), |(_, seen)| seen.clone());
        ClaimView { offer: held.offer.map(|(offer, _)| offer), ..own }
    }

    /// Returns other nodes' claims that count.
    fn rivals<'a>(
        &'a self,
        now: Timestamp,
        name: &ApplicationName,
        place: &SlotId,
    ) -> impl Iterator<Item = (&'a NodeId, &'a ObservedNode, &'a ClaimView)> {
        self.claims.on(name, place).filter_map(move |(id, seen)| {
            let node = self.nodes.get(id).filter(|node| node.holds(now))?;
            (*id != self.node && seen.standing != ClaimStanding::Leaving)
                .then_some((id, node, seen))
        })
    }

    fn field(&self, now: Timestamp) -> Field {
        let seat = |(id, node): (&NodeId, &ObservedNode)| {
            let NodeView { capacity, load, walls, .. } = node.view;
            Seat::new(id.clone(), capacity, load, node.takes(now)).with_walls(walls)
        };
        let mut seats: Vec<Seat> = self.nodes.iter().map(seat).collect();
        let mut count = |node: &NodeId, ready: bool| {
            if let Ok(at) = seats.binary_search_by(|seat| seat.id.cmp(node)) {
                seats[at].count(ready);
            }
        };
        for (_, _, node, seen) in self.claims.all() {
            if *node != self.node && seen.standing != ClaimStanding::Leaving {
                count(node, seen.standing == ClaimStanding::Ready);
            }
        }
        for (name, places) in &self.held {
            for (place, held) in places {
                count(&self.node, self.own(name, place, held).standing == ClaimStanding::Ready);
            }
        }
        Field::new(seats)
    }

    fn tell(&mut self, now: Timestamp) {
        let hold =
            |held: &HeldSlot| held.offer.map_or(Hold::Keep, |(offer, _)| Hold::Offered(offer));
        let mut live: BTreeSet<NodeId> = self
            .nodes
            .iter()
            .filter(|(_, node)| node.holds(now))
            .map(|(id, _)| id.clone())
            .collect();
        live.insert(self.node.clone());
        let mut holds: BTreeMap<ApplicationName, BTreeMap<SlotId, Hold>> = BTreeMap::new();
        for (name, places) in &self.held {
            let places = places.iter().map(|(place, held)| (place.clone(), hold(held)));
            holds.insert(name.clone(), places.collect());
        }
        let gone = self.told.keys().filter(|name| !holds.contains_key(*name)).cloned();
        let gone: Vec<ApplicationName> = gone.collect();
        for application in gone {
            self.queue.push(Effect::Hold { application, places: BTreeMap::new() });
        }
        for (application, places) in &holds {
            if self.told.get(application) != Some(places) {
                let (application, places) = (application.clone(), places.clone());
                self.queue.push(Effect::Hold { application, places });
            }
        }
        self.told = holds;
        if live != self.live {
            self.live.clone_from(&live);
            self.queue.push(Effect::Live(live));
        }
    }

    fn wake_at(&mut self, at: Timestamp) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }
}

impl Machine for Placement {
    type Event = Event;
    type Effect = Effect;

    fn handle(&mut self, now: Timestamp, event: Event, effects: &mut Vec<Effect>) {
        if self.take_note(now, event) && self.read {
            self.wake_at(now.after(GATHER));
        }
        effects.append(&mut self.queue);
    }

    fn tick(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.read {
            self.decide(now);
        }
        effects.append(&mut self.queue);
    }

    fn deadline(&self) -> Option<Timestamp> {
        self.wake
    }

    fn check_invariants(&self) {
        assert!(self.queue.is_empty(), "every effect was handed over");
        assert!(self.held.values().all(|places| !places.is_empty()), "nothing empty is kept");
    }
}

#[cfg(test)]
mod tests;
