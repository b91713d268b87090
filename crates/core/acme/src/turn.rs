//! Whose turn it is to order for a name. All nodes that see the same nodes come to the same answer,
//! and after each failure it is another one's turn.

use std::collections::BTreeSet;

use model::{NodeId, hash};

/// Returns how many nodes come before this one.
pub fn position(name: &str, node: &NodeId, others: &BTreeSet<NodeId>, failures: u32) -> u32 {
    let rank = |node: &NodeId| {
        hash::pair(hash::bytes(name.as_bytes()), hash::bytes(node.as_str().as_bytes()))
    };
    let own = (rank(node), node);
    let before = others.iter().filter(|other| *other != node && (rank(other), *other) < own);
    let before = u32::try_from(before.count()).unwrap_or(u32::MAX);
    let count = others.iter().filter(|other| *other != node).count() + 1;
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    (before + count - failures % count) % count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_a_place_and_each_failure_moves_them_up() {
        let nodes: BTreeSet<NodeId> = ["n1", "n2", "n3"].map(|n| n.parse().unwrap()).into();
        for name in ["a.example", "b.example", "192.0.2.7"] {
            let places = |failures| -> Vec<u32> {
                nodes.iter().map(|node| position(name, node, &nodes, failures)).collect()
            };
            let mut sorted = places(0);
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2]);
            let next: Vec<u32> = places(0).iter().map(|place| (place + 2) % 3).collect();
            assert_eq!(places(1), next);
            assert_eq!(places(3), places(0));
        }
    }

    #[test]
    fn names_are_spread_over_nodes() {
        let nodes: BTreeSet<NodeId> = ["n1", "n2"].map(|n| n.parse().unwrap()).into();
        let first = "n1".parse().unwrap();
        let of_one =
            (0..100).filter(|n| position(&format!("{n}.example"), &first, &nodes, 0) == 0).count();
        assert!((30..70).contains(&of_one), "{of_one}");
    }
}
