//! The Redis protocol: no bytes panic, and however a connection cuts them, the same commands and
//! the same error come out.

use store_core::resp::request::{Parsed, Requests};
use store_core::resp::{ProtocolError, glob, response};

/// The length in bytes up to which each cut of an input is tried; for longer ones single bytes are.
const CUT_EVERYWHERE_MAX: usize = 256;

pub fn check(bytes: &[u8]) {
    let whole = read(&[bytes]);
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(read(&single), whole, "byte by byte");
    if bytes.len() <= CUT_EVERYWHERE_MAX {
        for cut in 0..bytes.len() {
            assert_eq!(read(&[&bytes[..cut], &bytes[cut..]]), whole, "cut at {cut}");
        }
    }
    if let Ok(Some((_, used))) = response::parse(bytes) {
        assert!(used <= bytes.len());
        assert_eq!(response::parse(&bytes[..used - 1]), Ok(None), "a reply is no shorter");
    }
    let text = String::from_utf8_lossy(bytes);
    let (pattern, name) = text.split_once('\n').unwrap_or((&text, &text));
    let _ = glob::matches(pattern.as_bytes(), name.as_bytes());
    let _ = glob::prefix(pattern);
}

#[derive(Debug, Default, PartialEq)]
struct Read {
    commands: Vec<Vec<Vec<u8>>>,
    /// The lengths of streamed values, each with the number of commands before it.
    streamed: Vec<(usize, u64)>,
    error: Option<ProtocolError>,
}

/// Reads as a connection does: what is complete is dropped from the front.
fn read(pieces: &[&[u8]]) -> Read {
    let mut requests = Requests::default();
    let mut input: Vec<u8> = Vec::new();
    let mut read = Read::default();
    // The bytes of a streamed value, with CR LF, that are still to come.
    let mut value = 0u64;
    for piece in pieces {
        input.extend_from_slice(piece);
        loop {
            let skipped = value.min(input.len() as u64);
            input.drain(..skipped as usize);
            value -= skipped;
            if value > 0 {
                break;
            }
            match requests.parse(&input) {
                Ok(Parsed::Incomplete) => break,
                Ok(Parsed::Command { used }) => {
                    let argument = |i| requests.argument(&input, i).expect("it is whole").to_vec();
                    read.commands.push((0..requests.len()).map(argument).collect());
                    input.drain(..used);
                    if used == 0 && input.is_empty() {
                        break;
                    }
                }
                Ok(Parsed::Streamed { used, length, options }) => {
                    read.streamed.push((read.commands.len(), length));
                    input.drain(..used);
                    // The value is short, so that what follows it is soon reached.
                    value = length % 16 + 2;
                    requests.expect_options(options);
                }
                Err(error) => {
                    read.error = Some(error);
                    return read;
                }
            }
        }
    }
    read
}
