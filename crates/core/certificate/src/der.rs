//! DER, as much of it as a certificate takes: values one after the other.

pub const SEQUENCE: u8 = 0x30;
pub const SET: u8 = 0x31;
pub const BOOLEAN: u8 = 0x01;
pub const OBJECT_ID: u8 = 0x06;
pub const OCTETS: u8 = 0x04;

#[derive(Clone, Copy, Debug)]
pub struct Der<'a>(pub &'a [u8]);

impl<'a> Der<'a> {
    pub fn next(&mut self) -> Option<(u8, &'a [u8])> {
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

    pub fn expect(&mut self, tag: u8) -> Option<Der<'a>> {
        let (found, value) = self.next()?;
        (found == tag).then_some(Der(value))
    }
}
