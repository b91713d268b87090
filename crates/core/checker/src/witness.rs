//! The witnesses of an instance whose own node has no checker: a few of the checkers elsewhere, the
//! same ones as far as they see the same nodes.

use model::{InstanceId, NodeId, hash};

/// An instance and the node that runs it.
pub type Witnessed = (InstanceId, NodeId);

/// Witnesses of an instance; two of them are most of them. With more, a large cluster would ask
/// each instance hundreds of times for one answer.
pub const WITNESSES_MAX: usize = 3;

/// Returns whether `node` is among the witnesses that `checkers` give, itself one of them.
pub fn is_witness<'a>(
    node: &NodeId,
    (instance, owner): &Witnessed,
    checkers: impl Iterator<Item = &'a NodeId>,
) -> bool {
    if node == owner {
        return false;
    }
    let own = rank(node, instance, owner);
    let before = checkers
        .filter(|other| *other != node && *other != owner)
        .filter(|other| (rank(other, instance, owner), *other) < (own, node));
    before.take(WITNESSES_MAX).count() < WITNESSES_MAX
}

/// Returns the rank by rendezvous hashing (Thaler and Ravishankar, 1998): a node that comes or goes
/// moves only what concerns it.
fn rank(node: &NodeId, instance: &InstanceId, owner: &NodeId) -> u64 {
    hash::spread(hash::fnv1a(format!("{node}/{owner}/{instance}").as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::ProcessType;

    fn witnessed(slot: u32) -> Witnessed {
        let process = ProcessType::web();
        (
            InstanceId { application: "shop".parse().unwrap(), process, slot },
            "host".parse().unwrap(),
        )
    }

    fn nodes(count: usize) -> Vec<NodeId> {
        (0..count).map(|n| format!("n{n}").parse().unwrap()).collect()
    }

    #[test]
    fn a_few_checkers_testify_and_share_the_work() {
        let all = nodes(10);
        let mut given = vec![0; all.len()];
        for slot in 1..=100 {
            let chosen: Vec<usize> = (0..all.len())
                .filter(|n| is_witness(&all[*n], &witnessed(slot), all.iter()))
                .collect();
            assert_eq!(chosen.len(), WITNESSES_MAX);
            chosen.into_iter().for_each(|n| given[n] += 1);
        }
        assert!(given.iter().all(|count| (10..=60).contains(count)), "{given:?}");
    }

    #[test]
    fn few_checkers_all_testify_and_the_owner_never() {
        let mut all = nodes(2);
        assert!(all.iter().all(|node| is_witness(node, &witnessed(1), all.iter())));
        let owner = witnessed(1).1;
        all.push(owner.clone());
        assert!(!is_witness(&owner, &witnessed(1), all.iter()));
        assert!(is_witness(&all[0], &witnessed(1), all.iter()));
    }

    #[test]
    fn a_witness_that_leaves_is_replaced_and_the_others_stay() {
        let all = nodes(8);
        let chosen = |of: &[NodeId]| -> Vec<NodeId> {
            of.iter().filter(|node| is_witness(node, &witnessed(1), of.iter())).cloned().collect()
        };
        let before = chosen(&all);
        let rest: Vec<NodeId> = all.iter().filter(|node| **node != before[0]).cloned().collect();
        let after = chosen(&rest);
        assert!(before[1..].iter().all(|node| after.contains(node)), "{before:?} {after:?}");
    }
}
