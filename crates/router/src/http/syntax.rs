//! Which bytes a target and a Host are made of. What lies outside may mean something else to the
//! next reader, and is refused.

/// RFC 3986, and what browsers send beside it; neither may hold a fragment, a quote or a bracket.
pub fn is_target(text: &str) -> bool {
    let path_end = text.find('?').unwrap_or(text.len());
    text.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"#<>".contains(&byte))
        // Some take it for a slash.
        && !text.as_bytes()[..path_end].contains(&b'\\')
}

/// A name or an address, with or without a port, as in RFC 9110, section 7.2: no user, no path.
/// A comma would make it a list, a `%` another name once it is decoded.
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
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+=".contains(byte);
    !name.is_empty() && name.iter().all(is_name) && is_port(rest)
}

/// Nothing, or a colon and digits.
fn is_port(text: &[u8]) -> bool {
    match text.split_first() {
        None => true,
        Some((b':', digits)) => digits.len() <= 5 && digits.iter().all(u8::is_ascii_digit),
        Some(_) => false,
    }
}

/// Of the names of headers, and of methods.
pub fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Every line ends with CR and LF: who takes a bare LF for an end sees another message.
pub fn ends_are_whole(head: &[u8]) -> bool {
    let mut previous = 0;
    head.iter().all(|byte| {
        let whole = *byte != b'\n' || previous == b'\r';
        previous = *byte;
        whole
    })
}

/// Digits alone; a sign, a list or an empty value is refused.
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
    fn targets_hold_what_browsers_send() {
        for good in ["/", "/a%20b?c=[1]|{2}^`3`\\", "*", "/'()!$&+,;=:@~", "/%zz"] {
            assert!(is_target(good), "{good}");
        }
        for bad in ["/a b", "/#x", "/\"", "/<a>", "/a\\b", "/ä", "/\u{7f}", "/\0"] {
            assert!(!is_target(bad), "{bad}");
        }
    }
}
