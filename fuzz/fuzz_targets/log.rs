//! The target `log` of `tools/fuzz-targets`, driven by libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_targets::log::check(bytes));
