//! The target `static_path` of `tools/fuzz-targets`, driven by libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_targets::static_path::check(bytes));
