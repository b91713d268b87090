//! Names of hosts: how a `Host` header is read and which names an application answers on. Knows no
//! socket; driven by the router's threads and by the code that builds their table.

use std::collections::BTreeMap;

use model::{ApplicationName, ApplicationSpec, Timestamp};

use crate::http::syntax::Class;

/// Bytes of the longest name that DNS allows.
pub const HOST_LENGTH_MAX: usize = 253;

/// Returns the name on which every application answers without being asked.
pub fn default_host(name: &ApplicationName) -> String {
    format!("{name}.localhost")
}

/// An application's case where another one wants the same domain or port: only two nodes that do
/// not hear of each other let that happen. Made from records alone, so that all nodes agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    serves: bool,
    created_at: Timestamp,
    since: BTreeMap<String, Timestamp>,
}

/// An application's claim to a domain or a port, of which the least wins: one that serves before
/// one that never did, then the one that came first.
pub type Precedence<'a> = (bool, Timestamp, &'a ApplicationName);

impl Default for Rights {
    fn default() -> Rights {
        Rights { serves: false, created_at: Timestamp(0), since: BTreeMap::new() }
    }
}

impl Rights {
    pub fn of(spec: &ApplicationSpec, serves: bool) -> Rights {
        Rights { serves, created_at: spec.created_at, since: spec.domains_since.clone() }
    }

    /// Returns the time when the application was created, which tells it from another one of its
    /// name.
    pub fn created_at(&self) -> Timestamp {
        self.created_at
    }

    pub fn to_host<'a>(&self, host: &str, name: &'a ApplicationName) -> Precedence<'a> {
        (!self.serves, self.since.get(host).copied().unwrap_or(self.created_at), name)
    }

    pub fn to_port<'a>(&self, name: &'a ApplicationName) -> Precedence<'a> {
        (!self.serves, self.created_at, name)
    }
}

/// Returns `*.` and what follows the first dot, then the second, and so on: the families that a
/// name belongs to, the nearest first. `buffer` has the name.
pub fn families<'a>(
    name: &'a str,
    buffer: &'a mut [u8; HOST_LENGTH_MAX],
    mut has: impl FnMut(&str) -> bool,
) -> Option<&'a str> {
    let bytes = buffer.get_mut(..name.len())?;
    bytes.copy_from_slice(name.as_bytes());
    let dots = name.bytes().enumerate().filter(|(at, byte)| *byte == b'.' && *at > 0);
    for (at, _) in dots {
        bytes[at - 1] = b'*';
        if std::str::from_utf8(&bytes[at - 1..]).is_ok_and(&mut has) {
            return std::str::from_utf8(&buffer[at - 1..name.len()]).ok();
        }
    }
    None
}

/// Returns the name in a `Host` header as tables have it: lower case, without port and final dot;
/// `None` if it is no name. `buffer` is used if letters have to change.
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

/// Returns whether it is nothing, or a colon and digits.
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
    fn a_name_belongs_to_families_and_the_nearest_counts() {
        let find = |name: &str, known: &[&str]| {
            let mut buffer = [0; HOST_LENGTH_MAX];
            families(name, &mut buffer, |family| known.contains(&family)).map(str::to_owned)
        };
        let known = ["*.example.org", "*.shop.example.org"];
        assert_eq!(find("a.example.org", &known).as_deref(), Some("*.example.org"));
        assert_eq!(find("a.b.example.org", &known).as_deref(), Some("*.example.org"));
        assert_eq!(find("a.shop.example.org", &known).as_deref(), Some("*.shop.example.org"));
        assert_eq!(find("shop.example.org", &known).as_deref(), Some("*.example.org"));
        for other in ["example.org", "example.com", "", "localhost", "aexample.org", ".example.org"]
        {
            assert_eq!(find(other, &known), None, "{other}");
        }
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
