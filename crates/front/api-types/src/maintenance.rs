//! The maintenance of an application, as it travels.

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
