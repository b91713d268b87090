//! Secrets in the store: sealed where they are written, opened where they are read, by keys that
//! the members with a store hold in a file of their own. One part per node takes the steps that
//! `secret_core::rotation` plans. Must not know what the values mean, nor how nodes are reached.

pub mod file;
mod handing;
mod keys;
mod part;
pub mod store;

pub use part::Secrets;
pub use secret_core::rotation::{Next, Step, Wait};
