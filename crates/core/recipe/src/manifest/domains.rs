//! Names of hosts as people write them, in `cortex.toml` and in commands, and as the router
//! compares them: lower case, without a final dot, in the ASCII form that clients send.

/// Bytes of the longest name that DNS allows.
const NAME_LENGTH_MAX: usize = 253;
/// Bytes of the longest part of a name.
const LABEL_LENGTH_MAX: usize = 63;
/// The beginning of the ASCII form of other letters (RFC 5890).
const ASCII_FORM: &str = "xn--";
/// Characters that are shown of what is wrong.
const SHOWN_CHARS_MAX: usize = 80;

/// Returns a domain: `shop.example.org`, `*.example.org` for every name below, or `bücher.example`.
pub fn domain(text: &str) -> Result<String, String> {
    let shown: String = text.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect();
    if text.contains("://") || text.contains('/') {
        return Err(format!(
            "'{shown}' is an address, not a name: write the host name alone, for example \
             'shop.example.org'"
        ));
    }
    if text.rsplit_once(':').is_some_and(|(_, port)| port.bytes().all(|b| b.is_ascii_digit())) {
        return Err(format!(
            "'{shown}' names a port: write the host name alone; all ports of the router lead there"
        ));
    }
    let text = text.trim().trim_end_matches(['.', '\u{3002}']);
    let (wild, plain) = text.strip_prefix("*.").map_or(("", text), |rest| ("*.", rest));
    // The ideographic full stop counts as a dot, as people type it for one (RFC 3490).
    let labels: Option<Vec<String>> = plain.split(['.', '\u{3002}']).map(label).collect();
    let name = labels.map(|labels| format!("{wild}{}", labels.join(".")));
    match name {
        Some(name) if name.len() <= NAME_LENGTH_MAX => Ok(name),
        _ if !text.is_ascii() => Err(format!(
            "'{shown}' cannot be turned into the form that clients send: write it in that form, \
             which begins with '{ASCII_FORM}'"
        )),
        _ => Err(format!("'{shown}' is not a host name: write for example 'shop.example.org'")),
    }
}

/// Returns what is sent as `Host`: a name, or an address, with a port if that belongs to it.
pub fn host_header(text: &str) -> Result<String, String> {
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !text.ends_with(']') => (name, Some(port)),
        _ => (text, None),
    };
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    if !port.is_none_or(is_port) || name.starts_with("*.") {
        let shown: String =
            text.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect();
        return Err(format!("'{shown}' is not a host name: write for example 'shop.example.org'"));
    }
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let name = match bare.map(str::parse::<std::net::Ipv6Addr>) {
        Some(Ok(address)) => format!("[{address}]"),
        _ => domain(name)?,
    };
    Ok(port.map_or(name.clone(), |port| format!("{name}:{port}")))
}

fn label(text: &str) -> Option<String> {
    let text: String = text.chars().flat_map(char::to_lowercase).collect();
    let ascii = if text.is_ascii() {
        text
    } else {
        let letters = text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || is_foreign(c));
        let encoded = letters.then(|| punycode(&text)).flatten()?;
        format!("{ASCII_FORM}{encoded}")
    };
    let valid = (1..=LABEL_LENGTH_MAX).contains(&ascii.len())
        && !ascii.starts_with('-')
        && !ascii.ends_with('-')
        && ascii.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    valid.then_some(ascii)
}

/// Returns whether a character is a letter, digit or sign that is the same however it is typed.
/// Accents of their own (a `u` and two dots) have to be put together first, and wide or styled
/// letters mean plain ones: which takes tables.
fn is_foreign(c: char) -> bool {
    let composed =
        !matches!(c, '\u{300}'..='\u{36f}' | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}');
    let plain =
        !matches!(c, '\u{ff00}'..='\u{ffef}' | '\u{1d400}'..='\u{1d7ff}' | '\u{fb00}'..='\u{fdff}');
    let visible =
        !matches!(c, '\u{80}'..='\u{bf}' | '\u{2000}'..='\u{206f}' | '\u{e000}'..='\u{f8ff}');
    !c.is_ascii() && composed && plain && visible && !c.is_whitespace() && !c.is_control()
}

/// Encodes as RFC 3492 has it, with its names and numbers.
fn punycode(text: &str) -> Option<String> {
    const BASE: u32 = 36;
    const T_MIN: u32 = 1;
    const T_MAX: u32 = 26;
    const SKEW: u32 = 38;
    const DAMP: u32 = 700;
    // 0 to 25 are letters, 26 to 35 digits.
    let digit = |value: u32| char::from_digit((value + 10) % BASE, BASE);
    let mut output: String = text.chars().filter(char::is_ascii).collect();
    let basic = u32::try_from(output.len()).ok()?;
    if basic > 0 {
        output.push('-');
    }
    let (mut code, mut delta, mut bias, mut handled) = (128_u32, 0_u32, 72_u32, basic);
    let total = u32::try_from(text.chars().count()).ok()?;
    while handled < total {
        let next = text.chars().map(u32::from).filter(|one| *one >= code).min()?;
        delta = (next - code).checked_mul(handled + 1)?.checked_add(delta)?;
        code = next;
        for one in text.chars().map(u32::from) {
            if one < code {
                delta = delta.checked_add(1)?;
            }
            if one != code {
                continue;
            }
            let (mut rest, mut k) = (delta, BASE);
            loop {
                let t = k.saturating_sub(bias).clamp(T_MIN, T_MAX);
                if rest < t {
                    break;
                }
                output.push(digit(t + (rest - t) % (BASE - t))?);
                rest = (rest - t) / (BASE - t);
                k += BASE;
            }
            output.push(digit(rest)?);
            let mut spread = if handled == basic { delta / DAMP } else { delta / 2 };
            spread += spread / (handled + 1);
            let mut k = 0;
            while spread > (BASE - T_MIN) * T_MAX / 2 {
                spread /= BASE - T_MIN;
                k += BASE;
            }
            bias = k + (BASE - T_MIN + 1) * spread / (spread + SKEW);
            delta = 0;
            handled += 1;
        }
        delta = delta.checked_add(1)?;
        code = code.checked_add(1)?;
    }
    Some(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_get_the_form_that_clients_send() {
        for (text, expected) in [
            ("Shop.Example.ORG.", "shop.example.org"),
            ("*.Example.org", "*.example.org"),
            ("127.0.0.1", "127.0.0.1"),
            ("bücher.example", "xn--bcher-kva.example"),
            ("BÜCHER.example", "xn--bcher-kva.example"),
            ("*.bücher.example", "*.xn--bcher-kva.example"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("straße.example", "xn--strae-oqa.example"),
            ("例え.テスト", "xn--r8jz45g.xn--zckzah"),
            ("例え。テスト", "xn--r8jz45g.xn--zckzah"),
            ("почта@".trim_end_matches('@'), "xn--80a1acny"),
            ("παράδειγμα.δοκιμή", "xn--hxajbheg2az3al.xn--jxalpdlp"),
            ("उदाहरण.परीक्षा", "xn--p1b6ci4b4b3a.xn--11b5bs3a9aj6g"),
            ("münchen-ost.example", "xn--mnchen-ost-9db.example"),
        ] {
            assert_eq!(domain(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_name_is_told_apart() {
        for (text, said) in [
            ("https://shop.example.org/", "write the host name alone"),
            ("shop.example.org/path", "write the host name alone"),
            ("shop.example.org:8080", "names a port"),
            ("a b", "not a host name"),
            ("-a.example", "not a host name"),
            ("a..b", "not a host name"),
            ("", "not a host name"),
            ("*", "not a host name"),
            ("a.*.b", "not a host name"),
            ("bu\u{308}cher.example", "begins with 'xn--'"),
            ("ｓｈｏｐ.example", "begins with 'xn--'"),
            ("zero\u{200b}width.example", "begins with 'xn--'"),
        ] {
            let error = domain(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
        assert!(domain(&"ü".repeat(70)).is_err());
    }

    #[test]
    fn a_host_header_may_have_a_port() {
        for (text, expected) in [
            ("Shop.example", Some("shop.example")),
            ("shop.example:8443", Some("shop.example:8443")),
            ("bücher.example", Some("xn--bcher-kva.example")),
            ("[::1]:80", Some("[::1]:80")),
            ("[::1]", Some("[::1]")),
            ("shop.example:x", None),
            ("*.example", None),
            ("a\r\nX: y", None),
            ("http://shop.example", None),
        ] {
            assert_eq!(host_header(text).ok().as_deref(), expected, "{text}");
        }
    }
}
