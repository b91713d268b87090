//! Certificates as people bring and see them. A private key travels one way only.

use model::certificate::SecretText;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A certificate of one's own.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CertificateUpload {
    /// The certificate, then those of the authorities that vouch for it, in PEM form.
    pub chain: String,
    /// Its private key in PEM form.
    #[schemars(with = "String")]
    pub key: SecretText,
}

/// The certificate that clients get who ask for one name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CertificateRow {
    pub name: String,
    /// The application that the name belongs to, if any.
    pub application: Option<String>,
    /// All names in the certificate.
    pub names: Vec<String>,
    pub issuer: String,
    /// The way it came here: `uploaded`, `issued by` a directory, `the cluster`.
    pub source: String,
    pub not_before: String,
    pub not_after: String,
    /// Whether clients get it: `served`, or why not.
    pub state: String,
    /// The BLAKE3 of the chain, by which nodes compare what they hold.
    pub fingerprint: String,
    /// The nodes that hold it.
    pub held_by: Vec<String>,
    /// The nodes that hold another one or none, with what is known.
    pub missing_on: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CertificatesShown {
    pub certificates: Vec<CertificateRow>,
    /// Remarks about a change, for the user.
    #[serde(default)]
    pub notes: Vec<String>,
}
