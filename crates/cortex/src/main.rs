//! The binary. Dispatches, and nothing else.

mod agent;
mod driver;
mod layout;
mod store;

fn main() {}
