//! The less busy of two that chance names (Mitzenmacher, "The Power of Two Choices in Randomized
//! Load Balancing", 2001): nearly as even as looking at all of them, at a cost that does not grow,
//! and several routers do not all run to the same endpoint.

use super::{Balance, Candidate, Endpoints, Turn};
use model::hash;

pub struct PowerOfTwo;

impl Balance for PowerOfTwo {
    fn pick(&self, turn: Turn, endpoints: &dyn Endpoints) -> Option<usize> {
        cheaper_of_two(turn, endpoints, &|_, candidate| f64::from(candidate.in_flight))
    }
}

/// Returns the cheaper of two endpoints; if neither has room, the cheapest of all.
pub fn cheaper_of_two(
    turn: Turn,
    endpoints: &dyn Endpoints,
    cost: &dyn Fn(usize, &Candidate) -> f64,
) -> Option<usize> {
    let count = endpoints.count();
    let luck = hash::mix(turn.number as u64);
    let one = below(luck >> 32, count)?;
    let other = match below(luck & 0xffff_ffff, count - 1) {
        Some(step) => (one + 1 + step) % count,
        None => one,
    };
    let open = |index: usize| {
        let candidate = endpoints.candidate(index);
        candidate.has_room().then(|| (cost(index, &candidate), index))
    };
    let cheapest = |indices: &mut dyn Iterator<Item = usize>| {
        indices.filter_map(open).min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, index)| index)
    };
    cheapest(&mut [one, other].into_iter()).or_else(|| cheapest(&mut (one..count).chain(0..one)))
}

/// Returns a number below `count`, as evenly as 32 bits allow.
fn below(luck: u64, count: usize) -> Option<usize> {
    usize::try_from(luck).ok()?.checked_rem(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::tests::{Fakes, turn};

    #[test]
    fn the_busiest_is_never_picked_and_every_other_is() {
        let loaded = Fakes::loaded(&[1, 9, 1, 1]);
        let mut picks = [0; 4];
        (0..1000).for_each(|at| picks[PowerOfTwo.pick(turn(at), &loaded).unwrap()] += 1);
        assert_eq!(picks[1], 0);
        assert!(picks.iter().filter(|picks| **picks > 200).count() == 3, "{picks:?}");
    }

    #[test]
    fn where_chance_names_none_with_room_the_others_are_looked_at() {
        let mut fakes = Fakes::idle(50);
        for one in &mut fakes.0 {
            one.candidate.admits = false;
        }
        fakes.0[17].candidate.admits = true;
        assert!((0..100).all(|at| PowerOfTwo.pick(turn(at), &fakes) == Some(17)));
        assert_eq!(PowerOfTwo.pick(turn(0), &Fakes::idle(0)), None);
        assert_eq!(PowerOfTwo.pick(turn(5), &Fakes::idle(1)), Some(0));
    }
}
