//! Records that become a snapshot.

use model::certificate::{CertificateSource, SecretText};
use model::record::Unknown;
use serde::Serialize;

use super::*;

/// Returns a record of a certificate for these names.
fn certificate(names: &[&str], owner: Option<CertificateOwner>) -> Certificate {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let made = rcgen::generate_simple_self_signed(names.clone()).unwrap();
    Certificate {
        v: 1,
        chain: made.cert.pem(),
        key: SecretText::from(made.signing_key.serialize_pem()),
        source: CertificateSource::Uploaded,
        not_before: Timestamp(0),
        not_after: Timestamp(u64::MAX),
        names: names.iter().map(|name| name.parse().unwrap()).collect(),
        owner,
        unknown: Unknown::new(),
    }
}

fn put<T: Serialize>(book: &mut CertificateBook, key: TypedKey, record: &T) {
    assert!(book.apply(&key.key(), Some(&record::encode(record))));
}

fn key(name: &str) -> TypedKey {
    TypedKey::Certificate(name.parse().unwrap())
}

fn snapshot(book: &CertificateBook) -> Certificates {
    book.snapshot(|_, owner| owner.application.as_str() == "shop", |_| false)
}

#[test]
fn a_certificate_is_given_for_the_name_of_its_key_alone() {
    let mut book = CertificateBook::default();
    put(&mut book, key("a.example"), &certificate(&["a.example", "b.example"], None));
    let made = snapshot(&book);
    assert!(made.served.has("a.example") && !made.served.has("b.example"));
    book.apply(&key("a.example").key(), None);
    assert!(snapshot(&book).served.is_empty());
}

#[test]
fn what_cannot_be_used_changes_nothing() {
    let mut book = CertificateBook::default();
    let good = certificate(&["a.example"], None);
    put(&mut book, key("a.example"), &good);
    let before = snapshot(&book).served.find("a.example").unwrap().key.clone();
    let other = certificate(&["a.example"], None);
    let mixed = Certificate { key: other.key, ..good };
    put(&mut book, key("a.example"), &mixed);
    book.apply(&key("a.example").key(), Some(b"{}"));
    let after = snapshot(&book).served.find("a.example").unwrap().key.clone();
    assert!(Arc::ptr_eq(&before, &after));
}

#[test]
fn what_somebody_brought_is_given_where_the_name_is_theirs() {
    let of = |name: &str| {
        let application = name.parse().unwrap();
        Some(CertificateOwner { application, created_at: Timestamp(1) })
    };
    let mut book = CertificateBook::default();
    put(&mut book, key("a.example"), &certificate(&["a.example"], of("shop")));
    put(&mut book, key("b.example"), &certificate(&["b.example"], of("other")));
    assert!(book.has_owners());
    let made = snapshot(&book);
    assert!(made.served.has("a.example") && !made.served.has("b.example"));
}

#[test]
fn an_address_of_this_node_counts_before_others() {
    let mut book = CertificateBook::default();
    for address in ["192.0.2.1", "192.0.2.2", "192.0.2.3"] {
        put(&mut book, key(address), &certificate(&[address], None));
    }
    let of = |here: &str| {
        let here: std::net::IpAddr = here.parse().unwrap();
        let made = book.snapshot(|_, _| true, |address| address == here);
        made.of_address.unwrap().names[0].to_string()
    };
    assert_eq!(of("192.0.2.2"), "192.0.2.2");
    assert_eq!(of("10.0.0.1"), "192.0.2.1");
}

#[test]
fn challenges_are_answered_from_the_account_alone() {
    let mut book = CertificateBook::default();
    let path = |token: &str| format!("/.well-known/acme-challenge/{token}").into_bytes();
    assert_eq!(snapshot(&book).answer(&path("abc")), None);
    let mut account = AcmeAccount {
        v: 1,
        directory: "https://acme.example/directory".into(),
        credentials: SecretText::default(),
        thumbprint: "the-thumb_print".into(),
        contact: None,
        unknown: Unknown::new(),
    };
    put(&mut book, TypedKey::AcmeAccount, &account);
    let made = snapshot(&book);
    assert_eq!(made.answer(&path("aZ0-_")).as_deref(), Some("aZ0-_.the-thumb_print"));
    for bad in ["", "a.b", "a?b", "a/b", "%41", "a b", &"a".repeat(129)] {
        assert_eq!(made.answer(&path(bad)), None, "{bad}");
    }
    assert_eq!(made.answer(b"/other/abc"), None);
    account.thumbprint = "x\r\nSet-Cookie: a=b".into();
    put(&mut book, TypedKey::AcmeAccount, &account);
    assert_eq!(snapshot(&book).answer(&path("a")).as_deref(), Some("a.the-thumb_print"));
    book.apply(&TypedKey::AcmeAccount.key(), None);
    assert_eq!(snapshot(&book).answer(&path("a")), None);
}

#[test]
fn a_challenge_is_shown_until_it_expires() {
    let mut book = CertificateBook::default();
    let mut params = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
    params.custom_extensions = vec![rcgen::CustomExtension::new_acme_identifier(&[7; 32])];
    let key = rcgen::KeyPair::generate().unwrap();
    let chain = params.self_signed(&key).unwrap().pem();
    let key = SecretText::from(key.serialize_pem());
    let expires_at = Timestamp(1_000);
    let record =
        AcmeChallenge { v: 1, certificate: chain, key, expires_at, unknown: Unknown::new() };
    for name in ["a.example", "192.0.2.7"] {
        put(&mut book, TypedKey::AcmeChallenge(name.parse().unwrap()), &record);
    }
    let made = snapshot(&book);
    for name in ["a.example", "A.Example", "7.2.0.192.in-addr.arpa"] {
        assert!(made.challenge(name, Timestamp(1_000)).is_some(), "{name}");
        assert!(made.challenge(name, Timestamp(1_001)).is_none(), "{name}");
    }
    assert!(made.challenge("b.example", Timestamp(0)).is_none());
    let key = TypedKey::AcmeChallenge("a.example".parse().unwrap());
    assert!(book.apply(&key.key(), None));
    assert!(snapshot(&book).challenge("a.example", Timestamp(0)).is_none());
}

#[test]
fn other_records_are_not_read() {
    for text in ["app::shop::spec", "acme::order::a.example", "cert", "acme"] {
        let key: Key = text.parse().unwrap();
        assert!(!CertificateBook::wants(&key), "{text}");
        assert!(!CertificateBook::default().apply(&key, Some(b"{}")), "{text}");
    }
}
