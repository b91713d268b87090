//! References to values: machines hold these, never the bytes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Bytes of a value: far above any application's source; a bound on what one upload can fill.
pub const VALUE_BYTES_MAX: u64 = 4 << 30;

/// The BLAKE3 of a value's bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ContentHash(pub [u8; 32]);

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for ContentHash {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let error = || format!("'{}' is no hash: 64 hex digits were expected", text.escape_debug());
        crate::hex::from_hex(text).map(ContentHash).ok_or_else(error)
    }
}

impl TryFrom<String> for ContentHash {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<ContentHash> for String {
    fn from(hash: ContentHash) -> String {
        hash.to_string()
    }
}

/// The place of a value's bytes, as far as this node knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueLocation {
    /// The bytes are in the commit log, inside the record that set it.
    Log { segment: u64, offset: u32 },
    /// The bytes are a content-addressed file.
    File,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueRef {
    pub hash: ContentHash,
    pub size: u64,
    pub place: ValueLocation,
}
