//! Which endpoint takes the next request. One trait, one file per strategy, one line in
//! `STRATEGIES` to register it. Driven by the router's threads on every request.

pub mod latency_weighted;
pub mod least_loaded;
pub mod power_of_two;
pub mod rendezvous;
pub mod round_robin;

/// What a strategy sees of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Requests that were started there and have not finished.
    pub in_flight: u32,
    /// Requests at a time; `u32::MAX` for no limit.
    pub concurrency: u32,
    /// It may take a request now.
    pub admits: bool,
}

impl Candidate {
    pub fn has_room(&self) -> bool {
        self.free() > 0
    }

    /// Requests that it may take now.
    pub fn free(&self) -> u32 {
        if self.admits { self.concurrency.saturating_sub(self.in_flight) } else { 0 }
    }
}

/// The endpoints of one application. Only what a strategy asks for is read.
pub trait Endpoints {
    fn count(&self) -> usize;
    fn candidate(&self, index: usize) -> Candidate;
    /// What the strategy's `learn` made of the requests that this one answered; 0 before the first.
    fn learnt(&self, index: usize) -> u64;
    /// Of its slot: the same on every node and after every restart.
    fn identity(&self, index: usize) -> u64;
    fn now_ms(&self) -> u64;
}

/// What a strategy is told of the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Counts the requests of the application.
    pub number: usize,
    /// Requests with the same one should meet the same endpoint; for strategies that want it.
    pub key: Option<u64>,
    /// It would rather wait a little for that endpoint than go to another.
    pub patient: bool,
}

pub trait Balance: Send + Sync {
    /// The index of a candidate that has room.
    fn pick(&self, turn: Turn, endpoints: &dyn Endpoints) -> Option<usize>;

    /// Whether `Turn::key` is of use; it is read from the request for those alone.
    fn wants_key(&self) -> bool {
        false
    }

    /// Whether `learn` is to be called; the time is taken for those alone.
    fn learns(&self) -> bool {
        false
    }

    /// An answer began so many microseconds after its request was sent: what is remembered of the
    /// endpoint from now on.
    fn learn(&self, learnt: u64, _latency_us: u64, _now_ms: u64) -> u64 {
        learnt
    }
}

/// The names that `Settings::balance` may have; the first one is the default.
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

/// For people: what they may write.
pub fn names() -> String {
    let names: Vec<_> = STRATEGIES.iter().map(|(name, _)| format!("'{name}'")).collect();
    names.join(", ")
}

#[cfg(test)]
pub mod tests;
