//! What other nodes have of the application: their claims, which of them live, which has its files,
//! and this node's own places among all. Decides nothing; read by plan and rollout.

use std::collections::{BTreeMap, BTreeSet};

use model::application::{Holder, RolloutMode};
use model::{
    Claim, Incarnation, InstanceId, InstanceState, NodeId, ProcessType, ReleaseId, Timestamp,
};

use super::rollout::EXITS_MAX;
use super::slot::{SlotId, SlotState};
use super::{Application, Effect};
use crate::placement::Hold;

#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    claims: BTreeMap<(SlotId, NodeId), Claim>,
    pub live: BTreeSet<NodeId>,
    /// Whether others lived at some time: they may come back.
    pub met: bool,
    pub holder: Option<Holder>,
}

impl Elsewhere {
    pub fn claimed(&mut self, instance: InstanceId, node: NodeId, claim: Option<Claim>) {
        let key = ((instance.process, instance.slot), node);
        match claim {
            Some(claim) => drop(self.claims.insert(key, claim)),
            None => drop(self.claims.remove(&key)),
        }
    }

    /// Returns the incarnations on nodes that live.
    fn incarnations(&self) -> impl Iterator<Item = (&SlotId, &NodeId, &Incarnation)> {
        let live = self.claims.iter().filter(|((_, node), _)| self.live.contains(node));
        live.flat_map(|((place, node), claim)| {
            claim.incarnations.iter().map(move |one| (place, node, one))
        })
    }

    pub fn has_ready(&self, place: &SlotId, release: &ReleaseId) -> bool {
        self.ready(release).any(|(at, _)| at == place)
    }

    pub fn any_ready(&self, process: &ProcessType, release: &ReleaseId) -> bool {
        self.ready(release).any(|((at, _), _)| at == process)
    }

    /// Returns the places whose processes are ready, each with what is odd about its first answer.
    pub fn ready(&self, release: &ReleaseId) -> impl Iterator<Item = (&SlotId, Option<&str>)> {
        self.incarnations()
            .filter(move |(_, _, one)| one.release == *release && one.state == InstanceState::Ready)
            .map(|(place, _, one)| (place, one.remark.as_deref()))
    }

    /// Returns the releases of which something runs on other nodes.
    pub fn running(&self) -> impl Iterator<Item = &ReleaseId> {
        let lives = |state| !matches!(state, InstanceState::Stopped | InstanceState::Crashed);
        self.incarnations()
            .filter(move |(_, _, one)| lives(one.state))
            .map(|(.., one)| &one.release)
    }

    /// Returns what other nodes failed at, for people.
    pub fn failures(&self, release: &ReleaseId) -> BTreeMap<NodeId, String> {
        let failures = self.incarnations().filter_map(|((process, slot), node, one)| {
            let ended = u32::from(one.state == InstanceState::Crashed);
            let failed = one.release == *release && one.restarts + ended >= EXITS_MAX;
            let reason = one.reason.as_deref().unwrap_or("did not become ready");
            failed.then(|| (node.clone(), format!("{process}.{slot} on node {node}: {reason}")))
        });
        failures.collect()
    }

    /// Returns the nodes that live and have a claim on any of its slots.
    pub fn claimants(&self) -> impl Iterator<Item = &NodeId> {
        self.claims.keys().map(|(_, node)| node).filter(|node| self.live.contains(*node))
    }
}

impl Application {
    /// Claims this node's places: each is on record before anything is started in it.
    pub(super) fn claim_places(&mut self, now: Timestamp) {
        let ending = self.is_ending();
        for (place, slot) in &mut self.slots {
            let held = self.held.as_ref().and_then(|held| held.get(place)).copied();
            slot.held = held.filter(|_| !ending);
        }
        if ending {
            return;
        }
        for (place, hold) in self.held.iter().flatten() {
            let floor = self.generation_floor;
            let slot =
                self.slots.entry(place.clone()).or_insert_with(|| SlotState::new(now, floor));
            slot.held = Some(*hold);
        }
    }

    pub(super) fn holds(&self, place: &SlotId) -> bool {
        self.held.as_ref().is_none_or(|held| held.contains_key(place))
    }

    /// Returns whether nodes beside this one may run it.
    pub(super) fn is_placed(&self) -> bool {
        self.held.is_some()
    }

    /// Returns the release that another node rolls out, once its processes are to start.
    pub(super) fn followed(&self) -> Option<&ReleaseId> {
        let rollout = self.rollout.as_ref().filter(|_| self.attempt.is_none())?;
        let starting = rollout.phase == model::RolloutPhase::Starting;
        let theirs = rollout.coordinator != self.node && rollout.target != self.serving;
        rollout.target.as_ref().filter(|_| starting && theirs && self.is_placed())
    }

    /// Returns whether nothing here depends on what other nodes have.
    pub(super) fn is_indifferent(&self) -> bool {
        let apart = |release: &model::Release| release.settings.rollout == RolloutMode::StopFirst;
        let waits = self.attempt.is_some() || self.watched.is_some() || self.followed().is_some();
        !waits && !self.releases.values().any(apart)
    }

    /// Returns whether this node is the first of those that live.
    pub(super) fn is_first_alive(&self) -> bool {
        self.elsewhere.live.first().is_none_or(|first| *first >= self.node)
    }

    /// Returns who has its files, as far as that is known.
    pub(super) fn holder(&self) -> Option<&Holder> {
        let own =
            |holder: &&Holder| self.spec.as_ref().is_none_or(|spec| holder.is_of(spec.created_at));
        self.elsewhere.holder.as_ref().filter(own)
    }

    /// Returns the node that has its files, if that is another one.
    pub(super) fn held_by_other(&self) -> Option<&NodeId> {
        self.holder().map(|holder| &holder.node).filter(|holder| **holder != self.node)
    }

    /// Takes hold of the files: the first rollout of a release with persistent paths makes them
    /// here.
    pub(super) fn hold_files(&mut self, now: Timestamp) {
        if !self.is_placed() || self.holder().is_some() {
            return;
        }
        let holder = Holder {
            v: model::record::RECORD_VERSION,
            node: self.node.clone(),
            since: now,
            created_at: self.spec.as_ref().map(|spec| spec.created_at),
            unknown: model::record::Unknown::new(),
        };
        self.elsewhere.holder = Some(holder.clone());
        self.emit(Effect::WriteHolder(holder));
    }
}

/// Returns the offer as the claim says it.
pub(super) fn offer_of(hold: Option<Hold>) -> Option<model::instance::Offer> {
    match hold {
        Some(Hold::Offered(offer)) => Some(offer),
        Some(Hold::Keep) | None => None,
    }
}
