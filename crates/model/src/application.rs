//! What users ask for.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::{NodeId, ProcessType};
use crate::record::{RECORD_VERSION, Unknown};
use crate::time::Timestamp;

/// `app::NAME::spec`: written by users' commands only. What a release brings along (its settings)
/// is in the release, so that a broken release cannot change how the old one runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ApplicationSpec {
    pub v: u32,
    pub created_at: Timestamp,
    /// A framework's name, where the user chose it; otherwise it is detected.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub framework: Option<String>,
    /// Where the user scaled or set a command; other process types follow the release.
    #[serde(default)]
    pub processes: BTreeMap<ProcessType, ProcessSpec>,
    /// The application's own public port.
    #[serde(default)]
    pub port: Option<u16>,
    /// Chosen by a command: the project's own file does not change it.
    #[serde(default)]
    pub port_chosen: bool,
    /// Host names beside `NAME.localhost`.
    #[serde(default)]
    pub domains: Vec<String>,
    /// Raised by `restart`: instances started for a lower number are replaced.
    #[serde(default)]
    pub restart: u32,
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl ApplicationSpec {
    pub fn new(created_at: Timestamp) -> ApplicationSpec {
        ApplicationSpec {
            v: RECORD_VERSION,
            created_at,
            framework: None,
            processes: BTreeMap::new(),
            port: None,
            port_chosen: false,
            domains: Vec::new(),
            restart: 0,
            unknown: Unknown::new(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessSpec {
    /// Wanted instances in the whole cluster.
    pub count: u32,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// `app::NAME::holder`: which node has the files of the application's persistent paths. Written by
/// the coordinator of the first release that has such paths.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Holder {
    pub v: u32,
    pub node: NodeId,
    pub since: Timestamp,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// `app::NAME::move`: its files are to go to another node. Written by the command that asks for
/// it, then by that node, which deletes it when the files are its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Move {
    pub v: u32,
    pub to: NodeId,
    /// Tells one request from the next.
    pub asked_at: Timestamp,
    pub phase: MovePhase,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MovePhase {
    Asked,
    /// While it runs.
    Copying,
    /// It is stopped, and what changed meanwhile is copied.
    Stopped,
    /// It is where it was.
    Failed,
}

/// How a release wants to be run: from its `cortex.toml` or the like, frozen with the release.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    #[serde(default)]
    pub health: Health,
    #[serde(default)]
    pub limits: Limits,
    #[serde(default)]
    pub rollout: RolloutMode,
    /// A name from `router::balance`.
    pub balance: String,
    pub stop_grace_ms: u64,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// What Heroku and Kubernetes give a process between SIGTERM and SIGKILL.
pub const STOP_GRACE_MS_DEFAULT: u64 = 30_000;
/// What Heroku and Kamal give a web process to bind its port, and Rails with many gems may need.
pub const START_TIMEOUT_MS_DEFAULT: u64 = 60_000;

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            health: Health::default(),
            limits: Limits::default(),
            rollout: RolloutMode::default(),
            balance: "least-loaded".into(),
            stop_grace_ms: STOP_GRACE_MS_DEFAULT,
            unknown: Unknown::new(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Health {
    /// Answered with 200 to 399 by a healthy instance; without it a bound port is enough.
    #[serde(default)]
    pub path: Option<String>,
    /// From the start of the process until it must be ready.
    pub start_timeout_ms: u64,
    /// One probe's time limit.
    pub timeout_ms: u64,
    /// Between two probes by the checker.
    pub interval_ms: u64,
}

impl Default for Health {
    fn default() -> Health {
        Health {
            path: None,
            start_timeout_ms: START_TIMEOUT_MS_DEFAULT,
            timeout_ms: 5_000,
            interval_ms: 1_000,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Resident memory of an instance's whole process tree; above it the instance is replaced.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Requests at a time per instance; overrides what the framework's recipe says.
    #[serde(default)]
    pub concurrency: Option<u32>,
    /// What the steps of a build, or those of a release, may take: memory of the whole tree ...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_memory_bytes: Option<u64>,
    /// ... cores ...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_cores: Option<u32>,
    /// ... and time, for all of them together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_time_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RolloutMode {
    /// New instances start beside the old ones; traffic switches when they are ready.
    #[default]
    StartFirst,
    /// For applications whose versions cannot overlap: the old ones stop before the new ones start.
    StopFirst,
}
