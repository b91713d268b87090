//! People and what they may do: users, teams, tokens and grants, as records of the store.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::id::{ApplicationName, NodeId, TeamName, TokenName, UserName};
use crate::record::Unknown;
use crate::time::Timestamp;

/// A role of a person, from the least to the most; each may do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PersonRole {
    Viewer,
    Developer,
    Operator,
    Owner,
}

impl PersonRole {
    pub const ALL: [PersonRole; 4] =
        [PersonRole::Viewer, PersonRole::Developer, PersonRole::Operator, PersonRole::Owner];

    pub fn word(self) -> &'static str {
        match self {
            PersonRole::Viewer => "viewer",
            PersonRole::Developer => "developer",
            PersonRole::Operator => "operator",
            PersonRole::Owner => "owner",
        }
    }
}

impl fmt::Display for PersonRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("there is no role '{0}'")]
pub struct NoSuchRole(String);

impl FromStr for PersonRole {
    type Err = NoSuchRole;
    fn from_str(text: &str) -> Result<PersonRole, NoSuchRole> {
        let found = PersonRole::ALL.into_iter().find(|role| role.word() == text);
        found.ok_or_else(|| NoSuchRole(text.escape_debug().take(80).collect()))
    }
}

/// The place where a role is held. An application or a team is known by its name and the time when
/// it was made: who takes a name over takes over no rights.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    Platform,
    Team { name: TeamName, created_at: Timestamp },
    Application { name: ApplicationName, created_at: Timestamp },
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::Platform => f.write_str("the platform"),
            Scope::Team { name, .. } => write!(f, "team {name}"),
            Scope::Application { name, .. } => write!(f, "application {name}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Grant {
    pub role: PersonRole,
    pub on: Scope,
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.role, self.on)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub v: u32,
    pub created_at: Timestamp,
    pub created_by: String,
    pub grants: BTreeSet<Grant>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Team {
    pub v: u32,
    pub created_at: Timestamp,
    pub created_by: String,
    /// Its applications, each with the time when it was made.
    pub applications: BTreeMap<ApplicationName, Timestamp>,
    #[serde(default, skip_serializing_if = "TeamLimits::is_empty")]
    pub limits: TeamLimits,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// The most that the applications of a team may take together; `None` is without limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TeamLimits {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applications: Option<u64>,
    /// Instances that are asked for, ready or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instances: Option<u64>,
    /// Bytes of memory that those instances may grow to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Bytes that their files take on the disks of all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
}

impl TeamLimits {
    pub fn is_empty(&self) -> bool {
        *self == TeamLimits::default()
    }
}

/// A token of a user. Its text is known to whoever holds it alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    pub v: u32,
    pub name: TokenName,
    pub user: UserName,
    /// The time when its user was made: a later one of that name has no part in it.
    pub user_created_at: Timestamp,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
    /// The most that it may do of what its user may; all of that if `None`.
    pub limit: Option<Grant>,
    pub revoked_at: Option<Timestamp>,
    /// The node that gives another token for this one, which is an invitation and good for nothing
    /// else; `None` for every other token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invites: Option<NodeId>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenUse {
    pub v: u32,
    pub at: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_words_in_order() {
        for role in PersonRole::ALL {
            assert_eq!(role.word().parse(), Ok(role));
        }
        assert!(PersonRole::ALL.is_sorted());
        for unknown in ["", "admin", "Owner", "owner "] {
            assert!(unknown.parse::<PersonRole>().is_err(), "{unknown}");
        }
    }

    #[test]
    fn names_are_checked() {
        for good in ["ana", "ci-2", "7"] {
            assert!(good.parse::<UserName>().is_ok(), "{good}");
        }
        for bad in ["", "Ana", "-a", "a-", "a b", "a::b", "a\n", &"x".repeat(41)] {
            assert!(bad.parse::<UserName>().is_err(), "{bad}");
        }
    }
}
