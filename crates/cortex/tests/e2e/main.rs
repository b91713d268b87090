//! End to end: the built binary, real applications, an outside client. Each test starts a node of
//! its own in a temporary directory, as whoever runs the test; nothing is asked of the network but
//! package registries by the applications' own package tools.

mod across;
mod adoption;
mod bad_input;
mod commands;
mod django;
mod elixir;
mod express;
mod faults;
mod go;
mod hello;
mod installing;
mod java;
mod joining;
mod journey;
mod large_values;
mod leases;
mod machine;
mod measurements;
mod netns;
mod nextjs;
mod node;
mod nodes;
mod outside;
mod php;
mod pins;
mod procfile;
mod project;
mod pyramid;
mod rails;
mod redis_clients;
mod replication;
mod restraint;
mod revisions;
mod roles;
mod rust;
mod scheduled;
mod shared;
mod static_site;
mod storage;
mod thesis;
mod tour;
mod unfit;
mod vera;
mod wait;
