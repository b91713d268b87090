//! `cortex proxy` as people run it: the built binary between clients and servers that know nothing
//! of it.

mod announced;
mod apart;
mod changes;
mod datagrams;
mod input;
mod scarce;
mod streams;
mod transparent;
mod world;
