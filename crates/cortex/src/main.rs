//! The binary. Dispatches, and nothing else.

fn main() {}
