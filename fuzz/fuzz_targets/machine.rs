//! The machine of a whole store among hostile peers: the scripts and the judge of the store's own
//! tests, with bytes that fuzzing finds.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, reason = "the tests look at more of it than the scripts do")]
#[path = "../../crates/core/store/tests/hostile/node.rs"]
mod node;
#[path = "../../crates/core/store/tests/hostile/script.rs"]
mod script;

fuzz_target!(|bytes: &[u8]| script::run(bytes));
