//! What runs where, and how it is built, started, watched and replaced: all decisions of the
//! application manager. Historic name: Saffron.

pub mod ansi;
pub mod application;
pub mod baked;
pub mod cron;
pub mod detect;
pub mod frameworks;
pub mod last_words;
pub mod lease;
pub mod manifest;
pub mod mutants;
pub mod paths;
pub mod placement;
pub mod procfile;
pub mod restart;
pub mod runtimes;
pub mod source;
pub mod upgrade;
pub mod versions;
