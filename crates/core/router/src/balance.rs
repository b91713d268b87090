//! The choice of the endpoint that takes the next request. One trait, one file per strategy, one
//! line in `STRATEGIES` to register it. Driven by the router's threads on every request.

pub mod latency_weighted;
pub mod least_loaded;
pub mod power_of_two;
pub mod rendezvous;
pub mod round_robin;

/// What a strategy sees of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The requests that were started there and have not finished.
    pub in_flight: u32,
    /// The requests that it takes at a time; `u32::MAX` for no limit.
    pub concurrency: u32,
    /// Whether it may take a request now.
    pub admits: bool,
}

impl Candidate {
    pub fn has_room(&self) -> bool {
        self.free() > 0
    }

    /// Returns how many requests it may take now.
    pub fn free(&self) -> u32 {
        if self.admits { self.concurrency.saturating_sub(self.in_flight) } else { 0 }
    }
}

/// The endpoints of one application. Only what a strategy asks for is read.
pub trait Endpoints {
    fn count(&self) -> usize;
    fn candidate(&self, index: usize) -> Candidate;
    /// Returns what the strategy's `learn` made of the requests that this endpoint answered; 0
    /// before the first.
    fn learnt(&self, index: usize) -> u64;
    /// Returns the identity of its slot: the same on every node and after every restart.
    fn identity(&self, index: usize) -> u64;
    fn now_ms(&self) -> u64;
}

/// What a strategy is told of the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// The number of the request among those of the application.
    pub number: usize,
    /// The key that requests to the same endpoint should share; for strategies that want it.
    pub key: Option<u64>,
    /// Whether it would rather wait a little for that endpoint than go to another.
    pub patient: bool,
}

pub trait Balance: Send + Sync {
    /// Returns the index of a candidate that has room.
    fn pick(&self, turn: Turn, endpoints: &dyn Endpoints) -> Option<usize>;

    /// Returns whether `Turn::key` is of use; it is read from the request only then.
    fn wants_key(&self) -> bool {
        false
    }

    /// Returns whether `learn` is to be called; the time is taken only then.
    fn learns(&self) -> bool {
        false
    }

    /// Learns that an answer began this many microseconds after its request was sent. Returns what
    /// is remembered of the endpoint from now on.
    fn learn(&self, learnt: u64, _latency_us: u64, _now_ms: u64) -> u64 {
        learnt
    }
}

/// The strategies by the names that `Settings::balance` may have; the first one is the default.
pub static STRATEGIES: &[(&str, &dyn Balance)] = &[
    ("least-loaded", &least_loaded::LeastLoaded),
    ("round-robin", &round_robin::RoundRobin),
    ("power-of-two", &power_of_two::PowerOfTwo),
    ("latency-weighted", &latency_weighted::LatencyWeighted),
    ("rendezvous", &rendezvous::Rendezvous),
];

pub fn strategy(name: &str) -> Option<&'static dyn Balance> {
    STRATEGIES.iter().find(|(known, _)| *known == name).map(|(_, strategy)| *strategy)
}

pub fn default_strategy() -> &'static dyn Balance {
    STRATEGIES[0].1
}

/// Returns the names for people who may write them.
pub fn names() -> String {
    let names: Vec<_> = STRATEGIES.iter().map(|(name, _)| format!("'{name}'")).collect();
    names.join(", ")
}

#[cfg(test)]
pub mod tests;
