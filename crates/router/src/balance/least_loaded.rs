//! The fewest requests in flight; in turn among equals, so that idle endpoints share evenly.

use super::{Balance, Candidate};

pub struct LeastLoaded;

impl Balance for LeastLoaded {
    fn pick(&self, turn: usize, count: usize, at: &dyn Fn(usize) -> Candidate) -> Option<usize> {
        let first = turn.checked_rem(count)?;
        let mut best: Option<(u32, usize)> = None;
        for index in (first..count).chain(0..first) {
            let candidate = at(index);
            if candidate.has_room() && best.is_none_or(|(load, _)| candidate.in_flight < load) {
                best = Some((candidate.in_flight, index));
                if candidate.in_flight == 0 {
                    break;
                }
            }
        }
        best.map(|(_, index)| index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_busy_is_picked_and_equals_take_turns() {
        let loads = [2, 1, 1, 3];
        let at = |index: usize| Candidate {
            in_flight: loads[index],
            concurrency: u32::MAX,
            admits: true,
        };
        assert_eq!(LeastLoaded.pick(0, 4, &at), Some(1));
        assert_eq!(LeastLoaded.pick(2, 4, &at), Some(2));
    }
}
