//! The target `resp` of `tools/fuzz-targets`, driven by libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_targets::resp::check(bytes));
