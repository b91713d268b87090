//! Changes of one application, as far as they can be taken back: what was before, and what after.
//! They are part of entries of the audit, and hold no values of variables.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::audit::AuditId;
use crate::id::{NodeId, ProcessType, ReleaseId, UserName};
use crate::people::PersonRole;
use crate::time::Timestamp;

/// The name of a change: that of its entry in the audit, with the node that wrote it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ChangeId {
    pub entry: AuditId,
    pub node: NodeId,
}

#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("'{}' is no change: `cortex undo --list` shows what they are called", .0.escape_debug())]
pub struct BadChangeId(String);

/// Characters of a wrong name that are shown; more help nobody.
const BAD_ID_SHOWN_MAX: usize = 80;

impl fmt::Display for ChangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}.{}", self.entry.at.0, self.entry.number(), self.node)
    }
}

impl FromStr for ChangeId {
    type Err = BadChangeId;
    fn from_str(text: &str) -> Result<ChangeId, BadChangeId> {
        let bad = || BadChangeId(text.chars().take(BAD_ID_SHOWN_MAX).collect());
        let (entry, node) = text.split_once('.').ok_or_else(bad)?;
        let (entry, node) = (entry.parse().map_err(|_| bad())?, node.parse().map_err(|_| bad())?);
        Ok(ChangeId { entry, node })
    }
}

impl TryFrom<String> for ChangeId {
    type Error = BadChangeId;
    fn try_from(text: String) -> Result<ChangeId, BadChangeId> {
        text.parse()
    }
}

impl From<ChangeId> for String {
    fn from(id: ChangeId) -> String {
        id.to_string()
    }
}

/// A change of one application.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The time when it was made, which for a push is long after it was asked for.
    pub at: Timestamp,
    /// The time when the application was created: another one of its name is not concerned.
    pub created_at: Timestamp,
    pub parts: Vec<ChangePart>,
    /// The change that this one took back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoes: Option<ChangeId>,
}

/// One thing that a change changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum ChangePart {
    /// Code, settings and variables: a release was asked for in place of the one that served.
    Release {
        before: Option<ReleaseId>,
        after: ReleaseId,
        /// What happened in words for people, as the release has it.
        #[serde(default)]
        note: String,
    },
    /// The instances of a process type; `None` leaves their number to the release.
    Scale {
        process: ProcessType,
        before: Option<u32>,
        after: Option<u32>,
    },
    Domains {
        before: DomainChoice,
        after: DomainChoice,
    },
    Port {
        before: PortChoice,
        after: PortChoice,
    },
    /// The time since which it is closed for maintenance; `None` if it is open.
    Maintenance {
        before: Option<Timestamp>,
        after: Option<Timestamp>,
    },
    /// The times at which the passwords were set that clients are asked for; `None` if none is.
    Password {
        before: Option<Timestamp>,
        after: Option<Timestamp>,
    },
    /// The role that a user has on the application; `None` if none.
    Role {
        user: UserName,
        before: Option<PersonRole>,
        after: Option<PersonRole>,
    },
    /// Variables, before there was a release that kept what they were.
    Variables {
        names: Vec<String>,
    },
    /// Paths that outlive releases from then on.
    Persist {
        paths: Vec<String>,
    },
    /// A part that a newer build wrote.
    #[serde(other)]
    Unknown,
}

/// The domains of an application, and whether commands chose them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainChoice {
    pub names: Vec<String>,
    pub chosen: bool,
}

/// The port of an application, and whether a command chose it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortChoice {
    pub port: Option<u16>,
    pub chosen: bool,
}

impl ChangePart {
    /// Returns what takes this back; `None` if nothing does. A release is taken back by a new one,
    /// which is `by`.
    pub fn inverse(&self, by: Option<&ReleaseId>) -> Option<ChangePart> {
        Some(match self.clone() {
            ChangePart::Release { before: Some(before), after, .. } => {
                let note = format!("return to {}", before.short());
                ChangePart::Release { before: Some(after), after: by?.clone(), note }
            }
            ChangePart::Scale { process, before, after } => {
                ChangePart::Scale { process, before: after, after: before }
            }
            ChangePart::Domains { before, after } => {
                ChangePart::Domains { before: after, after: before }
            }
            ChangePart::Port { before, after } => ChangePart::Port { before: after, after: before },
            ChangePart::Maintenance { before, after } => {
                ChangePart::Maintenance { before: after, after: before }
            }
            ChangePart::Password { before, after } => {
                ChangePart::Password { before: after, after: before }
            }
            ChangePart::Role { user, before, after } => {
                ChangePart::Role { user, before: after, after: before }
            }
            ChangePart::Release { before: None, .. }
            | ChangePart::Variables { .. }
            | ChangePart::Persist { .. }
            | ChangePart::Unknown => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_changes_are_read_back() {
        let id = ChangeId { entry: AuditId::new(Timestamp(7), 3), node: "n1".parse().unwrap() };
        assert_eq!(id.to_string(), "7-3.n1");
        assert_eq!("7-3.n1".parse(), Ok(id));
        for bad in ["", "7-3", "7.n1", "x-3.n1", "7-3.", "7-3.N 1"] {
            assert!(bad.parse::<ChangeId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_a_newer_build_wrote_is_read_as_unknown() {
        let text = r#"{"at":1,"created_at":1,"parts":[{"what":"weather","before":1}]}"#;
        let change: Change = serde_json::from_str(text).unwrap();
        assert_eq!(change.parts, [ChangePart::Unknown]);
        assert_eq!(change.parts[0].inverse(None), None);
    }

    #[test]
    fn the_inverse_of_the_inverse_is_what_was_done() {
        let scale = ChangePart::Scale { process: ProcessType::web(), before: None, after: Some(3) };
        let back = scale.inverse(None).unwrap();
        assert_eq!(back.inverse(None), Some(scale));
        let ids: Vec<ReleaseId> =
            ["v1.a", "v2.a", "v3.a", "v4.a"].map(|id| id.parse().unwrap()).into();
        let (before, after) = (Some(ids[0].clone()), ids[1].clone());
        let push = ChangePart::Release { before, after, note: "push".into() };
        let back = push.inverse(Some(&ids[2])).unwrap();
        let again = back.inverse(Some(&ids[3])).unwrap();
        let (before, after) = (Some(ids[2].clone()), ids[3].clone());
        let note = "return to v2".into();
        assert_eq!(again, ChangePart::Release { before, after, note });
    }
}
