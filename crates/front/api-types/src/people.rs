//! What travels about people: users, teams, tokens and the audit.

use model::people::TeamLimits;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Released;

/// A role on the platform, or on the team or the application that is named.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GrantAsked {
    pub role: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AddUser {
    pub name: String,
    /// The first role; others are granted later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<GrantAsked>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GrantRow {
    pub role: String,
    /// `the platform`, `team NAME` or `application NAME`.
    pub on: String,
    /// Whether the team or the application is there no more, and the grant means nothing.
    #[serde(default)]
    pub gone: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UserRow {
    pub name: String,
    pub grants: Vec<GrantRow>,
    pub tokens: usize,
    pub created_at: String,
    pub created_by: String,
    /// Remarks about a change, for the user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// What applications are to get that say nothing of their isolation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct IsolationAsked {
    /// `full`, `standard`, `landlock`, `none`, or `auto`.
    pub default: String,
}

/// What applications get that say nothing of their isolation, and how things are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct IsolationShown {
    /// `full`, `standard`, `landlock` or `none`.
    pub default: String,
    /// What an owner has set; `auto` if nothing.
    pub set: String,
    pub why: String,
    /// The reason why the node that was asked can build no wall; `None` if it can.
    #[serde(default)]
    pub obstacle: Option<String>,
    /// The applications that run without a wall.
    #[serde(default)]
    pub without: Vec<String>,
}

/// What is to be around an application, whatever its releases ask for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct IsolationMarkAsked {
    /// `full`, `standard`, or `default`: what its releases ask for.
    pub isolation: String,
    /// `none` or `all`, with `full`; `none` if it is missing.
    #[serde(default)]
    pub egress: Option<String>,
}

/// The mark of an owner on an application that is not trusted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct IsolationMarkShown {
    /// `full` or `standard`.
    pub isolation: String,
    /// `none` or `all`; missing where the application has the machine's network.
    #[serde(default)]
    pub egress: Option<String>,
    pub by: String,
    pub since: String,
}

/// What is around one application, and who asked for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ApplicationIsolation {
    pub application: String,
    /// What the running release is behind; missing before there is one.
    #[serde(default)]
    pub isolation: Option<String>,
    /// The places that it reaches from a network of its own: `none` or `all`.
    #[serde(default)]
    pub egress: Option<String>,
    /// What its `cortex.toml` or the platform's default asks for.
    #[serde(default)]
    pub asked: Option<String>,
    #[serde(default)]
    pub asked_egress: Option<String>,
    /// What an owner wants at the least.
    #[serde(default)]
    pub mark: Option<IsolationMarkShown>,
    /// The release that was made of it, as what is built belongs behind the same wall.
    #[serde(default)]
    pub released: Option<Released>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AddTeam {
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TeamChange {
    #[serde(default)]
    pub add: Vec<String>,
    #[serde(default)]
    pub remove: Vec<String>,
    /// All limits anew; those that are missing are no limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<TeamLimits>,
}

/// What the applications of a team ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TeamUsed {
    pub applications: u64,
    pub instances: u64,
    pub memory_bytes: u64,
    #[serde(default)]
    pub disk_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TeamRow {
    pub name: String,
    pub applications: Vec<String>,
    #[serde(default)]
    pub used: TeamUsed,
    #[serde(default)]
    pub limits: TeamLimits,
    /// The users who have a role in it, as `ROLE NAME`.
    pub people: Vec<String>,
    pub created_at: String,
    pub created_by: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CreateToken {
    pub name: String,
    /// The user whose it is; the one who asks if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The most that it may do; all that its user may if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<GrantAsked>,
    /// The days until it expires; 90 if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub days: Option<u32>,
}

/// A new token; its text is in this answer and nowhere else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TokenCreated {
    pub token: String,
    #[serde(flatten)]
    pub row: TokenRow,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TokenRow {
    pub user: String,
    pub name: String,
    /// `valid`, `expired` or `revoked`.
    pub state: String,
    pub limit: Option<GrantRow>,
    pub created_at: String,
    pub expires_at: String,
    /// The hour in which it was used last.
    pub last_used_at: Option<String>,
}

/// A change, as the audit has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AuditRow {
    pub at: String,
    pub node: String,
    pub who: String,
    pub token: Option<String>,
    pub from: String,
    pub method: String,
    pub path: String,
    pub application: Option<String>,
    /// `done`, `refused`, `failed`, or `attempted` if no outcome was written.
    pub outcome: String,
    pub status: Option<u16>,
    pub ended_at: Option<String>,
    /// The hash of what the change is about, before it and after it.
    pub before: Option<String>,
    pub after: Option<String>,
    /// What it did to the application, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
    /// What the person said of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The change that it took back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoes: Option<String>,
}
