//! Scheduled commands: what a release asks for, and what became of the last run.

use serde::{Deserialize, Serialize};

use crate::id::NodeId;
use crate::record::Unknown;
use crate::time::Timestamp;

/// A scheduled command, part of a release's recipe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CronRecipe {
    pub name: String,
    /// The schedule of five fields, validated.
    pub schedule: String,
    /// A time zone of the system's zone data: "Europe/Berlin".
    pub timezone: String,
    /// The command, which `/bin/sh -c` runs in the release's directory.
    pub command: String,
}

/// `app::NAME::cron::ENTRY`: written by the node that runs it, before the command starts and after
/// it has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CronRun {
    pub v: u32,
    /// The time at which it was due, which may be a while before it was started.
    pub due: Timestamp,
    pub node: NodeId,
    pub started_at: Timestamp,
    /// The number of the attempt: a run that its node did not survive is tried again.
    pub attempt: u32,
    #[serde(default)]
    pub ended_at: Option<Timestamp>,
    #[serde(default)]
    pub success: bool,
    /// The end in words for people: "exit status 1".
    #[serde(default)]
    pub how: Option<String>,
    #[serde(default)]
    pub pid: Option<u32>,
    #[serde(flatten)]
    pub unknown: Unknown,
}
