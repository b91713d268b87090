//! What a pushed directory is, and the recipe that builds and starts it: detection of frameworks
//! and languages, `cortex.toml`, `Procfile`, schedules, versions of runtimes. Must not know what
//! runs.

pub mod baked;
pub mod cron;
pub mod detect;
pub mod frameworks;
pub mod manifest;
pub mod procfile;
pub mod runtimes;
pub mod source;
pub mod versions;
