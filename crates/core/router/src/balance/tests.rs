//! Tests of what holds for every strategy, over any endpoints.

use proptest::prelude::*;

use super::*;

/// Endpoints as a test wants them.
#[derive(Clone, Debug, Default)]
pub struct Fakes(pub Vec<One>);

#[derive(Clone, Copy, Debug)]
pub struct One {
    pub candidate: Candidate,
    pub learnt: u64,
    pub identity: u64,
}

impl Endpoints for Fakes {
    fn count(&self) -> usize {
        self.0.len()
    }
    fn candidate(&self, index: usize) -> Candidate {
        self.0[index].candidate
    }
    fn learnt(&self, index: usize) -> u64 {
        self.0[index].learnt
    }
    fn identity(&self, index: usize) -> u64 {
        self.0[index].identity
    }
    fn now_ms(&self) -> u64 {
        1_000_000
    }
}

impl Fakes {
    /// Returns idle endpoints without a limit.
    pub fn idle(count: u64) -> Fakes {
        Fakes::loaded(&vec![0; usize::try_from(count).unwrap()])
    }

    pub fn loaded(loads: &[u32]) -> Fakes {
        let one = |(index, in_flight): (usize, &u32)| One {
            candidate: Candidate { in_flight: *in_flight, concurrency: u32::MAX, admits: true },
            learnt: 0,
            identity: index as u64,
        };
        Fakes(loads.iter().enumerate().map(one).collect())
    }
}

pub fn turn(number: usize) -> Turn {
    Turn { number, ..Turn::default() }
}

fn fakes() -> impl Strategy<Value = Fakes> {
    let one = (0u32..4, 1u32..4, any::<bool>(), any::<u64>());
    let ones = proptest::collection::vec(one, 0..12);
    ones.prop_map(|ones| {
        let one = |(identity, (in_flight, concurrency, admits, learnt))| One {
            candidate: Candidate { in_flight, concurrency, admits },
            learnt,
            identity,
        };
        Fakes((0..).zip(ones).map(one).collect())
    })
}

proptest! {
    #[test]
    fn a_pick_has_room_and_one_is_found_if_there_is_any(
        fakes in fakes(), number in any::<usize>(), key in any::<Option<u64>>(),
    ) {
        for (name, strategy) in STRATEGIES {
            let picked = strategy.pick(Turn { number, key, patient: false }, &fakes);
            match picked {
                Some(index) => {
                    prop_assert!(fakes.candidate(index).has_room(), "{}", name);
                }
                None => {
                    let room = fakes.0.iter().any(|one| one.candidate.has_room());
                    prop_assert!(!room, "{}", name);
                }
            }
        }
    }

    #[test]
    fn patience_never_leads_to_one_without_room(
        fakes in fakes(), number in any::<usize>(), key in any::<u64>(),
    ) {
        for (name, strategy) in STRATEGIES {
            let patient = Turn { number, key: key.into(), patient: true };
            if let Some(index) = strategy.pick(patient, &fakes) {
                prop_assert!(fakes.candidate(index).has_room(), "{}", name);
            }
        }
    }
}

/// Sends requests that never overlap, each of another client: no endpoint is left out or preferred
/// by half.
#[test]
fn idle_endpoints_share_evenly() {
    for (name, strategy) in STRATEGIES {
        for count in [1, 2, 3, 7, 16] {
            let fakes = Fakes::idle(count);
            let mut picks = vec![0_u64; fakes.count()];
            for number in 0..10_000 {
                let key = model::hash::mix(number as u64);
                let turn = Turn { number, key: key.into(), patient: false };
                picks[strategy.pick(turn, &fakes).unwrap()] += 1;
            }
            let share = 10_000 / count;
            let even = |picks: &u64| (share * 3 / 4..=share * 5 / 4).contains(picks);
            assert!(picks.iter().all(even), "{name} over {count}: {picks:?}");
        }
    }
}

/// Sends requests that stay: the most loaded has hardly more than the mean, with every strategy
/// that looks at loads.
#[test]
fn requests_under_way_are_spread() {
    let most = |strategy: &dyn Balance| {
        let mut fakes = Fakes::idle(100);
        for number in 0..1_000 {
            let index = strategy.pick(turn(number), &fakes).unwrap();
            fakes.0[index].candidate.in_flight += 1;
        }
        fakes.0.iter().map(|one| one.candidate.in_flight).max().unwrap()
    };
    assert_eq!(most(&least_loaded::LeastLoaded), 10);
    assert_eq!(most(&round_robin::RoundRobin), 10);
    // Mitzenmacher: the mean and about log log n.
    assert!(most(&power_of_two::PowerOfTwo) <= 13);
    assert!(most(&latency_weighted::LatencyWeighted) <= 13);
}

#[test]
fn the_default_of_settings_is_the_first_and_names_are_unlike() {
    let default = model::application::Settings::default().balance;
    assert_eq!(STRATEGIES[0].0, default);
    assert!(strategy("dice").is_none());
    assert!(names().contains("'least-loaded', 'round-robin'"));
    for (index, (name, _)) in STRATEGIES.iter().enumerate() {
        assert!(STRATEGIES[..index].iter().all(|(other, _)| other != name), "{name} twice");
    }
}
