//! Applications that are closed for maintenance, and those that were destroyed, as they travel.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MaintenanceAsked {
    pub on: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MaintenanceShown {
    pub application: String,
    /// The time since which it is closed; `None` if clients may come.
    pub since: Option<String>,
}

/// An application that was destroyed and can be brought back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptRow {
    pub name: String,
    pub destroyed_at: String,
    pub until: String,
    pub by: String,
    pub domains: Vec<String>,
}

/// One that was brought back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Restored {
    #[serde(flatten)]
    pub row: crate::ApplicationRow,
    /// What is otherwise than it was, for the user.
    pub notes: Vec<String>,
}
