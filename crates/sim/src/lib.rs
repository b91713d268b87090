//! A node's machines in a simulated world: a clock that jumps, processes that crash, hang and grow,
//! a node that dies and comes back, users who change their minds. One thread, one seed; the same
//! seed is the same history. For tests only.

pub mod cluster;
pub mod fault;
mod node;
pub mod placement;
pub mod process;
pub mod random;
pub mod records;
pub mod scenario;
pub mod spread;
pub mod sweep;
pub mod users;
pub mod witnesses;
pub mod world;

mod judge;
mod shell;
