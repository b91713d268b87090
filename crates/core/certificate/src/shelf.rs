//! Values by the names that they are for: the exact name counts before a family of names.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// Values by name, in lower case; `*.` in front stands for one label.
#[derive(Clone, Debug)]
pub struct Shelf<T> {
    by_name: BTreeMap<String, T>,
}

impl<T> Default for Shelf<T> {
    fn default() -> Shelf<T> {
        Shelf { by_name: BTreeMap::new() }
    }
}

impl<T> Shelf<T> {
    /// Puts a value under a name, unless there is one.
    pub fn offer(&mut self, name: String, value: T) {
        self.by_name.entry(name).or_insert(value);
    }

    /// Returns what is there for a host: for its very name, then for its family.
    pub fn all(&self, host: &str) -> impl Iterator<Item = &T> {
        let host = match host.bytes().any(|byte| byte.is_ascii_uppercase()) {
            true => Cow::Owned(host.to_ascii_lowercase()),
            false => Cow::Borrowed(host),
        };
        let exact = self.by_name.get(&*host);
        let wild = host.split_once('.').map(|(_, rest)| format!("*.{rest}"));
        exact.into_iter().chain(wild.and_then(|wild| self.by_name.get(&wild)))
    }

    /// Returns the first of them.
    pub fn find(&self, host: &str) -> Option<&T> {
        self.all(host).next()
    }

    pub fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exact_name_counts_first() {
        let mut shelf = Shelf::default();
        for (name, value) in [("a.b", 1), ("*.b", 2), ("*.x.b", 3), ("a.b", 4), ("*.localhost", 5)]
        {
            shelf.offer(name.into(), value);
        }
        for (host, expected) in [
            ("a.b", Some(1)),
            ("A.B", Some(1)),
            ("c.b", Some(2)),
            ("c.x.b", Some(3)),
            ("x.b", Some(2)),
            ("d.c.x.b", None),
            ("b", None),
            ("", None),
            ("shop.localhost", Some(5)),
        ] {
            assert_eq!(shelf.find(host).copied(), expected, "{host}");
        }
    }
}
