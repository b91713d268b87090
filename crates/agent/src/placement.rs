//! Which slots of a process type are this node's: weighted rendezvous hashing over the members, a
//! pure function of what every node knows, so that all agree without a word. Asked by the plan.

use std::collections::{BTreeMap, BTreeSet};

use model::{ApplicationName, NodeId, ProcessType, Slot};

/// More instances of one process type than any one machine here could run; a typing error in a
/// count must not fill memory.
pub const SLOTS_MAX: u32 = 1_000;
/// A weight is a number of tickets in the draw; more would cost time and gain no precision.
pub const WEIGHT_MAX: u32 = 64;

/// Nodes that may run instances, with their weights.
pub type Members = BTreeMap<NodeId, u32>;

/// Of the slots 1 to `count`, those that `node` runs.
pub fn slots_here(
    application: &ApplicationName,
    process: &ProcessType,
    count: u32,
    members: &Members,
    node: &NodeId,
) -> BTreeSet<Slot> {
    (1..=count.min(SLOTS_MAX))
        .filter(|slot| home(application, process, *slot, members) == Some(node))
        .collect()
}

/// The member with the highest ticket; of equal ones the lowest id, so that it is one.
fn home<'a>(
    application: &ApplicationName,
    process: &ProcessType,
    slot: Slot,
    members: &'a Members,
) -> Option<&'a NodeId> {
    if members.len() == 1 {
        return members.iter().find(|(_, weight)| **weight > 0).map(|(node, _)| node);
    }
    let mut best: Option<(u64, &NodeId)> = None;
    for (node, weight) in members {
        let place = format!("{application}/{process}.{slot}@{node}");
        let seed = fnv1a(place.as_bytes());
        let ticket = (0..(*weight).min(WEIGHT_MAX)).map(|i| mix(seed ^ mix(u64::from(i)))).max();
        if let Some(ticket) = ticket
            && best.is_none_or(|(highest, _)| ticket > highest)
        {
            best = Some((ticket, node));
        }
    }
    best.map(|(_, node)| node)
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The last step of splitmix64: near inputs come far apart.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(count: u32, members: &[(&str, u32)], node: &str) -> BTreeSet<Slot> {
        let members = members.iter().map(|(id, w)| (id.parse().unwrap(), *w)).collect();
        let name = "shop".parse().unwrap();
        slots_here(&name, &ProcessType::web(), count, &members, &node.parse().unwrap())
    }

    #[test]
    fn one_member_runs_every_slot() {
        assert_eq!(slots(4, &[("a", 1)], "a"), (1..=4).collect());
        assert!(slots(0, &[("a", 1)], "a").is_empty());
        assert!(slots(4, &[("a", 1)], "b").is_empty());
        assert!(slots(4, &[("a", 0)], "a").is_empty());
        assert_eq!(slots(u32::MAX, &[("a", 1)], "a").len(), SLOTS_MAX as usize);
    }

    #[test]
    fn each_slot_has_one_home_and_weights_count() {
        let members = [("a", 1), ("b", 1), ("c", 2)];
        let per_node = members.map(|(node, _)| slots(1_000, &members, node));
        assert_eq!(per_node.iter().map(BTreeSet::len).sum::<usize>(), 1_000);
        assert!(per_node[0].is_disjoint(&per_node[1]) && per_node[1].is_disjoint(&per_node[2]));
        assert!((400..600).contains(&per_node[2].len()), "{}", per_node[2].len());
    }

    #[test]
    fn a_node_that_leaves_moves_its_own_slots_alone() {
        let with = slots(500, &[("a", 1), ("b", 1), ("c", 1)], "a");
        let without = slots(500, &[("a", 1), ("b", 1)], "a");
        assert!(with.is_subset(&without));
    }
}
