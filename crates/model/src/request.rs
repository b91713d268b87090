//! The limits of one application's requests.

use serde::{Deserialize, Serialize};

/// The limits; `None` where the router's own limit holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestLimits {
    /// The time of a connection without a request, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_ms: Option<u64>,
    /// The milliseconds from the first byte of a head to its last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_ms: Option<u64>,
    /// The milliseconds between two pieces of the client's body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_ms: Option<u64>,
    /// The milliseconds until an instance is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_ms: Option<u64>,
    /// The milliseconds until an answer begins, and between two pieces of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_ms: Option<u64>,
    /// The bytes of the client's body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_bytes_max: Option<u64>,
}

impl RequestLimits {
    pub fn is_default(&self) -> bool {
        *self == RequestLimits::default()
    }
}
