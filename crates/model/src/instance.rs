//! Instances: what runs.

use serde::{Deserialize, Serialize};

use crate::id::{Generation, ReleaseId};
use crate::port::InstancePorts;
use crate::record::{RECORD_VERSION, Unknown};
use crate::time::Timestamp;

/// `instance::NAME::PROCESS::SLOT::NODE`: NODE's claim on a slot, written by NODE's agent alone.
/// During a rollout or restart a slot holds the old process and the new one side by side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    pub v: u32,
    pub claimed_at: Timestamp,
    /// The processes, oldest first; at most `INCARNATIONS_MAX`.
    pub incarnations: Vec<Incarnation>,
    /// The offer of the slot to others: NODE runs it on until another node does; one that claims it
    /// now wins, once ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offer: Option<Offer>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// The reason why a slot is offered to others, and so who may take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Offer {
    /// It is offered for balance: only a node that is better off may take it.
    Balance,
    /// NODE is drained or cannot run it: any node may take it.
    Leave,
}

/// Incarnations of a slot: an old one draining, a current one, a new one starting, and one more
/// that is being stopped because a newer release overtook it.
pub const INCARNATIONS_MAX: usize = 4;

impl Claim {
    pub fn new(claimed_at: Timestamp) -> Claim {
        Claim {
            v: RECORD_VERSION,
            claimed_at,
            incarnations: Vec::new(),
            offer: None,
            unknown: Unknown::new(),
        }
    }
}

/// One process (with its tree) that was started in a slot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Incarnation {
    pub generation: Generation,
    pub release: ReleaseId,
    /// The value of `ApplicationSpec::restart` when it was started.
    pub restart: u32,
    pub state: InstanceState,
    /// The port on the node's loopback; web processes only.
    #[serde(default)]
    pub port: Option<u16>,
    /// The ports there for what does not speak HTTP.
    #[serde(default, skip_serializing_if = "InstancePorts::is_empty")]
    pub ports: InstancePorts,
    #[serde(default)]
    pub process: Option<ProcessIdentity>,
    #[serde(default)]
    pub started_at: Option<Timestamp>,
    /// The requests at a time; `None` for no limit.
    #[serde(default)]
    pub concurrency: Option<u32>,
    /// The number of starts after the first one in this slot for this release that followed a
    /// failure.
    #[serde(default)]
    pub restarts: u32,
    /// The reason for its state, if a person would ask: "exit status 1", "memory limit".
    #[serde(default)]
    pub reason: Option<String>,
    /// What is odd about its first answer: "GET / answers 404".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
}

/// The identity of a process: a pid alone may be another process after a reboot or a wrap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`: clock ticks after boot.
    pub start_ticks: u64,
    pub boot_id: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InstanceState {
    /// The process was started, or is about to be; it is not yet healthy.
    Starting,
    /// The process is healthy. It takes traffic if its release is the serving one.
    Ready,
    /// The process takes no new requests; it is stopped when the last one is answered.
    Draining,
    /// The process ended because it was told to.
    Stopped,
    /// The process ended by itself; it is started again after a pause.
    Crashed,
}
