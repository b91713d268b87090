//! The shells around the machines, and the parts that people touch. A library so that tests see
//! the modules; the binary only dispatches.

pub mod agent;
pub mod api;
mod archive;
pub mod bench;
pub mod binaries;
pub mod checker;
pub mod cli;
pub mod client;
mod directory;
pub mod driver;
pub mod faults;
mod footprint;
pub mod install;
pub mod layout;
pub mod lockfile;
mod logs;
mod loopback;
mod members;
pub mod metrics;
pub mod node;
pub mod observe;
pub mod probe;
pub mod proxy;
pub mod router;
pub mod session;
pub mod shared_port;
pub mod shim;
pub mod source;
pub mod store;
mod supervise;
mod task;
pub mod transfer;
pub mod upgrade;
pub mod wire;
