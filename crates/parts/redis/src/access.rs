//! Access control: users are records in the store, which are followed so that a change counts at
//! once.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context;
use arc_swap::ArcSwap;
use model::access::{AccessRight, AccessUser};
use model::record::{self, RECORD_VERSION, Unknown};
use model::{ApplicationName, Key, Prefix};

use super::space::Space;
use os::secret_file::random_hex;
use store::{SharedStore, Store, WatchEvent, readable};

/// The first token of the users' keys. A user that may write below it can become any user.
const ACCESS: &str = "access";
/// The user of a connection that has not logged in.
pub const DEFAULT_USER: &str = "default";
/// The number of rights of a user; they are all checked for each command.
const RIGHTS_MAX: usize = 64;
const USER_BYTES_MAX: usize = 64;
/// The length of a token, and of its salt, in bytes.
const TOKEN_BYTES: usize = 32;

#[derive(Clone, Debug)]
pub struct User {
    salt: String,
    token_hash: String,
    rights: Vec<(Prefix, bool)>,
}

impl User {
    fn of(record: AccessUser) -> Option<User> {
        let right = |right: AccessRight| Some((right.prefix.parse().ok()?, right.write));
        let rights: Option<Vec<_>> = record.rights.into_iter().map(right).collect();
        Some(User { salt: record.salt, token_hash: record.token_hash, rights: rights? })
    }

    fn accepts(&self, token: &[u8]) -> bool {
        // `Hash` compares in constant time.
        let known = blake3::Hash::from_hex(&self.token_hash);
        known.is_ok_and(|known| known == hash_of(&self.salt, token))
    }

    /// Returns whether the rights cover everything at and below a prefix.
    pub fn covers(&self, below: &Prefix, write: bool) -> bool {
        self.rights.iter().any(|(prefix, writes)| {
            let wide = prefix.as_str().is_empty()
                || below.as_str().parse::<Key>().is_ok_and(|key| prefix.matches(&key));
            wide && (*writes || !write)
        })
    }
}

fn hash_of(salt: &str, token: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_derive_key("cortex store access token v1");
    hasher.update(salt.as_bytes());
    hasher.update(token);
    hasher.finalize()
}

/// The rights of one connection.
#[derive(Clone, Debug)]
pub enum Rights {
    /// All rights: a local connection, while no user `default` is defined.
    All,
    /// No rights yet: AUTH comes first.
    None,
    /// The rights of a user. They are looked up each time, so that a removed user is out at once.
    User(String),
    /// Everything in an application's own space, by the application's own names.
    Application(Space),
}

/// The way by which a connection came, which decides who may be behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// This machine: no password is needed as long as none is defined.
    Local,
    /// The network: users with their tokens.
    Tls,
    /// The processes of applications, each of which has a token of its own.
    Applications,
}

/// Finds the application that a token of the bus belongs to.
pub type FindApplication = Arc<dyn Fn(&str) -> Option<ApplicationName> + Send + Sync>;

#[derive(Default)]
pub struct Access {
    users: ArcSwap<BTreeMap<String, User>>,
    applications: Option<FindApplication>,
}

impl Access {
    pub fn new(applications: Option<FindApplication>) -> Access {
        Access { users: ArcSwap::default(), applications }
    }

    pub fn initial(&self, door: Door) -> Rights {
        if door == Door::Local && !self.users.load().contains_key(DEFAULT_USER) {
            Rights::All
        } else {
            Rights::None
        }
    }

    pub fn log_in(&self, door: Door, user: &str, token: &[u8]) -> Option<Rights> {
        if door == Door::Applications {
            // The token says whose it is: some clients send no user, others one of their own.
            let find = self.applications.as_ref()?;
            let application = find(std::str::from_utf8(token).ok()?)?;
            return Some(Rights::Application(Space::new(application)));
        }
        let accepted = self.users.load().get(user).is_some_and(|user| user.accepts(token));
        accepted.then(|| Rights::User(user.into()))
    }

    pub fn covers(&self, rights: &Rights, prefix: &Prefix, write: bool) -> bool {
        match rights {
            Rights::All => true,
            // An application's names become its own keys before they are looked at.
            Rights::None | Rights::Application(_) => false,
            Rights::User(name) => {
                self.users.load().get(name).is_some_and(|user| user.covers(prefix, write))
            }
        }
    }

    /// Reads the users, and follows their changes until the store ends.
    pub async fn follow(&self, store: &SharedStore) -> anyhow::Result<()> {
        let mut watch = store.watch(prefix(), None).await?;
        loop {
            self.load_from(store).await?;
            let Some(WatchEvent::Changed { .. } | WatchEvent::Resync { .. }) = watch.next().await
            else {
                return Ok(());
            };
        }
    }

    pub async fn load_from(&self, store: &SharedStore) -> anyhow::Result<()> {
        let mut users = BTreeMap::new();
        for entry in store.prefix(&prefix()).await? {
            let name: Vec<&str> = entry.key.tokens().skip(1).collect();
            let [name] = name[..] else { continue };
            // A user whose record cannot be read is locked out, and that is reported.
            if let Some(user) = readable(&entry.key, Some(&entry.value)).and_then(User::of) {
                users.insert(name.to_string(), user);
            }
        }
        self.users.store(Arc::new(users));
        Ok(())
    }

    /// Makes a user, or gives an existing one new rights and a new token; returns the token.
    pub async fn create(
        &self,
        store: &dyn Store,
        name: &str,
        rights: Vec<AccessRight>,
    ) -> anyhow::Result<String> {
        anyhow::ensure!(
            !name.is_empty() && name.len() <= USER_BYTES_MAX && !name.contains("::"),
            "a user's name has 1 to {USER_BYTES_MAX} bytes and no '::'"
        );
        anyhow::ensure!(rights.len() <= RIGHTS_MAX, "a user has at most {RIGHTS_MAX} rights");
        let (salt, token) = (random_hex(TOKEN_BYTES)?, random_hex(TOKEN_BYTES)?);
        let token_hash = hash_of(&salt, token.as_bytes()).to_string();
        let user =
            AccessUser { v: RECORD_VERSION, salt, token_hash, rights, unknown: Unknown::new() };
        let key: Key = format!("{ACCESS}::{name}").parse().context("the user's name")?;
        store.set(key, record::encode(&user).into()).await?;
        Ok(token)
    }

    pub async fn remove(&self, store: &dyn Store, name: &str) -> anyhow::Result<bool> {
        let key: Key = format!("{ACCESS}::{name}").parse().context("the user's name")?;
        Ok(store.delete(key).await?.is_some())
    }

    pub fn names(&self) -> Vec<(String, Vec<(Prefix, bool)>)> {
        let users = self.users.load();
        users.iter().map(|(name, user)| (name.clone(), user.rights.clone())).collect()
    }
}

fn prefix() -> Prefix {
    ACCESS.parse().expect("a token is a prefix")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_cover_whole_tokens_only() {
        let right = |prefix: &str, write| AccessRight { prefix: prefix.into(), write };
        let user = User::of(AccessUser {
            v: 1,
            salt: "s".into(),
            token_hash: hash_of("s", b"token").to_string(),
            rights: vec![right("app::web", true), right("node", false)],
            unknown: Unknown::new(),
        });
        let user = user.unwrap();
        for (prefix, write, expected) in [
            ("app::web::x", true, true),
            ("app::web", true, true),
            ("app::website", false, false),
            ("app", false, false),
            ("", false, false),
            ("node::a", false, true),
            ("node::a", true, false),
        ] {
            assert_eq!(user.covers(&prefix.parse().unwrap(), write), expected, "{prefix}");
        }
        assert!(user.accepts(b"token") && !user.accepts(b"tokem") && !user.accepts(b""));
    }
}
