//! The next endpoint in turn, passing over those without room.

use super::{Balance, Endpoints, Turn};

pub struct RoundRobin;

impl Balance for RoundRobin {
    fn pick(&self, turn: Turn, endpoints: &dyn Endpoints) -> Option<usize> {
        let count = endpoints.count();
        let first = turn.number.checked_rem(count)?;
        (first..count).chain(0..first).find(|index| endpoints.candidate(*index).has_room())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::tests::{Fakes, turn};

    #[test]
    fn every_endpoint_has_its_turn() {
        let free = Fakes::idle(3);
        let picks: Vec<_> = (0..4).filter_map(|at| RoundRobin.pick(turn(at), &free)).collect();
        assert_eq!(picks, [0, 1, 2, 0]);
    }
}
