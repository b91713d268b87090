//! The space of one application in the store and on the bus: what its clients call keys and
//! channels, and what the store calls them. Pure; no name from inside means anything outside.

use std::collections::BTreeMap;
use std::time::Duration;

use model::key::bus_prefix;
use model::{ApplicationName, Key, Prefix, Timestamp};

/// The beginning of the channels of applications: a byte that no key and no plain name begins with.
const CHANNELS: &[u8] = b"\x00bus/";
/// The number of databases, as clients of Redis expect: their default configuration has 16.
pub const DATABASES: u8 = 16;
/// The number of keys of an application. All nodes keep them, and each write travels to all.
pub const KEYS_MAX: usize = 10_000;
/// The time after which an application's keys are counted again; for so long its writes at other
/// nodes may go beyond.
pub const COUNTED_AGAIN: Duration = Duration::from_secs(1);

/// A number of keys, and when they were counted; those written since are added.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    pub at: Timestamp,
    pub keys: usize,
}

/// The last count for each application that has written.
pub type AllCounted = BTreeMap<ApplicationName, Counted>;

/// An application's space, and the database in it that a connection has selected. Channels are the
/// same in all databases, as with Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    pub application: ApplicationName,
    pub database: u8,
}

impl Space {
    pub fn new(application: ApplicationName) -> Space {
        Space { application, database: 0 }
    }

    /// Returns the prefix of the selected database.
    pub fn prefix(&self) -> Prefix {
        let text = format!("{}::{}", bus_prefix(&self.application).as_str(), self.database);
        // A name and a number are tokens.
        text.parse().unwrap_or_default()
    }

    /// Returns the key by which the store knows what the client calls `name`. Any bytes are a name;
    /// `None` if it is too long.
    pub fn key(&self, name: &[u8]) -> Option<Key> {
        // An empty name is a name, and an empty token is none.
        let mut text = format!("{}::.", self.prefix().as_str());
        for &byte in name {
            match byte {
                b'%' | b':' | 0..=0x1f | 0x7f.. => text.push_str(&format!("%{byte:02X}")),
                _ => text.push(byte.into()),
            }
        }
        text.parse().ok()
    }

    /// Returns what the client calls a key, if it is one of the selected database.
    pub fn name(&self, key: &Key) -> Option<Vec<u8>> {
        let prefix = self.prefix();
        let token = key.as_str().strip_prefix(prefix.as_str())?.strip_prefix("::.")?;
        let mut name = Vec::with_capacity(token.len());
        let mut rest = token.as_bytes();
        while let [byte, after @ ..] = rest {
            rest = after;
            if *byte != b'%' {
                name.push(*byte);
                continue;
            }
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            name.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        }
        Some(name)
    }

    /// Returns the channel, or the pattern of channels, by which the bus knows what the client
    /// calls `name`.
    pub fn channel(&self, name: &[u8]) -> Vec<u8> {
        // Neither the beginning nor an application's name has a character that means something in
        // a pattern.
        [CHANNELS, self.application.as_str().as_bytes(), b"/", name].concat()
    }

    /// Returns what the client calls a channel or a pattern of the bus, if it is one of its own.
    pub fn channel_name<'a>(&self, channel: &'a [u8]) -> Option<&'a [u8]> {
        let below = channel.strip_prefix(CHANNELS)?;
        below.strip_prefix(self.application.as_str().as_bytes())?.strip_prefix(b"/")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use store_core::resp::glob;

    use super::*;

    fn space(name: &str, database: u8) -> Space {
        Space { application: name.parse().unwrap(), database }
    }

    proptest! {
        #[test]
        fn every_name_comes_back_from_its_key(
            name in proptest::collection::vec(any::<u8>(), 0..200),
            database in 0..DATABASES,
        ) {
            let own = space("blog", database);
            let key = own.key(&name).unwrap();
            prop_assert!(own.prefix().matches(&key));
            prop_assert!(bus_prefix(&own.application).matches(&key));
            prop_assert_eq!(own.name(&key), Some(name));
            prop_assert_eq!(space("blog", (database + 1) % DATABASES).name(&key), None);
            prop_assert_eq!(space("blo", database).name(&key), None);
        }

        #[test]
        fn no_name_of_a_channel_reaches_another_application(
            name in proptest::collection::vec(any::<u8>(), 0..60),
            other in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let (blog, shop) = (space("blog", 0), space("blog2", 0));
            let channel = blog.channel(&name);
            prop_assert_eq!(blog.channel_name(&channel), Some(&name[..]));
            prop_assert_eq!(shop.channel_name(&channel), None);
            // As a pattern as well.
            prop_assert!(!glob::matches(&shop.channel(&other), &channel));
            prop_assert_eq!(
                glob::matches(&blog.channel(&other), &channel),
                glob::matches(&other, &name)
            );
        }
    }

    #[test]
    fn keys_are_readable_where_names_are() {
        let key = space("blog", 3).key(b"views/posts:1").unwrap();
        assert_eq!(key.as_str(), "bus::blog::3::.views/posts%3A1");
        assert_eq!(space("blog", 0).key(b"").unwrap().as_str(), "bus::blog::0::.");
        assert_eq!(space("blog", 0).key(&[b'a'; 2000]), None);
    }
}
