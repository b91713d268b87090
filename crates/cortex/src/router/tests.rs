//! Requests over real sockets against small back ends in the same process.

mod forwarding;
mod serving;
mod world;
