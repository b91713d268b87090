//! The simulated world of stores, of two to seven nodes: machines, disks of real bytes, clocks that
//! are wrong, connections that break, operators who squash, evict and let join. It has one thread
//! and one seed; the same seed gives the same history. The world of applications is apart from it.

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
