//! The agent's shell: one actor per application, the launcher, and what is prepared on disk.

pub mod launcher;
pub mod observe;
pub mod plain;
pub mod ready;
