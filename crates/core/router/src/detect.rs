//! The protocol that a client speaks, from its first bytes, so that several services share a port:
//! TLS with the name that it asks for, HTTP, SSH, or something else. Knows bytes and no socket;
//! driven by `cortex proxy`.

use std::str::FromStr;

use thiserror::Error;

use crate::routes::HOST_LENGTH_MAX;

/// Bytes that are looked at. Larger greetings of TLS exist on paper only.
pub const BYTES_MAX: usize = 16 * 1024;
const RECORD_HEAD: usize = 5;
/// Bytes of the type and length of a handshake's message.
const MESSAGE_HEAD: usize = 4;
/// Bytes of a record, see RFC 8446, section 5.1.
const RECORD_BYTES_MAX: usize = 16 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spoken {
    /// TLS, with the name of the server that the client asks for, in lower case.
    Tls(Option<String>),
    Http,
    Ssh,
    Other,
}

/// The methods with the space that follows; the last is how HTTP/2 begins.
const METHODS: [&[u8]; 12] = [
    b"GET ",
    b"HEAD ",
    b"POST ",
    b"PUT ",
    b"DELETE ",
    b"OPTIONS ",
    b"PATCH ",
    b"CONNECT ",
    b"TRACE ",
    b"PROPFIND ",
    b"REPORT ",
    b"PRI * HTTP/2.0\r\n",
];
const BANNER: &[u8] = b"SSH-";

/// Returns what the client speaks; `None` while more bytes could decide it.
pub fn detect(bytes: &[u8]) -> Option<Spoken> {
    if bytes.is_empty() {
        return None;
    }
    if bytes[0] == 0x16 {
        return tls(bytes);
    }
    if bytes.starts_with(BANNER) {
        return Some(Spoken::Ssh);
    }
    if METHODS.iter().any(|method| bytes.starts_with(method)) {
        return Some(Spoken::Http);
    }
    let begun = METHODS.iter().copied().chain([BANNER]).any(|whole| whole.starts_with(bytes));
    if begun { None } else { Some(Spoken::Other) }
}

/// Reads a greeting of TLS. If it cannot be read, no more is known than that it is one.
fn tls(bytes: &[u8]) -> Option<Spoken> {
    // A greeting has version 3.x, then the greeting as the first message.
    let fits = |at: usize, good: &dyn Fn(u8) -> bool| bytes.get(at).is_none_or(|byte| good(*byte));
    let greets =
        fits(1, &|byte| byte == 3) && fits(2, &|byte| byte <= 4) && fits(5, &|byte| byte == 1);
    if !greets {
        return Some(Spoken::Other);
    }
    let mut message = Vec::new();
    let mut rest = bytes;
    loop {
        let Some((head, body)) = rest.split_first_chunk::<RECORD_HEAD>() else {
            let goes_on = rest.first().is_none_or(|kind| *kind == 0x16);
            return undecided(bytes, goes_on);
        };
        let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
        if head[0] != 0x16 || length == 0 || length > RECORD_BYTES_MAX {
            // The first record is what makes it a greeting at all.
            return Some(if message.is_empty() { Spoken::Other } else { Spoken::Tls(None) });
        }
        let (fragment, after) = body.split_at(length.min(body.len()));
        message.extend_from_slice(fragment);
        let [_, high, middle, low] = *message.first_chunk::<MESSAGE_HEAD>().unwrap_or(&[0; 4]);
        if message.len() >= MESSAGE_HEAD {
            let wanted = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
            if wanted > BYTES_MAX {
                return Some(Spoken::Tls(None));
            }
            if let Some(hello) = message.get(MESSAGE_HEAD..MESSAGE_HEAD + wanted) {
                return Some(Spoken::Tls(server_name(hello)));
            }
        }
        if fragment.len() < length {
            return undecided(bytes, true);
        }
        rest = after;
    }
}

fn undecided(bytes: &[u8], goes_on: bool) -> Option<Spoken> {
    if goes_on && bytes.len() < BYTES_MAX { None } else { Some(Spoken::Tls(None)) }
}

/// Reads the server's name, see RFC 8446, section 4.1.2, and RFC 6066, section 3.
fn server_name(hello: &[u8]) -> Option<String> {
    // First come version and random; then the session, the ciphers, the compressions.
    let rest = hello.get(2 + 32..)?;
    let (_, rest) = short(rest)?;
    let (_, rest) = long(rest)?;
    let (_, rest) = short(rest)?;
    let (mut extensions, _) = long(rest)?;
    while let Some((kind, rest)) = extensions.split_first_chunk::<2>() {
        let (extension, rest) = long(rest)?;
        if *kind == [0, 0] {
            let (names, _) = long(extension)?;
            let (kind, name) = names.split_first()?;
            let (name, _) = long(name)?;
            let name = std::str::from_utf8(name).ok().filter(|_| *kind == 0)?;
            let sound = (1..=HOST_LENGTH_MAX).contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_graphic());
            return sound.then(|| name.to_ascii_lowercase());
        }
        extensions = rest;
    }
    None
}

/// Returns what a byte of length announces, and the rest.
fn short(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*length))
}

/// Returns what two bytes of length announce, and the rest.
fn long(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))
}

/// The clients that a service is for, as people write it: `tls`, `tls:NAME`, `http`, `ssh`,
/// `other`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sort {
    Tls,
    /// TLS for this name exactly, or for `*.` and what follows the first label.
    TlsNamed(String),
    Http,
    Ssh,
    Other,
}

#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("'{0}' is no sort of client; known are tls, tls:NAME, http, ssh and other")]
pub struct UnknownSort(String);

impl FromStr for Sort {
    type Err = UnknownSort;

    fn from_str(text: &str) -> Result<Sort, UnknownSort> {
        match text {
            "tls" => Ok(Sort::Tls),
            "http" => Ok(Sort::Http),
            "ssh" => Ok(Sort::Ssh),
            "other" => Ok(Sort::Other),
            _ => match text.strip_prefix("tls:").filter(|name| !name.is_empty()) {
                Some(name) => Ok(Sort::TlsNamed(name.to_ascii_lowercase())),
                None => Err(UnknownSort(text.into())),
            },
        }
    }
}

/// Returns the service for a client; what no service names falls to `other`.
pub fn choose(sorts: &[Sort], spoken: &Spoken) -> Option<usize> {
    let find = |wanted: &dyn Fn(&Sort) -> bool| sorts.iter().position(wanted);
    let chosen = match spoken {
        Spoken::Tls(name) => {
            let exact =
                |name: &str| find(&|sort| matches!(sort, Sort::TlsNamed(own) if own == name));
            let named = name.as_deref().and_then(|name| {
                let family = || name.split_once('.').map(|(_, rest)| format!("*.{rest}"));
                exact(name).or_else(|| exact(&family()?))
            });
            named.or_else(|| find(&|sort| *sort == Sort::Tls))
        }
        Spoken::Http => find(&|sort| *sort == Sort::Http),
        Spoken::Ssh => find(&|sort| *sort == Sort::Ssh),
        Spoken::Other => None,
    };
    chosen.or_else(|| find(&|sort| *sort == Sort::Other))
}

/// Returns the service for a client that says nothing: those of SSH may wait for the server's first
/// word.
pub fn choose_silent(sorts: &[Sort]) -> Option<usize> {
    let find = |wanted: Sort| sorts.iter().position(|sort| *sort == wanted);
    find(Sort::Ssh).or_else(|| find(Sort::Other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// The beginning of a short greeting.
    const GREETING: &[u8] = &[0x16, 3, 1, 0, 9, 1, 0];

    /// Returns a greeting as a client sends it, in records of at most `piece` bytes.
    fn hello(name: Option<&str>, piece: usize) -> Vec<u8> {
        let two = |length: usize| u16::try_from(length).unwrap().to_be_bytes();
        let mut extensions = vec![0, 0x17, 0, 0];
        if let Some(name) = name {
            let inner = [&[0][..], &two(name.len()), name.as_bytes()].concat();
            let list = [&two(inner.len()), &inner[..]].concat();
            extensions.extend([&[0, 0][..], &two(list.len()), &list].concat());
        }
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, 2, 0x13, 1, 1, 0]);
        body.extend(two(extensions.len()));
        body.extend(extensions);
        let mut message = vec![1, 0];
        message.extend(two(body.len()));
        message.extend(body);
        let records = message.chunks(piece);
        records.flat_map(|part| [&[0x16, 3, 1][..], &two(part.len()), part].concat()).collect()
    }

    #[test]
    fn protocols_are_known_by_their_first_bytes() {
        assert_eq!(detect(b"GET / HTTP/1.1\r\n"), Some(Spoken::Http));
        assert_eq!(detect(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), Some(Spoken::Http));
        assert_eq!(detect(b"SSH-2.0-OpenSSH_9.2"), Some(Spoken::Ssh));
        for other in [
            &b"\x00\x01"[..],
            b"GETX",
            b"SSL",
            b"\x16\x02",
            b"\x16\x03\x01\0\0",
            b"EHLO a",
            b"get / ",
        ] {
            assert_eq!(detect(other), Some(Spoken::Other), "{other:?}");
        }
        for more in [&b""[..], b"G", b"SS", b"P", b"PRI", b"\x16\x03\x01", b"OPTIONS"] {
            assert_eq!(detect(more), None, "{more:?}");
        }
    }

    #[test]
    fn a_greeting_of_tls_names_its_server() {
        for piece in [7, 100, 5000] {
            let bytes = hello(Some("Shop.Example"), piece);
            assert_eq!(detect(&bytes), Some(Spoken::Tls(Some("shop.example".into()))));
            for cut in 1..bytes.len() {
                assert_eq!(detect(&bytes[..cut]), None, "{cut}");
            }
            assert_eq!(detect(&hello(None, piece)), Some(Spoken::Tls(None)));
        }
        let huge = [0x16, 3, 1, 0, 4, 1, 0xff, 0xff, 0xff];
        assert_eq!(detect(&huge), Some(Spoken::Tls(None)));
    }

    #[test]
    fn a_service_is_chosen_by_sort() {
        let sorts: Vec<Sort> = ["tls", "http", "other", "tls:a.example", "tls:*.b.example"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect();
        let tls = |name: &str| Spoken::Tls(Some(name.into()));
        assert_eq!(choose(&sorts, &tls("a.example")), Some(3));
        assert_eq!(choose(&sorts, &tls("x.b.example")), Some(4));
        assert_eq!(choose(&sorts, &tls("x.y.b.example")), Some(0));
        assert_eq!(choose(&sorts, &Spoken::Tls(None)), Some(0));
        assert_eq!(choose(&sorts, &Spoken::Http), Some(1));
        assert_eq!(choose(&sorts, &Spoken::Ssh), Some(2));
        assert_eq!(choose(&sorts[..2], &Spoken::Other), None);
        assert_eq!(choose_silent(&sorts), Some(2));
        assert_eq!(choose_silent(&[Sort::Other, Sort::Ssh]), Some(1));
        assert_eq!(choose_silent(&[Sort::Http]), None);
        for bad in ["", "tls:", "ftp", "HTTP"] {
            assert!(bad.parse::<Sort>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_decision_holds_whatever_follows(
            bytes in prop_oneof![
                vec(any::<u8>(), 0..80),
                vec(any::<u8>(), 0..80).prop_map(|tail| [GREETING, &tail[..]].concat()),
                (1usize..60, vec(any::<u8>(), 0..9))
                    .prop_map(|(piece, tail)| [hello(Some("a.b"), piece), tail].concat()),
            ],
        ) {
            let mut decided = None;
            for end in 0..=bytes.len() {
                let now = detect(&bytes[..end]);
                if decided.is_some() {
                    prop_assert_eq!(&now, &decided);
                }
                decided = now;
            }
        }

        #[test]
        fn enough_bytes_always_decide(tail in vec(any::<u8>(), BYTES_MAX)) {
            for start in [&b""[..], &[0x16, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc]] {
                let bytes = [start, &tail].concat();
                prop_assert!(detect(&bytes[..BYTES_MAX]).is_some());
            }
        }
    }
}
