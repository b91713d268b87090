//! Requests over real sockets against small back ends in the same process.

mod announced;
mod balancing;
mod closed;
mod corpus;
mod fairness;
mod far;
mod faults;
mod files;
mod forwarding;
mod h2;
mod hedging;
mod hostile;
mod leaving;
mod limits;
mod long;
mod quick;
mod refused;
mod returning;
mod secure;
mod serving;
mod slow;
pub(crate) mod tls;
mod turning;
mod walled;
pub(crate) mod world;
