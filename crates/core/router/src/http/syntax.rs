//! The bytes that a target and a Host are made of. Any other may mean something else to the next
//! reader, and is refused.

/// Returns whether the text is a target: RFC 3986, and what browsers send beside it; neither may
/// hold a fragment, a quote or a bracket.
pub fn is_target(text: &str) -> bool {
    let path_end = text.find('?').unwrap_or(text.len());
    text.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"#<>".contains(&byte))
        // Some servers take it for a slash.
        && !text.as_bytes()[..path_end].contains(&b'\\')
}

/// Returns whether it is a name or an address, with or without a port, as in RFC 9110, section 7.2:
/// no user, no path. A comma would make it a list, a `%` another name once it is decoded.
pub fn is_host(host: &[u8]) -> bool {
    let (name, rest) = match host.first() {
        None => return false,
        Some(b'[') => {
            let Some(end) = host.iter().position(|byte| *byte == b']') else { return false };
            let (address, rest) = (&host[1..end], &host[end + 1..]);
            let is_address = |byte: &u8| byte.is_ascii_hexdigit() || b":.".contains(byte);
            if address.is_empty() || !address.iter().all(is_address) {
                return false;
            }
            (&b"x"[..], rest)
        }
        Some(_) => {
            let end = host.iter().position(|byte| *byte == b':').unwrap_or(host.len());
            host.split_at(end)
        }
    };
    const IN_NAMES: Class = Class::alphanumeric_and(b"-._~!$&'()*+=");
    !name.is_empty() && IN_NAMES.has_all(name) && is_port(rest)
}

/// The bytes that are allowed somewhere.
pub struct Class([bool; 256]);

impl Class {
    pub const fn of(bytes: &[u8]) -> Class {
        let (mut class, mut at) = ([false; 256], 0);
        while at < bytes.len() {
            class[bytes[at] as usize] = true;
            at += 1;
        }
        Class(class)
    }

    pub const fn alphanumeric_and(bytes: &[u8]) -> Class {
        let (Class(mut class), mut byte) = (Class::of(bytes), 0_u8);
        while byte < 128 {
            class[byte as usize] |= byte.is_ascii_alphanumeric();
            byte += 1;
        }
        Class(class)
    }

    /// Returns the printable bytes of ASCII without these.
    pub const fn graphic_without(bytes: &[u8]) -> Class {
        let (Class(mut class), mut byte) = (Class::of(bytes), 0_u8);
        while byte < 128 {
            class[byte as usize] = byte.is_ascii_graphic() && !class[byte as usize];
            byte += 1;
        }
        Class(class)
    }

    pub fn has_all(&self, bytes: &[u8]) -> bool {
        bytes.iter().all(|byte| self.0[usize::from(*byte)])
    }
}

/// Returns whether it is nothing, or a colon and digits.
fn is_port(text: &[u8]) -> bool {
    match text.split_first() {
        None => true,
        Some((b':', digits)) => digits.len() <= 5 && digits.iter().all(u8::is_ascii_digit),
        Some(_) => false,
    }
}

/// Returns whether the byte may be in the names of headers, and of methods.
pub fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Returns whether every line ends with CR and LF: a reader that takes a bare LF for an end sees
/// another message.
pub fn ends_are_whole(head: &[u8]) -> bool {
    let Some((first, rest)) = head.split_first() else { return true };
    // The loop has no early exit, so that many bytes are looked at in one step.
    let bare = head.iter().zip(rest).fold(*first == b'\n', |bare, (before, byte)| {
        bare | ((*byte == b'\n') & (*before != b'\r'))
    });
    !bare
}

/// Returns the length if it is only digits; a sign, a list or an empty value is refused.
pub fn content_length(value: &[u8]) -> Option<u64> {
    let digits = !value.is_empty() && value.len() <= 18 && value.iter().all(u8::is_ascii_digit);
    digits.then(|| value.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_or_addresses() {
        for good in ["a", "A.b-c_d:80", "127.0.0.1", "[::1]", "[::ffff:1.2.3.4]:8080", "a:", "a."] {
            assert!(is_host(good.as_bytes()), "{good}");
        }
        for bad in [
            "", ":80", "a b", "a/b", "a@b", "a,b", "a:b", "a:1:2", "a:123456", "[::1", "[]",
            "[::g]", "[::1]x", "a\tb", "a%20", "a?b", "a#b", "ä", "a;b", "a\\b",
        ] {
            assert!(!is_host(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn a_bare_end_is_seen_wherever_it_is() {
        assert!(ends_are_whole(b"") && ends_are_whole(b"\r") && !ends_are_whole(b"\n"));
        let whole = b"GET / HTTP/1.1\r\nHost: a-name-that-is-longer-than-others\r\n\r\n";
        assert!(ends_are_whole(whole));
        for at in 0..=whole.len() {
            let mut bare = whole.to_vec();
            bare.insert(at, b'\n');
            assert!(!ends_are_whole(&bare), "{at}");
        }
    }

    #[test]
    fn targets_hold_what_browsers_send() {
        for good in ["/", "/a%20b?c=[1]|{2}^`3`\\", "*", "/'()!$&+,;=:@~", "/%zz"] {
            assert!(is_target(good), "{good}");
        }
        for bad in ["/a b", "/#x", "/\"", "/<a>", "/a\\b", "/ä", "/\u{7f}", "/\0"] {
            assert!(!is_target(bad), "{bad}");
        }
    }
}
