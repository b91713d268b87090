//! Changes of an application that can be taken back, as they travel.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Released;

/// A request to take a change back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UndoAsked {
    /// The change; `None` means the last one, which must be the caller's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChangeRow {
    pub change: String,
    pub at: String,
    pub who: String,
    /// What it did, in words.
    pub what: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The change that this one took back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoes: Option<String>,
    /// The reason why it cannot be taken back now; `None` if it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
}

/// The last changes of an application, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChangesShown {
    pub application: String,
    pub changes: Vec<ChangeRow>,
    /// What an undo would do now; `None` if it would be refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub would: Option<Vec<String>>,
    /// The reason why an undo would be refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// What an undo did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Undone {
    pub application: String,
    pub taken_back: ChangeRow,
    pub did: Vec<String>,
    #[serde(default)]
    pub notes: Vec<String>,
    /// The release that was made for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<Released>,
}
