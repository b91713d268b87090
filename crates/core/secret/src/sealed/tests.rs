//! Values that are sealed and opened, and everything that must not open.

use proptest::prelude::*;

use super::*;

fn key_of_bytes(byte: u8) -> SealingKey {
    SealingKey::new(Zeroizing::new([byte; KEY_BYTES]))
}

fn at(text: &str) -> Key {
    text.parse().unwrap()
}

#[test]
fn a_sealed_value_opens_under_its_own_key_alone() {
    let key = key_of_bytes(1);
    let sealed = key.seal(&at("app::blog::config"), b"hunter2", [7; SALT_BYTES]);
    assert_eq!(sealed.len(), 7 + OVERHEAD_BYTES);
    assert_eq!(key_of(&sealed), Ok(Some(key.id())));
    assert_eq!(key.open(&at("app::blog::config"), &sealed).unwrap().as_slice(), b"hunter2");
    assert_eq!(key.open(&at("app::shop::config"), &sealed), Err(OpenError::Refused));
    assert_eq!(key_of_bytes(2).open(&at("app::blog::config"), &sealed), {
        Err(OpenError::NoKey(key.id()))
    });
}

#[test]
fn a_value_that_is_no_sealed_one_is_told_apart() {
    assert_eq!(key_of(b"{\"v\":1}"), Ok(None));
    assert_eq!(key_of(b""), Ok(None));
    assert_eq!(key_of(b"\0sealed"), Err(OpenError::Format));
    assert_eq!(key_of(b"\0sealed\x02 and whatever a later version says"), Err(OpenError::Format));
    let sealed = key_of_bytes(1).seal(&at("k"), b"", [0; SALT_BYTES]);
    assert_eq!(key_of(&sealed[..sealed.len() - 1]), Err(OpenError::Format));
}

#[test]
fn the_same_value_never_looks_the_same() {
    let key = key_of_bytes(1);
    let (one, other) =
        (key.seal(&at("k"), b"value", [1; 32]), key.seal(&at("k"), b"value", [2; 32]));
    assert_ne!(one[HEAD_BYTES..], other[HEAD_BYTES..]);
}

/// Pins the format: what one version sealed, every later one has to open.
#[test]
fn the_format_stays() {
    let key = key_of_bytes(3);
    assert_eq!(key.id().to_string(), FORMAT_ID);
    let sealed = key.seal(&at("app::blog::config"), b"{}", [5; SALT_BYTES]);
    assert_eq!(model::hex::to_hex(&sealed), FORMAT_SEALED.concat());
}

const FORMAT_ID: &str = "27e9ce2be5a89691";
/// Computed by another implementation of HKDF (RFC 5869) and of ChaCha20-Poly1305 (RFC 8439): the
/// title, the id, the salt, the value and the tag.
const FORMAT_SEALED: [&str; 5] = [
    "007365616c656401",
    "27e9ce2be5a89691",
    "0505050505050505050505050505050505050505050505050505050505050505",
    "6a7e",
    "8720be6f40153c9dd320531db093d5d1",
];

proptest! {
    #[test]
    fn whatever_was_sealed_opens(value: Vec<u8>, salt: [u8; 32], bytes: [u8; 32]) {
        let key = SealingKey::new(Zeroizing::new(bytes));
        let sealed = key.seal(&at("a::b"), &value, salt);
        let opened = key.open(&at("a::b"), &sealed).unwrap();
        prop_assert_eq!(opened.as_slice(), &value[..]);
    }

    #[test]
    fn no_changed_bit_opens(
        value: Vec<u8>,
        salt: [u8; 32],
        place: prop::sample::Index,
        bit in 0..8_u32,
    ) {
        let key = key_of_bytes(9);
        let mut sealed = key.seal(&at("a::b"), &value, salt);
        let place = place.index(sealed.len());
        sealed[place] ^= 1_u8 << bit;
        prop_assert!(key.open(&at("a::b"), &sealed).is_err());
    }

    #[test]
    fn strange_bytes_are_refused_without_a_panic(bytes: Vec<u8>) {
        let key = key_of_bytes(9);
        prop_assert!(key.open(&at("a"), &bytes).is_err());
        let titled = [&TITLE[..], &bytes].concat();
        prop_assert!(key.open(&at("a"), &titled).is_err());
    }
}
