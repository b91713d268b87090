//! The target `http_head` of `tools/fuzz-targets`, driven by libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_targets::http_head::check(bytes));
