//! End to end: the built binary, real applications, an outside client. Each test starts a node of
//! its own in a temporary directory, as whoever runs the test; nothing is asked of the network but
//! package registries by the applications' own package tools.

mod across;
mod adoption;
mod bad_input;
mod commands;
mod django;
mod express;
mod faults;
mod hello;
mod journey;
mod large_values;
mod machine;
mod measurements;
mod node;
mod outside;
mod procfile;
mod project;
mod rails;
mod redis_clients;
mod replication;
mod restraint;
mod revisions;
mod static_site;
mod storage;
mod wait;
