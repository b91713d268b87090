//! The places of keys in etcd. `ROOT/key:` stands before each of ours; a root has no colon, so no
//! root lies inside another's keys.

use model::{Key, Prefix, key::SEPARATOR};

#[derive(Clone, Debug)]
pub struct Keyspace {
    root: String,
}

impl Keyspace {
    pub fn new(root: &str) -> Keyspace {
        Keyspace { root: format!("/{root}/") }
    }

    /// Returns the prefix of everything of this store, also of what is not a key.
    pub fn all(&self) -> &str {
        &self.root
    }

    /// Returns the key of the store's own name and the version of its layout.
    pub fn identity(&self) -> String {
        format!("{}meta:identity", self.root)
    }

    /// Returns the key that is written whenever a node opens the store, so that no two runs begin
    /// at one revision.
    pub fn opened(&self, node: &model::NodeId) -> String {
        format!("{}meta:opened:{node}", self.root)
    }

    /// Returns the key that is written when everything up to now is squashed.
    pub fn squashed(&self) -> String {
        format!("{}meta:squashed", self.root)
    }

    pub fn name(&self, key: &Key) -> String {
        format!("{}key:{key}", self.root)
    }

    /// Returns the key with this name; `None` if it is not a key, or a malformed one.
    pub fn key(&self, name: &[u8]) -> Option<Key> {
        let name = std::str::from_utf8(name).ok()?;
        name.strip_prefix(&self.root)?.strip_prefix("key:")?.parse().ok()
    }

    /// Returns the ranges `[from, to)` that hold the keys of a prefix, by whole tokens, in key
    /// order.
    pub fn ranges(&self, prefix: &Prefix) -> Vec<(Vec<u8>, Vec<u8>)> {
        let keys = format!("{}key:{}", self.root, prefix.as_str()).into_bytes();
        if prefix.as_str().is_empty() {
            return vec![(keys.clone(), after_all_with(keys))];
        }
        let itself = (keys.clone(), [&keys[..], b"\0"].concat());
        let below = [&keys[..], SEPARATOR.as_bytes()].concat();
        vec![itself, (below.clone(), after_all_with(below))]
    }
}

/// Returns the end of the range of all names that begin like this; these beginnings end in a colon.
fn after_all_with(mut beginning: Vec<u8>) -> Vec<u8> {
    if let Some(last) = beginning.last_mut() {
        *last += 1;
    }
    beginning
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_hold_whole_tokens() {
        let space = Keyspace::new("a/b");
        let key = |text: &str| text.parse::<Key>().unwrap();
        let keys = ["foo", "foo!", "foo::bar", "foo::bar::baz", "foo::barbaz", "foo:x", "fop", "ä"];
        for prefix in ["", "foo", "foo::bar", "fo", "ä", "foo::bar::baz"] {
            let prefix: Prefix = prefix.parse().unwrap();
            for text in keys {
                let name = space.name(&key(text)).into_bytes();
                assert_eq!(space.key(&name), Some(key(text)));
                let found =
                    space.ranges(&prefix).iter().any(|(from, to)| *from <= name && name < *to);
                assert_eq!(found, prefix.matches(&key(text)), "{prefix:?} {text}");
            }
        }
        assert_eq!(space.key(b"/a/b/meta:identity"), None);
        assert_eq!(space.key(b"/a/b/key:"), None);
        assert_eq!(space.key(b"/a/key:x"), None);
        assert_eq!(space.key(b"/a/b/key:\xff"), None);
    }
}
