//! How the secrets of the platform are sealed. Keys are named by their ids; no value and no key is
//! ever among them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SecretsShown {
    /// The key that seals; `None` if secrets are clear.
    pub sealed_with: Option<String>,
    /// The key that follows, once all members have it.
    #[serde(default)]
    pub next: Option<String>,
    /// The members that keep the store.
    pub members: Vec<SecretsMember>,
    /// The number of secrets on the node that was asked, by the key that sealed them.
    #[serde(default)]
    pub values: Vec<SecretsCount>,
    /// Whether everything is sealed with one key, and there is no other.
    pub settled: bool,
    /// What is waited for; `None` if nothing is.
    #[serde(default)]
    pub waits: Option<String>,
    /// The time at which another key was asked for last, and the reason.
    #[serde(default)]
    pub asked: Option<String>,
    /// Secrets that were removed, as no key opens them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SecretsMember {
    pub node: String,
    /// The keys that it has; `None` if it runs a build that knows nothing of them.
    pub keys: Option<Vec<String>>,
    pub sealed_with: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SecretsCount {
    /// The key; `None` for secrets that are clear.
    pub key: Option<String>,
    pub count: usize,
    /// Whether this node can read them.
    pub opens: bool,
}

/// What `cortex secrets rotate` asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RotationAsked {
    /// Whether secrets that no key opens any more are removed.
    #[serde(default)]
    pub give_up_lost: bool,
}
