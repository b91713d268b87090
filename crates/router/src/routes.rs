//! Names of hosts: how a `Host` header is read and which names an application answers on. Knows
//! no socket; driven by the router's threads and by whoever builds their table.

use model::ApplicationName;

use crate::http::syntax::Class;

/// The longest name that DNS allows.
pub const HOST_LENGTH_MAX: usize = 253;

/// Every application answers on this name without being asked.
pub fn default_host(name: &ApplicationName) -> String {
    format!("{name}.localhost")
}

/// The name in a `Host` header as tables have it: lower case, without port and final dot. None
/// where it is no name. `buffer` is used where letters have to change.
pub fn normalize<'a>(host: &'a [u8], buffer: &'a mut [u8; HOST_LENGTH_MAX]) -> Option<&'a str> {
    let name = without_port(host)?;
    let name = name.strip_suffix(b".").unwrap_or(name);
    if name.is_empty() || name.len() > HOST_LENGTH_MAX {
        return None;
    }
    const IN_NAMES: Class = Class::graphic_without(b"/?#@,;\"<>\\");
    if !IN_NAMES.has_all(name) {
        return None;
    }
    if name.iter().any(u8::is_ascii_uppercase) {
        let lower = &mut buffer[..name.len()];
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        return std::str::from_utf8(lower).ok();
    }
    std::str::from_utf8(name).ok()
}

fn without_port(host: &[u8]) -> Option<&[u8]> {
    if host.first() == Some(&b'[') {
        let end = host.iter().position(|byte| *byte == b']')?;
        return valid_port(&host[end + 1..]).then_some(&host[..=end]);
    }
    match host.iter().position(|byte| *byte == b':') {
        None => Some(host),
        Some(colon) => valid_port(&host[colon..]).then_some(&host[..colon]),
    }
}

/// Nothing, or a colon and digits.
fn valid_port(text: &[u8]) -> bool {
    match text.split_first() {
        None => true,
        Some((b':', digits)) => digits.len() <= 5 && digits.iter().all(u8::is_ascii_digit),
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(host: &str, expected: Option<&str>) {
        let mut buffer = [0; HOST_LENGTH_MAX];
        assert_eq!(normalize(host.as_bytes(), &mut buffer), expected, "{host}");
    }

    #[test]
    fn names_are_compared_without_port_case_and_dot() {
        check("shop.localhost", Some("shop.localhost"));
        check("Shop.LocalHost:8080", Some("shop.localhost"));
        check("shop.localhost.", Some("shop.localhost"));
        check("shop.localhost.:80", Some("shop.localhost"));
        check("127.0.0.1:8000", Some("127.0.0.1"));
        check("[::1]:8000", Some("[::1]"));
        check("[::1]", Some("[::1]"));
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for bad in ["", ".", ":80", "a b", "a:b", "a:80:80", "[::1", "[::1]x", "a/b", "a,b", "ä"] {
            check(bad, None);
        }
        check(&"x".repeat(254), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(host in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut buffer = [0; HOST_LENGTH_MAX];
            if let Some(name) = normalize(&host, &mut buffer) {
                let mut again = [0; HOST_LENGTH_MAX];
                prop_assert!(!name.bytes().any(|byte| byte.is_ascii_uppercase()));
                let known = normalize(name.as_bytes(), &mut again).is_some();
                prop_assert!(known || name.ends_with('.'));
            }
        }
    }
}
