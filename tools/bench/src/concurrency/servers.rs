//! The servers: each is one file, and one line here.

mod java;
mod neverblock;
mod node;
mod puma;
mod ruby;
mod spring;
mod vertx;

use std::path::PathBuf;

use super::site::Site;

/// All servers that there are, in the order of the report.
pub const ALL: &[&dyn Server] =
    &[&puma::Puma, &neverblock::NeverBlock, &node::Node, &spring::Spring, &vertx::Vertx];

/// One way to serve requests. Each answers `/short`, `/query`, `/remote` and `/cpu`, and finds what
/// it needs for them in its environment, as `Site::serve` sets it.
pub trait Server: Sync {
    fn name(&self) -> &'static str;

    /// Returns in a word or two how it serves many requests at a time.
    fn model(&self) -> &'static str;

    /// Returns what it lacks here, and what to do about it.
    fn lacks(&self) -> Option<String>;

    /// Writes its files and builds them.
    fn prepare(&self, site: &Site<'_>) -> anyhow::Result<Prepared>;
}

/// A server that can be started, any number of times.
pub struct Prepared {
    pub version: String,
    pub directory: PathBuf,
    /// The program and its arguments; `@PORT@` stands for its port.
    pub command: Vec<String>,
    pub environment: Vec<(&'static str, String)>,
}

/// Returns the words of a command.
fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}
