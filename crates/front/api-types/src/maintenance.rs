//! The maintenance of an application, as it travels.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaintenanceAsked {
    pub on: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaintenanceShown {
    pub application: String,
    /// The time since which it is closed; `None` if clients may come.
    pub since: Option<String>,
}
