//! Orders for certificates (ACME, RFC 8555): which names want one, which node orders, step by step,
//! when it is renewed, and when not. Pure; the shell speaks with the authority and the store.

pub mod budget;
mod challenge;
mod orderer;
mod problem;
mod renewal;
pub mod turn;
mod wants;

#[cfg(test)]
mod tests;

pub use challenge::{ChallengeKind, Means};
pub use orderer::{
    ATTEMPT_MAX, Arrival, Authorization, Effect, Event, Offered, OrderStatus, OrderView, Orderer,
    Outcome, SETTLE, Task,
};
pub use problem::{Problem, Remedy, advice, kind};
pub use renewal::Facts;
pub use wants::{can_have, is_global, wanted, without_brought};
