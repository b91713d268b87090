//! The endpoint with the fewest requests in flight; in turn among equals, so that idle endpoints
//! share evenly.

use super::{Balance, Endpoints, Turn};

pub struct LeastLoaded;

impl Balance for LeastLoaded {
    fn pick(&self, turn: Turn, endpoints: &dyn Endpoints) -> Option<usize> {
        let count = endpoints.count();
        let first = turn.number.checked_rem(count)?;
        let mut best: Option<(u32, usize)> = None;
        for index in (first..count).chain(0..first) {
            let candidate = endpoints.candidate(index);
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
    use crate::balance::tests::{Fakes, turn};

    #[test]
    fn the_least_busy_is_picked_and_equals_take_turns() {
        let loaded = Fakes::loaded(&[2, 1, 1, 3]);
        assert_eq!(LeastLoaded.pick(turn(0), &loaded), Some(1));
        assert_eq!(LeastLoaded.pick(turn(2), &loaded), Some(2));
    }
}
