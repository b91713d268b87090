//! Writes heads for a client (RFC 7541): names that both sides know from the start by their number,
//! all else as it is. Nothing is kept in a table, and no code is used: both cost more time than
//! they save where answers differ. The first block says so.

use super::names::index_of;

/// At the start of the first block: the table is not used.
pub const NO_TABLE: u8 = 0x20;
const STATUS: u8 = 8;

/// `name` may have capital letters, which become small.
pub fn put(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    // Names that are known are not longer.
    let mut small = [0; 32];
    let index = small.get_mut(..name.len()).and_then(|small| {
        small.copy_from_slice(name);
        small.make_ascii_lowercase();
        index_of(small)
    });
    match index {
        Some(index) => integer(out, 0, 4, usize::from(index)),
        None => {
            out.push(0);
            integer(out, 0, 7, name.len());
            let start = out.len();
            out.extend_from_slice(name);
            out[start..].make_ascii_lowercase();
        }
    }
    integer(out, 0, 7, value.len());
    out.extend_from_slice(value);
}

pub fn put_status(out: &mut Vec<u8>, status: u16) {
    let index = match status {
        200 => 8,
        204 => 9,
        206 => 10,
        304 => 11,
        400 => 12,
        404 => 13,
        500 => 14,
        _ => {
            let digit = |number: u16| b'0' + u8::try_from(number % 10).unwrap_or(0);
            let digits = [digit(status / 100), digit(status / 10), digit(status)];
            out.extend_from_slice(&[STATUS, 3]);
            return out.extend_from_slice(&digits);
        }
    };
    out.push(0x80 | index);
}

/// With so many bits in the first byte, below what that says already.
fn integer(out: &mut Vec<u8>, first: u8, prefix: u32, mut value: usize) {
    let mask = (1_usize << prefix) - 1;
    if value < mask {
        return out.push(first | u8::try_from(value).unwrap_or(0));
    }
    out.push(first | u8::try_from(mask).unwrap_or(0));
    value -= mask;
    while value >= 0x80 {
        out.push(0x80 | (value & 0x7f) as u8);
        value >>= 7;
    }
    out.push((value & 0x7f) as u8);
}

#[cfg(test)]
mod tests {
    use super::super::decode::{Decoder, Fields};
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(
            status in 100_u16..1000,
            list: Vec<(Vec<u8>, Vec<u8>)>,
            known in 0_usize..61,
            long in 0_usize..20_000,
        ) {
            let known = super::super::names::KNOWN[known].0.to_ascii_uppercase();
            let mut list = list;
            list.push((known.into(), vec![b'v'; long]));
            let mut block = vec![NO_TABLE];
            put_status(&mut block, status);
            list.iter().for_each(|(name, value)| put(&mut block, name, value));
            let mut fields = Fields::default();
            fields.begin(1_000_000);
            Decoder::default().decode(&block, &mut fields).unwrap();
            let mut read = fields.iter();
            let status = status.to_string();
            prop_assert_eq!(read.next().unwrap(), (&b":status"[..], status.as_bytes()));
            for (name, value) in &list {
                let (read_name, read_value) = read.next().unwrap();
                prop_assert_eq!(read_name, name.to_ascii_lowercase());
                prop_assert_eq!(read_value, &value[..]);
            }
            prop_assert!(read.next().is_none());
        }
    }
}
