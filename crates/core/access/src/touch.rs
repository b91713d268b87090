//! Whether a node hears enough of its cluster for changes by tokens: a token that was revoked on
//! the other side of a cut network is still good on this one.

use std::collections::BTreeSet;
use std::time::Duration;

use model::{NodeId, Timestamp};

/// The time for which a node may hear less than half of the roster before tokens of those who own
/// nothing only read there: longer than a restart of the other half, shorter than a working day.
pub const CUT_OFF_AFTER: Duration = Duration::from_secs(15 * 60);

/// How much of the cluster a node has heard lately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touch {
    /// The time since which it has heard less than half.
    less_since: Option<Timestamp>,
}

impl Touch {
    /// Takes what is heard now, of which the node itself is a part.
    pub fn note(&mut self, hears_half: bool, now: Timestamp) {
        self.less_since = match hears_half {
            true => None,
            false => self.less_since.or(Some(now)),
        };
    }

    /// Returns whether tokens only read: the time since which the node has heard too little.
    pub fn cut_off_since(&self, now: Timestamp) -> Option<Timestamp> {
        self.less_since.filter(|since| now.since(*since) >= CUT_OFF_AFTER)
    }
}

/// Returns whether those that are heard are half of the roster: more than half, or exactly half
/// with the member that is there for the longest time, so that only one half of a cut is.
pub fn is_half(roster: &BTreeSet<NodeId>, heard: &BTreeSet<NodeId>, eldest: &NodeId) -> bool {
    let count = 2 * roster.intersection(heard).count();
    count > roster.len() || (count == roster.len() && heard.contains(eldest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nodes(numbers: &[u8]) -> BTreeSet<NodeId> {
        numbers.iter().map(|n| format!("n{n}").parse().unwrap()).collect()
    }

    #[test]
    fn of_two_nodes_the_elder_counts_as_half() {
        let (roster, eldest) = (nodes(&[1, 2]), "n2".parse().unwrap());
        assert!(is_half(&roster, &nodes(&[2]), &eldest));
        assert!(!is_half(&roster, &nodes(&[1]), &eldest));
        assert!(is_half(&roster, &nodes(&[1, 2]), &eldest));
        let alone = nodes(&[2]);
        assert!(is_half(&alone, &alone, &eldest));
    }

    #[test]
    fn a_node_is_cut_off_after_a_while_and_no_longer_than_that() {
        let (mut touch, start) = (Touch::default(), Timestamp(1_000));
        touch.note(false, start);
        touch.note(false, start.after(CUT_OFF_AFTER / 2));
        let late = start.after(CUT_OFF_AFTER);
        assert_eq!(touch.cut_off_since(start.after(CUT_OFF_AFTER / 2)), None);
        assert_eq!(touch.cut_off_since(late), Some(start));
        touch.note(true, late);
        assert_eq!(touch.cut_off_since(late), None);
        touch.note(false, late);
        assert_eq!(touch.cut_off_since(late.after(CUT_OFF_AFTER / 2)), None);
    }

    proptest! {
        #[test]
        fn only_one_side_of_a_cut_is_half(side in prop::collection::btree_set(1..9_u8, 0..9)) {
            let all: Vec<u8> = (1..9).collect();
            let other: Vec<u8> = all.iter().copied().filter(|n| !side.contains(n)).collect();
            let side: Vec<u8> = side.into_iter().collect();
            let (roster, eldest) = (nodes(&all), "n1".parse().unwrap());
            let halves = [nodes(&side), nodes(&other)].map(|side| is_half(&roster, &side, &eldest));
            prop_assert_eq!(halves.into_iter().filter(|half| *half).count(), 1);
        }
    }
}
