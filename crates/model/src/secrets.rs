//! Which values of the store are secrets, and what the nodes tell each other about the keys that
//! seal them. The keys themselves are never in a record.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::backup::BackupKey;
use crate::hex::{from_hex, to_hex};
use crate::key::{Key, TypedKey};
use crate::record::Unknown;
use crate::time::Timestamp;

/// What a joining node's own value is kept under if the cluster has another one.
const LOST: &str = "lost::";

/// The name of a key that seals values, derived from the key: a damaged one has another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SealingKeyId(pub [u8; SealingKeyId::BYTES]);

#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the id of a key has {} hexadecimal digits", 2 * SealingKeyId::BYTES)]
pub struct SealingKeyIdError;

impl SealingKeyId {
    pub const BYTES: usize = 8;
}

impl FromStr for SealingKeyId {
    type Err = SealingKeyIdError;
    fn from_str(text: &str) -> Result<SealingKeyId, SealingKeyIdError> {
        from_hex(text).map(SealingKeyId).ok_or(SealingKeyIdError)
    }
}

impl TryFrom<String> for SealingKeyId {
    type Error = SealingKeyIdError;
    fn try_from(text: String) -> Result<SealingKeyId, SealingKeyIdError> {
        text.parse()
    }
}

impl From<SealingKeyId> for String {
    fn from(id: SealingKeyId) -> String {
        id.to_string()
    }
}

impl fmt::Display for SealingKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&to_hex(&self.0))
    }
}

impl fmt::Debug for SealingKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// `cluster::secrets`: the key that seals what is written, and the one that is to follow. Written
/// by the first of the living members that keep the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealingRecord {
    pub v: u32,
    /// The key that every member has; `None` until the first one is with all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seals: Option<SealingKeyId>,
    /// The key that goes to the members, and takes over when all have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<SealingKeyId>,
    /// The order to which the newest of these keys was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_for: Option<Timestamp>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// `cluster::secrets::rotate`: the order to seal everything with another key. Written by commands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RotationOrder {
    pub v: u32,
    pub asked_at: Timestamp,
    /// The name of the person who asked, or of the node that was removed.
    pub reason: String,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// `node::ID::secrets`: which keys that node has on its disk, and with which it seals. Written by
/// it alone; a build that knows no sealed values writes none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSecrets {
    pub v: u32,
    #[serde(default)]
    pub holds: BTreeSet<SealingKeyId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seals: Option<SealingKeyId>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Returns the key under which a secret was written, which is what it is sealed for; `None` if the
/// values of this key are no secrets.
pub fn sealed_for(key: &Key) -> Option<Key> {
    let typed = TypedKey::parse(key);
    let is_secret = typed.is_some_and(|typed| {
        matches!(
            typed,
            TypedKey::Config(_)
                | TypedKey::ConfigAt(..)
                | TypedKey::Certificate(_)
                | TypedKey::AcmeAccount
                | TypedKey::AcmeChallenge(_)
                | TypedKey::AcmeSettings
                | TypedKey::AcmeOrder(_)
                | TypedKey::Backup(BackupKey::Settings)
        )
    });
    if is_secret {
        return Some(key.clone());
    }
    sealed_for(&key.as_str().strip_prefix(LOST)?.parse().ok()?)
}

/// The first tokens of all keys whose values may be secrets.
pub const SECRET_ROOTS: [&str; 5] = ["app", "cert", "acme", "backup", "lost"];

#[cfg(test)]
mod tests {
    use super::*;

    fn check(key: &str, expected: Option<&str>) {
        let found = sealed_for(&key.parse().unwrap());
        assert_eq!(found.as_ref().map(Key::as_str), expected, "{key}");
    }

    #[test]
    fn secrets_are_what_holds_passwords_and_private_keys() {
        check("app::blog::config", Some("app::blog::config"));
        check("app::blog::spec", None);
        check("app::blog::config::x", None);
        check("cert::shop.example.org", Some("cert::shop.example.org"));
        check("acme::account", Some("acme::account"));
        check("acme::registration", None);
        check("backup::settings", Some("backup::settings"));
        check("backup::log", None);
        check("cluster::secrets", None);
        check("mine::app::blog::config", None);
        check("lost::app::blog::config", Some("app::blog::config"));
        check("lost::app::blog::spec", None);
    }

    #[test]
    fn all_secrets_lie_below_the_roots() {
        for key in ["app::blog::config", "cert::a.example", "acme::account", "lost::acme::account"]
        {
            let key: Key = key.parse().unwrap();
            assert!(sealed_for(&key).is_some());
            assert!(key.tokens().next().is_some_and(|root| SECRET_ROOTS.contains(&root)), "{key}");
        }
    }

    #[test]
    fn ids_of_keys_are_digits() {
        let id = SealingKeyId([1, 2, 3, 4, 5, 6, 7, 255]);
        assert_eq!(id.to_string(), "01020304050607ff");
        assert_eq!("01020304050607ff".parse(), Ok(id));
        assert_eq!("01020304050607f".parse::<SealingKeyId>(), Err(SealingKeyIdError));
    }
}
