//! Certificates of the names that applications answer on, and what an authority needs to see before
//! it issues one. Their keys are `TypedKey::Certificate` and those that begin with `Acme`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::id::ApplicationName;
use crate::record::Unknown;
use crate::time::Timestamp;

/// Bytes of the longest name that DNS allows.
pub const DOMAIN_LENGTH_MAX: usize = 253;
/// Bytes of the longest part of such a name.
const LABEL_LENGTH_MAX: usize = 63;
/// Bytes of a chain in PEM form: a certificate for a hundred names and five authorities have less
/// than half of that.
pub const CHAIN_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a private key in PEM form: one of RSA with 16,384 bits has 13,000.
pub const KEY_BYTES_MAX: usize = 16 * 1024;
/// Names in a certificate: the most that public authorities put into one.
pub const NAMES_MAX: usize = 100;
/// Bytes of what an account of an authority consists of: its key, and a few addresses.
pub const CREDENTIALS_BYTES_MAX: usize = 16 * 1024;
/// Bytes of a token of a challenge and of a thumbprint; authorities make tokens of about 43.
pub const ACME_TOKEN_LENGTH_MAX: usize = 128;

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CertificateError {
    #[error("'{0}' is no name of a host: write for example 'shop.example.org'")]
    Name(String),
    #[error("{0} has more than {1} bytes")]
    TooLong(&'static str, usize),
    #[error("a certificate has at most {NAMES_MAX} names; this one has {0}")]
    TooManyNames(usize),
    #[error("{0} has other characters than the letters and digits of base64url")]
    NotBase64Url(&'static str),
}

/// A name of a host as clients send it, in lower case and without a final dot. `*.example.org`
/// stands for every name with one more label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DomainName(String);

impl DomainName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn is_wild(&self) -> bool {
        self.0.starts_with("*.")
    }

    /// Returns whether a certificate for this name is good for `host`, which is in lower case.
    pub fn covers(&self, host: &str) -> bool {
        match self.0.strip_prefix("*.") {
            None => self.0 == host,
            Some(rest) => host.split_once('.').is_some_and(|(label, after)| {
                !label.is_empty() && after == rest && (label != "*" || self.0 == host)
            }),
        }
    }
}

fn is_label(text: &str) -> bool {
    (1..=LABEL_LENGTH_MAX).contains(&text.len())
        && !text.starts_with('-')
        && !text.ends_with('-')
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_".contains(&b))
}

impl FromStr for DomainName {
    type Err = CertificateError;
    fn from_str(text: &str) -> Result<DomainName, CertificateError> {
        let plain = text.strip_prefix("*.").unwrap_or(text);
        let is_name = text.len() <= DOMAIN_LENGTH_MAX && plain.split('.').all(is_label);
        // What looks like an address is one, or a mistake.
        let last = plain.rsplit('.').next().unwrap_or_default();
        if is_name && !last.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(DomainName(text.into()));
        }
        Err(CertificateError::Name(text.escape_debug().take(80).collect()))
    }
}

impl TryFrom<String> for DomainName {
    type Error = CertificateError;
    fn try_from(text: String) -> Result<DomainName, CertificateError> {
        text.parse()
    }
}

impl From<DomainName> for String {
    fn from(name: DomainName) -> String {
        name.0
    }
}

impl fmt::Display for DomainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The subject of a certificate: the name of a host, or an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum CertificateName {
    Domain(DomainName),
    Address(IpAddr),
}

impl CertificateName {
    /// Returns the text that is a token of a key: an address of IPv6 is written in full, as `::`
    /// separates tokens.
    pub fn token(&self) -> String {
        match self {
            CertificateName::Address(IpAddr::V6(address)) => {
                address.segments().map(|segment| format!("{segment:x}")).join(":")
            }
            other => other.to_string(),
        }
    }

    /// Returns the name that a client asks for in its first message. Authorities ask for an address
    /// by the name that DNS has for it (RFC 8738, section 6).
    pub fn asked_for(name: &str) -> Option<CertificateName> {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        if let Some(digits) = name.strip_suffix(".in-addr.arpa") {
            let mut octets: Vec<&str> = digits.split('.').collect();
            octets.reverse();
            return octets.join(".").parse().ok().map(CertificateName::Address);
        }
        if let Some(digits) = name.strip_suffix(".ip6.arpa") {
            let digits = digits.split('.').rev().map(|digit| match digit.len() {
                1 => u128::from_str_radix(digit, 16).ok(),
                _ => None,
            });
            let digits: Vec<u128> = digits.collect::<Option<_>>()?;
            let whole = digits.iter().fold(0, |sum, digit| (sum << 4) | digit);
            let address = IpAddr::V6(Ipv6Addr::from_bits(whole));
            return (digits.len() == 32).then_some(CertificateName::Address(address));
        }
        name.parse().ok().map(CertificateName::Domain)
    }

    pub fn domain(&self) -> Option<&DomainName> {
        match self {
            CertificateName::Domain(domain) => Some(domain),
            CertificateName::Address(_) => None,
        }
    }

    /// Returns whether a certificate for this name is good for a host: a name in lower case, or an
    /// address, in brackets if it is one of IPv6.
    pub fn covers(&self, host: &str) -> bool {
        match self {
            CertificateName::Domain(domain) => domain.covers(host),
            CertificateName::Address(address) => address_of(host) == Some(*address),
        }
    }
}

/// Returns the address that a `Host` without a port is.
pub fn address_of(host: &str) -> Option<IpAddr> {
    match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(inner) => inner.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => host.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
    }
}

impl FromStr for CertificateName {
    type Err = CertificateError;
    fn from_str(text: &str) -> Result<CertificateName, CertificateError> {
        match text.parse::<IpAddr>() {
            Ok(address) => Ok(CertificateName::Address(address.to_canonical())),
            Err(_) => text.parse().map(CertificateName::Domain),
        }
    }
}

impl TryFrom<String> for CertificateName {
    type Error = CertificateError;
    fn try_from(text: String) -> Result<CertificateName, CertificateError> {
        text.parse()
    }
}

impl From<CertificateName> for String {
    fn from(name: CertificateName) -> String {
        name.to_string()
    }
}

impl fmt::Display for CertificateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CertificateName::Domain(domain) => f.pad(domain.as_str()),
            CertificateName::Address(address) => f.pad(&address.to_string()),
        }
    }
}

/// Text that nobody is to see: it shows nothing of itself where its owner is printed.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretText(String);

impl SecretText {
    /// Returns the text itself, for whoever uses it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for SecretText {
    fn from(text: String) -> SecretText {
        SecretText(text)
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// `cert::NAME`: the certificate that clients get who ask for this name, and for no other one of
/// those in it. Written by whoever orders it, and by the command that takes one from a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    pub v: u32,
    /// The certificate, then those of the authorities that vouch for it, in PEM form.
    pub chain: String,
    /// Its private key in PEM form.
    pub key: SecretText,
    pub source: CertificateSource,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    /// All names that it is good for.
    pub names: Vec<CertificateName>,
    /// The application whose people brought it. It is given to clients as long as the name is that
    /// application's; one without an owner to clients of whoever has the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<CertificateOwner>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// An application is known by its name and the time when it was made, as in `people::Scope`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateOwner {
    pub application: ApplicationName,
    pub created_at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum CertificateSource {
    /// An authority issued it for this cluster; `by` is the URL of its directory.
    Issued { by: String },
    /// A person brought it.
    Uploaded,
    /// The cluster's own authority signed it.
    Cluster,
    /// Some way that a later build knows.
    #[serde(other)]
    Other,
}

impl Certificate {
    /// Checks the sizes, which readers do as well: values in the store are hostile input.
    pub fn check_sizes(&self) -> Result<(), CertificateError> {
        check_pair(&self.chain, &self.key)?;
        match self.names.len() {
            count if count > NAMES_MAX => Err(CertificateError::TooManyNames(count)),
            _ => Ok(()),
        }
    }
}

fn check_pair(chain: &str, key: &SecretText) -> Result<(), CertificateError> {
    if chain.len() > CHAIN_BYTES_MAX {
        return Err(CertificateError::TooLong("the chain", CHAIN_BYTES_MAX));
    }
    if key.expose().len() > KEY_BYTES_MAX {
        return Err(CertificateError::TooLong("the private key", KEY_BYTES_MAX));
    }
    Ok(())
}

/// `acme::account`: the cluster's account at an authority. With its thumbprint alone every node
/// answers the challenges of HTTP-01.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcmeAccount {
    pub v: u32,
    /// The URL of the authority's directory.
    pub directory: String,
    /// What the client of the protocol keeps of it, with its key; a JSON text.
    pub credentials: SecretText,
    /// The thumbprint of the account's key (RFC 8555, section 8.1), in base64url.
    pub thumbprint: String,
    /// The address at which the authority writes to a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contact: Option<String>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl AcmeAccount {
    pub fn check_sizes(&self) -> Result<(), CertificateError> {
        if self.credentials.expose().len() > CREDENTIALS_BYTES_MAX {
            return Err(CertificateError::TooLong("the account", CREDENTIALS_BYTES_MAX));
        }
        check_acme_token("the thumbprint", &self.thumbprint)
    }
}

/// Checks that a token of a challenge, or a thumbprint, is a short word of base64url.
pub fn check_acme_token(what: &'static str, token: &str) -> Result<(), CertificateError> {
    if token.len() > ACME_TOKEN_LENGTH_MAX {
        return Err(CertificateError::TooLong(what, ACME_TOKEN_LENGTH_MAX));
    }
    match is_base64url(token.as_bytes()) {
        true => Ok(()),
        false => Err(CertificateError::NotBase64Url(what)),
    }
}

/// Returns whether these are letters and digits of base64url, without padding, and at least one.
pub fn is_base64url(token: &[u8]) -> bool {
    !token.is_empty() && token.iter().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(b))
}

/// `acme::challenge::NAME`: what an authority gets that asks for this name by TLS-ALPN-01. Written
/// by the node that orders, which deletes it; nobody gives it after it has expired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcmeChallenge {
    pub v: u32,
    /// The certificate with the extension `acmeIdentifier` (RFC 8737), in PEM form.
    pub certificate: String,
    pub key: SecretText,
    pub expires_at: Timestamp,
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl AcmeChallenge {
    pub fn check_sizes(&self) -> Result<(), CertificateError> {
        check_pair(&self.certificate, &self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record;

    fn name(text: &str) -> CertificateName {
        text.parse().unwrap()
    }

    #[test]
    fn names_are_checked() {
        for good in ["a.example", "*.example.org", "localhost", "192.0.2.7", "2001:db8::7", "a_b.c"]
        {
            assert_eq!(name(good).to_string(), good);
        }
        for bad in ["", "A.example", "*", "*.", "a..b", ".a", "a.", "-a.b", "a*.b", "1.2.3", "ä.b"]
        {
            assert!(bad.parse::<CertificateName>().is_err(), "{bad}");
        }
        assert!(format!("{}.org", "a.".repeat(125)).parse::<DomainName>().is_err());
        assert_eq!(name("::ffff:192.0.2.7"), name("192.0.2.7"));
    }

    #[test]
    fn a_star_is_one_label() {
        let wild: DomainName = "*.example.org".parse().unwrap();
        assert!(wild.covers("a.example.org") && wild.covers("*.example.org"));
        for other in ["example.org", "a.b.example.org", ".example.org", "aexample.org", "a.b.org"] {
            assert!(!wild.covers(other), "{other}");
        }
        assert!(name("192.0.2.7").covers("192.0.2.7") && !name("192.0.2.7").covers("a.b"));
        assert!(name("2001:db8::7").covers("[2001:db8::7]"));
        assert!(!name("2001:db8::7").covers("2001:db8::7"));
    }

    #[test]
    fn addresses_are_asked_for_by_their_reverse_names() {
        let asked = |text: &str| CertificateName::asked_for(text);
        assert_eq!(asked("7.2.0.192.in-addr.arpa"), Some(name("192.0.2.7")));
        let digits = "7.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2";
        assert_eq!(asked(&format!("{digits}.ip6.arpa")), Some(name("2001:db8::7")));
        assert_eq!(asked("Shop.Example."), Some(name("shop.example")));
        for bad in ["7.2.in-addr.arpa", "7.ip6.arpa", "x.in-addr.arpa", "", "a b"] {
            assert!(asked(bad).is_none_or(|name| name.domain().is_some()), "{bad}");
        }
    }

    #[test]
    fn records_are_read_again_and_secrets_are_not_shown() {
        let text = r#"{"v":1,"chain":"C","key":"CANARY","source":{"kind":"issued","by":"https://x"},
            "not_before":1,"not_after":2,"names":["a.example","192.0.2.7"],"later":true}"#;
        let read: Certificate = record::decode(text.as_bytes()).unwrap();
        assert_eq!(read.source, CertificateSource::Issued { by: "https://x".into() });
        assert_eq!(read.key.expose(), "CANARY");
        assert!(!format!("{read:?}").contains("CANARY"));
        assert_eq!(record::decode::<Certificate>(&record::encode(&read)).unwrap(), read);
        assert!(read.unknown.contains_key("later"));
        let later = text.replace(r#""issued","by":"https://x""#, r#""moon""#);
        let later: Certificate = record::decode(later.as_bytes()).unwrap();
        assert_eq!(later.source, CertificateSource::Other);
    }

    #[test]
    fn what_is_too_large_is_refused() {
        let account = |thumbprint: &str| AcmeAccount {
            v: 1,
            directory: String::new(),
            credentials: SecretText::default(),
            thumbprint: thumbprint.into(),
            contact: None,
            unknown: Unknown::new(),
        };
        account("aZ0-_").check_sizes().unwrap();
        for bad in ["", "a.b", "a/b", "a\r\n", "a=", &"a".repeat(129)] {
            assert!(account(bad).check_sizes().is_err(), "{bad}");
        }
    }
}
