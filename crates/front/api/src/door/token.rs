//! The caller, found out by the token that they show or by the socket that they came to.

use std::sync::Arc;

use access_core::{TokenState, TokenText, is_use_due};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use model::people::{Token, TokenUse, User};
use model::record::RECORD_VERSION;
use model::value::ContentHash;
use model::{Timestamp, TypedKey};
use runtime::lock::locked;
use store::SharedStore;

use super::{Door, Refused};
use crate::caller::{Caller, Passed, Person};
use crate::peer::Peer;
use crate::problem::Problem;
use crate::{records, teams};

/// Finds out who asks. A stranger on the network who is refused too often has to wait.
pub(super) async fn authenticate(
    door: Option<&Door>,
    peer: &Peer,
    headers: &HeaderMap,
) -> Result<Caller, Refused> {
    let mut stated = headers.get_all(header::AUTHORIZATION).iter();
    let stated = (stated.next(), stated.next());
    match (stated, peer, door) {
        ((None, _), Peer::Socket { uid }, _) => Ok(Caller(Arc::new(Passed::Machine { uid: *uid }))),
        ((Some(value), None), Peer::Network(connection), Some(door)) => {
            door.check_patience(connection)?;
            let person = by_token(door, value).await;
            match &person {
                Ok(person) => connection.note(person.hash),
                Err(problem) if problem.is_unauthorized() => {
                    locked(&door.refused).take(&connection.network(), door.clock.now());
                }
                Err(_) => {}
            }
            Ok(Caller(Arc::new(Passed::Person(person?))))
        }
        ((Some(value), None), Peer::Socket { .. }, Some(door)) => {
            Ok(Caller(Arc::new(Passed::Person(by_token(door, value).await?))))
        }
        ((Some(_), None), _, None) => {
            let detail = "this store has no people, and so no tokens";
            Err(unauthorized("token_unknown", detail).into())
        }
        ((None, _), Peer::Network(_), _) => {
            let detail = "a client on the network comes with a token";
            Err(unauthorized("token_needed", detail)
                .hint("log in with an invitation: `cortex login`; `cortex users invite` makes one")
                .into())
        }
        ((Some(_), Some(_)), ..) => Err(malformed("there are several".into()).into()),
    }
}

fn unauthorized(code: &'static str, detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, code, detail)
}

fn malformed(detail: String) -> Problem {
    unauthorized("token_malformed", detail)
        .hint("copy the token again, or make another one with `cortex tokens create`")
}

async fn by_token(door: &Door, value: &HeaderValue) -> Result<Box<Person>, Problem> {
    let bearer = value.to_str().ok().and_then(|value| value.split_once(' '));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let Some((_, text)) = bearer else {
        return Err(malformed("one header `Authorization: Bearer cortex_…` is expected".into()));
    };
    let text = TokenText::parse(text).map_err(|fault| malformed(fault.to_string()))?;
    let (hash, now) = (text.hash(), door.clock.now());
    let another = "an owner lets its user in again with `cortex users invite`, and makes tokens for \
                   programs with `cortex tokens create`";
    match find_token(&door.store, hash, now).await? {
        (TokenState::Valid, Some(token), Some(user)) => {
            // With a full disk, people still see what they may.
            if let Err(problem) = note_use(door, hash, now).await {
                tracing::warn!(?problem, "token.use_not_noted");
            }
            let teams = teams::all(&door.store).await?;
            let (name, grants) = (token.user.clone(), user.grants);
            Ok(Box::new(Person { hash, name, grants, token, teams }))
        }
        (TokenState::Expired, Some(token), _) => {
            let detail = format!("the token '{}' of {} has expired", token.name, token.user);
            Err(unauthorized("token_expired", detail).hint(another))
        }
        (TokenState::Revoked, Some(token), _) if token.invites.is_some() => {
            let detail = format!("this invitation of {} was used or taken back", token.user);
            Err(unauthorized("token_revoked", detail)
                .hint("ask for another one: an owner makes it with `cortex users invite`"))
        }
        (TokenState::Revoked, Some(token), _) => {
            let detail = format!("the token '{}' of {} was revoked", token.name, token.user);
            Err(unauthorized("token_revoked", detail).hint(another))
        }
        _ => Err(unauthorized("token_unknown", "nobody has this token here")
            .hint("is it of another cluster, or older than a year?")),
    }
}

/// Returns the state of a token, with it and its user if they are on record.
pub async fn find_token(
    store: &SharedStore,
    hash: ContentHash,
    now: Timestamp,
) -> Result<(TokenState, Option<Token>, Option<User>), Problem> {
    let token: Option<Token> = records::read(&**store, TypedKey::Token(hash)).await?;
    let user: Option<User> = match &token {
        Some(token) => records::read(&**store, TypedKey::User(token.user.clone())).await?,
        None => None,
    };
    Ok((TokenState::of(token.as_ref(), user.as_ref(), now), token, user))
}

/// Notes that a token is used, about once an hour.
async fn note_use(door: &Door, hash: ContentHash, now: Timestamp) -> Result<(), Problem> {
    let key = || TypedKey::TokenUse(hash, door.node.clone());
    let last: Option<TokenUse> = records::read(&*door.store, key()).await?;
    if is_use_due(last.map(|last| last.at), now) {
        let noted = TokenUse { v: RECORD_VERSION, at: now };
        records::write(&*door.store, key(), &noted).await?;
    }
    Ok(())
}
