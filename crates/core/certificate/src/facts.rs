//! The facts that the platform must know of a certificate: for which names, from when to when, and
//! who vouches for it.

use std::net::IpAddr;

use model::{CertificateName, Timestamp};
use time::{Date, Month, OffsetDateTime, Time};

use crate::der::{BOOLEAN, Der, OBJECT_ID, OCTETS, SEQUENCE, SET};

const UTC_TIME: u8 = 0x17;
const GENERAL_TIME: u8 = 0x18;
/// The tag `[0]`, before the serial number.
const VERSION: u8 = 0xa0;
/// The tag `[3]`, at the end.
const EXTENSIONS: u8 = 0xa3;
/// The object identifier 2.5.29.17.
const ALTERNATIVE_NAMES: &[u8] = &[0x55, 0x1d, 0x11];
/// The object identifier 2.5.29.19.
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
/// The object identifier 2.5.29.35.
const AUTHORITY_KEY: &[u8] = &[0x55, 0x1d, 0x23];
/// The tag `[0]` of the identifier of a key.
const KEY_IDENTIFIER: u8 = 0x80;
const INTEGER: u8 = 0x02;
/// The object identifier 2.5.4.3, the name of somebody.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// The object identifier 2.5.4.10.
const ORGANISATION: &[u8] = &[0x55, 0x04, 0x0a];
/// The tag `[2]` of a GeneralName.
const DNS_NAME: u8 = 0x82;
/// The tag `[7]` of a GeneralName.
const ADDRESS: u8 = 0x87;
/// Characters that are shown of the name of an authority, whatever it calls itself.
const SHOWN_CHARS_MAX: usize = 80;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The names of hosts and the addresses that it is for, as far as they are any.
    pub names: Vec<CertificateName>,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    /// The authority's name for itself, fit to be shown.
    pub issuer: String,
    /// The issuer and the subject as they are written, which link a chain.
    pub issuer_bytes: Vec<u8>,
    pub subject_bytes: Vec<u8>,
    /// Whether it may sign others.
    pub is_authority: bool,
    /// The number that its authority gave it, as it is written.
    pub serial: Vec<u8>,
    /// The identifier of the authority's key.
    pub authority_key: Option<Vec<u8>>,
}

impl Facts {
    /// Reads a certificate; `None` if it is none.
    pub fn read(certificate: &[u8]) -> Option<Facts> {
        let mut signed = Der(certificate).expect(SEQUENCE)?.expect(SEQUENCE)?;
        let mut first = signed.next()?;
        if first.0 == VERSION {
            first = signed.next()?;
        }
        let serial = (first.0 == INTEGER).then(|| first.1.to_vec())?;
        // The algorithm comes first.
        signed.expect(SEQUENCE)?;
        let issuer = signed.expect(SEQUENCE)?;
        let mut validity = signed.expect(SEQUENCE)?;
        let (not_before, not_after) = (time(&mut validity)?, time(&mut validity)?);
        let subject = signed.expect(SEQUENCE)?;
        // The key.
        signed.expect(SEQUENCE)?;
        let mut facts = Facts {
            names: Vec::new(),
            not_before,
            not_after,
            issuer: shown(issuer),
            issuer_bytes: issuer.0.to_vec(),
            subject_bytes: subject.0.to_vec(),
            is_authority: false,
            serial,
            authority_key: None,
        };
        while let Some((tag, value)) = signed.next() {
            if tag == EXTENSIONS {
                facts.read_extensions(value)?;
            }
        }
        Some(facts)
    }

    fn read_extensions(&mut self, extensions: &[u8]) -> Option<()> {
        let mut all = Der(extensions).expect(SEQUENCE)?;
        while let Some((_, value)) = all.next() {
            let mut extension = Der(value);
            let id = extension.expect(OBJECT_ID)?.0;
            // Between them may stand whether it is critical.
            while let Some((tag, value)) = extension.next() {
                match (tag, id) {
                    (OCTETS, ALTERNATIVE_NAMES) => self.names.extend(alternative_names(value)?),
                    (OCTETS, AUTHORITY_KEY) => {
                        let first = Der(value).expect(SEQUENCE)?.next();
                        let key = first.filter(|(tag, _)| *tag == KEY_IDENTIFIER);
                        self.authority_key = key.map(|(_, key)| key.to_vec());
                    }
                    (OCTETS, BASIC_CONSTRAINTS) => {
                        let first = Der(value).expect(SEQUENCE)?.next();
                        self.is_authority = matches!(first, Some((BOOLEAN, [byte])) if *byte != 0);
                    }
                    _ => {}
                }
            }
        }
        Some(())
    }

    /// Returns whether it is good for a host: a name in lower case, or an address.
    pub fn covers(&self, host: &str) -> bool {
        self.names.iter().any(|name| name.covers(host))
    }
}

/// Returns a time for people.
fn alternative_names(value: &[u8]) -> Option<Vec<CertificateName>> {
    let mut found = Vec::new();
    let mut names = Der(value).expect(SEQUENCE)?;
    while let Some((kind, name)) = names.next() {
        let read = match (kind, name.len()) {
            (DNS_NAME, _) => {
                let name = String::from_utf8_lossy(name).to_ascii_lowercase();
                name.parse().ok().map(CertificateName::Domain)
            }
            (ADDRESS, 4) => <[u8; 4]>::try_from(name).ok().map(IpAddr::from).map(of_address),
            (ADDRESS, 16) => <[u8; 16]>::try_from(name).ok().map(IpAddr::from).map(of_address),
            _ => None,
        };
        found.extend(read);
    }
    Some(found)
}

fn of_address(address: IpAddr) -> CertificateName {
    CertificateName::Address(address.to_canonical())
}

/// Returns what stands for a distinguished name where people read it.
fn shown(mut name: Der<'_>) -> String {
    let (mut common, mut organisation) = (None, None);
    while let Some((SET, part)) = name.next() {
        let mut values = Der(part);
        while let Some((SEQUENCE, value)) = values.next() {
            let mut value = Der(value);
            let id = value.expect(OBJECT_ID);
            match (id.map(|id| id.0), value.next()) {
                (Some(COMMON_NAME), Some((_, text))) => common = Some(text),
                (Some(ORGANISATION), Some((_, text))) => organisation = Some(text),
                _ => {}
            }
        }
    }
    let text = common.or(organisation).unwrap_or_default();
    let text = String::from_utf8_lossy(text);
    text.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect()
}

fn time(der: &mut Der<'_>) -> Option<Timestamp> {
    let (tag, value) = der.next()?;
    let text = std::str::from_utf8(value).ok()?.strip_suffix('Z')?;
    let (year, rest) = match tag {
        UTC_TIME => {
            let year: i32 = text.get(..2)?.parse().ok()?;
            // RFC 5280 has it so.
            (year + if year < 50 { 2000 } else { 1900 }, text.get(2..)?)
        }
        GENERAL_TIME => (text.get(..4)?.parse().ok()?, text.get(4..)?),
        _ => return None,
    };
    let part = |at: usize| -> Option<u8> { rest.get(at..at + 2)?.parse().ok() };
    let date = Date::from_calendar_date(year, Month::try_from(part(0)?).ok()?, part(2)?).ok()?;
    let time = Time::from_hms(part(4)?, part(6)?, part(8)?).ok()?;
    let seconds = OffsetDateTime::new_utc(date, time).unix_timestamp();
    // What is older than time is none that counts.
    Some(Timestamp(u64::try_from(seconds).unwrap_or(0).saturating_mul(1000)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn made() -> Vec<u8> {
        let names = vec!["A.example".to_owned(), "*.b.example".to_owned(), "127.0.0.1".to_owned()];
        let mut params = rcgen::CertificateParams::new(names).unwrap();
        let name = &mut params.distinguished_name;
        name.push(rcgen::DnType::OrganizationName, "An Organisation");
        name.push(rcgen::DnType::CommonName, "Some\u{1b}[1mbody");
        let key = rcgen::KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn a_certificate_is_read() {
        let facts = Facts::read(&made()).unwrap();
        let names: Vec<String> = facts.names.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["a.example", "*.b.example", "127.0.0.1"]);
        // This is what rcgen writes where nothing is said.
        assert!(facts.not_before.date().starts_with("1975/01/01"), "{facts:?}");
        assert!(facts.not_after.date().starts_with("4096/01/01"), "{facts:?}");
        assert_eq!(facts.issuer, "Some\\u{1b}[1mbody");
        assert_eq!(facts.issuer_bytes, facts.subject_bytes);
        assert!(!facts.is_authority);
        assert!(facts.covers("x.b.example") && facts.covers("127.0.0.1"));
        assert!(!facts.covers("b.example"));
    }

    #[test]
    fn the_name_that_its_authority_knows_it_by_is_read() {
        let authority = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.key_identifier_method = rcgen::KeyIdMethod::PreSpecified(vec![0xc0, 0xff, 0xee]);
        let issuer = rcgen::Issuer::new(params, authority);
        let mut params = rcgen::CertificateParams::new(vec!["a.example".into()]).unwrap();
        params.serial_number = Some(rcgen::SerialNumber::from_slice(&[0xca, 0xfe]));
        params.use_authority_key_identifier_extension = true;
        let key = rcgen::KeyPair::generate().unwrap();
        let facts = Facts::read(params.signed_by(&key, &issuer).unwrap().der()).unwrap();
        assert_eq!(facts.authority_key, Some(vec![0xc0, 0xff, 0xee]));
        // A number whose first bit is set has a zero before it.
        assert_eq!(facts.serial, [0, 0xca, 0xfe]);
    }

    #[test]
    fn an_authority_is_recognised() {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Constrained(0));
        let key = rcgen::KeyPair::generate().unwrap();
        let facts = Facts::read(params.self_signed(&key).unwrap().der()).unwrap();
        assert!(facts.is_authority && facts.names.is_empty());
    }

    #[test]
    fn a_part_of_one_is_none() {
        let whole = made();
        for end in 0..whole.len() {
            assert!(Facts::read(&whole[..end]).is_none(), "{end}");
        }
    }

    proptest! {
        #[test]
        fn a_damaged_one_is_read_without_panic(at in any::<prop::sample::Index>(), byte: u8) {
            let mut der = made();
            let at = at.index(der.len());
            der[at] = byte;
            Facts::read(&der);
        }
    }
}
