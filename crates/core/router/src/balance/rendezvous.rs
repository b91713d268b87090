//! The same endpoint for the same key, for as long as it is there: each endpoint and key have a
//! score, and the highest one wins (Thaler and Ravishankar, "Using Name-Based Mappings to Increase
//! Hit Rates", 1998), in proportion to what an endpoint takes at a time (the logarithmic method of
//! Schindelhauer and Schomaker, 2005). An endpoint that goes takes along its own keys alone; they
//! spread over all others. A request without a key goes to the least loaded.
//!
//! Patient requests wait for an endpoint without room; the queue ends their patience. Then, and at
//! once if the endpoint takes nothing at all, the next in order has the request.

use super::least_loaded::LeastLoaded;
use super::{Balance, Candidate, Endpoints, Turn};
use model::hash;

/// The weight of an endpoint without a limit, so that one with a limit beside it has keys too.
const WEIGHT_MAX: u32 = 64;

pub struct Rendezvous;

impl Balance for Rendezvous {
    fn pick(&self, turn: Turn, endpoints: &dyn Endpoints) -> Option<usize> {
        let Some(key) = turn.key else { return LeastLoaded.pick(turn, endpoints) };
        // The best of those that admit, and the best of those that have room as well.
        let (mut first, mut open) = (None, None);
        for index in 0..endpoints.count() {
            let candidate = endpoints.candidate(index);
            if !candidate.admits {
                continue;
            }
            let score = score(key, endpoints.identity(index), &candidate);
            better(&mut first, score, index);
            if candidate.has_room() {
                better(&mut open, score, index);
            }
        }
        let (first, open) = (first.map(|(_, index)| index), open.map(|(_, index)| index));
        if turn.patient && first != open { None } else { open }
    }

    fn wants_key(&self) -> bool {
        true
    }
}

fn better(best: &mut Option<(f64, usize)>, score: f64, index: usize) {
    if best.is_none_or(|(known, _)| score > known) {
        *best = Some((score, index));
    }
}

fn score(key: u64, identity: u64, candidate: &Candidate) -> f64 {
    // Above 0 and below 1, in the 52 bits that a fraction has.
    let fraction = (hash::pair(key, identity) >> 12) as f64 + 0.5;
    let fraction = fraction / (1_u64 << 52) as f64;
    -f64::from(candidate.concurrency.min(WEIGHT_MAX)) / fraction.ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::tests::Fakes;

    const KEYS: u64 = 10_000;

    fn of(key: u64, patient: bool) -> Turn {
        Turn { number: 0, key: Some(hash::mix(key)), patient }
    }

    fn homes(fakes: &Fakes) -> Vec<u64> {
        let home = |key| Rendezvous.pick(of(key, false), fakes).unwrap();
        (0..KEYS).map(|key| fakes.identity(home(key))).collect()
    }

    #[test]
    fn an_endpoint_that_goes_takes_along_its_own_keys_alone() {
        let mut fakes = Fakes::idle(10);
        let before = homes(&fakes);
        fakes.0.remove(3);
        let after = homes(&fakes);
        let mut heirs = [0; 10];
        for (before, after) in before.iter().zip(&after) {
            match before {
                3 => heirs[*after as usize] += 1,
                other => assert_eq!(other, after),
            }
        }
        // There are about a thousand keys, spread over nine.
        assert_eq!(heirs[3], 0);
        let others = heirs.iter().enumerate().filter(|(index, _)| *index != 3);
        assert!(others.map(|(_, count)| count).all(|count| (70..160).contains(count)), "{heirs:?}");
    }

    #[test]
    fn one_that_is_left_alone_for_a_while_finds_its_keys_again() {
        let mut fakes = Fakes::idle(5);
        let before = homes(&fakes);
        fakes.0[2].candidate.admits = false;
        assert!(!homes(&fakes).contains(&2));
        fakes.0[2].candidate.admits = true;
        assert_eq!(homes(&fakes), before);
    }

    #[test]
    fn keys_are_shared_by_what_an_endpoint_takes_at_a_time() {
        let mut fakes = Fakes::idle(3);
        for (one, concurrency) in fakes.0.iter_mut().zip([1, 2, 5]) {
            one.candidate.concurrency = concurrency;
        }
        let homes = homes(&fakes);
        let share = |identity| homes.iter().filter(|home| **home == identity).count() as f64;
        for (identity, weight) in [(0, 1.0), (1, 2.0), (2, 5.0)] {
            let expected = KEYS as f64 * weight / 8.0;
            let seen = share(identity);
            assert!((seen / expected - 1.0).abs() < 0.1, "{identity}: {seen} for {expected}");
        }
        // An endpoint with more room takes keys from others and gives none away.
        let before = homes;
        fakes.0[1].candidate.concurrency = 4;
        let moved = before.iter().zip(self::homes(&fakes)).filter(|(a, b)| **a != *b);
        assert!(moved.into_iter().all(|(_, now)| now == 1));
    }

    #[test]
    fn a_patient_request_waits_for_room_but_not_for_an_endpoint_that_admits_none() {
        let mut fakes = Fakes::idle(3);
        for one in &mut fakes.0 {
            one.candidate.concurrency = 1;
        }
        let home = Rendezvous.pick(of(7, true), &fakes).unwrap();
        fakes.0[home].candidate.in_flight = 1;
        assert_eq!(Rendezvous.pick(of(7, true), &fakes), None);
        let next = Rendezvous.pick(of(7, false), &fakes);
        assert!(next.is_some_and(|next| next != home));
        fakes.0[home].candidate.admits = false;
        assert_eq!(Rendezvous.pick(of(7, true), &fakes), next);
    }
}
