//! The facts that the router must know of its own certificate: for which names, and from when to
//! when. It reads as much DER as that takes.

use time::{Date, Month, OffsetDateTime, Time};

const SEQUENCE: u8 = 0x30;
const OBJECT_ID: u8 = 0x06;
const OCTETS: u8 = 0x04;
const UTC_TIME: u8 = 0x17;
const GENERAL_TIME: u8 = 0x18;
/// The tag `[0]`, before the serial number.
const VERSION: u8 = 0xa0;
/// The tag `[3]`, at the end.
const EXTENSIONS: u8 = 0xa3;
/// The object identifier 2.5.29.17.
const ALTERNATIVE_NAMES: &[u8] = &[0x55, 0x1d, 0x11];
/// The tag `[2]` of a GeneralName.
const DNS_NAME: u8 = 0x82;

#[derive(Debug)]
pub(super) struct Facts {
    /// The names in lower case.
    pub names: Vec<String>,
    pub not_before: OffsetDateTime,
    pub not_after: OffsetDateTime,
}

/// Values one after the other.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (tag, rest) = self.0.split_first()?;
        let (first, mut rest) = rest.split_first()?;
        let mut length = usize::from(*first);
        if length >= 0x80 {
            let (digits, after) = rest.split_at_checked(length & 0x7f)?;
            rest = after;
            if digits.is_empty() || digits.len() > 3 {
                return None;
            }
            length = digits.iter().fold(0, |sum, digit| (sum << 8) | usize::from(*digit));
        }
        let (value, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((*tag, value))
    }

    fn expect(&mut self, tag: u8) -> Option<Der<'a>> {
        let (found, value) = self.next()?;
        (found == tag).then_some(Der(value))
    }
}

impl Facts {
    /// Reads a certificate; `None` if it is none.
    pub fn read(certificate: &[u8]) -> Option<Facts> {
        let mut signed = Der(certificate).expect(SEQUENCE)?.expect(SEQUENCE)?;
        let (first, _) = signed.next()?;
        if first == VERSION {
            signed.next()?;
        }
        // The algorithm comes first, then the issuer.
        signed.expect(SEQUENCE)?;
        signed.expect(SEQUENCE)?;
        let mut validity = signed.expect(SEQUENCE)?;
        let (not_before, not_after) = (time(&mut validity)?, time(&mut validity)?);
        let mut names = Vec::new();
        while let Some((tag, value)) = signed.next() {
            if tag == EXTENSIONS {
                names = alternative_names(value)?;
            }
        }
        Some(Facts { names, not_before, not_after })
    }
}

fn alternative_names(extensions: &[u8]) -> Option<Vec<String>> {
    let mut all = Der(extensions).expect(SEQUENCE)?;
    let mut found = Vec::new();
    while let Some((_, value)) = all.next() {
        let mut extension = Der(value);
        if extension.expect(OBJECT_ID)?.0 != ALTERNATIVE_NAMES {
            continue;
        }
        // Between them may stand whether it is critical.
        while let Some((tag, value)) = extension.next() {
            if tag == OCTETS {
                let mut names = Der(value).expect(SEQUENCE)?;
                while let Some((kind, name)) = names.next() {
                    if kind == DNS_NAME {
                        found.push(String::from_utf8_lossy(name).to_ascii_lowercase());
                    }
                }
            }
        }
    }
    Some(found)
}

fn time(der: &mut Der<'_>) -> Option<OffsetDateTime> {
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
    Some(OffsetDateTime::new_utc(date, time))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn made() -> Vec<u8> {
        let names = vec!["A.example".to_owned(), "*.b.example".to_owned(), "127.0.0.1".to_owned()];
        rcgen::generate_simple_self_signed(names).unwrap().cert.der().to_vec()
    }

    #[test]
    fn a_certificate_is_read() {
        let facts = Facts::read(&made()).unwrap();
        assert_eq!(facts.names, ["a.example", "*.b.example"]);
        // This is what rcgen writes where nothing is said.
        assert_eq!((facts.not_before.year(), facts.not_after.year()), (1975, 4096));
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
