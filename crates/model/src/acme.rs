//! What the nodes of a cluster tell each other while one of them orders certificates, and what a
//! person agreed to. The certificates themselves and the account are in `certificate`.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::certificate::SecretText;
use crate::id::NodeId;
use crate::record::{RECORD_VERSION, Unknown};
use crate::time::Timestamp;

/// `acme::settings`: which authority issues certificates for this cluster, and that a person agreed
/// to its terms. Without it nothing is ordered and no account is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcmeSettings {
    pub v: u32,
    /// The URL of the authority's directory.
    pub directory: String,
    /// The address at which the authority writes to a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contact: Option<String>,
    /// The certificates that vouch for the authority's own server, in PEM form; `None` for those
    /// that the machine trusts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roots: Option<String>,
    /// The profile that certificates are ordered with, of those that the authority offers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// What ties the new account to one that a person has with the authority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<AccountBinding>,
    /// The program that makes a record in DNS and takes it away, on every node that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns_hook: Option<String>,
    pub agreed_at: Timestamp,
    /// The one who agreed: a user, or the machine's owner.
    pub agreed_by: String,
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl AcmeSettings {
    /// Returns what stays of the settings when a person agrees to this authority: all if it is the
    /// same one. What was said of another does not hold for it, but for the program for DNS.
    pub fn agreed(
        known: Option<AcmeSettings>,
        directory: String,
        at: Timestamp,
        by: impl Into<String>,
    ) -> AcmeSettings {
        match known {
            Some(known) if known.directory == directory => known,
            other => AcmeSettings {
                v: RECORD_VERSION,
                directory,
                contact: None,
                roots: None,
                profile: None,
                binding: None,
                dns_hook: other.and_then(|other| other.dns_hook),
                agreed_at: at,
                agreed_by: by.into(),
                unknown: Unknown::new(),
            },
        }
    }
}

/// An external account binding (RFC 8555, section 7.3.4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountBinding {
    pub key_id: String,
    /// The key of the message authentication code, in base64url as authorities hand it out.
    pub hmac_key: SecretText,
}

/// `acme::registration`: why there is no account yet although a person agreed. Deleted when there
/// is one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcmeRegistration {
    pub v: u32,
    pub error: AcmeError,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// An error of an authority in its own words, or of what stands in its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcmeError {
    /// The last word of the type of the problem (RFC 8555, section 6.7), such as `rateLimited`, or
    /// one of Cortex's own.
    pub kind: String,
    pub detail: String,
    pub at: Timestamp,
    /// The node that met it.
    pub node: NodeId,
}

/// `acme::order::NAME`: the order for a certificate of this name, and what became of the last ones.
/// Written by the node that claims it: whoever reads that another node claimed it leaves it alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcmeOrder {
    pub v: u32,
    /// The node that claimed it last.
    pub node: NodeId,
    pub claimed_at: Timestamp,
    /// Whether that node is at it.
    pub active: bool,
    /// The order's URL at the authority, once it is made: another node can finish it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The private key of the certificate that was ordered, in PEM form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<SecretText>,
    /// The times of the orders of the last week, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orders: Vec<Timestamp>,
    /// The times of the certificates of the last week.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub issued: Vec<Timestamp>,
    /// The times of the failures of the last hour.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<Timestamp>,
    /// The failures since the last certificate.
    #[serde(default)]
    pub failures: u32,
    /// The time before which nothing is tried.
    #[serde(default)]
    pub rest_until: Timestamp,
    /// The kind of challenge that was tried last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub challenge: Option<String>,
    /// The last error, until a certificate comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<AcmeError>,
    /// The time in which the authority wants the certificate to be renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewal: Option<RenewalWindow>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// The window that the authority suggests (RFC 9773).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewalWindow {
    /// The certificate that it is for: the identifier of its authority's key and its serial number.
    pub certificate: String,
    pub start: Timestamp,
    pub end: Timestamp,
    /// The page on which the authority says why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explanation: Option<String>,
}

/// `node::ID::public`: the addresses at which strangers reach that node, for which it wants
/// certificates. Written by it at each start; deleted if it does not ask for any.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublicAddresses {
    pub v: u32,
    pub addresses: Vec<IpAddr>,
    #[serde(flatten)]
    pub unknown: Unknown,
}
