//! In turn, passing over those without room.

use super::{Balance, Candidate};

pub struct RoundRobin;

impl Balance for RoundRobin {
    fn pick(&self, turn: usize, count: usize, at: &dyn Fn(usize) -> Candidate) -> Option<usize> {
        let first = turn.checked_rem(count)?;
        (first..count).chain(0..first).find(|index| at(*index).has_room())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_has_a_turn() {
        let free = |_| Candidate { in_flight: 0, concurrency: u32::MAX, admits: true };
        let picks: Vec<_> = (0..4).filter_map(|turn| RoundRobin.pick(turn, 3, &free)).collect();
        assert_eq!(picks, [0, 1, 2, 0]);
    }
}
