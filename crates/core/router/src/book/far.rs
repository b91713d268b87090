//! Instances of other nodes, as far as a router may use them: their own node's record says ready,
//! that node is a member, and it answers. That node decides which of them gets a request. Part of
//! the book.

use std::collections::{BTreeMap, BTreeSet};

use model::probe::{HealthState, Verdict};
use model::{Claim, Generation, Incarnation, InstanceId, InstanceState, NodeId, ReleaseId, Slot};

use super::Sought;

/// One node that runs instances of an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FarDescription {
    pub node: NodeId,
    /// The processes; others in their place are another endpoint.
    pub incarnations: Vec<(Slot, Generation)>,
    /// The requests that all take together; `None` for no limit.
    pub concurrency: Option<u32>,
}

impl FarDescription {
    pub fn instances(&self) -> u32 {
        u32::try_from(self.incarnations.len()).unwrap_or(u32::MAX)
    }
}

/// Other nodes, as routing needs to know them.
#[derive(Debug, Default)]
pub struct FarNodes {
    members: BTreeSet<NodeId>,
    down: BTreeSet<NodeId>,
}

impl FarNodes {
    /// Sets whether a node is a member and returns true if that is new.
    pub fn set_member(&mut self, node: &NodeId, member: bool) -> bool {
        if member { self.members.insert(node.clone()) } else { self.members.remove(node) }
    }

    /// Sets the nodes that are down and returns those for which that changes something.
    pub fn set_down(&mut self, down: BTreeSet<NodeId>) -> BTreeSet<NodeId> {
        let changed = self.down.symmetric_difference(&down).cloned().collect();
        self.down = down;
        changed
    }

    pub fn members(&self) -> &BTreeSet<NodeId> {
        &self.members
    }

    pub fn is_down(&self, node: &NodeId) -> bool {
        self.down.contains(node)
    }

    fn is_usable(&self, node: &NodeId) -> bool {
        self.members.contains(node) && !self.is_down(node)
    }
}

/// Claims of other nodes on slots of one application's processes that take traffic, and what these
/// nodes say of them.
#[derive(Debug, Default)]
pub struct FarClaims {
    claims: BTreeMap<NodeId, BTreeMap<InstanceId, Claim>>,
    /// The incarnations that are gone by the verdict of their own node.
    gone: BTreeMap<(NodeId, InstanceId), Generation>,
}

impl FarClaims {
    pub fn put(&mut self, node: NodeId, instance: InstanceId, claim: Option<Claim>) {
        // Nobody asks where the others are.
        let asked_for = |claim: &Claim| {
            let has_ports = |one: &Incarnation| !one.ports.is_empty();
            instance.process.is_web() || claim.incarnations.iter().any(has_ports)
        };
        let Some(claim) = claim.filter(asked_for) else {
            if let Some(claims) = self.claims.get_mut(&node) {
                claims.remove(&instance);
                if claims.is_empty() {
                    self.claims.remove(&node);
                }
            }
            return;
        };
        self.claims.entry(node).or_default().insert(instance, claim);
    }

    pub fn judge(&mut self, node: NodeId, instance: InstanceId, verdict: Option<Verdict>) {
        match verdict.filter(|verdict| verdict.health == HealthState::Gone) {
            Some(verdict) => drop(self.gone.insert((node, instance), verdict.generation)),
            None => drop(self.gone.remove(&(node, instance))),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.gone.is_empty()
    }

    pub fn concern(&self, nodes: &BTreeSet<NodeId>) -> bool {
        self.claims.keys().any(|node| nodes.contains(node))
    }

    /// Returns the nodes that can be used, and whether there are others that would be if they
    /// answered.
    pub(super) fn describe(
        &self,
        serving: &ReleaseId,
        nodes: &FarNodes,
        sought: &Sought,
    ) -> (Vec<FarDescription>, bool) {
        let (mut found, mut lost) = (Vec::new(), false);
        for (node, claims) in &self.claims {
            let gone = |instance: &InstanceId, generation| {
                self.gone.get(&(node.clone(), instance.clone())) == Some(&generation)
            };
            let Some(description) = describe(node, claims, serving, sought, gone) else { continue };
            if nodes.is_usable(node) {
                found.push(description);
            } else {
                lost |= nodes.members.contains(node);
            }
        }
        (found, lost)
    }
}

fn describe(
    node: &NodeId,
    claims: &BTreeMap<InstanceId, Claim>,
    serving: &ReleaseId,
    sought: &Sought,
    gone: impl Fn(&InstanceId, Generation) -> bool,
) -> Option<FarDescription> {
    let (mut incarnations, mut concurrency) = (Vec::new(), Some(0_u32));
    for (instance, claim) in claims.iter().filter(|(id, _)| id.process == sought.process) {
        for one in &claim.incarnations {
            let takes = one.state == InstanceState::Ready && one.release == *serving;
            let Some((_, limit)) = sought.of(one).filter(|_| takes) else { continue };
            if !gone(instance, one.generation) {
                incarnations.push((instance.slot, one.generation));
                let both = concurrency.zip(limit);
                concurrency = both.map(|(sum, more)| sum.saturating_add(more.max(1)));
            }
        }
    }
    (!incarnations.is_empty()).then(|| FarDescription {
        node: node.clone(),
        incarnations,
        concurrency,
    })
}
