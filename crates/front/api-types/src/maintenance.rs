//! Applications that are closed for maintenance, that ask for a password, and that were destroyed,
//! as they travel.

use model::certificate::SecretText;
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

/// The password that clients are to be asked for; `None` if everybody may come.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PasswordAsked {
    #[schemars(with = "Option<String>")]
    pub password: Option<SecretText>,
}

/// Whether clients are asked for a password.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PasswordShown {
    pub application: String,
    /// The time since which they are asked for this one; `None` if everybody may come.
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
