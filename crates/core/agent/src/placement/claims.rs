//! Claims as placement sees them, and which of several wins a slot. A pure function of the records,
//! so that all nodes agree; must not know loads. Asked by the machine.

use std::collections::BTreeMap;

use model::instance::Offer;
use model::{ApplicationName, Claim, InstanceState, NodeId, ProcessType, Slot, Timestamp};

/// A slot of a process type, within one application.
pub type SlotId = (ProcessType, Slot);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimStanding {
    Ready,
    /// Nothing serves yet, or again: claimed, starting, crashed.
    Unready,
    /// The processes that are left are all on their way out.
    Leaving,
}

/// What matters of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClaimView {
    pub claimed_at: Timestamp,
    pub standing: ClaimStanding,
    /// Whether a process was started for it.
    pub started: bool,
    pub offer: Option<Offer>,
    /// The time since which it is known here to be ready.
    pub ready_since: Option<Timestamp>,
}

impl ClaimView {
    pub fn new(now: Timestamp, claim: &Claim, before: Option<&ClaimView>) -> ClaimView {
        let is = |state: InstanceState| claim.incarnations.iter().any(|one| one.state == state);
        let standing = if is(InstanceState::Ready) {
            ClaimStanding::Ready
        } else if is(InstanceState::Starting)
            || is(InstanceState::Crashed)
            || claim.incarnations.is_empty()
        {
            ClaimStanding::Unready
        } else {
            ClaimStanding::Leaving
        };
        let since = before.and_then(|before| before.ready_since).unwrap_or(now);
        ClaimView {
            claimed_at: claim.claimed_at,
            standing,
            started: !claim.incarnations.is_empty(),
            offer: claim.offer,
            ready_since: (standing == ClaimStanding::Ready).then_some(since),
        }
    }

    /// Returns a claim that was made and is not on record yet.
    pub fn fresh(claimed_at: Timestamp) -> ClaimView {
        ClaimView {
            claimed_at,
            standing: ClaimStanding::Unready,
            started: false,
            offer: None,
            ready_since: None,
        }
    }

    /// Returns the claim's rank, of which the lowest wins: ready before starting, then the earliest
    /// claim, then the node's id. What is offered comes after what is not.
    pub fn rank<'a>(&self, node: &'a NodeId) -> (bool, bool, Timestamp, &'a NodeId) {
        (self.offer.is_some(), self.standing != ClaimStanding::Ready, self.claimed_at, node)
    }
}

/// All claims of all nodes, dead ones too.
#[derive(Debug, Default)]
pub(super) struct Claims {
    by_application: BTreeMap<ApplicationName, BTreeMap<SlotId, BTreeMap<NodeId, ClaimView>>>,
}

impl Claims {
    /// Sets a claim, and returns false if nothing that matters changed.
    pub fn set(
        &mut self,
        now: Timestamp,
        application: &ApplicationName,
        place: &SlotId,
        node: &NodeId,
        claim: Option<&Claim>,
    ) -> bool {
        let Some(claim) = claim else { return self.remove(application, place, node) };
        let places = self.by_application.entry(application.clone()).or_default();
        let nodes = places.entry(place.clone()).or_default();
        let seen = ClaimView::new(now, claim, nodes.get(node));
        nodes.insert(node.clone(), seen.clone()) != Some(seen)
    }

    fn remove(&mut self, application: &ApplicationName, place: &SlotId, node: &NodeId) -> bool {
        let Some(places) = self.by_application.get_mut(application) else { return false };
        let Some(nodes) = places.get_mut(place) else { return false };
        let removed = nodes.remove(node).is_some();
        if nodes.is_empty() {
            places.remove(place);
        }
        if places.is_empty() {
            self.by_application.remove(application);
        }
        removed
    }

    pub fn on(
        &self,
        application: &ApplicationName,
        place: &SlotId,
    ) -> impl Iterator<Item = (&NodeId, &ClaimView)> {
        let places = self.by_application.get(application);
        places.and_then(|places| places.get(place)).into_iter().flatten()
    }

    pub fn of(
        &self,
        application: &ApplicationName,
    ) -> impl Iterator<Item = (&SlotId, &NodeId, &ClaimView)> {
        let places = self.by_application.get(application).into_iter().flatten();
        places.flat_map(|(place, nodes)| nodes.iter().map(move |(node, seen)| (place, node, seen)))
    }

    pub fn all(&self) -> impl Iterator<Item = (&ApplicationName, &SlotId, &NodeId, &ClaimView)> {
        self.by_application.iter().flat_map(|(name, places)| {
            places.iter().flat_map(move |(place, nodes)| {
                nodes.iter().map(move |(node, seen)| (name, place, node, seen))
            })
        })
    }
}
