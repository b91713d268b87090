//! The record of changes: one entry before each, and its outcome after it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::change::Change;
use crate::id::{ApplicationName, TokenName};
use crate::record::Unknown;
use crate::time::Timestamp;

/// The name of an entry among those of its node: the time in milliseconds and a number that tells
/// entries of one millisecond apart. Names sort like the times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AuditId {
    pub at: Timestamp,
    number: u32,
}

impl AuditId {
    pub fn new(at: Timestamp, number: u32) -> AuditId {
        AuditId { at, number }
    }

    pub fn number(self) -> u32 {
        self.number
    }
}

impl fmt::Display for AuditId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:015}-{:010}", self.at.0, self.number)
    }
}

impl FromStr for AuditId {
    type Err = std::num::ParseIntError;
    fn from_str(text: &str) -> Result<AuditId, Self::Err> {
        let (at, number) = text.split_once('-').unwrap_or((text, ""));
        Ok(AuditId { at: Timestamp(at.parse()?), number: number.parse()? })
    }
}

/// A change before it is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    pub v: u32,
    pub at: Timestamp,
    /// The user, or the account of the machine's owner.
    pub who: String,
    /// The token by which the user came; `None` for the machine's owner.
    pub token: Option<TokenName>,
    /// The way by which the request came.
    pub from: String,
    pub method: String,
    pub path: String,
    pub application: Option<ApplicationName>,
    /// The hash of what the change is about.
    pub before: Option<String>,
    /// What the person said of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// What it does to the application, once that is known and before it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<Change>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// The end of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditOutcome {
    pub v: u32,
    pub at: Timestamp,
    /// The status of the answer.
    pub status: u16,
    pub after: Option<String>,
    #[serde(flatten)]
    pub unknown: Unknown,
}
