//! The people of the platform at a node's Redis listener, where they log in with their tokens.
//! Behind it lies the whole store, so an owner of the platform may do everything there, and anybody
//! else nothing.

mod logins;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use access_core::{
    AccessTarget, Decision, Principal, Right, TokenState, TokenText, decide, is_below_owner,
};
use async_trait::async_trait;
use model::key::access_prefix;
use model::people::{Token, User};
use model::value::ContentHash;
use model::{NodeId, Timestamp, TypedKey, UserName};
use redis::{LogInRefused, People};
use runtime::driver::Clock;
use runtime::supervise::supervise;
use runtime::task;
use store::{Entry, SharedStore, WatchEvent, readable};

use self::logins::Logins;

/// The people as the records say, followed so that a change counts at once.
struct RedisPeople {
    known: RwLock<Arc<Known>>,
    /// Whether everybody who has a role is an owner: asked for each command.
    are_owners: AtomicBool,
    store: SharedStore,
    clock: Clock,
    logins: Logins,
}

#[derive(Default)]
struct Known {
    /// The users by their names; `None` for one that this version cannot read.
    users: BTreeMap<UserName, Option<User>>,
    tokens: BTreeMap<ContentHash, Token>,
}

/// Reads who there is, and follows it from then on.
pub async fn follow(
    store: SharedStore,
    node: NodeId,
    clock: Clock,
) -> anyhow::Result<Arc<dyn People>> {
    let people = Arc::new(RedisPeople {
        known: RwLock::default(),
        are_owners: AtomicBool::new(false),
        store,
        clock,
        logins: Logins::of(node),
    });
    people.load().await?;
    let following = people.clone();
    task::spawn(supervise("redis.people", move || following.clone().follow()));
    Ok(people)
}

impl RedisPeople {
    /// Follows the changes until the store ends.
    async fn follow(self: Arc<RedisPeople>) -> anyhow::Result<()> {
        let mut watch = self.store.watch(access_prefix(), None).await?;
        loop {
            self.load().await?;
            let Some(WatchEvent::Changed { .. } | WatchEvent::Resync { .. }) = watch.next().await
            else {
                return Ok(());
            };
        }
    }

    async fn load(&self) -> anyhow::Result<()> {
        let mut known = Known::default();
        for entry in self.store.prefix(&access_prefix()).await? {
            known.add(&entry);
        }
        self.are_owners.store(known.are_owners(), Ordering::Relaxed);
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(known);
        Ok(())
    }

    fn known(&self) -> Arc<Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[async_trait]
impl People for RedisPeople {
    fn are_owners(&self) -> bool {
        self.are_owners.load(Ordering::Relaxed)
    }

    fn may_do_everything(&self, token: &ContentHash) -> bool {
        self.known().is_owner(token, self.clock.now())
    }

    async fn log_in(
        &self,
        name: &str,
        token: &str,
        address: &str,
    ) -> Result<ContentHash, LogInRefused> {
        let text = TokenText::parse(token).map_err(|_| LogInRefused::WrongPassword)?;
        let (known, now) = (self.known(), self.clock.now());
        let (hash, token) = known.log_in(name, &text, now)?;
        let recorded = self.logins.record(&*self.store, (hash, token), address, now).await;
        recorded.map_err(LogInRefused::NotRecorded)?;
        Ok(hash)
    }
}

impl Known {
    /// Takes in a record of a user or a token; others are none of its business. One that cannot be
    /// read is reported, and locks its user out.
    fn add(&mut self, entry: &Entry) {
        match TypedKey::parse(&entry.key) {
            Some(TypedKey::User(name)) => {
                self.users.insert(name, readable(&entry.key, Some(&entry.value)));
            }
            Some(TypedKey::Token(hash)) => {
                let token = readable(&entry.key, Some(&entry.value));
                self.tokens.extend(token.map(|token| (hash, token)));
            }
            _ => {}
        }
    }

    /// Returns whether everybody who has a role is an owner of the platform.
    fn are_owners(&self) -> bool {
        let is_owner =
            |user: &Option<User>| user.as_ref().is_some_and(|user| !is_below_owner(&user.grants));
        self.users.values().all(is_owner)
    }

    /// Returns the token with which somebody of that name may do everything.
    fn log_in(
        &self,
        name: &str,
        text: &TokenText,
        now: Timestamp,
    ) -> Result<(ContentHash, &Token), LogInRefused> {
        let hash = text.hash();
        match self.valid(&hash, now) {
            Some((token, _)) if token.user.as_str() != name => Err(LogInRefused::WrongPassword),
            Some((token, _)) if self.is_owner(&hash, now) => Ok((hash, token)),
            Some((token, _)) => Err(LogInRefused::BelowOwner(token.user.to_string())),
            None => Err(LogInRefused::WrongPassword),
        }
    }

    /// Returns whether a token is good, and its user an owner of the platform.
    fn is_owner(&self, hash: &ContentHash, now: Timestamp) -> bool {
        self.valid(hash, now).is_some_and(|(token, user)| {
            let principal = match (&token.invites, &token.limit) {
                (Some(_), _) => Principal::Invited,
                (None, None) => Principal::User(&user.grants),
                (None, Some(limit)) => Principal::Token(&user.grants, limit),
            };
            decide(principal, Right::ManagePeople, AccessTarget::Platform) == Decision::Allowed
        })
    }

    fn valid(&self, hash: &ContentHash, now: Timestamp) -> Option<(&Token, &User)> {
        let token = self.tokens.get(hash)?;
        let user = self.users.get(&token.user)?.as_ref()?;
        let state = TokenState::of(Some(token), Some(user), now);
        (state == TokenState::Valid).then_some((token, user))
    }
}

#[cfg(test)]
mod tests;
