//! Exports and imports of a whole cluster.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What stands at the beginning of an export: what is in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Contents {
    pub v: u32,
    /// The time of the export in Unix milliseconds.
    pub exported_at: u64,
    /// The node that made it.
    pub node: String,
    /// The version of Cortex that made it.
    pub cortex: String,
    pub applications: Vec<ApplicationContents>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ApplicationContents {
    pub name: String,
    pub files: FilesState,
    /// The node that has the files that it keeps; `None` if it keeps none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FilesState {
    /// The application keeps no files.
    None,
    Included,
    NotAsked,
    /// The node that has them did not run.
    Away,
}

/// Whether a cluster can take an export.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImportReadiness {
    /// Something that is there already, in words; `None` if the cluster is empty.
    pub has: Option<String>,
    /// The hash of the export whose import was cut here.
    pub under_way: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterImported {
    /// The node that imported it, which has the files now.
    pub node: String,
    pub keys: u64,
    pub bytes: u64,
    pub applications: Vec<String>,
    pub files: Vec<FilesImported>,
    /// Applications that kept files on a node of the cluster that was exported.
    #[serde(default)]
    pub kept_files: Vec<String>,
    #[serde(default)]
    pub contents: Option<Contents>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FilesImported {
    pub application: String,
    /// The reason why they are not there; `None` if they are.
    pub left_out: Option<String>,
}

/// The schedule by which copies of the cluster are to be made.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackupAsked {
    /// The time of day: "03:00".
    pub at: String,
    /// A time zone of the system's zone data: "Europe/Berlin".
    #[serde(default = "utc")]
    pub timezone: String,
    /// The directory that they go to; or a hook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// The command for `/bin/sh` that gets each on its stdin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook: Option<String>,
    /// The node that makes them; any that keeps the store if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The number of copies that a directory keeps.
    #[serde(default = "keep_usual")]
    pub keep: u32,
    /// Whether the files that applications keep are in it.
    #[serde(default)]
    pub with_files: bool,
    /// The pass-phrase that opens them, which is kept sealed.
    pub pass_phrase: String,
}

impl std::fmt::Debug for BackupAsked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackupAsked").field("at", &self.at).finish_non_exhaustive()
    }
}

fn utc() -> String {
    "UTC".into()
}

/// A week of days.
pub const KEEP_USUAL: u32 = 7;

fn keep_usual() -> u32 {
    KEEP_USUAL
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackupSchedule {
    pub at: String,
    pub timezone: String,
    pub directory: Option<String>,
    pub hook: Option<String>,
    pub node: Option<String>,
    pub keep: u32,
    pub with_files: bool,
    pub set_at: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackupRow {
    pub started_at: String,
    /// The same in Unix milliseconds.
    pub started_ms: u64,
    pub ended_at: String,
    pub node: String,
    pub name: String,
    pub bytes: u64,
    /// The reason why it failed.
    pub failure: Option<String>,
    /// Applications whose files are not in it.
    pub without_files: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackupsShown {
    /// `None` if none are scheduled.
    pub schedule: Option<BackupSchedule>,
    /// Copies that were made and tries that failed, the newest first.
    pub backups: Vec<BackupRow>,
    /// The time since which one is being made.
    pub running_since: Option<String>,
    /// What is wrong, in words.
    pub problem: Option<String>,
    /// The time of the order in Unix milliseconds, in the answer to one.
    #[serde(default)]
    pub asked_ms: Option<u64>,
}
