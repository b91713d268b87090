//! Tests of peers that are wrong, lie, stall or are not who they say: they are refused, reported
//! once, and nothing is lost. These tests show what single messages do; `script` makes any order of
//! anything out of bytes.

mod greetings;
mod node;
mod script;
mod script_runs;
mod sessions;
mod stages;
