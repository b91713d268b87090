//! Bytes as text, two digits for each.

use std::fmt::Write;

/// Returns the bytes as digits in lower case.
pub fn to_hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let written = write!(text, "{byte:02x}");
        debug_assert!(written.is_ok(), "a string takes all that is written");
    }
    text
}

/// Returns the bytes; `None` unless there are two digits for each byte, in either case, and nothing
/// else.
pub fn from_hex<const LENGTH: usize>(text: &str) -> Option<[u8; LENGTH]> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != LENGTH || !rest.is_empty() {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut bytes = [0; LENGTH];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = u8::try_from(digit(*high)? << 4 | digit(*low)?).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip() {
        let bytes = [0x00, 0x0f, 0xa5, 0xff];
        assert_eq!(to_hex(&bytes), "000fa5ff");
        assert_eq!(from_hex("000fA5ff"), Some(bytes));
        for bad in ["", "000fa5f", "000fa5ff0", "000fa5fff0", "+00fa5ff", "000fa5fg", "000fa5fä"] {
            assert_eq!(from_hex::<4>(bad), None, "{bad}");
        }
    }
}
