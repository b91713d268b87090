//! What of a certificate that was issued the orders must know.

use acme_core::{Facts, Problem, kind};
use instant_acme::CertificateIdentifier;
use model::CertificateName;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, Der};

/// Reads the first certificate of a chain in PEM form, which must be good for the name.
pub fn read(chain: &str, name: &CertificateName) -> Result<(Facts, Vec<CertificateName>), Problem> {
    let unusable = |what: &str| Problem::new(kind::UNUSABLE, what);
    let first = CertificateDer::pem_slice_iter(chain.as_bytes()).next();
    let Some(Ok(first)) = first else { return Err(unusable("what was sent is no certificate")) };
    let known = certificate_core::facts::Facts::read(&first);
    let known = known.ok_or_else(|| unusable("the certificate cannot be read"))?;
    if !known.names.contains(name) {
        return Err(unusable("the certificate is for another name"));
    }
    let id = known.authority_key.as_deref().zip(known.serial.as_deref()).map(|(key, serial)| {
        CertificateIdentifier::new(Der::from_slice(key), Der::from_slice(serial)).to_string()
    });
    let facts = Facts { not_before: known.not_before, not_after: known.not_after, id };
    Ok((facts, known.names))
}
