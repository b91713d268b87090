//! Access control: users are records in the store, which are followed so that a change counts at
//! once. The people of a platform are known to the node.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context;
use arc_swap::ArcSwap;
use async_trait::async_trait;
use model::access::{AccessRight, AccessUser};
use model::record::{self, RECORD_VERSION, Unknown};
use model::value::ContentHash;
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
    /// All rights: a local connection that came while nobody had to say who they are, and as long
    /// as the people of the platform are owners.
    All,
    /// No rights yet: AUTH comes first.
    None,
    /// The rights of a user. They are looked up each time, so that a removed user is out at once.
    User(String),
    /// All rights, as long as a person's token is good and its user an owner of the platform.
    Person(ContentHash),
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

/// The reason why a login fails.
#[derive(Debug)]
pub enum LogInRefused {
    WrongPassword,
    /// The person of that name is no owner of the platform.
    BelowOwner(String),
    NotRecorded(anyhow::Error),
}

/// The people of a platform, who come with its tokens.
#[async_trait]
pub trait People: Send + Sync {
    /// Returns whether everybody who has a role is an owner of the platform.
    fn are_owners(&self) -> bool;

    /// Returns whether a token that somebody logged in with is still good for everything.
    fn may_do_everything(&self, token: &ContentHash) -> bool;

    /// Returns the hash of a token that is good for everything, and records who came with it.
    async fn log_in(
        &self,
        name: &str,
        token: &str,
        address: &str,
    ) -> Result<ContentHash, LogInRefused>;
}

#[derive(Default)]
pub struct Access {
    users: ArcSwap<BTreeMap<String, User>>,
    applications: Option<FindApplication>,
    people: Option<Arc<dyn People>>,
}

impl Access {
    pub fn new(applications: Option<FindApplication>, people: Option<Arc<dyn People>>) -> Access {
        Access { applications, people, ..Access::default() }
    }

    pub fn initial(&self, door: Door) -> Rights {
        let asks = self.users.load().contains_key(DEFAULT_USER) || !self.are_owners();
        if door == Door::Local && !asks { Rights::All } else { Rights::None }
    }

    /// Returns whether everybody with a role on the platform is an owner; otherwise others may run
    /// programs on this machine, and local connections may do nothing until they say who they are.
    pub fn are_owners(&self) -> bool {
        self.people.as_ref().is_none_or(|people| people.are_owners())
    }

    pub async fn log_in(
        &self,
        (door, address): (Door, &str),
        user: &str,
        token: &[u8],
    ) -> Result<Rights, LogInRefused> {
        let text = std::str::from_utf8(token).map_err(|_| LogInRefused::WrongPassword);
        if door == Door::Applications {
            // The token says whose it is: some clients send no user, others one of their own.
            let find = self.applications.as_ref().ok_or(LogInRefused::WrongPassword)?;
            let application = find(text?).ok_or(LogInRefused::WrongPassword)?;
            return Ok(Rights::Application(Space::new(application)));
        }
        if self.users.load().get(user).is_some_and(|user| user.accepts(token)) {
            return Ok(Rights::User(user.into()));
        }
        let people = self.people.as_ref().ok_or(LogInRefused::WrongPassword)?;
        Ok(Rights::Person(people.log_in(user, text?, address).await?))
    }

    pub fn covers(&self, rights: &Rights, prefix: &Prefix, write: bool) -> bool {
        match rights {
            Rights::All => self.are_owners(),
            // An application's names become its own keys before they are looked at.
            Rights::None | Rights::Application(_) => false,
            Rights::User(name) => {
                self.users.load().get(name).is_some_and(|user| user.covers(prefix, write))
            }
            Rights::Person(token) => {
                self.people.as_ref().is_some_and(|people| people.may_do_everything(token))
            }
        }
    }

    /// Returns whether whoever has these rights may still listen; what was subscribed to or watched
    /// goes on without a command that would ask.
    pub fn may_listen(&self, rights: &Rights) -> bool {
        match rights {
            Rights::Application(_) => true,
            Rights::User(name) => self.users.load().contains_key(name),
            rights => self.covers(rights, &Prefix::all(), false),
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
