//! Requests over real sockets against small back ends in the same process.

mod far;
mod faults;
mod forwarding;
mod serving;
mod tls;
pub(in crate::router) mod world;
