//! The certificates that the cluster's records hold, as the router's threads need them: an
//! immutable snapshot, which the router's control task makes and swaps. It also has what an
//! authority is answered that asks whether a name leads here.

use std::collections::BTreeMap;
use std::sync::Arc;

use certificate_core::facts::Facts;
use certificate_core::pair::Pair;
use certificate_core::shelf::Shelf;
use model::certificate::{
    ACME_TOKEN_LENGTH_MAX, AcmeAccount, AcmeChallenge, CertificateOwner, is_base64url,
};
use model::record;
use model::{Certificate, CertificateName, Key, Timestamp, TypedKey};
use rustls::sign::CertifiedKey;
use serde::de::DeserializeOwned;

/// The path below which HTTP-01 asks (RFC 8555, section 8.3).
pub const CHALLENGE_PATH: &[u8] = b"/.well-known/acme-challenge/";

/// A certificate with what decides whether a client gets it.
#[derive(Clone, Debug)]
pub struct ServedCertificate {
    pub key: Arc<CertifiedKey>,
    pub names: Arc<[CertificateName]>,
    not_before: Timestamp,
    not_after: Timestamp,
}

impl ServedCertificate {
    pub fn new(pair: &Pair) -> ServedCertificate {
        let Facts { names, not_before, not_after, .. } = &pair.facts;
        ServedCertificate {
            key: pair.key.clone(),
            names: names.as_slice().into(),
            not_before: *not_before,
            not_after: *not_after,
        }
    }

    pub fn is_valid(&self, now: Timestamp) -> bool {
        (self.not_before..=self.not_after).contains(&now)
    }

    /// Returns whether it is good for a host: a name in lower case, or an address.
    pub fn covers(&self, host: &str) -> bool {
        self.names.iter().any(|name| name.covers(host))
    }
}

/// The snapshot.
#[derive(Debug, Default)]
pub struct Certificates {
    pub served: Shelf<Arc<ServedCertificate>>,
    /// The certificate for clients that ask for no name: that of an address.
    pub of_address: Option<Arc<ServedCertificate>>,
    challenges: BTreeMap<CertificateName, Arc<(Arc<CertifiedKey>, Timestamp)>>,
    answer: Option<AcmeAnswer>,
}

/// The answer to HTTP-01, which is the same on every node.
#[derive(Clone, Debug)]
struct AcmeAnswer {
    thumbprint: Arc<str>,
}

impl Certificates {
    /// Returns what an authority is shown that asks for this name by TLS-ALPN-01.
    pub fn challenge(&self, asked: &str, now: Timestamp) -> Option<Arc<CertifiedKey>> {
        let challenge = self.challenges.get(&CertificateName::asked_for(asked)?)?;
        (now <= challenge.1).then(|| challenge.0.clone())
    }

    /// Returns what a request for this path is answered, if it is one of HTTP-01 and there is an
    /// account.
    pub fn answer(&self, target: &[u8]) -> Option<String> {
        let token = target.strip_prefix(CHALLENGE_PATH)?;
        let AcmeAnswer { thumbprint } = self.answer.as_ref()?;
        if token.len() > ACME_TOKEN_LENGTH_MAX || !is_base64url(token) {
            return None;
        }
        Some(format!("{}.{thumbprint}", std::str::from_utf8(token).ok()?))
    }
}

/// The records that the snapshot is made from; driven by the control task.
#[derive(Debug, Default)]
pub struct CertificateBook {
    certificates: BTreeMap<CertificateName, BookedCertificate>,
    challenges: BTreeMap<CertificateName, Arc<(Arc<CertifiedKey>, Timestamp)>>,
    answer: Option<AcmeAnswer>,
}

#[derive(Debug)]
struct BookedCertificate {
    served: Arc<ServedCertificate>,
    owner: Option<CertificateOwner>,
}

impl CertificateBook {
    /// Returns whether the value of this key is read here.
    pub fn wants(key: &Key) -> bool {
        TypedKey::parse(key).is_some_and(|key| Self::is_wanted(&key))
    }

    fn is_wanted(key: &TypedKey) -> bool {
        let of_challenge = matches!(key, TypedKey::AcmeAccount | TypedKey::AcmeChallenge(_));
        of_challenge || matches!(key, TypedKey::Certificate(_))
    }

    /// Takes note of a record, or of its end; returns whether it was one of these. What cannot be
    /// read is reported, without its content, and what was known goes on.
    pub fn apply(&mut self, key: &Key, record: Option<&[u8]>) -> bool {
        // Nearly all keys that come by are of something else.
        if !key.tokens().next().is_some_and(|first| matches!(first, "cert" | "acme")) {
            return false;
        }
        let Some(typed) = TypedKey::parse(key).filter(Self::is_wanted) else { return false };
        if let Err(why) = self.note(typed, record) {
            tracing::warn!(%key, why, "router.certificate_unusable");
        }
        true
    }

    fn note(&mut self, key: TypedKey, record: Option<&[u8]>) -> Result<(), String> {
        match (key, record) {
            (TypedKey::Certificate(name), None) => drop(self.certificates.remove(&name)),
            (TypedKey::Certificate(name), Some(record)) => {
                let record: Certificate = read(record)?;
                record.check_sizes().map_err(|error| error.to_string())?;
                let served = Arc::new(ServedCertificate::new(&pair(&record.chain, &record.key)?));
                let owner = record.owner;
                self.certificates.insert(name, BookedCertificate { served, owner });
            }
            (TypedKey::AcmeChallenge(name), None) => drop(self.challenges.remove(&name)),
            (TypedKey::AcmeChallenge(name), Some(record)) => {
                let record: AcmeChallenge = read(record)?;
                record.check_sizes().map_err(|error| error.to_string())?;
                let (shown, key) = (record.certificate.as_bytes(), record.key.expose().as_bytes());
                let pair = Pair::read_challenge(shown, key).map_err(|error| error.to_string())?;
                let key = pair.key;
                self.challenges.insert(name, Arc::new((key, record.expires_at)));
            }
            (TypedKey::AcmeAccount, None) => self.answer = None,
            (TypedKey::AcmeAccount, Some(record)) => {
                let record: AcmeAccount = read(record)?;
                record.check_sizes().map_err(|error| error.to_string())?;
                self.answer = Some(AcmeAnswer { thumbprint: record.thumbprint.into() });
            }
            _ => {}
        }
        Ok(())
    }

    /// Makes the snapshot. `owns` says whether a name leads to the application that brought a
    /// certificate for it; `here` whether an address is this node's.
    pub fn snapshot(
        &self,
        owns: impl Fn(&str, &CertificateOwner) -> bool,
        here: impl Fn(std::net::IpAddr) -> bool,
    ) -> Certificates {
        let mut served = Shelf::default();
        let (mut of_address, mut is_here) = (None, false);
        for (name, booked) in &self.certificates {
            if let CertificateName::Address(address) = name {
                // Behind a gate that translates addresses, none looks like this node's.
                if !is_here {
                    is_here = here(*address);
                    if is_here || of_address.is_none() {
                        of_address = Some(booked.served.clone());
                    }
                }
                continue;
            }
            let name = name.to_string();
            if booked.owner.as_ref().is_none_or(|owner| owns(&name, owner)) {
                served.offer(name, booked.served.clone());
            }
        }
        let (challenges, answer) = (self.challenges.clone(), self.answer.clone());
        Certificates { served, of_address, challenges, answer }
    }

    /// Returns whether a change of who has which name can change anything.
    pub fn has_owners(&self) -> bool {
        self.certificates.values().any(|booked| booked.owner.is_some())
    }
}

/// Reads a record. What is wrong with it is not said: that might quote it.
fn read<T: DeserializeOwned>(record: &[u8]) -> Result<T, String> {
    record::decode(record).map_err(|_| "it is no record of its kind".into())
}

fn pair(chain: &str, key: &model::certificate::SecretText) -> Result<Pair, String> {
    Pair::read(chain.as_bytes(), key.expose().as_bytes()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
