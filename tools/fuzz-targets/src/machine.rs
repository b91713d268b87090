//! The machine of a whole store among hostile peers: the scripts and the judge of the store's own
//! tests, with bytes that fuzzing finds.

pub fn check(bytes: &[u8]) {
    crate::script::run(bytes);
}
