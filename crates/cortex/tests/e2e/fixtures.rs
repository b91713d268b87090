//! What tests of different subjects start from.

pub mod cluster;
