//! Answers about the keys of the store.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The answer to a write.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Committed {
    /// The id of the commit, in hexadecimal digits.
    pub commit: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ValueHash {
    /// The BLAKE3 of the value, in hexadecimal digits.
    pub hash: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StoreHead {
    /// What is equal on nodes that hold the same.
    pub head: String,
}
