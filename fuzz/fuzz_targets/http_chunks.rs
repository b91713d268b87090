//! The target `http_chunks` of `tools/fuzz-targets`, driven by libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_targets::http_chunks::check(bytes));
