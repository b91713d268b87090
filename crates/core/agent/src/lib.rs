//! What runs where, and how it is started, watched and replaced: all decisions of the application
//! manager. What is built is `recipe-core`. Historic name: Saffron.

pub mod ansi;
pub mod application;
pub mod last_words;
pub mod lease;
pub mod mutants;
pub mod paths;
pub mod placement;
pub mod remains;
pub mod restart;
pub mod upgrade;
