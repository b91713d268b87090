//! Who may use the store's faces, and which keys: `access::NAME`.

use serde::{Deserialize, Serialize};

use crate::record::Unknown;

/// The secret is a random token that the store made: it cannot be guessed, so a plain hash of it
/// with a salt is as good as a slow one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessUser {
    pub v: u32,
    /// 64 hex digits each.
    pub salt: String,
    pub token_hash: String,
    pub rights: Vec<AccessRight>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Reading always, and writing if so, of everything at and below a prefix; an empty one means all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessRight {
    pub prefix: String,
    pub write: bool,
}
