//! The binary. Dispatches, and nothing else.

mod driver;
mod store;

fn main() {}
