//! What the orders must know of a certificate that was issued.

use acme_core::{Facts, Problem, kind};
use certificate_core::pair::Pair;
use model::certificate::{Certificate, CertificateSource, SecretText};
use model::record::{RECORD_VERSION, Unknown};
use model::{CertificateName, Timestamp};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

use crate::ordering::certificate_id;

/// Reads the first certificate of a chain in PEM form.
pub fn facts(chain: &str) -> Option<Facts> {
    let first = CertificateDer::pem_slice_iter(chain.as_bytes()).next()?.ok()?;
    let known = certificate_core::facts::Facts::read(&first)?;
    let id = known.authority_key.map(|key| certificate_id(&key, &known.serial));
    Some(Facts { not_before: known.not_before, not_after: known.not_after, id })
}

/// Makes the record of a certificate that an authority gave out for this name, and checks it: what
/// no client could use must not replace one that is good.
pub fn record(
    chain: String,
    key: &SecretText,
    name: &CertificateName,
    directory: &str,
    now: Timestamp,
) -> Result<(Certificate, Facts), Problem> {
    let unusable = |what: String| Problem::new(kind::UNUSABLE, &what);
    let pair = Pair::read(chain.as_bytes(), key.expose().as_bytes());
    let pair = pair.map_err(|error| unusable(error.to_string()))?;
    pair.check_time(now).map_err(|error| unusable(error.to_string()))?;
    if !pair.facts.names.contains(name) {
        return Err(unusable("the certificate is for another name".into()));
    }
    let facts = facts(&chain).ok_or_else(|| unusable("it cannot be read".into()))?;
    let certificate = Certificate {
        v: RECORD_VERSION,
        chain,
        key: key.clone(),
        source: CertificateSource::Issued { by: directory.into() },
        not_before: pair.facts.not_before,
        not_after: pair.facts.not_after,
        names: pair.facts.names,
        owner: None,
        unknown: Unknown::new(),
    };
    certificate.check_sizes().map_err(|error| unusable(error.to_string()))?;
    Ok((certificate, facts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};

    #[test]
    fn a_certificate_is_checked_before_it_is_kept() {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["a.example".into()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2025, 1, 1);
        params.not_after = rcgen::date_time_ymd(2035, 1, 1);
        let chain = params.self_signed(&key).unwrap().pem();
        let now = Timestamp(1_800_000_000_000);
        let name = |text: &str| text.parse::<CertificateName>().unwrap();
        let pem = SecretText::from(key.serialize_pem());
        let made = record(chain.clone(), &pem, &name("a.example"), "https://ca", now).unwrap();
        assert_eq!(made.0.names, [name("a.example")]);
        record(chain.clone(), &pem, &name("b.example"), "https://ca", now).unwrap_err();
        record(chain.clone(), &pem, &name("a.example"), "https://ca", Timestamp(1)).unwrap_err();
        let other = SecretText::from(KeyPair::generate().unwrap().serialize_pem());
        record(chain, &other, &name("a.example"), "https://ca", now).unwrap_err();
    }
}
