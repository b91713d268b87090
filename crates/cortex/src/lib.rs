//! The shells around the machines, and the parts that people touch. A library so that tests see
//! the modules; the binary only dispatches.

pub mod agent;
pub mod bench;
pub mod driver;
pub mod layout;
pub mod node;
pub mod store;
