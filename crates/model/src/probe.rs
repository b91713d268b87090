//! Verdicts of checkers.

use serde::{Deserialize, Serialize};

use crate::id::Generation;
use crate::record::Unknown;
use crate::time::Timestamp;

/// `probe::NODE::NAME::PROCESS::SLOT`: NODE's verdict on an instance of its own, written when it
/// changes. `probe::NODE::NAME::PROCESS::SLOT::OWNER`: what NODE's checker says of one of OWNER,
/// which has no checker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub v: u32,
    /// The incarnation that was probed; a verdict says nothing about any other.
    pub generation: Generation,
    pub health: HealthState,
    /// What the last probe saw: "connection refused", "GET /up answered 500".
    pub detail: String,
    pub changed_at: Timestamp,
    #[serde(flatten)]
    pub unknown: Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthState {
    Healthy,
    /// The instance exists but fails its health path or does not answer in time.
    Failing,
    /// Nothing listens there any more.
    Gone,
}
