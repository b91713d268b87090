//! Which endpoint takes the next request. One trait, one file per strategy, one line in
//! `STRATEGIES` to register it. Driven by the router's threads on every request.

pub mod least_loaded;
pub mod round_robin;

/// What a strategy sees of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub in_flight: u32,
    /// Requests at a time; `u32::MAX` for no limit.
    pub concurrency: u32,
    /// It may take a request now.
    pub admits: bool,
}

impl Candidate {
    pub fn has_room(&self) -> bool {
        self.admits && self.in_flight < self.concurrency
    }
}

pub trait Balance: Send + Sync {
    /// The index of a candidate that has room. `turn` counts the requests of the application.
    fn pick(&self, turn: usize, count: usize, at: &dyn Fn(usize) -> Candidate) -> Option<usize>;
}

/// The names that `Settings::balance` may have; the first one is used for an unknown name.
pub static STRATEGIES: &[(&str, &dyn Balance)] =
    &[("least-loaded", &least_loaded::LeastLoaded), ("round-robin", &round_robin::RoundRobin)];

pub fn strategy(name: &str) -> Option<&'static dyn Balance> {
    STRATEGIES.iter().find(|(known, _)| *known == name).map(|(_, strategy)| *strategy)
}

pub fn default_strategy() -> &'static dyn Balance {
    STRATEGIES[0].1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn candidate() -> impl Strategy<Value = Candidate> {
        (0u32..4, 1u32..4, any::<bool>()).prop_map(|(in_flight, concurrency, admits)| Candidate {
            in_flight,
            concurrency,
            admits,
        })
    }

    proptest! {
        #[test]
        fn a_pick_has_room_and_one_is_found_if_there_is_any(
            candidates in proptest::collection::vec(candidate(), 0..12),
            turn in any::<usize>(),
        ) {
            for (name, strategy) in STRATEGIES {
                let picked = strategy.pick(turn, candidates.len(), &|i| candidates[i]);
                match picked {
                    Some(index) => prop_assert!(candidates[index].has_room(), "{}", name),
                    None => prop_assert!(!candidates.iter().any(Candidate::has_room), "{}", name),
                }
            }
        }
    }

    #[test]
    fn the_default_of_settings_is_known() {
        assert!(strategy(&model::application::Settings::default().balance).is_some());
        assert!(strategy("dice").is_none());
    }
}
