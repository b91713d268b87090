//! The code for strings in heads (RFC 7541, appendix B). It is canonical, so the lengths say it
//! all: codes of one length follow each other in the order of their symbols.

/// The length of the code of each byte, and of the end.
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];
const SYMBOLS: usize = 257;
const LONGEST: usize = 30;
/// Bits of a short code; most bytes of heads have a code that is no longer.
const SHORT: usize = 8;

/// The codes of one length: the first of them, and where its symbol is in `ORDER`.
#[derive(Clone, Copy)]
struct Group {
    first: u32,
    count: u32,
    start: usize,
}

const GROUPS: [Group; LONGEST + 1] = groups();
/// The symbols by their codes.
const ORDER: [u16; SYMBOLS] = order();
/// What the next bits begin with: a symbol and the length of its code; 0 if its code is longer.
const BY_START: [(u8, u8); 1 << SHORT] = by_start();

const fn groups() -> [Group; LONGEST + 1] {
    let mut groups = [Group { first: 0, count: 0, start: 0 }; LONGEST + 1];
    let (mut length, mut code, mut start) = (1, 0, 0);
    while length <= LONGEST {
        let (mut count, mut symbol) = (0, 0);
        while symbol < SYMBOLS {
            if LENGTHS[symbol] as usize == length {
                count += 1;
            }
            symbol += 1;
        }
        groups[length] = Group { first: code, count, start };
        code = (code + count) << 1;
        start += count as usize;
        length += 1;
    }
    groups
}

const fn order() -> [u16; SYMBOLS] {
    let (mut order, mut at, mut length) = ([0; SYMBOLS], 0, 1);
    while length <= LONGEST {
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if LENGTHS[symbol] as usize == length {
                order[at] = symbol as u16;
                at += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    order
}

const fn by_start() -> [(u8, u8); 1 << SHORT] {
    let (mut table, mut length) = ([(0, 0); 1 << SHORT], 1);
    while length <= SHORT {
        let (group, mut number) = (GROUPS[length], 0);
        while number < group.count {
            let symbol = ORDER[group.start + number as usize] as u8;
            let mut rest = 0;
            while rest < 1 << (SHORT - length) {
                let start = ((group.first + number) << (SHORT - length)) as usize + rest;
                table[start] = (symbol, length as u8);
                rest += 1;
            }
            number += 1;
        }
        length += 1;
    }
    table
}

/// Appends what `input` stands for. Returns false if it is no such code.
pub fn decode(input: &[u8], out: &mut Vec<u8>) -> bool {
    let (mut bits, mut held, mut input) = (0_u64, 0_usize, input.iter());
    loop {
        while held <= 56 {
            let Some(byte) = input.next() else { break };
            bits |= u64::from(*byte) << (56 - held);
            held += 8;
        }
        let (symbol, length) = BY_START[(bits >> (64 - SHORT)) as usize];
        let length = usize::from(length);
        if length > 0 && length <= held {
            out.push(symbol);
            (bits, held) = (bits << length, held - length);
            continue;
        }
        match rarer(bits, held) {
            Some((symbol, length)) => {
                out.push(symbol);
                (bits, held) = (bits << length, held - length);
            }
            // Less than a byte of ones fills the last byte up.
            None => return held < 8 && (held == 0 || bits >> (64 - held) == (1 << held) - 1),
        }
    }
}

/// Returns a symbol of a longer code. The end is none: it may not be sent.
fn rarer(bits: u64, held: usize) -> Option<(u8, usize)> {
    (SHORT + 1..=LONGEST.min(held)).find_map(|length| {
        let group = GROUPS[length];
        let number = ((bits >> (64 - length)) as u32).wrapping_sub(group.first);
        let symbol = (number < group.count).then(|| ORDER[group.start + number as usize])?;
        Some((u8::try_from(symbol).ok()?, length))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encode(text: &[u8]) -> Vec<u8> {
        let (mut out, mut bits, mut held) = (Vec::new(), 0_u64, 0);
        for byte in text {
            let length = usize::from(LENGTHS[usize::from(*byte)]);
            let group = GROUPS[length];
            let symbols = &ORDER[group.start..group.start + group.count as usize];
            let number = symbols.iter().position(|symbol| *symbol == u16::from(*byte)).unwrap();
            bits = bits << length | (u64::from(group.first) + number as u64);
            held += length;
            while held >= 8 {
                held -= 8;
                out.push((bits >> held) as u8);
            }
        }
        if held > 0 {
            out.push((bits << (8 - held)) as u8 | (0xff >> held));
        }
        out
    }

    /// The examples of RFC 7541, appendix C.
    #[test]
    fn the_examples_of_the_standard_are_read() {
        for (text, code) in [
            ("www.example.com", &b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff"[..]),
            ("no-cache", b"\xa8\xeb\x10\x64\x9c\xbf"),
            ("custom-key", b"\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f"),
            ("custom-value", b"\x25\xa8\x49\xe9\x5b\xb8\xe8\xb4\xbf"),
            (
                "Mon, 21 Oct 2013 20:13:21 GMT",
                b"\xd0\x7a\xbe\x94\x10\x54\xd4\x44\xa8\x20\x05\x95\x04\x0b\x81\x66\xe0\x82\xa6\x2d\
                  \x1b\xff",
            ),
        ] {
            let mut out = Vec::new();
            assert!(decode(code, &mut out) && out == text.as_bytes(), "{text}");
            assert_eq!(encode(text.as_bytes()), code);
        }
    }

    #[test]
    fn what_is_no_code_is_refused() {
        // The end itself, a byte of padding, and padding that is not all ones.
        for code in [&[0xff, 0xff, 0xff, 0xff][..], &[0x1f, 0xff], &[0x1e], &[0xff]] {
            assert!(!decode(code, &mut Vec::new()), "{code:x?}");
        }
        assert!(decode(&[], &mut Vec::new()) && decode(&[0x1f], &mut Vec::new()));
    }

    proptest! {
        #[test]
        fn all_bytes_come_back(bytes: Vec<u8>) {
            let mut out = Vec::new();
            prop_assert!(decode(&encode(&bytes), &mut out));
            prop_assert_eq!(out, bytes);
        }

        #[test]
        fn any_bytes_are_read(bytes: Vec<u8>) {
            decode(&bytes, &mut Vec::new());
        }
    }
}
