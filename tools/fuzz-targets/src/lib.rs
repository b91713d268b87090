//! What comes from networks and disks is read as any bytes may be: each target is a function that
//! panics where a promise is broken. `fuzz` drives them by coverage for as long as it is given, a
//! plain test with the inputs of `fuzz/seeds` and their kin.

pub mod commit;
pub mod first_bytes;
pub mod h2;
pub mod http_chunks;
pub mod http_head;
pub mod log;
pub mod machine;
pub mod resp;
pub mod static_path;
pub mod sync;

// The scripts of the store's own tests name each other by these paths.
#[allow(dead_code, reason = "the tests look at more of it than the scripts do")]
#[path = "../../../crates/core/store/tests/hostile/node.rs"]
mod node;
#[path = "../../../crates/core/store/tests/hostile/script.rs"]
mod script;

/// A target's name and its function.
pub type Target = (&'static str, fn(&[u8]));

pub const TARGETS: &[Target] = &[
    ("commit", commit::check),
    ("first_bytes", first_bytes::check),
    ("h2", h2::check),
    ("http_chunks", http_chunks::check),
    ("http_head", http_head::check),
    ("log", log::check),
    ("machine", machine::check),
    ("resp", resp::check),
    ("static_path", static_path::check),
    ("sync", sync::check),
];
