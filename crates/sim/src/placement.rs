//! The simulated world of placement: many nodes with their machines of placement and of
//! applications over records that arrive late. Nodes die, freeze, come back, are cut off; loads
//! vary and users push; instances fall ill and checkers look. For tests only.

pub mod apart;
mod checking;
pub mod fault;
mod happening;
mod judge;
pub mod life;
mod measure;
mod node;
mod replica;
mod shell;
pub mod world;
