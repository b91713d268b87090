//! A chain and its private key: read, and refused with what is wrong with them. Nothing of the key
//! is in what is said.

use std::sync::Arc;

use model::Timestamp;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use thiserror::Error as ErrorText;

use crate::facts::Facts;

/// Certificates of a chain: the longest in use have four.
const CHAIN_LENGTH_MAX: usize = 10;

#[derive(Clone, Debug, PartialEq, Eq, ErrorText)]
pub enum PairError {
    #[error(
        "the chain has no certificate: a block between BEGIN CERTIFICATE and END CERTIFICATE is \
         expected"
    )]
    NoCertificate,
    #[error("the chain is not in PEM form: {0}")]
    NotPem(String),
    #[error("certificate {0} of the chain cannot be read")]
    Unreadable(usize),
    #[error("the chain has more than {CHAIN_LENGTH_MAX} certificates")]
    TooMany,
    #[error("there is no private key in PEM form; one behind a passphrase cannot be used")]
    NoKey,
    #[error("the key is not that of the certificate: give the pair that belongs together")]
    KeyMismatch,
    #[error("they cannot be used for TLS: {0}")]
    Unusable(String),
    #[error("the certificate expired at {0}: renew it")]
    Expired(String),
    #[error("the certificate is valid only from {0}: check the clock of this machine")]
    Early(String),
    #[error(
        "certificate {0} of the chain was not issued by the one behind it: put your own \
         certificate first, then the one that vouches for it, and so on"
    )]
    Disordered(usize),
    #[error("the first certificate is that of an authority: put your own first")]
    AuthorityFirst,
    #[error("certificate {0} of the chain expired at {1}: the authority has a newer one")]
    AuthorityExpired(usize, String),
}

/// Returns the first certificate of a chain in PEM form.
pub fn first(chain: &[u8]) -> Option<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(chain).next()?.ok()
}

/// A certificate with its chain and its key, ready to be shown to clients.
#[derive(Clone, Debug)]
pub struct Pair {
    pub key: Arc<CertifiedKey>,
    pub facts: Facts,
}

impl Pair {
    /// Reads both, in PEM form, and checks that they belong together.
    pub fn read(chain: &[u8], key: &[u8]) -> Result<Pair, PairError> {
        let (certificates, facts, private) = parts(chain, key)?;
        match CertifiedKey::from_der(certificates, private, &ring::default_provider()) {
            Ok(key) => Ok(Pair { key: Arc::new(key), facts }),
            Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
                Err(PairError::KeyMismatch)
            }
            Err(error) => Err(PairError::Unusable(error.to_string())),
        }
    }

    /// Reads both for an authority that asks by TLS-ALPN-01. Its certificate has a critical
    /// extension that nobody else understands (RFC 8737), so nothing else is read of it.
    pub fn read_challenge(certificate: &[u8], key: &[u8]) -> Result<Pair, PairError> {
        let (certificates, facts, private) = parts(certificate, key)?;
        let unusable = |error: Error| PairError::Unusable(error.to_string());
        let provider = ring::default_provider();
        let key = provider.key_provider.load_private_key(private).map_err(unusable)?;
        Ok(Pair { key: Arc::new(CertifiedKey::new(certificates, key)), facts })
    }

    /// Checks that the certificate is good at this time.
    pub fn check_time(&self, now: Timestamp) -> Result<(), PairError> {
        let Facts { not_before, not_after, .. } = self.facts;
        if now > not_after {
            return Err(PairError::Expired(not_after.date()));
        }
        if now < not_before {
            return Err(PairError::Early(not_before.date()));
        }
        Ok(())
    }

    /// Checks that each certificate of the chain was issued by the next one, which is an authority
    /// and has not expired. Strict clients refuse any other.
    pub fn check_order(&self, now: Timestamp) -> Result<(), PairError> {
        let facts = self.key.cert.iter().enumerate();
        let facts = facts.map(|(at, one)| Facts::read(one).ok_or(PairError::Unreadable(at + 1)));
        let facts: Vec<Facts> = facts.collect::<Result<_, _>>()?;
        if facts.len() > 1 && facts[0].is_authority && facts[0].names.is_empty() {
            return Err(PairError::AuthorityFirst);
        }
        for (at, pair) in facts.windows(2).enumerate() {
            if pair[0].issuer_bytes != pair[1].subject_bytes || !pair[1].is_authority {
                return Err(PairError::Disordered(at + 1));
            }
            if now > pair[1].not_after {
                return Err(PairError::AuthorityExpired(at + 2, pair[1].not_after.date()));
            }
        }
        Ok(())
    }
}

/// The certificates of a chain, what stands in the first, and its private key.
type Parts = (Vec<CertificateDer<'static>>, Facts, PrivateKeyDer<'static>);

fn parts(chain: &[u8], key: &[u8]) -> Result<Parts, PairError> {
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(chain)
        .take(CHAIN_LENGTH_MAX + 1)
        .collect::<Result<_, _>>()
        .map_err(|error| PairError::NotPem(error.to_string()))?;
    let own = certificates.first().ok_or(PairError::NoCertificate)?;
    if certificates.len() > CHAIN_LENGTH_MAX {
        return Err(PairError::TooMany);
    }
    let facts = Facts::read(own).ok_or(PairError::Unreadable(1))?;
    // What the parser says of a key may quote it.
    let private = PrivateKeyDer::from_pem_slice(key).map_err(|_| PairError::NoKey)?;
    Ok((certificates, facts, private))
}

#[cfg(test)]
mod tests;
