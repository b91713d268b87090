//! Ports for protocols other than HTTP: unmodified servers of lines and of datagrams behind the
//! router, on nodes that run them and on one that does not.

mod across;
mod announced;
mod counted;
mod idle;
mod releases;
mod resets;
mod turning;
mod upgrade;
mod world;
