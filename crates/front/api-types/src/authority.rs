//! The authority that issues certificates for the cluster, and what is known of each domain.

use std::net::IpAddr;

use model::certificate::SecretText;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a person agrees to. What is left out stays as it is for the same authority.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct AuthorityAsked {
    /// The URL of its directory; `None` for the one in use, or Let's Encrypt.
    #[serde(default)]
    pub directory: Option<String>,
    #[serde(default)]
    pub contact: Option<String>,
    /// What vouches for the authority's own server, in PEM form.
    #[serde(default)]
    pub roots: Option<String>,
    #[serde(default)]
    pub profile: Option<String>,
    #[serde(default)]
    pub eab_key_id: Option<String>,
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub eab_key: Option<SecretText>,
    /// The program that makes records in DNS, on every node.
    #[serde(default)]
    pub dns_hook: Option<String>,
}

/// The terms of an authority, to be agreed to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TermsShown {
    pub directory: String,
    pub terms: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AuthorityShown {
    /// `None` if nobody has agreed to one.
    pub directory: Option<String>,
    pub contact: Option<String>,
    pub profile: Option<String>,
    pub dns_hook: Option<String>,
    pub agreed_at: Option<String>,
    pub agreed_by: Option<String>,
    /// Whether there is an account, and if not why.
    pub account: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DomainsStatus {
    pub application: String,
    pub domains: Vec<DomainStatus>,
    /// The time since which clients are asked for a password; `None` if everybody may come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_since: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DomainStatus {
    pub domain: String,
    pub since: String,
    /// A sentence about the other applications that have claimed it.
    pub clash: Option<String>,
    pub dns: DnsStatus,
    pub arrival: ArrivalStatus,
    pub certificate: CertificateStatus,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DnsStatus {
    /// The addresses that it must have: any of these, and no other.
    pub wanted: Vec<IpAddr>,
    /// The addresses that it has.
    pub found: Vec<IpAddr>,
    /// What is wrong, if anything.
    pub problem: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ArrivalStatus {
    /// `here`, `elsewhere`, `nowhere` or `untested`.
    pub state: String,
    pub why: Option<String>,
    /// The node that asked.
    pub seen_from: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CertificateStatus {
    /// What there is, and what is next.
    pub state: String,
    /// Whether clients are shown one that is good now.
    #[serde(default)]
    pub valid: bool,
    pub issuer: Option<String>,
    pub not_after: Option<String>,
    /// The time of its renewal.
    pub renewal: Option<String>,
    /// The last error, in the authority's words.
    pub error: Option<String>,
    /// What to do about it.
    pub advice: Option<String>,
}

/// A name that belongs to the platform and to no application.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OwnNameStatus {
    /// A domain, or an address of a node.
    pub name: String,
    pub url: String,
    pub certificate: CertificateStatus,
}
