//! Stores of two to seven nodes in one simulated world: machines, disks of real bytes, clocks that
//! are wrong, connections that break, operators who squash, evict and let join. One thread, one
//! seed; the same seed is the same history. Beside it, and apart, is the world of applications.

mod chaos;
pub mod course;
mod disk;
pub mod fault;
mod host;
mod judge;
mod ledger;
mod network;
mod operator;
mod shell;
pub mod world;
