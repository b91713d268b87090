//! The runtime of the machines: the only event loop, time, tasks, the supervision of parts, fail
//! points, and contracts between parts of several nodes. Must not know what a machine decides, the
//! store, or how other nodes are reached.

pub mod driver;
pub mod faults;
pub mod judged;
pub mod lock;
pub mod members;
pub mod probe;
pub mod revocable;
pub mod settle;
pub mod supervise;
pub mod task;
pub mod web;
