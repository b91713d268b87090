//! Peers that are wrong, lie, stall or are not who they say: refused, reported once, and nothing is
//! lost. What single messages do; `script` makes any order of anything out of bytes.

mod greetings;
mod node;
mod script;
mod script_runs;
mod sessions;
mod stages;
