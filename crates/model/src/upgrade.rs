//! Another binary of Cortex, and how far the nodes are with it.

use serde::{Deserialize, Serialize};

use crate::id::NodeId;
use crate::record::Unknown;
use crate::time::Timestamp;
use crate::value::ContentHash;

/// `cluster::upgrade`: the binary that these nodes are to run, one after the other. Written by the
/// command that asks for it; deleted by the one that calls it off.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Roll {
    pub v: u32,
    /// An id unlike that of any other roll.
    pub id: String,
    pub binary: ContentHash,
    /// The version as the binary names it.
    pub version: String,
    /// The nodes in the order of their turns.
    pub nodes: Vec<NodeId>,
    /// The milliseconds that a node may take until it is healthy with it.
    pub limit_ms: u64,
    pub asked_at: Timestamp,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// `node::ID::upgrade`: what that node runs and how its last trial went. Written by it alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeUpgrade {
    pub v: u32,
    /// The binary that it runs, or ran before a trial that is under way.
    pub binary: ContentHash,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial: Option<TrialRecord>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialRecord {
    /// The id of the roll that it was for.
    pub roll: String,
    pub binary: ContentHash,
    pub phase: TrialPhase,
    /// The reason why it did not stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The time since which it is in this phase.
    pub since: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialPhase {
    Trying,
    /// The node runs the new binary.
    Done,
    /// The new binary did not become healthy; the node runs the one from before.
    Returned,
    /// The new binary was not even tried.
    Refused,
}
