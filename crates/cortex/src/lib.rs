//! The shells around the machines, and the parts that people touch. A library so that tests see
//! the modules; the binary only dispatches.

pub mod agent;
pub mod api;
pub mod bench;
pub mod checker;
pub mod cli;
pub mod install;
mod logs;
pub mod node;
pub mod proxy;
pub mod router;
pub mod store;
pub mod upgrade;
