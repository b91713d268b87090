//! Pairs that are good, and what is said of others.

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair,
    PKCS_ECDSA_P384_SHA384, PKCS_ED25519,
};
use time::{Duration, OffsetDateTime};

use super::*;

/// A time within the validity of what is made here.
const NOW: Timestamp = Timestamp(1_800_000_000_000);

struct Made {
    certificate: Certificate,
    params: CertificateParams,
    key: KeyPair,
}

impl Made {
    fn new(names: &[&str], by: Option<&Made>, change: impl FnOnce(&mut CertificateParams)) -> Made {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = match by {
            None => params.self_signed(&key),
            Some(by) => params.signed_by(&key, &Issuer::from_params(&by.params, &by.key)),
        };
        Made { certificate: certificate.unwrap(), params, key }
    }

    fn authority(name: &str, by: Option<&Made>) -> Made {
        Made::new(&[], by, |params| {
            params.distinguished_name.push(DnType::CommonName, name);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        })
    }
}

fn chain(of: &[&Made]) -> String {
    of.iter().map(|one| one.certificate.pem()).collect()
}

fn read(chain: &str, key: &KeyPair) -> Result<Pair, PairError> {
    Pair::read(chain.as_bytes(), key.serialize_pem().as_bytes())
}

#[test]
fn a_chain_in_order_is_good() {
    let root = Made::authority("root", None);
    let middle = Made::authority("middle", Some(&root));
    let own = Made::new(&["a.example"], Some(&middle), |_| ());
    for of in [&[&own, &middle, &root][..], &[&own, &middle], &[&own]] {
        let pair = read(&chain(of), &own.key).unwrap();
        assert_eq!(pair.facts.issuer, "middle");
        pair.check_order(NOW).unwrap();
        pair.check_time(NOW).unwrap();
    }
    for (of, expected) in [
        (&[&own, &root, &middle][..], PairError::Disordered(1)),
        (&[&own, &own], PairError::Disordered(1)),
        (&[&own, &middle, &own], PairError::Disordered(2)),
    ] {
        let pair = read(&chain(of), &own.key).unwrap();
        assert_eq!(pair.check_order(NOW), Err(expected));
    }
    let pair = read(&chain(&[&middle, &own]), &middle.key).unwrap();
    assert_eq!(pair.check_order(NOW), Err(PairError::AuthorityFirst));
}

#[test]
fn keys_of_several_kinds_are_read() {
    for algorithm in [&PKCS_ED25519, &PKCS_ECDSA_P384_SHA384] {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        read(&params.self_signed(&key).unwrap().pem(), &key).unwrap();
    }
}

#[test]
fn what_is_wrong_is_said_without_the_key() {
    let (own, other) = (Made::new(&["a.example"], None, |_| ()), Made::new(&[], None, |_| ()));
    let pem = own.certificate.pem();
    let refused = |chain: &str, key: &str| {
        let error = Pair::read(chain.as_bytes(), key.as_bytes()).unwrap_err();
        for line in key.lines().filter(|line| line.len() > 20 && !line.starts_with('-')) {
            assert!(!format!("{error:?}{error}").contains(line), "{error:?}");
        }
        error
    };
    let key = own.key.serialize_pem();
    assert_eq!(refused(&pem, &other.key.serialize_pem()), PairError::KeyMismatch);
    assert_eq!(refused("", &key), PairError::NoCertificate);
    assert_eq!(refused(&key, &pem), PairError::NoCertificate);
    assert_eq!(refused(&pem, ""), PairError::NoKey);
    assert_eq!(refused(&pem, &pem), PairError::NoKey);
    assert_eq!(refused(&pem, &key.replace("PRIVATE", "ENCRYPTED PRIVATE")), PairError::NoKey);
    assert_eq!(refused(&pem.repeat(11), &key), PairError::TooMany);
    let nonsense = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert_eq!(refused(nonsense, &key), PairError::Unreadable(1));
    let odd = "-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----\n";
    assert!(matches!(refused(odd, &key), PairError::NotPem(_)));
    let damaged = key.replacen("MI", "AA", 1);
    assert!(matches!(refused(&pem, &damaged), PairError::Unusable(_) | PairError::NoKey));
}

/// Others may not know the extension and have to refuse it, being critical.
#[test]
fn a_challenge_is_read_that_is_no_certificate_for_anything_else() {
    let challenge = Made::new(&["a.example"], None, |params| {
        params.custom_extensions = vec![rcgen::CustomExtension::new_acme_identifier(&[7; 32])];
    });
    let (pem, key) = (challenge.certificate.pem(), challenge.key.serialize_pem());
    Pair::read_challenge(pem.as_bytes(), key.as_bytes()).unwrap();
    let read = Pair::read(pem.as_bytes(), key.as_bytes());
    assert!(matches!(read, Err(PairError::Unusable(_))), "{read:?}");
}

#[test]
fn time_decides() {
    let now = OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap();
    let old = Made::new(&[], None, |params| params.not_after = now - Duration::DAY);
    let old = read(&chain(&[&old]), &old.key).unwrap();
    let expected = PairError::Expired("2027/01/14 08:00:00".into());
    assert_eq!(old.check_time(NOW), Err(expected));
    let early = Made::new(&[], None, |params| params.not_before = now + Duration::DAY);
    let early = read(&chain(&[&early]), &early.key).unwrap();
    assert!(matches!(early.check_time(NOW), Err(PairError::Early(_))));
    let root = Made::new(&[], None, |params| {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_after = now - Duration::DAY;
    });
    let own = Made::new(&["a.example"], Some(&root), |_| ());
    let pair = read(&chain(&[&own, &root]), &own.key).unwrap();
    assert!(matches!(pair.check_order(NOW), Err(PairError::AuthorityExpired(2, _))));
}
