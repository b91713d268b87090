//! Builds: what a release runs, named by what it was made of. Releases of one build share its
//! directory on a node, so that a change of variables and a rollback install nothing again.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::hex::{from_hex, to_hex};
use crate::id::{IdError, ReleaseId};

/// Bytes of a build's hash, half of a BLAKE3 hash: builds of one application are told apart, nobody
/// gains by a collision.
pub const BUILD_HASH_BYTES: usize = 16;

/// The name of a build. It is used as the name of a directory and as a token of keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum BuildId {
    /// The hash of source, recipe and the variables that become part of the build.
    Content([u8; BUILD_HASH_BYTES]),
    /// The release, which alone has it: releases that were made before builds had names.
    Of(ReleaseId),
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildId::Content(hash) => write!(f, "b{}", to_hex(hash)),
            BuildId::Of(release) => release.fmt(f),
        }
    }
}

impl FromStr for BuildId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let Some(hex) = text.strip_prefix('b') else { return text.parse().map(BuildId::Of) };
        let error = || IdError::BuildId(text.chars().take(80).collect());
        // A name has one spelling.
        let hash = (*hex == hex.to_ascii_lowercase()).then(|| from_hex(hex)).flatten();
        hash.map(BuildId::Content).ok_or_else(error)
    }
}

impl TryFrom<String> for BuildId {
    type Error = IdError;

    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl From<BuildId> for String {
    fn from(id: BuildId) -> String {
        id.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_ids_round_trip() {
        for text in ["b00ff102030405060708090a0b0c0d0e0", "v12.ab3"] {
            let id: BuildId = text.parse().unwrap();
            assert_eq!(id.to_string(), text);
        }
        let long = format!("b{}", "0".repeat(33));
        for bad in ["", "b", "b00", "B00ff102030405060708090a0b0c0d0e0", "x1", "v1", "../x", &long]
        {
            assert!(bad.parse::<BuildId>().is_err(), "{bad}");
        }
    }
}
