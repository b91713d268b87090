//! The users of the store's faces, and which keys each may use: `access::NAME`.

use serde::{Deserialize, Serialize};

use crate::record::Unknown;

/// A user. The secret is a random token that the store made: it cannot be guessed, so a plain hash
/// of it with a salt is as good as a slow one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessUser {
    pub v: u32,
    /// The salt and the hash, 64 hex digits each.
    pub salt: String,
    pub token_hash: String,
    pub rights: Vec<AccessRight>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// The right to read, and to write if it says so, everything at and below a prefix; an empty one
/// means all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessRight {
    pub prefix: String,
    pub write: bool,
}
