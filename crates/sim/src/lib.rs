//! The simulator: a node's machines in a simulated world, with a clock that jumps, processes that
//! crash, hang and grow, a node that dies and comes back, and users who change their minds. It has
//! one thread and one seed; the same seed gives the same history. For tests only.

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
