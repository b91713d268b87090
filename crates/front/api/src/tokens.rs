//! Tokens: made once, shown once, kept as hashes. Whoever manages people makes them for anybody;
//! everybody makes narrower ones for themselves.

use std::time::Duration;

use access_core::{
    Right, TOKEN_AGE_DEFAULT, TOKEN_AGE_MAX, TOKEN_KEPT, TOKEN_RANDOM_BYTES, TokenState, TokenText,
    is_within,
};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use model::hex::from_hex;
use model::key::{token_uses_prefix, tokens_prefix};
use model::people::{Token, TokenUse, User};
use model::record::{RECORD_VERSION, Unknown};
use model::value::ContentHash;
use model::{Timestamp, TokenName, TypedKey, UserName};
use store::readable;

use super::caller::Caller;
use super::json_body::JsonBody;
use super::problem::Problem;
use super::{Api, Shared, records, users};
use api_types::people::{CreateToken, TokenCreated, TokenRow};

/// The most tokens of a user that are good: one for each machine and each program.
const TOKENS_MAX: usize = 50;
const DAY: Duration = Duration::from_secs(24 * 3600);

async fn all(api: &Api) -> Result<Vec<(ContentHash, Token)>, Problem> {
    let named = |key| if let TypedKey::Token(hash) = key { Some(hash) } else { None };
    records::all(&*api.store, &tokens_prefix(), named).await
}

/// Returns the number of a user's tokens that are good.
pub async fn valid_of(api: &Api, name: &UserName, user: &User) -> Result<usize, Problem> {
    let now = api.now();
    let is_valid = |token: &Token| {
        token.user == *name
            && token.invites.is_none()
            && TokenState::of(Some(token), Some(user), now) == TokenState::Valid
    };
    Ok(all(api).await?.iter().filter(|(_, token)| is_valid(token)).count())
}

pub async fn row(api: &Api, hash: ContentHash, token: &Token) -> Result<TokenRow, Problem> {
    let user: Option<User> = records::read(&*api.store, TypedKey::User(token.user.clone())).await?;
    let mut last = None;
    for entry in api.store.prefix(&token_uses_prefix(&hash)).await? {
        let noted: Option<TokenUse> = readable(&entry.key, Some(&entry.value));
        last = last.max(noted.map(|noted| noted.at));
    }
    let limit = match &token.limit {
        Some(limit) => Some(users::grant_row(api, limit).await?),
        None => None,
    };
    Ok(TokenRow {
        user: token.user.to_string(),
        name: token.name.to_string(),
        state: TokenState::of(Some(token), user.as_ref(), api.now()).word().into(),
        limit,
        created_at: records::rfc3339(token.created_at),
        expires_at: records::rfc3339(token.expires_at),
        last_used_at: last.map(records::rfc3339),
    })
}

/// Returns whether the caller has to do with the tokens of a user.
fn is_of(caller: &Caller, user: &UserName) -> bool {
    caller.may(Right::ManagePeople) || caller.token().is_some_and(|token| token.user == *user)
}

pub async fn list(
    State(api): State<Shared>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Vec<TokenRow>>, Problem> {
    let mut rows = Vec::new();
    for (hash, token) in all(&api).await? {
        if is_of(&caller, &token.user) {
            rows.push(row(&api, hash, &token).await?);
        }
    }
    rows.sort_by(|a, b| (&a.user, &a.name, &a.created_at).cmp(&(&b.user, &b.name, &b.created_at)));
    Ok(Json(rows))
}

pub async fn create(
    State(api): State<Shared>,
    Extension(caller): Extension<Caller>,
    JsonBody(asked): JsonBody<CreateToken>,
) -> Result<(StatusCode, Json<TokenCreated>), Problem> {
    let name: TokenName = asked.name.parse()?;
    let own = caller.token().map(|token| token.user.to_string());
    let Some(user) = asked.user.clone().or(own) else {
        let detail = "whose token it is to be is not said";
        return Err(Problem::invalid("no_user_named", detail)
            .hint("name the user: `cortex tokens create NAME --user USER`"));
    };
    let age = asked.days.map_or(TOKEN_AGE_DEFAULT, |days| DAY.saturating_mul(days));
    if age.is_zero() || age > TOKEN_AGE_MAX {
        let days = TOKEN_AGE_MAX.as_secs() / DAY.as_secs();
        let detail = format!("a token is good for 1 to {days} days");
        return Err(Problem::invalid("invalid_expiry", detail));
    }
    let _changing = api.changes.lock().await;
    let user: UserName = user.parse()?;
    if !is_of(&caller, &user) {
        return Err(users::no_user(&user));
    }
    let (user, record) = users::require(&api.store, user.as_str()).await?;
    let mut limit = match &asked.limit {
        Some(limit) => Some(users::resolve(&api, limit).await?),
        None => None,
    };
    let now = api.now();
    let mut expires_at = now.after(age);
    // A token of one's own lasts no longer and does no more than the one that makes it.
    if let Some(maker) = caller.token().filter(|_| !caller.may(Right::ManagePeople)) {
        limit = limit.or_else(|| maker.limit.clone());
        if !is_within(limit.as_ref(), maker.limit.as_ref()) {
            let detail = "a token makes none that may do more than itself";
            return Err(Problem::new(StatusCode::FORBIDDEN, "token_limited", detail)
                .hint("ask for less, or ask an owner"));
        }
        expires_at = expires_at.min(maker.expires_at);
    }
    let known = all(&api).await?;
    check_name(&known, &user, &record, &name, now)?;
    let (text, row) = make(&api, |created_at| Token {
        v: RECORD_VERSION,
        name,
        user,
        user_created_at: record.created_at,
        created_at,
        expires_at,
        limit,
        revoked_at: None,
        invites: None,
        unknown: Unknown::new(),
    })
    .await?;
    Ok((StatusCode::CREATED, Json(TokenCreated { token: text.as_str().into(), row })))
}

/// Makes a token of now, and removes those that have not been good for long.
pub async fn make(
    api: &Api,
    token: impl FnOnce(Timestamp) -> Token,
) -> Result<(TokenText, TokenRow), Problem> {
    let (text, token) = (draw()?, token(api.now()));
    let hash = text.hash();
    records::write(&*api.store, TypedKey::Token(hash), &token).await?;
    forget_old(api, &all(api).await?).await?;
    let row = row(api, hash, &token).await?;
    Ok((text, row))
}

/// Returns a name that no good token of this user has: the wanted one, or that with a number.
pub async fn free_name(
    api: &Api,
    user: &UserName,
    record: &User,
    wanted: TokenName,
) -> Result<TokenName, Problem> {
    let (known, now) = (all(api).await?, api.now());
    let numbered = (2..=TOKENS_MAX).filter_map(|n| format!("{wanted}-{n}").parse().ok());
    for name in std::iter::once(wanted.clone()).chain(numbered) {
        if check_name(&known, user, record, &name, now).is_ok() {
            return Ok(name);
        }
    }
    check_name(&known, user, record, &wanted, now)?;
    Ok(wanted)
}

/// Revokes the tokens of that name, which a user has one of at most; returns it.
pub async fn revoke_named(
    api: &Api,
    user: &UserName,
    name: &TokenName,
) -> Result<Option<TokenRow>, Problem> {
    let is_meant =
        |token: &Token| token.user == *user && token.name == *name && token.revoked_at.is_none();
    let mut revoked = None;
    for (hash, mut token) in all(api).await? {
        if is_meant(&token) {
            token.revoked_at = Some(api.now());
            records::write(&*api.store, TypedKey::Token(hash), &token).await?;
            revoked = Some(row(api, hash, &token).await?);
        }
    }
    Ok(revoked)
}

fn check_name(
    known: &[(ContentHash, Token)],
    user: &UserName,
    record: &User,
    name: &TokenName,
    now: Timestamp,
) -> Result<(), Problem> {
    let is_valid = |token: &&Token| {
        token.user == *user && TokenState::of(Some(token), Some(record), now) == TokenState::Valid
    };
    let valid: Vec<&Token> = known.iter().map(|(_, token)| token).filter(is_valid).collect();
    if valid.iter().any(|token| token.name == *name) {
        let detail = format!("{user} has a token '{name}' already");
        return Err(Problem::conflict("token_exists", detail)
            .hint(format!("choose another name, or `cortex tokens revoke {user} {name}` first")));
    }
    if valid.len() >= TOKENS_MAX {
        let detail = format!("{user} has {TOKENS_MAX} tokens, which is the most");
        return Err(Problem::conflict("too_many_tokens", detail)
            .hint("revoke some: `cortex tokens` says when each was used last"));
    }
    Ok(())
}

/// Makes the text of a token by chance.
fn draw() -> Result<TokenText, Problem> {
    loop {
        let random = os::secret_file::random_hex(TOKEN_RANDOM_BYTES)
            .map_err(|error| Problem::internal(format!("no randomness is to be had: {error}")))?;
        let text = from_hex(&random).and_then(|bytes| TokenText::from_random(&bytes));
        if let Some(text) = text {
            return Ok(text);
        }
    }
}

/// Removes tokens that have not been good for long, and what was noted of their use.
async fn forget_old(api: &Api, known: &[(ContentHash, Token)]) -> Result<(), Problem> {
    let ended = |token: &Token| token.revoked_at.unwrap_or(token.expires_at).min(token.expires_at);
    for (hash, _) in known.iter().filter(|(_, token)| api.now().since(ended(token)) > TOKEN_KEPT) {
        for key in api.store.keys(&token_uses_prefix(hash)).await? {
            api.store.delete(key).await?;
        }
        api.store.delete(TypedKey::Token(*hash).key()).await?;
    }
    Ok(())
}

pub async fn revoke(
    State(api): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path((user, name)): Path<(String, String)>,
) -> Result<Json<TokenRow>, Problem> {
    let (asked, name): (UserName, TokenName) = (user.parse()?, name.parse()?);
    if !is_of(&caller, &asked) {
        return Err(users::no_user(&asked));
    }
    let _changing = api.changes.lock().await;
    revoke_named(&api, &asked, &name).await?.map(Json).ok_or_else(|| {
        let detail = format!("{asked} has no token '{name}' that is good");
        Problem::missing("no_token", detail).hint("`cortex tokens` lists all")
    })
}
