//! Identifiers. Every constructor validates, so a value of these types is always well formed.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Bytes of an application's name: one DNS label, as an application answers on `NAME.localhost`.
pub const APPLICATION_NAME_LENGTH_MAX: usize = 63;
/// Bytes of a process type: long enough for any name seen in a Procfile; it becomes part of file
/// names.
pub const PROCESS_TYPE_LENGTH_MAX: usize = 40;
/// Bytes of the names of users, teams and tokens: they stand in listings and in the audit.
pub const PERSON_NAME_LENGTH_MAX: usize = 40;
/// Bytes of a node id, which appears in keys, file names and on screen.
pub const NODE_ID_LENGTH_MAX: usize = 16;

pub type Slot = u32;
/// A number that rises with every process started in one slot on one node; never used again.
pub type Generation = u64;

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum IdError {
    #[error(
        "'{0}' cannot be an application's name: use 1 to 63 lower-case letters, digits and inner \
         hyphens, for example '{1}'"
    )]
    ApplicationName(String, String),
    #[error(
        "'{0}' cannot be a process type: use 1 to 40 letters, digits, hyphens and underscores, \
         for example 'web'"
    )]
    ProcessType(String),
    #[error(
        "'{0}' cannot be the name of a {1}: use 1 to 40 lower-case letters, digits and inner hyphens"
    )]
    PersonName(String, &'static str),
    #[error("'{0}' is no node id: 1 to 16 lower-case letters and digits were expected")]
    NodeId(String),
    #[error("'{0}' is no release: write 'v7', or 'v7.NODE' for one of two made apart")]
    ReleaseId(String),
    #[error("'{0}' is no build: 'b' and 32 hex digits were expected")]
    BuildId(String),
    #[error("'{0}' is no instance: write PROCESS.SLOT, for example 'web.1'")]
    Instance(String),
}

macro_rules! text_id {
    ($name:ident) => {
        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                text.parse()
            }
        }
        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }
    };
}

macro_rules! person_name {
    ($name:ident, $what:literal, $doc:literal) => {
        #[doc = $doc]
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);
        text_id!($name);

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                let inside = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
                let valid = (1..=PERSON_NAME_LENGTH_MAX).contains(&text.len())
                    && text.bytes().all(inside)
                    && !text.starts_with('-')
                    && !text.ends_with('-');
                let shown = || text.escape_debug().take(80).collect();
                valid.then(|| $name(text.into())).ok_or_else(|| IdError::PersonName(shown(), $what))
            }
        }
    };
}

person_name!(UserName, "user", "The name of a person or of a program that acts for nobody else.");
person_name!(TeamName, "team", "The name of a team.");
person_name!(TokenName, "token", "The name of a token, which no other one of its user has.");

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ApplicationName(String);
text_id!(ApplicationName);

impl ApplicationName {
    /// Returns the nearest valid name: what `push` uses for a directory with an odd name.
    pub fn suggest(text: &str) -> ApplicationName {
        let mut name = String::new();
        for c in text.chars().flat_map(char::to_lowercase) {
            if c.is_ascii_alphanumeric() {
                name.push(c);
            } else if !name.is_empty() && !name.ends_with('-') {
                name.push('-');
            }
            if name.len() == APPLICATION_NAME_LENGTH_MAX {
                break;
            }
        }
        let name = name.trim_matches('-');
        ApplicationName(if name.is_empty() { "app".into() } else { name.into() })
    }
}

impl FromStr for ApplicationName {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let valid = !text.is_empty()
            && text.len() <= APPLICATION_NAME_LENGTH_MAX
            && !text.starts_with('-')
            && !text.ends_with('-')
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if valid {
            Ok(ApplicationName(text.into()))
        } else {
            let shown = text.chars().take(80).collect();
            Err(IdError::ApplicationName(shown, ApplicationName::suggest(text).0))
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ProcessType(String);
text_id!(ProcessType);

impl ProcessType {
    /// The process type that gets traffic.
    pub const WEB: &str = "web";

    pub fn web() -> ProcessType {
        ProcessType(Self::WEB.into())
    }

    pub fn is_web(&self) -> bool {
        self.0 == Self::WEB
    }
}

impl FromStr for ProcessType {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let valid = !text.is_empty()
            && text.len() <= PROCESS_TYPE_LENGTH_MAX
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if valid {
            Ok(ProcessType(text.into()))
        } else {
            Err(IdError::ProcessType(text.chars().take(80).collect()))
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeId(String);
text_id!(NodeId);

impl NodeId {
    pub fn is_valid(text: &str) -> bool {
        !text.is_empty()
            && text.len() <= NODE_ID_LENGTH_MAX
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    }
}

impl FromStr for NodeId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        if NodeId::is_valid(text) {
            Ok(NodeId(text.into()))
        } else {
            Err(IdError::NodeId(text.chars().take(80).collect()))
        }
    }
}

/// The id of a release, which is its number and the node that made it: two nodes cut off from each
/// other may both make number 7.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ReleaseId {
    pub number: u64,
    pub node: NodeId,
}

impl ReleaseId {
    /// Returns what people see and type if no second release has the same number.
    pub fn short(&self) -> String {
        format!("v{}", self.number)
    }
}

impl fmt::Display for ReleaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}.{}", self.number, self.node)
    }
}

impl FromStr for ReleaseId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let error = || IdError::ReleaseId(text.chars().take(80).collect());
        let rest = text.strip_prefix('v').ok_or_else(error)?;
        let (number, node) = rest.split_once('.').ok_or_else(error)?;
        Ok(ReleaseId {
            number: number.parse().map_err(|_| error())?,
            node: node.parse().map_err(|_| error())?,
        })
    }
}

impl TryFrom<String> for ReleaseId {
    type Error = IdError;
    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl From<ReleaseId> for String {
    fn from(id: ReleaseId) -> String {
        id.to_string()
    }
}

/// The place that a process fills: `web.1` of one application.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct InstanceId {
    pub application: ApplicationName,
    pub process: ProcessType,
    pub slot: Slot,
}

impl InstanceId {
    /// Returns the place without the application: `web.1`.
    pub fn label(&self) -> String {
        format!("{}.{}", self.process, self.slot)
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}.{}", self.application, self.process, self.slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_dns_labels() {
        for good in ["a", "hello", "my-app-2", &"x".repeat(63)] {
            assert!(good.parse::<ApplicationName>().is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a b", "a::b", "ä", "../x", "a.b", &"x".repeat(64)] {
            assert!(bad.parse::<ApplicationName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn suggested_names_are_valid() {
        for odd in ["", "My App!", "--", "ÄÖ", "a..b", &"Q".repeat(99), "-x-"] {
            let name = ApplicationName::suggest(odd);
            assert_eq!(name.as_str().parse(), Ok(name.clone()), "{odd}");
        }
        assert_eq!(ApplicationName::suggest("My App!").as_str(), "my-app");
    }

    #[test]
    fn release_ids_round_trip() {
        let id: ReleaseId = "v12.ab3".parse().unwrap();
        assert_eq!((id.number, id.to_string().as_str()), (12, "v12.ab3"));
        for bad in ["", "v", "12", "v1", "vx.a", "v1.", "v1.A"] {
            assert!(bad.parse::<ReleaseId>().is_err(), "{bad}");
        }
    }
}
