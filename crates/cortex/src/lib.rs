//! The shells around the machines, and the parts that people touch. A library so that tests see
//! the modules; the binary only dispatches.

pub mod agent;
pub mod api;
pub mod bench;
pub mod checker;
pub mod cli;
pub mod client;
pub mod driver;
pub mod faults;
pub mod install;
mod logs;
mod members;
pub mod metrics;
pub mod node;
pub mod probe;
pub mod proxy;
pub mod router;
pub mod session;
mod settle;
pub mod shim;
pub mod source;
pub mod store;
mod supervise;
mod task;
pub mod transfer;
pub mod upgrade;
pub mod wire;
